"""Sites with different tasks: one net with a shared body and one head per task.

The heads share the net's last layer, with one output for each class of each task. A site's logits are minus infinity outside its
own task's classes, so its loss and predictions use its own head alone, and the other heads get no gradient. The server averages
a head over the sites with its task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest

_SIGN = ": "
CLOSED = -1e9
"""Added to the logits of other tasks' classes, so that their softmax is 0."""


def task_class(task: str, word: str) -> str:
    """Return the name of a class of a task, among the classes of all tasks."""
    return f"{task}{_SIGN}{word}"


def tasks_of(tasks: Mapping[str, Any], sites: Sequence[str]) -> dict[str, str]:
    """Assign a task to each site ("" is the main one): as named, else all tasks in turn."""
    for name, task in tasks.items():
        for site in task["sites"]:
            if site not in sites:
                raise BadInput(f"tasks.{name}.sites names '{site}'; {nearest(site, sites)}", code="unknown-site")
        if len(task["classes"]) < 2:
            raise BadInput(f"tasks.{name}.classes needs two classes at least", code="too-few-classes")
    if any(task["sites"] for task in tasks.values()):
        named = {site: name for name, task in tasks.items() for site in task["sites"]}
        return {site: named.get(site, "") for site in sites}
    names = ["", *tasks]
    return {site: names[k % len(names)] for k, site in enumerate(sites)}


def task_of_class(word: str, tasks: Sequence[str]) -> str:
    """Return the task of a class."""
    return next((t for t in tasks if t and word.startswith(t + _SIGN)), "")


def open_classes(classes: Sequence[str], site_tasks: Sequence[str], tasks: Sequence[str]) -> Array | None:
    """Return a mask of each site's own classes, (K, C); None if there are no further tasks."""
    if not tasks:
        return None
    class_tasks = [task_of_class(c, tasks) for c in classes]
    return np.array([[o == t for o in class_tasks] for t in site_tasks])


def penalty(open_: Array, dtype: np.typing.DTypeLike) -> Array:
    """Return the term added to a site's logits, (K, C): 0 for its own classes."""
    return np.where(open_, 0.0, CLOSED).astype(dtype)
