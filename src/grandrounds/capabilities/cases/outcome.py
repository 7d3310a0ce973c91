"""Explain the prediction of a number, a count or a time to an event: the columns that raise and lower it, with intervals.

Contributions add up on the scale of the model: units of the outcome for a number, the log of an expected count, the log hazard.
The prediction is the number, the expected count, or the hazard relative to the starting point (survival has no probability,
because the baseline hazard is not part of the model).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.capabilities.cases.attributions import attribute_score, zero_weight_columns
from grandrounds.capabilities.cases.intervals import ScoreErrors
from grandrounds.capabilities.cases.population import ComparisonPopulation
from grandrounds.capabilities.cases.table import (
    Attribution,
    ScoreScale,
    list_attributions,
    prepare,
    standard_errors,
)
from grandrounds.capabilities.cases.values import Note, find_contradictions
from grandrounds.core.arrays import plain
from grandrounds.core.outcome import COUNT, REGRESSION, SURVIVAL
from grandrounds.data.outcome import Outcome
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.runs.run_rows import CaseRow

if TYPE_CHECKING:
    from grandrounds.runs.model import TrainedModel
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import ComparisonRows

SCHEMA = 1
"""Version of the record's JSON; docs/explain.md describes it."""

UNITS = {REGRESSION: "units of the outcome", COUNT: "log count", SURVIVAL: "log hazard"}
PREDICTIONS = {REGRESSION: "prediction", COUNT: "expected count", SURVIVAL: "relative hazard"}
RATIOS = {COUNT: "rate ratio", SURVIVAL: "hazard ratio"}


@dataclass(frozen=True)
class OutcomeExplanation:
    """Explanation of one patient: base + all contributions + remainder = score, on the scale of `unit`."""

    number: int
    source: str
    labels: ColumnLabels
    site: str | None
    part: str | None
    model_owner: str
    label: str
    task: str
    outcome: str | None
    unit: str
    base: float
    baseline: float  # the base as a prediction
    score: float
    prediction: float
    remainder: float
    explainer: str
    start: str
    population: ComparisonPopulation
    attributions: tuple[Attribution, ...]  # all columns, the strongest first
    quality: tuple[Note, ...]
    zero_weight_columns: tuple[str, ...]
    notes: tuple[str, ...]
    prediction_interval: tuple[float, float] | None = None  # 95%, where the model has standard errors

    @property
    def amplifiers(self) -> tuple[Attribution, ...]:
        """The columns that raise the prediction, the strongest first."""
        return tuple(r for r in self.attributions if r.contribution > 0)

    @property
    def mitigators(self) -> tuple[Attribution, ...]:
        """The columns that lower the prediction, the strongest first."""
        return tuple(r for r in self.attributions if r.contribution < 0)

    @property
    def name(self) -> str:
        """The name of the prediction."""
        return PREDICTIONS[self.task]

    def ratio(self, attribution: Attribution) -> float | None:
        """Return e^contribution, the factor on the count or hazard; None for a number."""
        return float(np.exp(attribution.contribution)) if self.task in RATIOS else None

    def to_dict(self) -> dict[str, object]:
        """Return the record as plain JSON, in the form that docs/explain.md describes."""
        used = {r.column for r in (*self.amplifiers, *self.mitigators)}
        people = self.population.summary
        values: dict[str, object] = {
            "schema": SCHEMA,
            "kind": "outcome",
            "case": self.number,
            "data": self.source,
            "site": self.site,
            "part": self.part,
            "by": self.model_owner,
            "label": self.label,
            "task": self.task,
            "prediction": self.prediction,
            **({} if self.prediction_interval is None else {"prediction_interval": self.prediction_interval}),
            "outcome": self.outcome,
            "baseline": self.baseline,
            "unit": self.unit,
            "base": self.base,
            "score": self.score,
            "remainder": self.remainder,
            "explainer": self.explainer,
            "start": self.start,
            "amplifiers": [self._contribution(r) for r in self.amplifiers],
            "mitigators": [self._contribution(r) for r in self.mitigators],
            "unused": [r.column for r in self.attributions if r.column not in used],
            "percentiles": {"patients": None if people is None else people.rows, "from": self.population.words},
            "quality": [asdict(note) for note in self.quality],
            "notes": self.notes,
        }
        return dict(plain(values))

    def _contribution(self, attribution: Attribution) -> dict[str, object]:
        values = attribution.to_dict()
        del values["odds_ratio"], values["points"]
        return {**values, **({"ratio": self.ratio(attribution)} if self.task in RATIOS else {})}


def explain_outcome_row(
    run: Run,
    model: TrainedModel,
    case_row: CaseRow,
    comparison: Callable[[], ComparisonRows],
    *,
    outcome: Outcome,
    model_owner: str,
    user: str | None,
    explainer: str,
) -> OutcomeExplanation:
    """Explain one row with a model that predicts no class.

    Args:
        run: The run that the model is of.
        model: The model.
        case_row: The row to explain.
        comparison: Gives the rows to compare with; called only where the explainer needs them.
        outcome: The outcome that the model predicts.
        model_owner: "the common model", or the name of its owner.
        user: The site whose model it is.
        explainer: A name in EXPLAINERS.

    Returns:
        The explanation.

    Raises:
        BadInput: The explainer is unknown or does not suit the model.
    """
    assert model.schema is not None
    prepared = prepare(run, model, case_row, comparison, user=user, explainer=explainer, contrast=np.ones(1))
    parts = attribute_score(prepared.question, explainer)
    factor = outcome.scale if outcome.task == REGRESSION else 1.0
    shift = {REGRESSION: outcome.centre, COUNT: float(np.log(outcome.scale))}.get(outcome.task, 0.0)
    base, score = shift + factor * parts.base, shift + factor * parts.score
    errors = standard_errors(run, model, prepared.question, explainer, factor=factor)
    scale = ScoreScale(UNITS[outcome.task], score, two=False)
    attributions = list_attributions(
        prepared.question.features.names, factor * parts.contributions, prepared.values, scale, errors
    )
    return OutcomeExplanation(
        number=case_row.number,
        source=case_row.source,
        labels=ColumnLabels.of_plan(run.plan["data"]),
        site=case_row.site,
        part=case_row.part,
        model_owner=model_owner,
        label=model.schema.label,
        task=outcome.task,
        outcome=case_row.outcome,
        unit=scale.unit,
        base=base,
        baseline=_predict(outcome.task, base, base),
        score=score,
        prediction=_predict(outcome.task, score, base),
        remainder=factor * parts.remainder,
        explainer=explainer,
        start=prepared.start.words,
        population=prepared.population,
        attributions=attributions,
        quality=(*(note for v in prepared.values.values() for note in v.notes), *find_contradictions(prepared.inputs)),
        zero_weight_columns=zero_weight_columns(prepared.question),
        notes=(*case_row.notes, *([prepared.start.note] if prepared.start.note else [])),
        prediction_interval=_interval(outcome.task, score, base, errors),
    )


def _predict(task: str, score: float, base: float) -> float:
    """Convert a score to a prediction; a hazard is relative to the base."""
    if task == REGRESSION:
        return score
    with np.errstate(over="ignore"):
        return float(np.exp(score - base if task == SURVIVAL else score))


def _interval(task: str, score: float, base: float, errors: ScoreErrors | None) -> tuple[float, float] | None:
    """Return the 95% interval of a prediction; that of a relative hazard is of the difference of scores."""
    if errors is None:
        return None
    ends = errors.around(score, errors.difference if task == SURVIVAL else errors.score)
    if ends is None:
        return None
    low, high = (_predict(task, z, base) for z in ends)
    return low, high
