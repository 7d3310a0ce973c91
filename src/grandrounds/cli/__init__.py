"""The command line. `main` is the command `rounds`; it is put together when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grandrounds.cli.command_line import app, main

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'grandrounds.cli' has no attribute '{name}'")
    from grandrounds.cli import command_line

    return getattr(command_line, name)
