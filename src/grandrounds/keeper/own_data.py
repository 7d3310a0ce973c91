"""A hospital's own rows, read as the consortium agreed, in the very order and kinds that a simulation would have them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grandrounds.core.errors import BadInput
from grandrounds.core.plan import Settings
from grandrounds.data.agreement.schema import parse_image_shape
from grandrounds.data.dataset import Dataset
from grandrounds.data.images import ImageSet, stroke_masks
from grandrounds.data.kinds import Holdings
from grandrounds.data.loading import AT_SITES, STROKES, apply_schema, split_keys, split_site_rows
from grandrounds.data.table import Table
from grandrounds.privacy.events import protects_patients
from grandrounds.site.stack import Stack
from grandrounds.site.tasks import task_class

TRAINS, TESTS = "train", "test"


def own_stack(plan: Settings, given: Table | ImageSet, *, name: str, role: str, task: str) -> Stack:
    """One site's stack of a run: its rows, dealt to training, validation and test as the plan says."""
    data = _pictures(plan.data, given) if isinstance(given, ImageSet) else _table(plan.data, given)
    share = plan.split.test if plan.split.scheme == "within" else 0.0
    rows = split_site_rows(plan, data, name, np.arange(len(data)), role, test=share, keys=split_keys(plan, data))
    subgroup = plan.evaluation.subgroup
    groups = None if subgroup is None else data.groups(subgroup)
    if task:
        data = replace(data, label=_labels(plan, data, task))
    return Stack((name,), data, (rows,), groups, (task,), by_patient=protects_patients(plan))


def _table(settings: Any, given: Table) -> Dataset:
    if parse_image_shape(settings) is not None:
        raise BadInput(f"{given.source} is a table, and the run is one of pictures")
    return apply_schema(settings, given)


def _pictures(settings: Any, given: ImageSet) -> ImageSet:
    """Pictures that are as the plan says: of its size and channels, with labels of its classes, and masks where it says so."""
    shape, labels = parse_image_shape(settings), settings.levels.plain().get(settings.label)
    if settings.kinds.plain():
        raise BadInput(f"{given.name} holds pictures, and the run is one of a table")
    if shape is not None and given.shape != shape:
        raise BadInput(f"pictures of {given.name} have the shape {given.shape}, and {shape} is agreed")
    if shape is not None and labels and not set(given.label.tolist()) <= set(labels):
        raise BadInput(f"{given.name} has labels that are none of the agreed classes")
    if settings.masks == AT_SITES and given.masks is None:
        raise BadInput(f"{given.name} has no truth masks, which are agreed on")
    return replace(given, masks=stroke_masks(given.pixels)) if settings.masks == STROKES else given


def _labels(plan: Settings, data: Holdings, task: str) -> Any:
    """Labels of a site with a task of its own."""
    groups: Mapping[str, Sequence[str]] = plan.tasks.plain()[task]["classes"]
    grouped = {old: new for new, olds in groups.items() for old in olds}
    if any(word not in grouped for word in data.label.tolist()):
        raise BadInput(f"tasks.{task}.classes does not say what to do with every label of this site")
    return np.array([task_class(task, grouped[word]) for word in data.label.tolist()], object)
