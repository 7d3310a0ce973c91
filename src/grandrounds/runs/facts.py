"""Facts that a run finds at its start and writes into its plan: the task, kinds and hash of the rows, decimal mark, sites.

A plan asked for leaves these open. `adopt_facts` gives it those of a run that has begun, so that the two can be compared and
the run continued.
"""

from __future__ import annotations

import json
from typing import Any

from grandrounds.core import plugins
from grandrounds.core.outcome import AUTO, CLASSIFICATION
from grandrounds.core.plan import PlanValues
from grandrounds.core.plan_types import Plan
from grandrounds.methods.dp import CLIENT
from grandrounds.models import model_name
from grandrounds.runs.federation import Consortium
from grandrounds.runs.finalize import reading_of, schema_of


def settle_task(plan: Plan, consortium: Consortium) -> Plan:
    """Write the task that the label told into the plan, and its model; a plan for classification stays as it is."""
    schema = schema_of(consortium.data)
    return plan if schema is None else Plan(_with_task(plan.plain(), schema.task))


def add_facts(plan: Plan, consortium: Consortium) -> dict[str, Any]:
    """Return a plan's values with the facts about its data: complete, so that the run can be repeated exactly."""
    values = plan.plain()
    data = {**values["data"], "sha256": consortium.sha256}
    schema = schema_of(consortium.data)
    if schema is not None:
        roles = {schema.label, schema.site, schema.patient, schema.time, schema.duration, *data["drop"]}
        kinds = {c.name: (list(c.order) if c.order else c.kind) for c in schema.columns}
        data["kinds"] = {n: k for n, k in kinds.items() if k != "constant" and n not in roles}
    reading = reading_of(consortium.data)
    if reading is not None:
        data["decimal"] = reading.decimal
    values["data"] = data
    if _counts_sites(values):
        sites = values["privacy"].get("sites") or len(consortium.training)
        values["privacy"] = {**values["privacy"], "sites": sites}
    return values


def adopt_facts(asked: PlanValues, begun: PlanValues) -> dict[str, Any]:
    """Return a plan with the facts of a run that has begun, where the plan leaves them open.

    Args:
        asked: The plan, as it was before the run.
        begun: The plan that the run wrote.
    """
    out: dict[str, Any] = json.loads(json.dumps(asked))
    found = begun["data"]
    if out["data"].get("task", AUTO) == AUTO:
        out = _with_task(out, found.get("task", AUTO))
    if not out["data"]["sha256"]:
        out["data"] |= {"sha256": found["sha256"], "kinds": found["kinds"]}
    if out["data"].get("decimal") == AUTO:
        out["data"]["decimal"] = found["decimal"]
    if _counts_sites(out) and not out["privacy"].get("sites"):
        out["privacy"]["sites"] = begun["privacy"].get("sites")
    return out


def is_same_experiment(asked: PlanValues, begun: PlanValues) -> bool:
    """Tell whether a run that has begun is one of this plan; its own code is compared by name, not by content."""
    mine, theirs = adopt_facts(asked, begun), json.loads(json.dumps(begun))
    for values in (mine, theirs):
        values.pop("code", None)
    return bool(mine == theirs)


def _with_task(values: dict[str, Any], task: str) -> dict[str, Any]:
    """Set the task, and the model of the same name for it."""
    if task in (CLASSIFICATION, AUTO):
        return values
    name = values["model"]["name"]
    model = name if plugins.is_path(name) else model_name(name, task)
    return {**values, "data": {**values["data"], "task": task}, "model": {**values["model"], "name": model}}


def _counts_sites(values: PlanValues) -> bool:
    """Tell whether the noise is for the number of sites, which is then part of the plan."""
    return bool(values["privacy"]["mechanism"] == CLIENT and values["method"]["weigh"]["rule"] != "data_size")
