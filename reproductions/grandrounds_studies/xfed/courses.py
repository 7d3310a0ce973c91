"""Courses over rounds, as a study kept them of its runs: by seed, and as means over seeds."""

from __future__ import annotations

from math import nan

from grandrounds_studies.results import Results
from grandrounds_studies.study import Cell


def by_seed(results: Results, point: str, arm: str, name: str) -> list[list[float]]:
    """A kept course of each seed that ended; NaN in a round in which it is not known."""
    readings = [results.readings.get(Cell(point, arm, i)) for i in range(results.seeds)]
    courses = [r.kept[name] for r in readings if r is not None and r.kept.get(name)]
    return [[nan if value is None else float(value) for value in course] for course in courses]


def by_round(results: Results, point: str, arm: str, name: str) -> dict[int, float]:
    """The mean over seeds, round -> value; empty where no run ended."""
    held = by_seed(results, point, arm, name)
    return {i: sum(v) / len(v) for i, v in enumerate(zip(*held, strict=True), start=1)} if held else {}
