"""The list of runs: one line each, from the plan, the summary and the rounds so far."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from grandrounds.capabilities.console.run_index import (
    FINISHED,
    UNREADABLE,
    RunEntry,
    RunIndex,
    Stamp,
    Unreadable,
    check_files,
    refuse_changes,
)
from grandrounds.core.plugins import last_word
from grandrounds.core.records import RunSummary
from grandrounds.core.redact import hide
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.methods import METHODS, is_exact
from grandrounds.metrics import Place, shown_in
from grandrounds.metrics.fairness import decision_metric, deployed_scores, worst_site
from grandrounds.metrics.names import metric_label
from grandrounds.metrics.scores import HEADLINE
from grandrounds.report.outcome import format_score, is_classification, task_of_run
from grandrounds.runs.ending import read_state
from grandrounds.runs.run import Run

SHOWN = shown_in(Place.RUN_LIST)
"""Metrics in the list; accuracy is of the model's decisions."""


class RunLine(BaseModel):
    """One run of the list."""

    name: str
    state: str
    data: str = ""
    method: str = ""
    model: str = ""
    sites: int | None = None
    rounds: int = 0
    of: int = 0
    is_exact: bool = False  # rounds are exchanges of sums, and their number is not known before
    seed: int | None = None
    changed: float = 0.0
    metrics: dict[str, float | None] = {}
    headline: str = ""  # the main score of a run that predicts no class
    worst_site: str | None = None
    epsilon: float | None = None
    megabytes: float | None = None  # sent in both directions
    seconds: float | None = None  # training time
    cause: str = ""  # the end of a run that did not finish, in one sentence
    fix: str = ""
    wrong: str = ""
    withdrawn: str = ""  # the withdrawal of a site, after which the model is not valid


def run_lines(run_index: RunIndex) -> list[RunLine]:
    """List all runs, the newest first; an unreadable run carries its reason."""
    return [run_line(run_index, entry, stamp) for entry, stamp in run_index.stamped_runs()]


def run_line(run_index: RunIndex, entry: RunEntry, stamp: Stamp | None = None) -> RunLine:
    """Return the line of a run; `stamp`: its `list_stamp`, where it is known."""
    stamp = entry.list_stamp() if stamp is None else stamp
    changed = max(written for written, _ in stamp) / 1e9
    try:
        line = run_index.line(entry.name, _line, stamp=stamp)
    except Unreadable as e:
        return RunLine(name=entry.name, state=UNREADABLE, changed=changed, wrong=str(e))
    if line.state == FINISHED:
        return line.model_copy(update={"changed": changed})
    state, ending = read_state(entry.folder)  # a run may end without writing again
    ended = {} if ending is None else {"cause": ending.sentence, "fix": ending.fix}
    return line.model_copy(update={"state": state, "changed": changed, **ended})


def _line(entry: RunEntry) -> RunLine:
    check_files(entry)
    refuse_changes(entry)
    run = Run(entry.folder, trust_code=None)
    plan = run.plan
    line: dict[str, Any] = {
        "name": entry.name,
        "state": entry.state,
        "data": data_name(plan["data"]),
        "method": last_word(str(plan["method"]["name"])),
        "model": last_word(str(plan["model"]["name"])),
        "of": int(plan["method"]["rounds"]),
        "is_exact": plan["method"]["name"] in METHODS and is_exact(str(plan["method"]["name"])),
        "seed": int(plan["seed"]),
    }
    if line["state"] != FINISHED:
        facts = Checkpoint(entry.folder / "checkpoint").read_facts()
        return RunLine(**line, rounds=0 if facts is None else int(facts["round"]))
    summary = run.summary
    deployed, spent = deployed_scores(summary), summary["privacy"].get("epsilon")
    worst = worst_site(deployed["per_site"])
    return RunLine(
        **{**line, "data": str(summary["data"]), **({"of": int(summary["rounds"])} if line["is_exact"] else {})},
        sites=int(summary["sites"]["all"]),
        rounds=int(summary["rounds"]),
        metrics={name: decision_metric(name, deployed["final"]) for name in SHOWN},
        headline=_headline(deployed),
        worst_site=None if not worst else f"{worst['site']}",
        epsilon=spent if isinstance(spent, int | float) else None,
        **_cost(summary),
        withdrawn="" if run.withdrawn is None else run.withdrawn.sentence,
    )


def _cost(summary: RunSummary) -> dict[str, float]:
    cost = summary.cost
    if not {"bytes_down", "bytes_up", "seconds"} <= set(cost):
        return {}
    return {"megabytes": (cost["bytes_down"] + cost["bytes_up"]) / 1e6, "seconds": float(cost["seconds"])}


def _headline(summary: RunSummary) -> str:
    """Write the metric that ranks runs of this task; "" for classes, whose metrics have columns, and without test rows."""
    if is_classification(summary):
        return ""
    metric = HEADLINE[task_of_run(summary)]
    value = summary["final"].get(metric)
    return f"{metric_label(metric)} {format_score(metric, value)}" if value is not None else ""


def data_name(data: Mapping[str, object]) -> str:
    """Name a plan's [data]: the data set's name, or the file's without the folders of this machine."""
    if data["name"]:
        return last_word(str(data["name"]))
    where = str(data["table"] or data["pictures"])
    return hide(where) if "://" in where else PurePath(where).name
