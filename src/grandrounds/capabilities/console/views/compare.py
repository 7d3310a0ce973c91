"""Arms of a comparison: their figures with intervals, the best of each, differences to the first, and its drawings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pydantic import BaseModel

from grandrounds.analysis.compare import DEFAULT_METRICS, GAP, WORST_AUROC, compare_settings
from grandrounds.capabilities.console.cache import get_cache, read_checked, stamp_files
from grandrounds.capabilities.console.comparisons import ComparisonIndex, find_comparisons
from grandrounds.capabilities.console.run_index import FINISHED, NotFound, RunIndex
from grandrounds.capabilities.console.views.arms import (
    COURSES,
    EPSILON,
    EXPLANATION_METRICS,
    MEGABYTES,
    Side,
    Sides,
    group_runs,
    load_comparison,
)
from grandrounds.capabilities.console.views.engineer import EntryPage, RunQuery, page_entries
from grandrounds.capabilities.console.views.published import PublishedFigure, published_figures
from grandrounds.capabilities.console.views.runs import RunLine, run_line
from grandrounds.capabilities.console.views.sections import write_setting
from grandrounds.core.errors import BadInput
from grandrounds.methods.baselines import Local
from grandrounds.metrics.fairness import worst_site
from grandrounds.metrics.names import higher_is_better, lower_is_better
from grandrounds.report import figures
from grandrounds.report.figure import Figure
from grandrounds.report.style import words


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
    """A figure that some arm has. `lower`: lower values are better; null where neither are."""

    name: str
    words: str
    lower: bool | None


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


class SettingLine(BaseModel):
    """A setting in which arms differ. `values`: one for each arm."""

    name: str
    values: list[str]


class ComparisonView(BaseModel):
    """A comparison as its page shows it. `axes`: figures that two arms or more have, `across` the first
    choice of the second axis; `figures`: what can be drawn."""

    title: str
    first: str
    at: float | None
    columns: list[Column]
    beside: list[Column]
    arms: list[ArmLine]
    settings: list[SettingLine] = []
    differences: list[Difference]
    axes: list[Column]
    across: str
    figures: list[str]
    notes: list[str]
    conclusion: list[str]
    published: list[PublishedFigure]


@dataclass(frozen=True)
class RunChoice:
    """A page of finished runs to choose from.

    Attributes:
        page: The page.
        lines: Its runs.
        chosen: Runs that are chosen, on this page and on others.
    """

    page: EntryPage
    lines: list[RunLine]
    chosen: list[str]

    @property
    def elsewhere(self) -> list[str]:
        """The chosen runs that are not on this page."""
        here = {line.name for line in self.lines}
        return [name for name in self.chosen if name not in here]


class Choice(BaseModel):
    """Saved comparisons and reproductions."""

    comparisons: list[str]
    studies: list[str]


def arms_with(arms: list[ArmLine], metric: str) -> list[ArmLine]:
    """List the arms that have a score."""
    return [a for a in arms if metric in a.cells and a.cells[metric].mean is not None]


SCORE_METRICS = (*(f"{before}{m}" for m in DEFAULT_METRICS for before in ("decision_", "")), WORST_AUROC)
CACHED = 16
"""Comparisons that stay cached."""
SEEDS, ROWS = "runs", "test rows"
"""Repetitions that an interval is over."""


def choose_runs(run_index: RunIndex, text: str, page: int, chosen: Sequence[str]) -> RunChoice:
    """List a page of the finished runs with these words in their name, data, method or model."""
    found = page_entries(run_index, RunQuery(text, FINISHED, page=page))
    known = {entry.name for entry in run_index.runs() if entry.state == FINISHED}
    lines = [run_line(run_index, entry) for entry in found.entries]
    return RunChoice(found, lines, [name for name in dict.fromkeys(chosen) if name in known])


def choices(run_index: RunIndex) -> Choice:
    comparisons = find_comparisons(run_index)
    return Choice(comparisons=sorted(comparisons.comparisons), studies=sorted(comparisons.studies))


def compare_runs(run_index: RunIndex, runs: Sequence[str], comparison: str | None = None) -> ComparisonView:
    """Compare these runs, or show a saved comparison.

    Raises:
        BadInput: Neither or both are given, or the runs cannot be compared.
        NotFound: There is no such run or comparison.
    """
    return _load_both(run_index, runs, comparison)[1]


def figure(
    run_index: RunIndex,
    figure_name: str,
    runs: Sequence[str],
    comparison: str | None = None,
    *,
    x: str = "",
    y: str = "",
) -> Figure:
    """Draw a figure of a comparison, by its name. `x`, `y`: the axes of `pareto`."""
    return draw_figure(*_load_both(run_index, runs, comparison), figure_name, x=x, y=y)


def _load_both(run_index: RunIndex, runs: Sequence[str], comparison: str | None) -> tuple[Sides, ComparisonView]:
    """Compute a comparison once while all its files are unchanged."""
    comparisons = find_comparisons(run_index)
    if comparison is not None and runs:
        raise BadInput("choose runs or a comparison, not both", code="conflicting-choices")
    if comparison is None and not runs:
        raise BadInput("choose runs to compare, or a comparison", code="nothing-chosen")
    if comparison is None:
        stamp: object = tuple(run_index.get(name).stamp() for name in dict.fromkeys(runs))
    else:
        file = comparisons.comparison(comparison)
        stamp = stamp_files(file.parent, [file.name])
    key = (comparison, *runs)
    return get_cache(run_index).get_or_make(
        "compare", key, stamp, lambda: _compute(run_index, comparisons, runs, comparison), most=CACHED
    )


def _compute(
    run_index: RunIndex, comparisons: ComparisonIndex, runs: Sequence[str], comparison: str | None
) -> tuple[Sides, ComparisonView]:
    def make() -> tuple[Sides, ComparisonView]:
        sides = (
            group_runs(run_index, runs) if comparison is None else load_comparison(run_index, comparisons, comparison)
        )
        return sides, _to_view(run_index, comparisons, sides)

    return read_checked(run_index, "a run" if comparison is None else f"comparison '{comparison}'", make)


def _to_view(run_index: RunIndex, comparisons: ComparisonIndex, sides: Sides) -> ComparisonView:
    row_by_cell = {(str(r["arm"]), str(r["metric"])): r for r in sides.rows}
    lines = [_line(side, row_by_cell) for side in sides.sides]
    present = list(dict.fromkeys(str(r["metric"]) for r in sides.rows))
    metrics = [m for m in present if any(a.cells[m].mean is not None for a in lines if m in a.cells)]
    same = _other_rows(sides) is None
    for metric in metrics:
        if same or metric in (MEGABYTES, EPSILON):
            mark_best(metric, [a.cells[metric] for a in lines if metric in a.cells])
    late = (*EXPLANATION_METRICS, GAP, MEGABYTES, EPSILON)
    columns = [
        _column(m)
        for m in (
            *(m for m in SCORE_METRICS if m in metrics),
            *(m for m in metrics if m not in (*SCORE_METRICS, *late)),
        )
    ]
    late_columns = [_column(m) for m in late if m in metrics]
    axes = [c for c in (*columns, *late_columns) if len(arms_with(lines, c.name)) > 1]
    first = next((s.short for s in sides.sides if s.label == sides.first), sides.first)
    shown = ComparisonView(
        title=sides.title, first=first, at=sides.virtual_seconds, columns=columns, beside=late_columns, arms=lines,
        settings=_settings(sides), differences=_differences(sides, {c.name for c in (*columns, *late_columns)}), axes=axes,
        across=default_axis(columns, axes), figures=[],
        notes=_notes(sides), conclusion=[*_conclusion(sides), *_best_alone(sides, lines)],
        published=[p for side in sides.sides for p in published_figures(run_index, comparisons, side.runs)],
    )  # fmt: skip
    shown.figures = list_figures(sides, shown)
    return shown


def _settings(sides: Sides) -> list[SettingLine]:
    """List the settings in which arms differ; none where the runs of an arm are not here."""
    plans = [next((run.plan for run in side.arm.runs.values()), None) for side in sides.sides]
    if not all(plans):
        return []
    differing = compare_settings([plan | {"seed": 0} for plan in plans if plan])
    return [
        SettingLine(name=name, values=["–" if value is None else write_setting(value) for value in values])
        for name, values in differing.items()
        if name not in ("name", "split.fold")
    ]


def _line(side: Side, row_by_cell: dict[tuple[str, str], Any]) -> ArmLine:
    cells = {}
    for (arm, metric), row in row_by_cell.items():
        if arm == side.label:
            cells[metric] = _cell(side, metric, row)
    count = max((c.n for c in cells.values()), default=len(side.runs))
    return ArmLine(
        label=side.label, short=side.short, runs=list(side.runs), count=count, whole=side.complete, cells=cells
    )


def _cell(side: Side, metric: str, row: Any) -> Cell:
    cell = Cell(mean=row["mean"], low=row["low"], high=row["high"], n=row["n"], over=SEEDS if row["n"] > 1 else "")
    runs = list(side.arm.runs.values())
    if (
        metric == "auroc"
        and row["n"] == 1
        and len(runs) == 1
        and cell.mean is not None
        and side.arm.virtual_seconds is None
    ):
        final = runs[0].summary["final"]
        cell.low, cell.high, cell.over = final.get("auroc_low"), final.get("auroc_high"), ROWS
    if metric == WORST_AUROC:
        sites = [str(worst_site(run.summary["per_site"]).get("site", "")) for run in runs]
        cell.note = _list_some([s for s in dict.fromkeys(sites) if s])
    if metric == EPSILON:
        cell.note = _list_some(list(dict.fromkeys(_promise(run.summary["privacy"]) for run in runs)))
    if cell.low is None or cell.high is None:
        cell.low = cell.high = None
        cell.over = ""
    return cell


def _promise(privacy: Any) -> str:
    if privacy.get("epsilon") is None:
        return "nothing promised"
    return f"per {privacy.get('unit', 'patient')}"


def _conclusion(sides: Sides) -> list[str]:
    """Return what the comparison shows, with the names that the page has for its arms."""
    out = list(sides.conclusion)
    for side in sorted(sides.sides, key=lambda side: -len(side.label)):
        out = [sentence.replace(side.label, side.short) for sentence in out]
    return out


def _best_alone(sides: Sides, lines: Sequence[ArmLine]) -> list[str]:
    """Say in how many figures hospitals alone have the best mean, where they do: a mark in a table is easily passed over."""
    out = []
    for side, line in zip(sides.sides, lines, strict=True):
        if any(run.plan["method"]["name"] == Local.name for run in side.arm.runs.values()):
            best = [words(metric) for metric, cell in line.cells.items() if cell.best and metric not in (MEGABYTES, EPSILON)]
            if best:
                alone = f"Hospitals alone ({side.short}) have the best mean"
                out.append(f"{alone} in {', '.join(best)}: there federation shows no gain.")
    return out


def _list_some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def mark_best(metric: str, cells: Sequence[Cell]) -> None:
    """Mark the best of a column, where arms differ in the digits shown and all scores are of one kind."""
    scored = [c for c in cells if c.mean is not None]
    if len(scored) < 2 or higher_is_better(metric) is None or (metric == EPSILON and len({c.note for c in scored}) > 1):
        return
    values = [c.mean for c in scored if c.mean is not None]
    best = _shown(min(values) if lower_is_better(metric) else max(values))
    if _shown(min(values)) != _shown(max(values)):  # no best among arms that read the same
        for cell in scored:
            cell.best = _shown(cell.mean) == best


def _shown(value: float | None) -> str:
    """Write a mean as the page shows it: arms that read the same are both best."""
    return "" if value is None else f"{value:.3f}"


def _column(metric: str) -> Column:
    label = {MEGABYTES: "sent, MB"}.get(metric) or words(metric)
    better = higher_is_better(metric)
    return Column(name=metric, words=label, lower=None if better is None else not better)


def _differences(sides: Sides, shown: set[str]) -> list[Difference]:
    """List the paired differences to the first arm."""
    out, called = [], {s.label: s.short for s in sides.sides}
    for row in sides.rows:
        pair = row["paired_to_first"]
        if pair is not None and pair["difference"] is not None and row["metric"] in shown:
            out.append(
                Difference(
                    arm=called[row["arm"]], metric=row["metric"], std=row["std"], cv=row["cv"], difference=pair["difference"],
                    low=pair["low"], high=pair["high"], p=pair["p"], pairs=pair["n"],
                )
            )  # fmt: skip
    order = list(dict.fromkeys(r["metric"] for r in sides.rows))
    return sorted(out, key=lambda d: order.index(d.metric))


def by_metric(differences: Sequence[Difference]) -> list[tuple[str, list[Difference]]]:
    """Group differences by metric."""
    return [(metric, list(group)) for metric, group in groupby(differences, key=lambda d: d.metric)]


def _other_rows(sides: Sides) -> dict[int, str] | None:
    """Return numbers of test rows with an arm of each, where arms differ in them for the same seed and fold; else None."""
    counts: dict[tuple[int, int], dict[int, str]] = {}
    for side in sides.sides:
        for key, run in side.arm.runs.items():
            counts.setdefault(key, {}).setdefault(int(run.summary["final"]["count"]), side.short)
    return next((c for c in counts.values() if len(c) > 1), None)


def _notes(sides: Sides) -> list[str]:
    """List what limits a comparison: missing runs, different test rows, too few seeds."""
    out = []
    if sides.virtual_seconds is not None:
        out.append(f"Scores are those after {sides.virtual_seconds:g} virtual seconds.")
    if sides.missing:
        out.append(
            f"No longer in this folder, or unfinished: {_list_some(sides.missing)}. Their scores are those of comparison.json."
        )
    other = _other_rows(sides)
    if other is not None:
        counts = " and ".join(f"{n:,} ({label})" for n, label in list(other.items())[:2])
        out.append(
            f"Arms were evaluated on different numbers of test rows: {counts}. Their scores are of different patients, so "
            "none is marked as best, and such arms have no paired difference."
        )
    if any(len(side.arm.runs) == 2 for side in sides.sides):
        out.append("An arm of two runs has no interval: three are needed.")
    if any(len(side.arm.runs) == 1 for side in sides.sides):
        out.append("An arm of one run has no interval over seeds: small differences to it may be chance.")
    if [len(side.runs) for side in sides.sides] == [1]:
        out = ["This is one run: choose a second one to compare it with."]
    return out


INTERVALS, PARETO, COURSE = "intervals", "pareto", "course-"


def draw_figure(sides: Sides, shown: ComparisonView, figure_name: str, *, x: str = "", y: str = "") -> Figure:
    """Draw a figure, by its name. `x`, `y`: the axes of `pareto`."""
    if figure_name not in shown.figures:
        raise NotFound(
            f"this comparison has no figure '{figure_name[:80]}'; it has: {', '.join(shown.figures) or 'none'}",
            code="unknown-figure",
        )
    if figure_name == PARETO:
        return _pareto(shown, x or shown.across, y or shown.columns[0].name)
    if figure_name == INTERVALS:
        metrics = {c.name for c in shown.columns}
        called = {s.label: s.short for s in sides.sides}
        return figures.intervals([{**r, "arm": called[r["arm"]]} for r in sides.rows if r["metric"] in metrics])
    metric = figure_name.removeprefix(COURSE)
    return figures.arm_curves({s.short: s.courses.get(metric, ()) for s in sides.sides}, metric)


def list_figures(sides: Sides, shown: ComparisonView) -> list[str]:
    """List the figures that a comparison has."""
    several = len(shown.arms) > 1
    out = [INTERVALS] if shown.columns and (several or shown.arms[0].count > 1) else []
    if several and shown.across:
        out.append(PARETO)
    for metric in COURSES:
        courses = [course for side in sides.sides for course in side.courses.get(metric, ())]
        if sides.virtual_seconds is None and any(
            len(c) > 1 and any(v is not None for v in c.values()) for c in courses
        ):
            out.append(f"{COURSE}{metric}")
    return out


def default_axis(columns: list[Column], axes: list[Column]) -> str:
    """Choose the axis that is drawn against the first score: drift where arms have it, else traffic, else another score."""
    names = [axis.name for axis in axes]
    first = columns[0].name if columns else ""
    if first not in names:
        return ""
    wanted = ("training_drift", "deployed_divergence", MEGABYTES, *names)
    return next((n for n in wanted if n in names and n != first), "")


def _pareto(shown: ComparisonView, x: str, y: str) -> Figure:
    axes = {axis.name: axis for axis in shown.axes}
    for name in (x, y):
        if name not in axes:
            raise NotFound(
                f"'{name[:80]}' is no figure that two arms have; they have: {', '.join(axes)}", code="unknown-figure"
            )
    if x == y:
        raise BadInput("choose two different figures for the axes", code="duplicate-axis")
    points = []
    for arm in arms_with(arms_with(shown.arms, x), y):
        intervals = {n: (c.mean, c.low, c.high) for n, c in arm.cells.items() if n in (x, y)}
        points.append({"label": arm.short, **intervals})
    return figures.pareto(
        points, x=x, y=y, called={n: a.words for n, a in axes.items()}, arms=[a.short for a in shown.arms]
    )
