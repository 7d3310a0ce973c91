"""The second distribution, `grandrounds-reproductions`: reproductions of published studies, found by entry point."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from grandrounds.core.errors import FROM_CLONE, BadInput

GROUP = "grandrounds.reproductions"
MISSING = (
    "reproductions of papers are a distribution of their own, which is not installed: "
    f"{FROM_CLONE} `pip install ./reproductions`"
)


def is_installed() -> bool:
    """Tell whether the reproductions can be loaded."""
    return bool(entry_points(group=GROUP))


def load_part(name: str) -> Any:
    """Load a part of the reproductions.

    Args:
        name: The name of an entry point: "command", "reproduce", "titles" or "printed_figures".

    Returns:
        The function that the entry point names.

    Raises:
        BadInput: They are not installed.
    """
    parts = entry_points(group=GROUP, name=name)
    if not parts:
        raise BadInput(MISSING, code="reproductions-not-installed")
    return next(iter(parts)).load()
