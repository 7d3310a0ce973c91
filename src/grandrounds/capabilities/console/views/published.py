"""Published results of the experiment that a run repeats, and the results here.

A run below STUDY/runs of `rounds reproduce` is known by its place: results.json beside has the figures over all seeds. Any
other run is known by its plan, where it is the very experiment of a study that has published figures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import BaseModel

from grandrounds.capabilities.console.cache import read_checked
from grandrounds.capabilities.console.comparisons import ComparisonIndex, Content
from grandrounds.capabilities.console.run_index import RunIndex, Unreadable
from grandrounds.core.names import slug
from grandrounds.core.reproductions import is_installed, load_part
from grandrounds.runs.run import Run


class PublishedFigure(BaseModel):
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


class ClaimVerdict(BaseModel):
    """A claim of a paper, and its verdict here."""

    claim: str
    where: str
    arm: str
    verdict: str
    why: str


class StudyView(BaseModel):
    """A study as its results.json has it."""

    name: str
    title: str
    source: str
    quick: bool
    unpublished: str
    remarks: list[str]
    figures: list[PublishedFigure]
    claims: list[ClaimVerdict]


def load_study(comparison_index: ComparisonIndex, name: str) -> StudyView:
    """Load all figures of a study that is here, also those that no paper prints."""
    file = comparison_index.study(name)

    def make() -> StudyView:
        results = comparison_index.read(file)
        return StudyView(
            name=str(results["study"]), title=str(results["title"]), source=str(results["source"]), quick=bool(results["quick"]),
            unpublished=str(results["unpublished"] or ""), remarks=[str(r) for r in results["remarks"]],
            figures=[_line(results, f) for f in results["figures"] if results["measures"][f["measure"]]["shown"]],
            claims=[ClaimVerdict(**c) for c in results["claims"]],
        )  # fmt: skip

    return read_checked(comparison_index.run_index, f"study '{name}'", make)


def published_figures(
    run_index: RunIndex, comparison_index: ComparisonIndex, runs: Sequence[str]
) -> list[PublishedFigure]:
    """List the published figures of the experiment that these runs, repetitions of one another, belong to."""
    out: list[PublishedFigure] = []
    for name in runs:
        study = comparison_index.study_of(name)
        figures = (
            _figures_by_plan(run_index, name) if study is None else _figures_by_place(comparison_index, study, name)
        )
        out += [p for p in figures if p not in out]
    return out


def _figures_by_place(comparison_index: ComparisonIndex, study: str, run: str) -> list[PublishedFigure]:
    """List the figures of the arm and point that a run's folder is named for."""
    try:
        results = comparison_index.read(comparison_index.study(study))
        cell = re.sub(rf"-{re.escape(str(results['repeats']))}\d+$", "", run.rsplit("/", 1)[-1])
        figures = [f for f in results["figures"] if f"{slug(f['point'])}-{slug(f['arm'])}" == cell]
        return [_line(results, f) for f in figures if f["published"] is not None]
    except (Unreadable, KeyError, TypeError, ValueError, AttributeError):
        return []  # the study's own page describes the fault


def _line(results: Content, figure: Content) -> PublishedFigure:
    measure = results["measures"][figure["measure"]]
    return PublishedFigure(
        study=results["study"], source=results["source"], point=figure["point"], arm=figure["arm"], measure=measure["words"],
        lower=measure["lower"], digits=measure["digits"], published=figure["published"], mean=figure["mean"],
        low=figure["low"], high=figure["high"], n=figure["n"], over=results["repeats"], quick=results["quick"],
    )  # fmt: skip


def _figures_by_plan(run_index: RunIndex, name: str) -> list[PublishedFigure]:
    """List the figures of a run that is, but for its name, a run of a study; none without the reproductions."""
    if not is_installed():
        return []
    run = Run(run_index.get(name).folder, trust_code=None)
    return [PublishedFigure(**figure) for figure in load_part("printed_figures")(run)]
