"""Runs as the arms of a comparison: chosen one by one and grouped as `rounds compare` does, or as its folder has them."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any

from grandrounds.analysis.compare import GAP, SUMMARY_METRICS, WORST_AUROC, Arm, Comparison, compare, default_metrics
from grandrounds.capabilities.console.comparisons import ComparisonIndex
from grandrounds.capabilities.console.run_index import FINISHED, NotFound, RunIndex
from grandrounds.core.arrays import plain
from grandrounds.core.errors import BadInput
from grandrounds.core.plugins import last_word
from grandrounds.metrics import Place, shown_in
from grandrounds.metrics.names import metric_range
from grandrounds.metrics.statistics import describe_bounded
from grandrounds.runs.run import Run

MAX_RUNS = 60
"""Largest number of runs in a comparison."""
MAX_LABEL = 48
"""Maximum length of an arm's name in a table or legend."""
MEGABYTES, EPSILON = "megabytes", "epsilon"
EXPLANATION_METRICS = shown_in(Place.COMPARISON_BESIDE)
COURSES = shown_in(Place.COURSE)
"""Metrics that are drawn by round."""

Course = Mapping[int, float | None]
Row = Mapping[str, Any]
"""A row of comparison.json: arm, metric, mean, interval and the paired difference to the first arm."""


