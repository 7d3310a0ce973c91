"""Runs as the arms of a comparison: chosen one by one and grouped as `rounds compare` does, or as its folder has them."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any

from grandrounds.analysis.compare import GAP, SUMMARY_METRICS, WORST_AUROC, Arm, Comparison, compare, default_metrics
from grandrounds.console.comparisons import ComparisonIndex
from grandrounds.console.run_index import FINISHED, NotFound, RunIndex
from grandrounds.core.arrays import plain
from grandrounds.core.errors import BadInput
from grandrounds.core.plugins import last_word
from grandrounds.metrics import Place, shown_in
from grandrounds.metrics.names import metric_range
from grandrounds.metrics.statistics import describe_bounded
from grandrounds.runs.run import Run

MOST = 60
"""Runs that are held side by side."""
LONGEST = 48
"""Letters of an arm's name that a table and a legend have room for."""
MEGABYTES, EPSILON = "megabytes", "epsilon"
REASONS = shown_in(Place.COMPARISON_BESIDE)
COURSES = shown_in(Place.COURSE)
"""Metrics that are drawn round by round."""

Course = Mapping[int, float | None]


@dataclass(frozen=True)
class Side:
    """One arm with its runs. `label`: what tells it apart, as `rounds compare` names it; `short`: where that is long;
    `whole`: whether all of its runs are here; `courses`: metric -> one course for each run."""

    label: str
    short: str
    runs: tuple[str, ...]
    arm: Arm
    whole: bool = True
    courses: Mapping[str, Sequence[Course]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sides:
    """Arms side by side. `rows`: as comparison.json has them; `first`: what differences are to."""

    title: str
    first: str
    sides: tuple[Side, ...]
    rows: tuple[Mapping[str, Any], ...]
    missing: tuple[str, ...] = ()
    at: float | None = None


def of_runs(library: RunIndex, names: Sequence[str]) -> Sides:
    """The arms that these runs make."""
    chosen = list(dict.fromkeys(names))
    if len(chosen) > MOST:
        raise BadInput(f"{len(chosen)} runs are too many to hold side by side: choose {MOST} at most")
    runs = {name: _finished(library, name) for name in chosen}
    _same_data(runs)
    grouped = compare(list(runs.values()))
    by_folder = {run.folder: name for name, run in runs.items()}
    sides = tuple(_side(library, arm, [by_folder[run.folder] for run in arm.runs.values()]) for arm in grouped.arms)
    if len(chosen) != sum(len(side.runs) for side in sides):
        twice = next(n for n in chosen if not any(n in side.runs for side in sides))
        raise BadInput(
            f"run '{twice}' is the same experiment, with the same seed and fold, as another one: choose one of them"
        )
    return Sides(_title(runs), sides[0].label, _shortened(sides), tuple(_rows([s.arm for s in sides])))


def of_folder(library: RunIndex, shelf: ComparisonIndex, name: str) -> Sides:
    """The arms that a comparison's folder names, with its own figures; runs that are not here any more are listed."""
    file = shelf.comparison(name)
    held = shelf.read(file)
    rows = [dict(r) for r in held["rows"]]
    places = {str(arm): {str(k): str(place) for k, place in own.items()} for arm, own in held.get("runs", {}).items()}
    if sum(len(own) for own in places.values()) > MOST:
        raise BadInput(f"comparison '{name}' has more than {MOST} runs: open its report.html")
    here: dict[str, Run] = {}
    sides, missing = [], []
    for label in dict.fromkeys([*(str(r["arm"]) for r in rows), *places]):
        found = {_key(key): _place(name, place) for key, place in places.get(label, {}).items()}
        runs: dict[tuple[int, int], Run] = {}
        names = []
        for key, where in found.items():
            try:
                run = _finished(library, where)
            except (NotFound, BadInput):
                missing.append(where)
                continue
            runs[key] = here[where] = run
            names.append(where)
        whole = bool(found) and len(runs) == len(found)
        sides.append(_side(library, Arm(label, runs), names, whole=whole))
    _same_data(here)
    at = held.get("at")
    first = str(held["first"])
    if at is None:  # of figures at a moment there is no more than the folder says
        known = {r["metric"] for r in rows}
        more = [s.arm for s in sides if s.whole]
        rows += [r for r in _rows(more) if r["metric"] not in known] if len(more) == len(sides) else []
    return Sides(name, first, _shortened(sides), tuple(rows), tuple(missing), at)


def _finished(library: RunIndex, name: str) -> Run:
    """A run for its plan and summary alone, after all of its files were looked at."""
    found = library.get(name)
    if found.state != FINISHED:
        raise BadInput(f"run '{name}' is not finished: only finished runs can be compared")
    library.run(name)
    return Run(found.folder, trust_code=None)


def _side(library: RunIndex, arm: Arm, names: Sequence[str], *, whole: bool = True) -> Side:
    courses: dict[str, list[Course]] = {metric: [] for metric in COURSES}
    for name in names:
        judged = [r for r in library.run(name).rounds if "test" in r]
        for metric, own in courses.items():
            own.append({int(r["round"]): r["test"].get(metric) for r in judged})
    return Side(arm.label, arm.label, tuple(names), arm, whole, courses)


def _shortened(sides: Sequence[Side]) -> tuple[Side, ...]:
    """Arms by short names where settings make long ones: a run's own, or that of the method and how many runs."""
    if max((len(side.label) for side in sides), default=0) <= LONGEST:
        return tuple(sides)
    out: list[Side] = []
    for side in sides:
        methods = dict.fromkeys(str(run.summary["method"]) for run in side.arm.runs.values())
        short = side.runs[0] if len(side.runs) == 1 else f"{', '.join(methods) or 'arm'}, {len(side.runs)} runs"
        if any(short == other.short for other in out):
            short = f"{short} ({len(out) + 1})"
        out.append(replace(side, short=short))
    return tuple(out)


def _rows(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """The rows of a comparison of these arms, with what their summaries tell besides."""
    finals = [run.summary["final"] for arm in arms for run in arm.runs.values()]
    chosen = default_metrics([run for arm in arms for run in arm.runs.values()])
    metrics = [m for m in chosen if all(m in final for final in finals)]
    beside = [m for m in REASONS if m in SUMMARY_METRICS]
    rows: list[dict[str, Any]] = list(Comparison(tuple(arms), (*metrics, WORST_AUROC, *beside, GAP)).to_dict()["rows"])
    for name, read in ((MEGABYTES, _megabytes), (EPSILON, _epsilon)):
        for arm in arms:
            s = describe_bounded([read(run) for run in arm.runs.values()], metric_range(name))
            rows.append({"arm": arm.label, "metric": name, **plain(vars(s)), "paired_to_first": None})
    return rows


def _megabytes(run: Run) -> float:
    cost = run.summary["cost"]
    return float(cost["bytes_down"] + cost["bytes_up"]) / 1e6


def _epsilon(run: Run) -> float:
    value = run.summary["privacy"].get("epsilon")
    return nan if value is None else float(value)


def _same_data(runs: Mapping[str, Run]) -> None:
    """Refuse runs of different data: their figures are of different patients, or of different questions."""
    seen: dict[tuple[Any, ...], str] = {}
    for name, run in runs.items():
        data = run.plan["data"]
        key = (data.get("sha256") or (data["name"], data["table"]), data.get("label"), data.get("positive"))
        seen.setdefault(key, name)
    if len(seen) < 2:
        return
    a, b = list(seen.values())[:2]
    ours, theirs = (_called(runs[n]) for n in (a, b))
    if ours != theirs:
        raise BadInput(f"'{a}' is of {ours} and '{b}' of {theirs}: runs of different data cannot be compared")
    raise BadInput(
        f"'{a}' and '{b}' are both of {ours}, but not of the same rows or the same label: they cannot be compared"
    )


def _called(run: Run) -> str:
    data = run.plan["data"]
    return last_word(str(data["name"] or data["table"]).rsplit("/", 1)[-1])


def _title(runs: Mapping[str, Run]) -> str:
    return ", ".join(dict.fromkeys(_called(run) for run in runs.values()))


def _place(comparison: str, place: str) -> str:
    """A run's name in the library, from where a comparison says it is; whatever leads elsewhere is a name that nobody has."""
    return posixpath.normpath(f"{comparison}/{place}")


def _key(words: str) -> tuple[int, int]:
    """'seed 3 fold 0' as a comparison's file has it."""
    said = words.split()
    if len(said) != 4:
        raise ValueError("no seed and fold")
    return int(said[1]), int(said[3])
