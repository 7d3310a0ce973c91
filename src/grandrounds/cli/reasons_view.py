"""On the screen: whether a net is right, and for the right reason; its scores beside those that mean nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from grandrounds.report.sections.images import RATIONALE_COLUMNS, THIS_MODEL, rationale_rows

if TYPE_CHECKING:
    from rich.console import Console

    from grandrounds.analysis.case.rationale import Reasoned, ScoredPicture

_LISTED = 12
_NARROW = 8  # letters of a baseline's name in a line, so that all stand on a screen of 80


def show_reasoned(console: Console, found: Reasoned) -> None:
    """The four kinds of pictures, the net beside its baselines, and the pictures that are not as they should be."""
    _say(
        console,
        f"{found.run} on {found.on}: {found.figures['pictures']} pictures, {found.figures['scored']} with a mask of use",
    )
    table = Table("pictures")
    columns = next(iter(found.table.values()))
    for column in columns:
        table.add_column(column, justify="right")
    for name, counts in found.table.items():
        table.add_row(name, *(str(counts[column]) for column in columns))
    console.print(table)
    show_scores(console, {**found.figures, "baselines": found.baselines})
    _list(console, "right for the wrong reason", found.of(right=True, reason=False))
    _list(console, "wrong for the right reason", found.of(right=False, reason=True))


def show_scores(console: Console, reasons: Mapping[str, Any]) -> None:
    """The scores of a net, and of what knows nothing."""
    columns = rationale_rows(reasons)
    table = Table()
    table.add_column("scored", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=name == THIS_MODEL, max_width=None if name == THIS_MODEL else _NARROW)
    for key, said in RATIONALE_COLUMNS.items():
        if any(key in cells for cells in columns.values()):
            table.add_row(said, *(cells.get(key, "-") for cells in columns.values()))
    console.print(table)
    _say(console, "a score says something as far as it is above those to its right; +- is the standard error")


def _list(console: Console, title: str, pictures: Sequence[ScoredPicture]) -> None:
    _say(console, f"{title}: {len(pictures) or 'none'}")
    for p in pictures[:_LISTED]:
        _say(console, f"  picture {p.number}: {p.called}")
    if len(pictures) > _LISTED:
        _say(console, f"  and {len(pictures) - _LISTED} more (--json has them all)")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
