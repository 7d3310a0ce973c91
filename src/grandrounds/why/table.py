"""Why a model gives a patient this risk: the columns that raise and lower it, in clinical units, beside other patients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.arrays import Array
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Encoding
from grandrounds.data.incoming import read_through
from grandrounds.data.table import Table
from grandrounds.explain.features import Features
from grandrounds.judge import plain
from grandrounds.models.dense import class_probabilities
from grandrounds.why.attributions import (
    PROBABILITY,
    Attributed,
    Question,
    attribute,
    contrast,
    start_words,
    unit,
)
from grandrounds.why.rows import Found, RunRows
from grandrounds.why.values import Value, values_of

if TYPE_CHECKING:
    from grandrounds.trained import TrainedModel


@dataclass(frozen=True)
class Reason:
    """One clinical column: its value, where that stands among the training rows, and what it adds to the score."""

    column: str
    value: float | str | None
    percentile: float | None
    share: float | None
    contribution: float

    @property
    def direction(self) -> str:
        """What the value does to the risk."""
        return "raises" if self.contribution > 0 else "lowers" if self.contribution < 0 else "does nothing"

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "direction": self.direction}


@dataclass(frozen=True)
class TableCase:
    """One patient: base + all contributions + remainder = score, which is the explained class's probability in `unit`."""

    number: int
    source: str
    site: str | None
    part: str | None
    by: str  # whose model it is that speaks
    label: str  # the column that is predicted
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    explained: str  # the positive class of two, else the predicted one
    decision: str
    threshold: float | None  # of two classes
    outcome: str | None
    unit: str
    base: float
    baseline: float  # the base as a probability of the explained class
    score: float
    remainder: float
    explainer: str
    start: str  # what the base is
    reasons: tuple[Reason, ...]  # all columns, the strongest first
    notes: tuple[str, ...]

    @property
    def probability(self) -> float:
        """Of the explained class."""
        return self.probabilities[self.classes.index(self.explained)]

    @property
    def event(self) -> str:
        """What the probability is of."""
        return f"{self.label} = {self.explained}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON."""
        return dict(
            plain(
                {
                    "kind": "table",
                    "case": self.number,
                    "data": self.source,
                    "site": self.site,
                    "part": self.part,
                    "by": self.by,
                    "label": self.label,
                    "explained": self.explained,
                    "probability": self.probability,
                    "probabilities": dict(zip(self.classes, self.probabilities, strict=True)),
                    "decision": self.decision,
                    "threshold": self.threshold,
                    "outcome": self.outcome,
                    "baseline": self.baseline,
                    "unit": self.unit,
                    "base": self.base,
                    "score": self.score,
                    "remainder": self.remainder,
                    "explainer": self.explainer,
                    "start": self.start,
                    "reasons": [r.to_dict() for r in self.reasons],
                    "notes": self.notes,
                }
            )
        )


def table_case(model: TrainedModel, found: Found, rows: RunRows, *, by: str, task: str, explainer: str) -> TableCase:
    """One row of a table explained by one model, beside the run's own rows."""
    assert isinstance(found.rows, Table) and model.schema is not None and isinstance(model.encoding, Encoding)
    said = model.predict(found.rows, task=task)
    row = read_through(found.rows, model.schema)
    data = rows.consortium.data
    assert isinstance(data, Dataset)
    held = values_of(row, model.encoding, data, rows.training, impute=rows.plan.data.impute)
    background, words = rows.background()
    assert isinstance(background, Dataset)
    own = [model.encoding.classes.index(word) for word in said.classes]
    explained = said.classes[-1] if len(own) == 2 else str(said.decisions[0])
    wide = np.float64 if model.net.kernel != "torch" else model.theta.dtype
    question = Question(
        model=model.net,
        theta=model.theta.astype(wide),
        x=model.encoding.encode(row, wide),
        background=model.encoding.encode(background, wide),
        features=Features.of_columns(model.encoding.sources),
        contrast=contrast(model.net.outputs, own, model.encoding.classes.index(explained), kernel=model.net.kernel),
        seed=rows.plan.seed,
    )
    parts = attribute(question, explainer)
    return TableCase(
        number=found.number,
        source=found.source,
        site=found.site,
        part=found.part,
        by=by,
        label=model.schema.label,
        classes=said.classes,
        probabilities=tuple(said.probabilities[0].tolist()),
        explained=explained,
        decision=str(said.decisions[0]),
        threshold=model.threshold if len(own) == 2 else None,
        outcome=found.outcome,
        unit=unit(model.net),
        base=parts.base,
        baseline=_baseline(parts, own, said.classes.index(explained), unit=unit(model.net)),
        score=parts.score,
        remainder=parts.remainder,
        explainer=explainer,
        start=start_words(explainer, words),
        reasons=_reasons(question.features.names, parts.contributions, held),
        notes=(*(v.note for v in held.values() if v.note), *found.notes),
    )


def _reasons(names: tuple[str, ...], contributions: Array, held: dict[str, Value]) -> tuple[Reason, ...]:
    order = np.argsort(-np.abs(contributions), kind="stable")
    made = []
    for f in order:
        v = held[names[f]]
        made.append(Reason(names[f], v.value, v.percentile, v.share, float(contributions[f])))
    return tuple(made)


def _baseline(parts: Attributed, own: list[int], place: int, *, unit: str) -> float:
    """The base as a probability: of one logit its sigmoid, of several their softmax within the task."""
    if unit == PROBABILITY:
        return parts.base
    start = parts.start if len(parts.start) == 1 else parts.start[own]
    return float(class_probabilities(start[None])[0, place])