@dataclass(frozen=True)
class Side:
    """One arm of a comparison with its runs.

    Attributes:
        label: The arm's name, as `rounds compare` writes it.
        short: A shorter name, where that is long.
        runs: The names of its runs.
        arm: The arm.
        complete: All of its runs are here.
        courses: Metric, then one course over the rounds for each run.
    """

    label: str
    short: str
    runs: tuple[str, ...]
    arm: Arm
    complete: bool = True
    courses: Mapping[str, Sequence[Course]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sides:
    """The arms of a comparison.

    Attributes:
        title: The comparison's title.
        first: The arm that differences are to.
        sides: The arms.
        rows: The rows of comparison.json.
        missing: Runs that are not here any more.
        virtual_seconds: The simulated time of the comparison; None for the end.
        conclusion: What the paired differences to the first arm show.
    """

    title: str
    first: str
    sides: tuple[Side, ...]
    rows: tuple[Row, ...]
    missing: tuple[str, ...] = ()
    virtual_seconds: float | None = None
    conclusion: tuple[str, ...] = ()


def group_runs(run_index: RunIndex, names: Sequence[str]) -> Sides:
    """Group runs into arms as `rounds compare` does.

    Args:
        run_index: The runs.
        names: The names of the runs to compare.

    Returns:
        The arms.

    Raises:
        BadInput: There are too many runs, two are the same, or they are of different data.
    """
    chosen = list(dict.fromkeys(names))
    if len(chosen) > MAX_RUNS:
        raise BadInput(f"{len(chosen)} runs are too many to compare: choose {MAX_RUNS} at most", code="too-many-runs")
    runs = {name: _open_finished(run_index, name) for name in chosen}
    _check_same_data(runs)
    grouped = compare(list(runs.values()))
    by_folder = {run.folder: name for name, run in runs.items()}
    sides = tuple(_side(run_index, arm, [by_folder[run.folder] for run in arm.runs.values()]) for arm in grouped.arms)
    if len(chosen) != sum(len(side.runs) for side in sides):
        twice = next(n for n in chosen if not any(n in side.runs for side in sides))
        raise BadInput(
            f"run '{twice}' is the same experiment, with the same seed and fold, as another one: choose one of them",
            code="duplicate-run",
        )
    rows, conclusion = tuple(_rows([s.arm for s in sides])), tuple(grouped.conclusion)
    return Sides(_title(runs), sides[0].label, _shorten_labels(sides), rows, conclusion=conclusion)


def load_comparison(run_index: RunIndex, comparison_index: ComparisonIndex, name: str) -> Sides:
    """Load the arms of a comparison's folder, with its own scores; runs that are not here any more are listed.

    Args:
        run_index: The runs.
        comparison_index: The comparisons.
        name: The name of the comparison.

    Returns:
        The arms.

    Raises:
        BadInput: There are too many runs, or they are of different data.
    """
    file = comparison_index.comparison(name)
    content = comparison_index.read(file)
    rows: list[Row] = [dict(r) for r in content["rows"]]
    places = {
        str(arm): {str(k): str(place) for k, place in arm_places.items()}
        for arm, arm_places in content.get("runs", {}).items()
    }
    if sum(len(arm_places) for arm_places in places.values()) > MAX_RUNS:
        raise BadInput(f"comparison '{name}' has more than {MAX_RUNS} runs: open its report.html", code="too-many-runs")
    opened: dict[str, Run] = {}
    sides, missing = [], []
    for label in dict.fromkeys([*(str(r["arm"]) for r in rows), *places]):
        places_by_key = {_parse_key(key): _run_name(name, place) for key, place in places.get(label, {}).items()}
        runs: dict[tuple[int, int], Run] = {}
        names = []
        for key, where in places_by_key.items():
            try:
                run = _open_finished(run_index, where)
            except (NotFound, BadInput):
                missing.append(where)
                continue
            runs[key] = opened[where] = run
            names.append(where)
        complete = bool(places_by_key) and len(runs) == len(places_by_key)
        sides.append(_side(run_index, Arm(label, runs), names, complete=complete))
    _check_same_data(opened)
    virtual_seconds = content.get("at")
    first = str(content["first"])
    if virtual_seconds is None:  # scores at a virtual time are only in the folder
        metrics = {r["metric"] for r in rows}
        more = [s.arm for s in sides if s.complete]
        rows += [r for r in _rows(more) if r["metric"] not in metrics] if len(more) == len(sides) else []
    conclusion = tuple(str(sentence) for sentence in content.get("conclusion", ()))
    return Sides(name, first, _shorten_labels(sides), tuple(rows), tuple(missing), virtual_seconds, conclusion)


def _open_finished(run_index: RunIndex, name: str) -> Run:
    """Open a run for its plan and summary alone, after all of its files were checked."""
    entry = run_index.get(name)
    if entry.state != FINISHED:
        raise BadInput(f"run '{name}' is not finished: only finished runs can be compared", code="run-not-finished")
    run_index.run(name)
    return Run(entry.folder, trust_code=None)


def _side(run_index: RunIndex, arm: Arm, names: Sequence[str], *, complete: bool = True) -> Side:
    courses: dict[str, list[Course]] = {metric: [] for metric in COURSES}
    for name in names:
        evaluated = [r for r in run_index.run(name).rounds if r.test is not None]
        for metric, metric_courses in courses.items():
            metric_courses.append({r.round: r.test.get(metric) for r in evaluated if r.test is not None})
    return Side(arm.label, arm.label, tuple(names), arm, complete, courses)


def _shorten_labels(sides: Sequence[Side]) -> tuple[Side, ...]:
    """Shorten long names of arms: to the run's name, or to the method and the number of runs."""
    if max((len(side.label) for side in sides), default=0) <= MAX_LABEL:
        return tuple(sides)
    out: list[Side] = []
    for side in sides:
        methods = dict.fromkeys(run.summary.method for run in side.arm.runs.values())
        short = side.runs[0] if len(side.runs) == 1 else f"{', '.join(methods) or 'arm'}, {len(side.runs)} runs"
        if any(short == other.short for other in out):
            short = f"{short} ({len(out) + 1})"
        out.append(replace(side, short=short))
    return tuple(out)


def _rows(arms: Sequence[Arm]) -> list[Row]:
    """List the rows of a comparison of these arms, with the traffic and epsilon of their summaries."""
    finals = [run.summary.final for arm in arms for run in arm.runs.values()]
    chosen = default_metrics([run for arm in arms for run in arm.runs.values()])
    metrics = [m for m in chosen if all(m in final for final in finals)]
    explanation_metrics = [m for m in EXPLANATION_METRICS if m in SUMMARY_METRICS]
    compared = Comparison(tuple(arms), (*metrics, WORST_AUROC, *explanation_metrics, GAP))
    rows: list[Row] = list(compared.to_dict()["rows"])
    for name, read in ((MEGABYTES, _megabytes), (EPSILON, _epsilon)):
        for arm in arms:
            s = describe_bounded([read(run) for run in arm.runs.values()], metric_range(name))
            rows.append({"arm": arm.label, "metric": name, **plain(vars(s)), "paired_to_first": None})
    return rows


def _megabytes(run: Run) -> float:
    cost = run.summary.cost
    return float(cost["bytes_down"] + cost["bytes_up"]) / 1e6


def _epsilon(run: Run) -> float:
    value = run.summary.privacy.get("epsilon")
    return nan if value is None else float(value)


def _check_same_data(runs: Mapping[str, Run]) -> None:
    """Refuse runs of different data: their figures are of different patients, or of different questions."""
    run_by_data: dict[tuple[Any, ...], str] = {}
    for name, run in runs.items():
        data = run.plan["data"]
        key = (data.get("sha256") or (data["name"], data["table"]), data.get("label"), data.get("positive"))
        run_by_data.setdefault(key, name)
    if len(run_by_data) < 2:
        return
    a, b = list(run_by_data.values())[:2]
    ours, theirs = (_data_name(runs[n]) for n in (a, b))
    if ours != theirs:
        raise BadInput(
            f"'{a}' is of {ours} and '{b}' of {theirs}: runs of different data cannot be compared",
            code="runs-not-comparable",
        )
    raise BadInput(
        f"'{a}' and '{b}' are both of {ours}, but not of the same rows or the same label: they cannot be compared",
        code="runs-not-comparable",
    )


def _data_name(run: Run) -> str:
    data = run.plan["data"]
    return last_word(str(data["name"] or data["table"]).rsplit("/", 1)[-1])


def _title(runs: Mapping[str, Run]) -> str:
    return ", ".join(dict.fromkeys(_data_name(run) for run in runs.values()))


def _run_name(comparison: str, place: str) -> str:
    """Resolve the place of a run in a comparison to its name in the index; a place elsewhere is a name that no run has."""
    return posixpath.normpath(f"{comparison}/{place}")


def _parse_key(words: str) -> tuple[int, int]:
    """Parse 'seed 3 fold 0', as a comparison's file has it."""
    words_list = words.split()
    if len(words_list) != 4:
        raise ValueError("no seed and fold")
    return int(words_list[1]), int(words_list[3])
