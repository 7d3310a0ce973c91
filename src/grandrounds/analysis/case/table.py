"""Why a model gives a patient this risk: the columns that raise and lower it, in clinical units, beside other patients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.analysis.case.attributions import (
    LOG_ODDS,
    PROBABILITY,
    Attributed,
    attribute,
    contrast,
    is_linear,
    unit,
    unread,
)
from grandrounds.analysis.case.near_misses import is_near
from grandrounds.analysis.case.population import (
    KnownPopulation,
    choose_start,
    has_budget,
    load_population,
    start_at_mean,
)
from grandrounds.analysis.case.rows import Found
from grandrounds.analysis.case.values import Flag, Note, Value, contradictory, is_seen, read_values, watched
from grandrounds.core.arrays import Array, plain
from grandrounds.data.dataset import read_new_rows
from grandrounds.data.encoding import Encoding
from grandrounds.data.table import Table
from grandrounds.explain.explainers.cases import Question
from grandrounds.explain.features import Features
from grandrounds.models.dense import class_probabilities

if TYPE_CHECKING:
    from grandrounds.analysis.case.rows import ComparisonRows
    from grandrounds.runs.model import TrainedModel
    from grandrounds.runs.run import Run

SCHEMA = 1
"""Version of the record's JSON; docs/one-patient.md says what is in it."""

MEAN = "the mean of all sites' patients"
_EXACT = 1e-9  # what rounding leaves of a sum


