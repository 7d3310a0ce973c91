"""How a study's figures are written, on the screen and on its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

QUICK = (
    "QUICK VERSION: fewer rounds, seeds, points or arms than the study has. These are not its results, and the verdicts are "
    "of the quick version only."
)


def repeats_words(values: Mapping[str, Any]) -> str:
    """How often the same was run: "5 seeds", "1 fold"."""
    return f"{values['seeds']} {values['repeats']}{'' if values['seeds'] == 1 else 's'}"


def shown_figures(values: Mapping[str, Any], point: str) -> list[Mapping[str, Any]]:
    """The figures of a point that belong in a table."""
    return [f for f in values["figures"] if f["point"] == point and values["measures"][f["measure"]]["shown"]]


def cell_words(figure: Mapping[str, Any], digits: int) -> str:
    """Mean and half of its 95% interval: "0.523 ± 0.011"; without an interval the mean alone."""
    if figure["mean"] is None:
        return "undefined"
    half = "" if figure["high"] is None else f" ± {figure['high'] - figure['mean']:.{digits}f}"
    return f"{figure['mean']:.{digits}f}{half}"


def published_words(value: float | None) -> str:
    """A figure as the paper prints it; a dash where it prints none."""
    return "–" if value is None else f"{value:g}"
