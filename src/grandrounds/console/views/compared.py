"""A comparison in plain values: columns, arms with their figures, differences."""

from __future__ import annotations

from pydantic import BaseModel

from grandrounds.console.views.published import Published


class Cell(BaseModel):
    """A figure of an arm. `over`: what its interval is over, runs (seeds and folds) or the test rows of a single run."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    over: str = ""
    best: bool = False
    note: str = ""


class Column(BaseModel):
    """A figure that some arm has. `lower`: whether less is better."""

    name: str
    words: str
    lower: bool


class ArmLine(BaseModel):
    """One arm. `label`: as `rounds compare` names it; `short`: what a page calls it; `cells`: by column."""

    label: str
    short: str
    runs: list[str]
    count: int
    whole: bool
    cells: dict[str, Cell]


class Difference(BaseModel):
    """An arm against the first in one figure, paired by seed and fold."""

    arm: str
    metric: str
    std: float | None
    cv: float | None
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    pairs: int


class Compared(BaseModel):
    """A comparison as its page shows it. `axes`: figures that two arms or more have, `across` the first
    choice of what is held against the first column; `figures`: what can be drawn."""

    title: str
    first: str
    at: float | None
    columns: list[Column]
    beside: list[Column]
    arms: list[ArmLine]
    differences: list[Difference]
    axes: list[Column]
    across: str
    figures: list[str]
    notes: list[str]
    published: list[Published]


class Choice(BaseModel):
    """What can be compared without choosing runs: comparisons and studies that are here."""

    comparisons: list[str]
    studies: list[str]


def with_figure(arms: list[ArmLine], metric: str) -> list[ArmLine]:
    """The arms that have a figure."""
    return [a for a in arms if metric in a.cells and a.cells[metric].mean is not None]