@dataclass(frozen=True)
class Reason:
    """One clinical column: its value, where that stands among all sites' patients, and what it adds to the score."""

    column: str
    value: float | str | None
    percentile: float | None
    share: float | None
    contribution: float
    odds_ratio: float | None  # what the contribution multiplies the odds by; None where it is in probability
    points: float | None  # risk with it less risk without it, in percentage points; None of more than two classes
    imputed: bool  # whether the value is missing, so that what counts here is what stands in for it
    margin: float | None = None  # points by which noise may have moved the percentile or share; None: there is no noise

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
    explained: str  # the event of two classes, else the predicted one
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
    among: KnownPopulation  # whom percentiles and shares are of
    reasons: tuple[Reason, ...]  # all columns, the strongest first
    quality: tuple[Note, ...]
    unread: tuple[str, ...]  # columns that a linear model gives no weight
    bias: tuple[Flag, ...]
    notes: tuple[str, ...]

    @property
    def probability(self) -> float:
        """Of the explained class."""
        return self.probabilities[self.classes.index(self.explained)]

    @property
    def event(self) -> str:
        """What the probability is of."""
        return f"{self.label} = {self.explained}"

    @property
    def amplifiers(self) -> tuple[Reason, ...]:
        """What raises the risk, the strongest first."""
        return tuple(r for r in self.reasons if r.contribution > 0)

    @property
    def mitigators(self) -> tuple[Reason, ...]:
        """What lowers the risk, the strongest first."""
        return tuple(r for r in self.reasons if r.contribution < 0)

    @property
    def verdict(self) -> str | None:
        return verdict(self.decision, self.outcome, self.explained, self.probability, self.threshold)

    def waterfall(self) -> list[dict[str, Any]]:
        """The steps from the base to the score, the strongest first; what no column accounts for comes last."""
        steps: list[tuple[str | None, float]] = [(r.column, r.contribution) for r in self.reasons if r.contribution]
        steps += [(None, self.remainder)] if abs(self.remainder) > _EXACT else []
        reached = accumulate((c for _, c in steps), initial=self.base)
        next(reached)
        return [
            {"column": name, "contribution": c, "score": z, "risk": self.risk_at(z)}
            for (name, c), z in zip(steps, reached, strict=True)
        ]

    def risk_at(self, score: float) -> float | None:
        """The explained class's probability at a score; of more than two classes a score alone does not tell it."""
        return _risk(score, self.unit) if len(self.classes) == 2 else None

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON, in the form that docs/one-patient.md describes."""
        used = {r.column for r in (*self.amplifiers, *self.mitigators)}
        population = self.among.population
        return dict(
            plain(
                {
                    "schema": SCHEMA,
                    "kind": "table",
                    "case": self.number,
                    "data": self.source,
                    "site": self.site,
                    "part": self.part,
                    "by": self.by,
                    "label": self.label,
                    "explained": self.explained,
                    "event": self.event,
                    "probability": self.probability,
                    "probabilities": dict(zip(self.classes, self.probabilities, strict=True)),
                    "decision": self.decision,
                    "threshold": self.threshold,
                    "outcome": self.outcome,
                    "verdict": self.verdict,
                    "baseline": self.baseline,
                    "unit": self.unit,
                    "base": self.base,
                    "score": self.score,
                    "remainder": self.remainder,
                    "explainer": self.explainer,
                    "start": self.start,
                    "waterfall": self.waterfall(),
                    "amplifiers": [r.to_dict() for r in self.amplifiers],
                    "mitigators": [r.to_dict() for r in self.mitigators],
                    "unused": [r.column for r in self.reasons if r.column not in used],
                    "percentiles": {
                        "patients": None if population is None else population.rows,
                        "from": self.among.words,
                    },
                    "quality": [asdict(note) for note in self.quality],
                    "bias": [flag.to_dict() for flag in self.bias],
                    "notes": self.notes,
                }
            )
        )


def verdict(decision: str, outcome: str | None, event: str, risk: float, threshold: float | None) -> str | None:
    """What became of a decision; None where the outcome is not known. `threshold`: of two classes."""
    if outcome is None:
        return None
    if decision == outcome:
        return "right"
    if threshold is None:
        return "wrong"
    if outcome != event:
        return "false alarm"
    return "near miss" if is_near(risk, threshold) else "missed"


def table_case(
    run: Run,
    model: TrainedModel,
    found: Found,
    beside: Callable[[], ComparisonRows],
    *,
    by: str,
    user: str | None,
    task: str,
    explainer: str,
    protected: Sequence[str] = (),
) -> TableCase:
    """One row of a table explained by one model; other rows (`beside`) are read only where the explainer needs them."""
    assert isinstance(found.rows, Table) and model.schema is not None and isinstance(model.encoding, Encoding)
    said = model.predict(found.rows, task=task)
    row = read_new_rows(found.rows, model.schema)
    others = load_population(run, model.encoding)
    held = read_values(row, model.encoding, model.schema, others.population, stand_in=_stand_in(run))
    flagged = watched(tuple(held), protected)
    own = [model.encoding.classes.index(word) for word in said.classes]
    explained = str(said.decisions[0]) if said.event is None else said.event.word
    start = choose_start(model, explainer, others.population, beside, site=user, budget=has_budget(run))
    wide = start.background.dtype
    question = Question(
        model=model.net,
        theta=model.theta.astype(wide),
        x=model.encoding.encode(row, wide),
        background=start.background,
        features=Features.from_columns(model.encoding.sources),
        contrast=contrast(model.net.outputs, own, model.encoding.classes.index(explained), kernel=model.net.kernel),
        seed=run.plan["seed"],
    )
    parts = attribute(question, explainer)
    counted = _Counted(unit(model.net), parts.score, two=len(own) == 2)
    reasons = _reasons(question.features.names, parts.contributions, held, counted)
    people = others.population
    mean = None if people is None or people.in_cells else start_at_mean(people, model.encoding, wide).background
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
        unit=counted.unit,
        base=parts.base,
        baseline=_baseline(parts, own, said.classes.index(explained), unit=counted.unit),
        score=parts.score,
        remainder=parts.remainder,
        explainer=explainer,
        start=start.words,
        among=others,
        reasons=reasons,
        quality=(*(note for v in held.values() for note in v.notes), *contradictory(row)),
        unread=unread(question),
        bias=_flags(reasons, flagged, counted, _moves(question, parts, mean), model.threshold),
        notes=(*found.notes, *([start.note] if start.note else [])),
    )


def _stand_in(run: Run) -> str:
    """What a missing number is read as."""
    data = run.plan["data"]
    return "the agreed middle" if data.get("encoding") == "public" else f"the consortium's {data['impute']}"


@dataclass(frozen=True)
class _Counted:
    """What contributions are counted in, and the score that they lead to."""

    unit: str
    score: float
    two: bool  # classes: of more, the score alone does not tell the probability

    def odds_ratio(self, contribution: float) -> float | None:
        return float(np.exp(contribution)) if self.unit == LOG_ODDS else None

    def without(self, contribution: float) -> float | None:
        """The risk without a contribution."""
        return _risk(self.score - contribution, self.unit) if self.two else None

    def points(self, contribution: float) -> float | None:
        """What a contribution changes the risk by."""
        rest = self.without(contribution)
        return None if rest is None else 100 * (_risk(self.score, self.unit) - rest)


def _reasons(
    names: tuple[str, ...], contributions: Array, held: Mapping[str, Value], counted: _Counted
) -> tuple[Reason, ...]:
    order = np.argsort(-np.abs(contributions), kind="stable")
    made = []
    for f in order:
        v, c = held[names[f]], float(contributions[f])
        shown = (v.value, v.percentile, v.share, c, counted.odds_ratio(c), counted.points(c), v.value is None, v.margin)
        made.append(Reason(names[f], *shown))
    return tuple(made)


def _moves(question: Question, parts: Attributed, mean: Array | None) -> tuple[dict[str, float], str | None]:
    """What each column adds, and beside whom: of a linear model the mean patient, whatever its explainer starts from."""
    found, beside = parts.contributions, None
    if mean is not None and is_linear(question.model):
        found, beside = attribute(replace(question, background=mean), "shap").contributions, MEAN
    return dict(zip(question.features.names, found.tolist(), strict=True)), beside


def _flags(
    reasons: Sequence[Reason],
    flagged: Mapping[str, str],
    counted: _Counted,
    moves: tuple[Mapping[str, float], str | None],
    threshold: float,
) -> tuple[Flag, ...]:
    """The attributes to be wary of that move this risk, the strongest first."""
    by_column, at = moves
    risk = _risk(counted.score, counted.unit)
    out = []
    for r in reasons if counted.two else ():
        moved = by_column[r.column]
        points, rest = counted.points(moved), counted.without(moved)
        if r.column in flagged and points is not None and rest is not None and is_seen(points):
            decides = (rest >= threshold) != (risk >= threshold)
            out.append(Flag(r.column, flagged[r.column], r.value, moved, points, rest, at, decides))
    return tuple(sorted(out, key=lambda flag: -abs(flag.points)))


def _risk(score: float, unit: str) -> float:
    """A score of two classes as a probability."""
    return score if unit == PROBABILITY else float(class_probabilities(np.array([[score]]))[0, 1])


def _baseline(parts: Attributed, own: list[int], place: int, *, unit: str) -> float:
    """The base as a probability: of one logit its sigmoid, of several their softmax within the task."""
    if unit == PROBABILITY:
        return parts.base
    start = parts.start if len(parts.start) == 1 else parts.start[own]
    return float(class_probabilities(start[None])[0, place])
