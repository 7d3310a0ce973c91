"""The rows of a finished run as a membership attack sees them: who was trained on, and how sure the model is of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.corruption.attacks import DATA_KINDS
from grandrounds.data.encoding import class_numbers
from grandrounds.methods.pooled import POOL
from grandrounds.privacy.attacks.membership import confidence
from grandrounds.runs.federation import Consortium
from grandrounds.runs.model import TrainedModel
from grandrounds.site.evaluate import score
from grandrounds.site.tasks import task_of_class

if TYPE_CHECKING:
    from grandrounds.analysis.case.rows import RunRows
    from grandrounds.runs.run import Run


@dataclass(frozen=True, eq=False)
class Target:
    """Rows (n,) of a run's data, which site holds each, which were trained on, and the confidence of the model in use."""

    rows: Array
    site: Array  # (n,) object of str
    member: Array  # (n,) bool
    confidence: Array
    notes: tuple[str, ...]


def target_of(run: Run, held: RunRows) -> Target:
    """Training rows and, of the same sites, rows that were not trained on: test rows, or else validation rows."""
    part, notes = _others(run, held)
    rows, sites, member = [], [], []
    stack, pooled = held.consortium.stack, POOL in held.consortium.stack.names
    trained = took_part(run)
    idle = [name for name, own in zip(stack.names, stack.rows, strict=True) if len(own.train) and name not in trained]
    if idle:
        shown = ", ".join(idle[:5]) + (f" and {len(idle) - 5} more" if len(idle) > 5 else "")
        notes = (*notes, f"without {shown}: they never took part in training, so none of their rows is a member")
    for name, own in zip(stack.names, stack.rows, strict=True):
        unseen = getattr(own, part)
        if pooled or (len(own.train) and len(unseen) and name in trained):
            for chosen, seen in ((own.train, True), (unseen, False)):
                rows.append(chosen)
                sites.append(np.full(len(chosen), name, object))
                member.append(np.full(len(chosen), seen))
    if len(rows) < 1 or min(np.concatenate(member).sum(), (~np.concatenate(member)).sum()) < 2:
        raise BadInput(
            f"{run.folder} has no site with both training rows and rows that were not trained on, and an attack "
            "compares the two: run it with split.test above 0"
        )
    at, of = np.concatenate(rows), np.concatenate(sites)
    return Target(at, of, np.concatenate(member), confidences(run, held.consortium, at, of), notes)


def took_part(run: Run) -> set[str]:
    """The sites whose training rows a model of the run has seen: those that answered in some round, or were fine-tuned."""
    answered = {
        site
        for record in run.rounds
        for site in record["decision"]["asked"]
        if site not in record["decision"]["missing"]
    }
    return answered | (set(run.summary["models"]) if run.summary["finetuned"] else set())


def confidences(run: Run, consortium: Consortium, rows: Array, site: Array) -> Array:
    """The log-odds (n,) that the model in use at each row's site gives to the row's own class."""
    stack = consortium.stack
    task = dict(zip(stack.names, stack.tasks or ("",) * len(stack.names), strict=True))
    files: Mapping[str, str] = run.summary["models"]
    ways = {name: (files.get(name), task[name]) for name in dict.fromkeys(site.tolist())}
    out = np.empty(len(rows))
    for way in dict.fromkeys(ways.values()):
        mine = np.isin(site.astype(str), [name for name, other in ways.items() if other == way])
        model = run.model if way[0] is None else run.model_at(way[0])
        out[mine] = _confidence(model, consortium, rows[mine], way[1])
    return out


def _confidence(model: TrainedModel, consortium: Consortium, rows: Array, task: str) -> Array:
    encoding, data = model.encoding, consortium.data.take(rows)
    inputs: Array = encoding.encode(data, model.theta.dtype)  # type: ignore[arg-type]
    tasks = list(model.spec.get("tasks", []))
    own = [c for c, word in enumerate(encoding.classes) if task_of_class(word, tasks) == task]
    logits = score(model.net, model.theta, inputs)
    if len(own) < len(encoding.classes):
        logits = logits[:, own]
    return confidence(logits, class_numbers(data.label, [encoding.classes[c] for c in own], where=data.name))


def _others(run: Run, held: RunRows) -> tuple[str, tuple[str, ...]]:
    """Which rows stand for patients who were not trained on, and what may colour the comparison."""
    split, stack = held.plan.split, held.consortium.stack
    notes = []
    if split.scheme == "within" and any(len(r.test) for r in stack.rows):
        part = "test"
        if split.by == "time":
            notes.append(
                "test rows are later than training rows (split.by = 'time'): what changed in between can pass for membership"
            )
    else:
        part = "val"
        why = "there are no test rows" if split.scheme == "within" else "test rows are other hospitals' (split.scheme)"
        notes.append(f"{why}, so the non-members are validation rows")
    if not any(len(getattr(r, part)) for r in stack.rows):
        raise BadInput(
            f"{run.folder} kept no test or validation rows at the sites that train, so there is nobody to tell its "
            "members from: run it with split.test or split.val above 0"
        )
    if any(attack.kind in DATA_KINDS for attack in stack.attacks.values()):
        notes.append("some sites attacked their own training rows ([[attacks]]): those rows stand as they claimed them")
    return part, tuple(notes)
