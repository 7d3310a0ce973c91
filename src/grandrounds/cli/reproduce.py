"""`rounds reproduce`: the command of the package `grandrounds-reproductions`, or a sentence on how to install it."""

from __future__ import annotations

from typing import Annotated

import typer

from grandrounds.core.errors import BadInput
from grandrounds.core.reproductions import MISSING, is_installed, load_part


def register(app: typer.Typer) -> None:
    """Add `rounds reproduce` to the command line."""
    if is_installed():
        app.command()(load_part("command"))
    else:
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command("reproduce", context_settings=settings)(explain_installation)


def explain_installation(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[SYSTEM/WHAT]", help="A reproduction (`rounds list studies`).")
    ] = None,
) -> None:
    """Run what a paper ran, and compare its figures with ours. Needs the distribution `grandrounds-reproductions`.

    In a clone of the repository: `pip install ./reproductions`.
    """
    raise BadInput(MISSING, code="reproductions-not-installed")
