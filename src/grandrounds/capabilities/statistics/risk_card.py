"""Risk card of a run: how it does at one hospital, and a card with the same data beside another run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.names import site_named
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.sources import AT_SITES, DATA_FRAME
from grandrounds.data.dataset import read_new_rows
from grandrounds.metrics.decision import decision_curve
from grandrounds.metrics.statistics import share_interval
from grandrounds.metrics.tally import tally
from grandrounds.report.risk_card import CalibrationPoint, CardPerformance
from grandrounds.runs.evaluation import DECISION_THRESHOLDS
from grandrounds.runs.run_rows import RunRows, overlap_warnings

if TYPE_CHECKING:
    from grandrounds.data.table import Table
    from grandrounds.runs.run import Run

ALL_SITES = "all hospitals"

_SCORES = ("auroc", "auroc_low", "auroc_high", "brier", "log_loss")
_FEW_EVENTS = 10
_GROUP = 10  # fewest rows of a point of the calibration curve
_POINTS = 8  # most points of it


def evaluate_card(run: Run, *, site: str | None = None, rows: Table | None = None, name: str = "") -> CardPerformance:
    """Evaluate a card at one place: AUROC, calibration and net benefit.

    Args:
        run: A finished run of a card.
        site: A hospital of the run, by its name or number; its test rows are used.
        rows: Labelled rows of a hospital, in place of those of the run.
        name: Name of the rows, for the page.

    Returns:
        The performance there; without site and rows, that on the test rows of all hospitals, from the run's evaluation.

    Raises:
        BadInput: There is no such site, its rows are not here, or the rows have no label.
    """
    if rows is not None and site is not None:
        raise BadInput("a site and a table are both given: leave one of them out", code="conflicting-options")
    if rows is not None:
        return _evaluate(run, rows, name or "this table", tuple(overlap_warnings(run, rows)))
    if site is None:
        return _performance_of_run(run)
    place = site_named(site, list(run.summary["per_site"]), where=run.folder)
    if run.plan["data"]["table"] in (AT_SITES, DATA_FRAME):
        raise BadInput(
            f"{run.folder} holds no rows of {place}: at the hospital, give its own rows with --table own.csv",
            code="rows-not-available",
        )
    found = RunRows.read(run)
    chosen = found.test_rows(place)
    if not len(chosen):
        raise BadInput(
            f"{place} has no test rows in this run: name another site, or give rows with --table", code="no-test-rows"
        )
    data: Any = found.consortium.data
    return _evaluate(run, data.table.take(chosen), place, ())


def _evaluate(run: Run, rows: Table, place: str, notes: tuple[str, ...]) -> CardPerformance:
    model = run.model
    event = model.event
    assert event is not None and model.schema is not None, "a card has two classes"
    label = read_new_rows(rows, model.schema, labelled=True).label
    y = np.array([str(word) == event.word for word in label])
    risk = model.predict(rows).risk
    score = np.log(risk) - np.log1p(-risk)
    total = tally(score[:, None], y.astype(np.int64), group=np.zeros(len(y), np.int64), groups=1, classes=2, event=1)
    curve = decision_curve(total.sum(axis=0), DECISION_THRESHOLDS)
    events = int(y.sum())
    scores = model.evaluate(rows)["overall"]
    few = f"Only {events} events: AUROC, calibration and net benefit are uncertain." if events < _FEW_EVENTS else ""
    return CardPerformance(
        place,
        len(y),
        events,
        {k: float(scores[k]) for k in _SCORES if k in scores},
        calibrate_points(risk, y),
        {name: [_number(v) for v in np.ravel(getattr(curve, name))] for name in ("thresholds", "model", "treat_all")},
        (*notes, *([few] if few else [])),
    )


def calibrate_points(risk: Array, y: Array) -> tuple[CalibrationPoint, ...]:
    """Group patients of similar printed risk, each group with the share that had the event.

    Args:
        risk: Printed risk of each patient, (n,).
        y: True for patients with the event, (n,).

    Returns:
        Groups by rising risk, of at least 10 patients and at most 8 groups; patients of one risk stay together.
    """
    least = max(_GROUP, -(-len(y) // _POINTS))
    values, place = np.unique(risk, return_inverse=True)
    rows, events = np.bincount(place.ravel()), np.bincount(place.ravel(), y)
    groups: list[list[float]] = []  # rows, events, sum of risks
    for value, n, e in zip(values.tolist(), rows.tolist(), events.tolist(), strict=True):
        if not groups or groups[-1][0] >= least:
            groups.append([0.0, 0.0, 0.0])
        groups[-1] = [groups[-1][0] + n, groups[-1][1] + e, groups[-1][2] + n * value]
    if len(groups) > 1 and groups[-1][0] < _GROUP:
        last = groups.pop()
        groups[-1] = [a + b for a, b in zip(groups[-1], last, strict=True)]
    return tuple(CalibrationPoint(s / n, e / n, *share_interval(e / n, n), int(n)) for n, e, s in groups)


def _performance_of_run(run: Run) -> CardPerformance:
    """Read the performance on the test rows of all hospitals from summary.json."""
    summary: Mapping[str, Any] = run.summary
    bins, final = summary.get("reliability") or {}, summary["final"]
    points = []
    for n, predicted, observed in zip(
        bins.get("count", ()), bins.get("confidence", ()), bins.get("outcome", ()), strict=True
    ):
        if n:
            points.append(CalibrationPoint(predicted, observed, *share_interval(observed, n), int(n)))
    count = int(final["count"] or 0)
    events = sum(round(p.observed * p.rows) for p in points)
    kept = {k: float(final[k]) for k in _SCORES if final.get(k) is not None}
    if not count:
        notes = ("The run has no test rows: give rows with --table to see calibration and net benefit.",)
        return CardPerformance(ALL_SITES, 0, 0, notes=notes)
    return CardPerformance(ALL_SITES, count, events, kept, tuple(points), dict(summary.get("decision_curve") or {}))


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def find_card_beside(run: Run, *, terms: int) -> Run | None:
    """Find the card that `fit_card_beside` fitted earlier; None if there is none with these rows.

    Args:
        run: The run beside which it lies.
        terms: Number of terms.
    """
    from grandrounds.runs.run import Run

    folder = run.folder.parent / f"{run.folder.name}-card-{terms}"
    if not (folder / "checkpoint").is_dir():
        return None
    found = Run(folder)
    same = (
        found.finished
        and all(found.plan[part] == run.plan[part] for part in ("seed", "split"))
        and found.plan["data"]["sha256"] == run.plan["data"]["sha256"]
    )
    return found if same and found.summary.get("card") else None


def fit_card_beside(run: Run, *, terms: int, out: str | Path | None = None, progress: Any = None) -> Run:
    """Fit a card with the data and the split of another run, as a new run beside it.

    Args:
        run: A finished simulated run of two classes.
        terms: Number of terms.
        out: The folder of the new run; by default RUN-card-TERMS beside it.
        progress: Called with each event.

    Returns:
        The run of the card.

    Raises:
        BadInput: The run has another task, images, its rows elsewhere, or a privacy budget.
    """
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.runs.run import run as start
    from grandrounds.runs.runner import new_folder

    refuse_run(run)
    run.refuse_code()
    plan = run.plan
    data = {k: v for k, v in plan["data"].items() if v is not None and k != "coding"}
    method, evaluation = plan["method"], plan["evaluation"]
    values: dict[str, Any] = {
        "name": plan.get("name") or "",
        "seed": plan["seed"],
        "data": data,
        "split": {k: v for k, v in plan["split"].items() if v is not None},
        "model": {"name": "card"},
        "method": {
            "name": "card",
            "card": {**method.get("card", {}), "terms": terms},
            "exact": {"least": method.get("exact", {}).get("least", 5)},
        },
        "evaluation": {
            k: evaluation[k] for k in ("threshold", "specificity", "subgroup") if evaluation.get(k) is not None
        },
        "explain": {"sketch": "none"},
    }
    if plan["privacy"]["secure"]:
        values["privacy"] = {"secure": True}
    if not values["name"]:
        del values["name"]
    experiment = Experiment.parse(values, where=f"plan of {run.folder}")
    folder = out or new_folder(run.folder.parent, f"{run.folder.name}-card-{terms}")
    return start(experiment, out=folder, **({} if progress is None else {"progress": progress}))


def refuse_run(run: Run) -> None:
    """Refuse runs with whose data no card can be fitted here.

    Raises:
        BadInput: The run has images, another task, more classes, rows that are elsewhere, or a privacy budget.
    """
    plan, summary = run.plan, run.summary
    classes = summary.get("classes") or ()
    if len(summary["inputs"]) != 1 or plan["data"].get("pictures"):
        raise BadInput(f"{run.folder} is a run of images, and a risk card has columns of a table", code="needs-table")
    if summary.get("task", CLASSIFICATION) != CLASSIFICATION or "statistic" in summary or len(classes) != 2:
        raise BadInput(
            f"{run.folder} does not predict one of two classes, and a risk card prints the risk of one event: choose a label "
            "with two values",
            code="card-needs-two-classes",
        )
    if plan["data"]["table"] in (AT_SITES, DATA_FRAME):
        raise BadInput(
            f"the rows of {run.folder} are not on this machine: run model 'card' there (--model card)",
            code="rows-not-available",
        )
    if plan["privacy"]["epsilon"] is not None:
        raise BadInput(
            f"{run.folder} has a privacy budget, and there is no DP accounting for cards yet: fit one from a run without",
            code="no-accounting",
        )
