"""A hospital's own rows, read as the consortium agreed, in the very order and kinds that a simulation would have them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import Holdings
from grandrounds.data.table import Table
from grandrounds.errors import BadInput
from grandrounds.holdings import as_agreed, own_rows
from grandrounds.settings import Settings
from grandrounds.site.stack import Stack
from grandrounds.site.tasks import task_class

TRAINS, TESTS = "train", "test"


def own_stack(plan: Settings, given: Table | ImageSet, *, name: str, role: str, task: str) -> Stack:
    """One site's stack of a run: its rows, dealt to training, validation and test as the plan says."""
    data = given if isinstance(given, ImageSet) else as_agreed(plan.data, given)
    share = plan.split.test if plan.split.scheme == "within" else 0.0
    rows = own_rows(plan, data, name, np.arange(len(data)), role, test=share)
    subgroup = plan.evaluation.subgroup
    groups = None if subgroup is None else data.groups(subgroup)
    if task:
        data = replace(data, label=_labels(plan, data, task))
    return Stack((name,), data, (rows,), groups, (task,))


def _labels(plan: Settings, data: Holdings, task: str) -> Any:
    """Labels of a site with a task of its own."""
    groups: Mapping[str, Sequence[str]] = plan.tasks.plain()[task]["classes"]
    grouped = {old: new for new, olds in groups.items() for old in olds}
    if any(word not in grouped for word in data.label.tolist()):
        raise BadInput(f"tasks.{task}.classes does not say what to do with every label of this site")
    return np.array([task_class(task, grouped[word]) for word in data.label.tolist()], object)
