"""The command line. `main` is the command `rounds`; it is built when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grandrounds.cli.command_line import app, main

__all__ = ["app", "main"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'grandrounds.cli' has no attribute '{name}'")
    from grandrounds.cli import command_line

    member: object = getattr(command_line, name)
    return member
