"""Rows of trials. Settings are never chosen on test rows of the experiment.

A share of the rows is drawn from the experiment's training and validation rows, site by site. It is stored next to the study
while trials run, readable by the owner only, and removed at the end.

Under a budget (privacy.epsilon) a run reports scores of its test rows only. Its trials then use the experiment's training and
validation rows only, and a part of them as test rows.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.plan_types import Plan
from grandrounds.core.rng import generator
from grandrounds.data.images import ImageSet
from grandrounds.data.loading import read_data, split_seed
from grandrounds.data.row_files import write_bundle
from grandrounds.data.split import row_keys, split_rows
from grandrounds.data.table import Table
from grandrounds.experiment.checks.privacy import under_budget
from grandrounds.runs.federation import Consortium, assemble

_SITE = "tuning_site"
_FOLDER = "rows"
_CORRUPTION_OFF = {"shift": ("strength", 0.0), "shortcut": ("p", 0.0)}

PlanTable = dict[str, Any]
"""A plan, or sections of one, as plain JSON values: trials are written with other data sections."""


@dataclass(frozen=True)
class TrialRows:
    """The rows of trials: the data, split and reference sections of their plans, and facts about the rows."""

    sections: PlanTable
    classes: int
    validation: int  # number of rows on which settings are scored
    part: str = "validation"  # the part of a run's summary with their scores
    file: Path | None = None  # rows stored for the trials, to be removed
    task: str = CLASSIFICATION  # the type of the outcome

    def plan(self, plan: PlanTable) -> PlanTable:
        """Return a trial's plan on these rows. The trial sets the preparation of the data (data.scale ...)."""
        out = {**plan, **{k: v for k, v in self.sections.items() if k != "data"}}
        return {**out, "data": {**plan["data"], **self.sections["data"]}}

    def remove(self) -> None:
        """Remove the stored rows."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)
            self.file.parent.rmdir()


def prepare_rows(plan: PlanTable, folder: Path, *, share: float, secret: str | None, table: Any) -> TrialRows:
    """Return the rows of a plan, or a share of them.

    `secret`: the database URL with its password, which no plan may contain. `table`: a data frame, Table or ImageSet that
    replaces the rows of the plan.
    """
    given = table if table is None or isinstance(table, Table | ImageSet) else Table.from_pandas(table)
    if given is None and secret is not None:
        given = read_data(Plan({**plan, "data": {**plan["data"], "table": secret}}).data)
    consortium = assemble(_without_corruption(plan), given)
    val = sum(len(r.val) for r in consortium.stack.rows)
    data = consortium.stack.data
    classes, task = len(set(data.label.tolist())), CLASSIFICATION if isinstance(data, ImageSet) else data.schema.task
    if not val:
        raise BadInput("tuning needs validation rows, and split.val is 0: set split.val above 0", code="no-validation-rows")
    if share < 1 or under_budget(Plan(plan)):
        return replace(_draw_share(plan, folder, consortium, share=share, classes=classes), task=task)
    if given is None:
        return TrialRows({"data": {}}, classes, val, task=task)
    file = _write(given, folder)
    section = {"name": None, "table": str(file), "query": None, "pictures": None, "sha256": None}
    return TrialRows({"data": section}, classes, val, file=file, task=task)


def _without_corruption(plan: PlanTable) -> Plan:
    """Return the plan without later changes of rows: attacks, tasks, protocol shift, pooling."""
    data = {**plan["data"], **{k: {**plan["data"][k], key: off} for k, (key, off) in _CORRUPTION_OFF.items()}}
    return Plan({**plan, "data": data, "attacks": [], "tasks": {}, "method": {**plan["method"], "name": "fedavg"}})


def _draw_share(plan: PlanTable, folder: Path, consortium: Consortium, *, share: float, classes: int) -> TrialRows:
    """Return a share of each training site's rows, whole patients; a small site gives at least split.min_rows."""
    data, least = consortium.stack.data, int(plan["split"]["min_rows"])
    drawn: dict[str, Array] = {}
    for site, site_rows in zip(consortium.stack.names, consortium.stack.rows, strict=True):
        mine = np.sort(np.concatenate([site_rows.train, site_rows.val]))
        if len(mine):
            drawn[site] = _draw_rows(mine, max(share, least / len(mine)), consortium, seed=int(plan["seed"]), site=site)
    lent = [r.rows[: math.ceil(len(r.rows) * share)] for r in consortium.reference.values()]
    for row, site in zip(np.concatenate(lent) if lent else (), itertools.cycle(drawn), strict=False):
        home = site if data.site is None or plan["split"]["partition"] != "column" else data.site[row]
        drawn[home] = np.append(drawn[home], row)  # the trials set as many aside again
    rows = np.concatenate(list(drawn.values()))
    owner = np.repeat(np.array(list(drawn), object), [len(r) for r in drawn.values()])
    section: PlanTable = {"name": None, "query": None, "pictures": None, "sha256": None}
    if isinstance(data, ImageSet):
        file = _write(replace(data.take(rows), site=owner), folder)
    else:
        file = _write(data.table.take(rows).with_columns({_SITE: owner}), folder)
        old = plan["data"]["site"]
        section["drop"] = [*plan["data"]["drop"], *([old] if old else [])]
        roles = {data.schema.label, data.schema.patient, data.schema.time, data.schema.duration, *section["drop"]}
        section |= {} if data.schema.task == CLASSIFICATION else {"task": data.schema.task}
        kinds = {c.name: list(c.order) if c.order else c.kind for c in data.schema.columns}
        section |= {"kinds": {n: k for n, k in kinds.items() if k != "constant" and n not in roles}, "site": _SITE}
    section["table"] = str(file)
    reference = {
        name: {**one, "rows": max(1, math.ceil(one["rows"] * share))} for name, one in plan["reference"].items()
    }
    judged = max(1, round(float(plan["split"]["val"]) * len(rows)))
    part = "final" if under_budget(Plan(plan)) else "validation"
    sections = {"data": section, "split": _split(plan, part), "reference": reference}
    return TrialRows(sections, classes, judged, part, file)


def _split(plan: PlanTable, part: str) -> PlanTable:
    """Return the split of the drawn rows: the experiment's validation share goes to the part that trials are scored on."""
    split = {**plan["split"], "partition": "column", "scheme": "within", "fold": 0, "holdout": [], "test": 0.0}
    split["min_rows"] = 1  # the experiment's own sites have been checked
    split["seed"] = int(generator(split_seed(Plan(plan)), purpose="split of trials").integers(2**31))  # not the same draws
    if part == "validation":
        return split
    fitted = plan["evaluation"]["calibrate"] != "none"  # on validation rows, within their own budget
    return {**split, "val": split["val"] if fitted else 0.0, "test": split["val"]}


def _draw_rows(mine: Array, share: float, consortium: Consortium, *, seed: int, site: str) -> Array:
    if share >= 1:
        return mine
    data = consortium.stack.data
    level = "row" if data.patient is None else "patient"
    keys = row_keys(data) if level == "row" else None
    dealt = split_rows(
        mine, val=0.0, test=share, seed=seed, site=site, keys=keys, patient=data.patient, unit=level, purpose="tuning"
    )
    return dealt.test


def _write(rows: Table | ImageSet, folder: Path) -> Path:
    target = folder / _FOLDER
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    return write_bundle(rows, target / "tuning.json").resolve()
