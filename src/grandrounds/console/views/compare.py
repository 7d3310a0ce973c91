"""Arms of a comparison: their figures with intervals, the best of each, differences to the first, and its drawings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from pydantic import BaseModel

from grandrounds.analysis.compare import DEFAULT_METRICS, GAP, WORST_AUROC
from grandrounds.console.cache import cache_of, read_checked, stamp_of
from grandrounds.console.comparisons import ComparisonIndex, comparisons_of
from grandrounds.console.run_index import NotFound, RunIndex
from grandrounds.console.views.arms import COURSES, EPSILON, MEGABYTES, REASONS, Side, Sides, of_folder, of_runs
from grandrounds.console.views.published import Published, of_side
from grandrounds.core.errors import BadInput
from grandrounds.metrics.fairness import worst_site
from grandrounds.report import figures
from grandrounds.report.figure import Figure
from grandrounds.report.figures.comparison import lower_is_better
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


HOW_WELL = (*(f"{before}{m}" for m in DEFAULT_METRICS for before in ("decision_", "")), WORST_AUROC)
KEPT = 16
"""Comparisons that stay worked out."""
SEEDS, ROWS = "runs", "test rows"
"""What an interval is over."""


def choices(run_index: RunIndex) -> Choice:
    comparisons = comparisons_of(run_index)
    return Choice(comparisons=sorted(comparisons.comparisons), studies=sorted(comparisons.studies))


def compared(run_index: RunIndex, runs: Sequence[str], comparison: str | None = None) -> Compared:
    """These runs, or a comparison that is here, side by side."""
    return _both(run_index, runs, comparison)[1]


def figure(
    run_index: RunIndex, which: str, runs: Sequence[str], comparison: str | None = None, *, x: str = "", y: str = ""
) -> Figure:
    """A figure of a comparison. `x`, `y`: the axes of `pareto`."""
    return draw_figure(*_both(run_index, runs, comparison), which, x=x, y=y)


def _both(run_index: RunIndex, runs: Sequence[str], comparison: str | None) -> tuple[Sides, Compared]:
    """Worked out once while all files that it rests on stay as they are."""
    comparisons = comparisons_of(run_index)
    if comparison is not None and runs:
        raise BadInput("choose runs or a comparison, not both")
    if comparison is None and not runs:
        raise BadInput("choose runs to compare, or a comparison")
    if comparison is None:
        stamp: object = tuple(run_index.get(name).stamp() for name in dict.fromkeys(runs))
    else:
        file = comparisons.comparison(comparison)
        stamp = stamp_of(file.parent, [file.name])
    key = (comparison, *runs)
    return cache_of(run_index).get_or_make(
        "compare", key, stamp, lambda: _compute(run_index, comparisons, runs, comparison), most=KEPT
    )


def _compute(
    run_index: RunIndex, comparisons: ComparisonIndex, runs: Sequence[str], comparison: str | None
) -> tuple[Sides, Compared]:
    def make() -> tuple[Sides, Compared]:
        sides = of_runs(run_index, runs) if comparison is None else of_folder(run_index, comparisons, comparison)
        return sides, _to_view(run_index, comparisons, sides)

    return read_checked(run_index, "a run" if comparison is None else f"comparison '{comparison}'", make)


def _to_view(run_index: RunIndex, comparisons: ComparisonIndex, sides: Sides) -> Compared:
    by = {(str(r["arm"]), str(r["metric"])): r for r in sides.rows}
    lines = [_line(side, by) for side in sides.sides]
    present = list(dict.fromkeys(str(r["metric"]) for r in sides.rows))
    known = [m for m in present if any(a.cells[m].mean is not None for a in lines if m in a.cells)]
    same = _other_rows(sides) is None
    for metric in known:
        if same or metric in (MEGABYTES, EPSILON):
            _mark(metric, [a.cells[metric] for a in lines if metric in a.cells])
    late = (*REASONS, GAP, MEGABYTES, EPSILON)
    columns = [
        _column(m) for m in (*(m for m in HOW_WELL if m in known), *(m for m in known if m not in (*HOW_WELL, *late)))
    ]
    beside = [_column(m) for m in late if m in known]
    axes = [c for c in (*columns, *beside) if len(with_figure(lines, c.name)) > 1]
    first = next((s.short for s in sides.sides if s.label == sides.first), sides.first)
    shown = Compared(
        title=sides.title, first=first, at=sides.at, columns=columns, beside=beside, arms=lines,
        differences=_differences(sides, {c.name for c in (*columns, *beside)}), axes=axes,
        across=across(columns, axes), figures=[],
        notes=_notes(sides), published=[p for side in sides.sides for p in of_side(run_index, comparisons, side.runs)],
    )  # fmt: skip
    shown.figures = list_figures(sides, shown)
    return shown


def _line(side: Side, by: dict[tuple[str, str], Any]) -> ArmLine:
    cells = {}
    for (arm, metric), row in by.items():
        if arm == side.label:
            cells[metric] = _cell(side, metric, row)
    count = max((c.n for c in cells.values()), default=len(side.runs))
    return ArmLine(label=side.label, short=side.short, runs=list(side.runs), count=count, whole=side.whole, cells=cells)


def _cell(side: Side, metric: str, row: Any) -> Cell:
    cell = Cell(mean=row["mean"], low=row["low"], high=row["high"], n=row["n"], over=SEEDS if row["n"] > 1 else "")
    runs = list(side.arm.runs.values())
    if metric == "auroc" and row["n"] == 1 and len(runs) == 1 and cell.mean is not None and side.arm.virtual_seconds is None:
        final = runs[0].summary["final"]
        cell.low, cell.high, cell.over = final.get("auroc_low"), final.get("auroc_high"), ROWS
    if metric == WORST_AUROC:
        sites = [str(worst_site(run.summary["per_site"]).get("site", "")) for run in runs]
        cell.note = _few([s for s in dict.fromkeys(sites) if s])
    if metric == EPSILON:
        cell.note = _few(list(dict.fromkeys(_promise(run.summary["privacy"]) for run in runs)))
    if cell.low is None or cell.high is None:
        cell.low = cell.high = None
        cell.over = ""
    return cell


def _promise(privacy: Any) -> str:
    if privacy.get("epsilon") is None:
        return "nothing promised"
    return f"per {privacy.get('unit', 'patient')}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _mark(metric: str, cells: Sequence[Cell]) -> None:
    """The best of a column, where there is something to choose from and all are of one kind."""
    held = [c for c in cells if c.mean is not None]
    if len(held) < 2 or (metric == EPSILON and len({c.note for c in held}) > 1):
        return
    values = [c.mean for c in held if c.mean is not None]
    best = min(values) if _lower(metric) else max(values)
    if min(values) != max(values):
        for cell in held:
            cell.best = cell.mean == best


def _lower(metric: str) -> bool:
    return metric == EPSILON or lower_is_better(metric)


def _column(metric: str) -> Column:
    said = {MEGABYTES: "sent, MB"}.get(metric) or words(metric)
    return Column(name=metric, words=said, lower=_lower(metric))


def _differences(sides: Sides, shown: set[str]) -> list[Difference]:
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
    """Differences under the figure that they are of."""
    return [(metric, list(own)) for metric, own in groupby(differences, key=lambda d: d.metric)]


def _other_rows(sides: Sides) -> dict[int, str] | None:
    """Numbers of test rows -> an arm, where arms were judged on different ones with the same seed and fold; else None."""
    counts: dict[tuple[int, int], dict[int, str]] = {}
    for side in sides.sides:
        for key, run in side.arm.runs.items():
            counts.setdefault(key, {}).setdefault(int(run.summary["final"]["count"]), side.short)
    return next((c for c in counts.values() if len(c) > 1), None)


def _notes(sides: Sides) -> list[str]:
    """What one should know before one believes a difference."""
    out = []
    if sides.at is not None:
        out.append(f"Figures are as they were after {sides.at:g} virtual seconds.")
    if sides.missing:
        out.append(
            f"Not here any more, or unfinished: {_few(sides.missing)}. Their figures are those of comparison.json."
        )
    other = _other_rows(sides)
    if other is not None:
        said = " and ".join(f"{n:,} ({label})" for n, label in list(other.items())[:2])
        out.append(
            f"Arms were judged on different numbers of test rows: {said}. Their figures are not of the same patients, so none "
            "is called the best."
        )
    if any(len(side.arm.runs) == 2 for side in sides.sides):
        out.append("An arm of two runs has no interval: three are needed.")
    if any(len(side.arm.runs) == 1 for side in sides.sides):
        out.append("An arm of one run has no interval over seeds: small differences to it may be chance.")
    return out


INTERVALS, PARETO, RADAR, COURSE = "intervals", "pareto", "radar", "course-"


def draw_figure(sides: Sides, shown: Compared, which: str, *, x: str = "", y: str = "") -> Figure:
    """A figure. `x`, `y`: the axes of `pareto`."""
    if which not in shown.figures:
        raise NotFound(f"this comparison has no figure '{which[:80]}'; it has: {', '.join(shown.figures) or 'none'}")
    if which == PARETO:
        return _pareto(shown, x or shown.across, y or shown.columns[0].name)
    if which == RADAR:
        axes = [axis.name for axis in _round(shown)]
        return figures.radar(axes, {a.short: {name: a.cells[name].mean for name in axes} for a in shown.arms})
    if which == INTERVALS:
        held = {c.name for c in shown.columns}
        called = {s.label: s.short for s in sides.sides}
        return figures.intervals([{**r, "arm": called[r["arm"]]} for r in sides.rows if r["metric"] in held])
    metric = which.removeprefix(COURSE)
    return figures.arm_curves({s.short: s.courses.get(metric, ()) for s in sides.sides}, metric)


def list_figures(sides: Sides, shown: Compared) -> list[str]:
    """The figures that a comparison has."""
    several = len(shown.arms) > 1
    out = [INTERVALS] if shown.columns else []
    if several and shown.across:
        out.append(PARETO)
    if several and len(_round(shown)) > 2:
        out.append(RADAR)
    for metric in COURSES:
        own = [course for side in sides.sides for course in side.courses.get(metric, ())]
        if sides.at is None and any(len(c) > 1 and any(v is not None for v in c.values()) for c in own):
            out.append(f"{COURSE}{metric}")
    return out


def across(columns: list[Column], axes: list[Column]) -> str:
    """What is held against the first figure: drift where arms have it, else what was sent, else another figure."""
    names = [axis.name for axis in axes]
    first = columns[0].name if columns else ""
    if first not in names:
        return ""
    wanted = ("training_drift", "deployed_divergence", MEGABYTES, *names)
    return next((n for n in wanted if n in names and n != first), "")


def _round(shown: Compared) -> list[Column]:
    """The axes of a radar: figures that every arm has."""
    return [axis for axis in shown.axes if len(with_figure(shown.arms, axis.name)) == len(shown.arms)]


def _pareto(shown: Compared, x: str, y: str) -> Figure:
    axes = {axis.name: axis for axis in shown.axes}
    for name in (x, y):
        if name not in axes:
            raise NotFound(f"'{name[:80]}' is no figure that two arms have; they have: {', '.join(axes)}")
    if x == y:
        raise BadInput("choose two different figures for the axes")
    points = []
    for arm in with_figure(with_figure(shown.arms, x), y):
        told = {n: (c.mean, c.low, c.high) for n, c in arm.cells.items() if n in (x, y)}
        points.append({"label": arm.short, **told})
    return figures.pareto(points, x=x, y=y, called={n: a.words for n, a in axes.items()}, arms=[a.short for a in shown.arms])
