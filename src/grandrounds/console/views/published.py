"""What a paper prints of the experiment that a run is of, beside what came out here.

A run below STUDY/runs of `rounds reproduce` is known by its place: results.json beside has the figures over all seeds. Any
other run is known by its plan, where it is the very experiment of a study that has published figures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from grandrounds.console.cache import read_checked
from grandrounds.console.comparisons import ComparisonIndex
from grandrounds.console.run_index import RunIndex, Unreadable
from grandrounds.core.names import slug
from grandrounds.core.reproductions import is_installed, load_part
from grandrounds.runs.run import Run


class Published(BaseModel):
    """A printed figure and ours. `n`: runs that ours is of; `over`: what they are called."""

    study: str
    source: str
    point: str
    arm: str
    measure: str
    lower: bool | None
    digits: int
    published: float | None
    mean: float | None
    low: float | None
    high: float | None
    n: int
    over: str
    quick: bool


class Judged(BaseModel):
    """A sentence of a paper, and whether it holds here."""

    claim: str
    where: str
    arm: str
    verdict: str
    why: str


class StudyShown(BaseModel):
    """A study as its results.json has it."""

    name: str
    title: str
    source: str
    quick: bool
    unpublished: str
    remarks: list[str]
    figures: list[Published]
    claims: list[Judged]


def of_study(comparison_index: ComparisonIndex, name: str) -> StudyShown:
    """All figures of a study that is here, those that no paper prints too."""
    file = comparison_index.study(name)

    def make() -> StudyShown:
        held = comparison_index.read(file)
        return StudyShown(
            name=str(held["study"]), title=str(held["title"]), source=str(held["source"]), quick=bool(held["quick"]),
            unpublished=str(held["unpublished"] or ""), remarks=[str(r) for r in held["remarks"]],
            figures=[_line(held, f) for f in held["figures"] if held["measures"][f["measure"]]["shown"]],
            claims=[Judged(**c) for c in held["claims"]],
        )  # fmt: skip

    return read_checked(comparison_index.run_index, f"study '{name}'", make)


def of_side(run_index: RunIndex, comparison_index: ComparisonIndex, runs: Sequence[str]) -> list[Published]:
    """What is printed of the experiment that these runs, repetitions of one another, are of; nothing where they are of none."""
    out: list[Published] = []
    for name in runs:
        study = comparison_index.study_of(name)
        found = _by_plan(run_index, name) if study is None else _by_place(comparison_index, study, name)
        out += [p for p in found if p not in out]
    return out


def _by_place(comparison_index: ComparisonIndex, study: str, run: str) -> list[Published]:
    """The figures of the arm and point that a run's folder is named for."""
    try:
        held = comparison_index.read(comparison_index.study(study))
        cell = re.sub(rf"-{re.escape(str(held['repeats']))}\d+$", "", run.rsplit("/", 1)[-1])
        own = [f for f in held["figures"] if f"{slug(f['point'])}-{slug(f['arm'])}" == cell]
        return [_line(held, f) for f in own if f["published"] is not None]
    except (Unreadable, KeyError, TypeError, ValueError, AttributeError):
        return []  # a study's own page says what is wrong with it


def _line(held: Mapping[str, Any], figure: Mapping[str, Any]) -> Published:
    measure = held["measures"][figure["measure"]]
    return Published(
        study=held["study"], source=held["source"], point=figure["point"], arm=figure["arm"], measure=measure["words"],
        lower=measure["lower"], digits=measure["digits"], published=figure["published"], mean=figure["mean"],
        low=figure["low"], high=figure["high"], n=figure["n"], over=held["repeats"], quick=held["quick"],
    )  # fmt: skip


def _by_plan(run_index: RunIndex, name: str) -> list[Published]:
    """Of a run that was made by hand and is, but for its name, a run of a study; nothing where reproductions are not here."""
    if not is_installed():
        return []
    run = Run(run_index.get(name).folder, trust_code=None)
    return [Published(**figure) for figure in load_part("printed_figures")(run)]
