"""Explain a patient's risk: the columns that raise and lower it, in clinical units, beside other patients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.capabilities.cases.attributions import (
    LOG_ODDS,
    PROBABILITY,
    ScoreAttribution,
    attribute_score,
    contrast_weights,
    is_linear,
    score_unit,
    zero_weight_columns,
)
from grandrounds.capabilities.cases.intervals import ScoreErrors, matching_estimates, score_errors
from grandrounds.capabilities.cases.near_misses import is_near
from grandrounds.capabilities.cases.population import (
    ComparisonPopulation,
    StartingPoint,
    choose_start,
    has_budget,
    load_population,
    start_at_mean,
)
from grandrounds.capabilities.cases.values import (
    Flag,
    Note,
    Value,
    find_contradictions,
    flag_columns,
    is_visible,
    read_values,
)
from grandrounds.core.arrays import Array, plain
from grandrounds.data.dataset import Dataset, read_new_rows
from grandrounds.data.encoding import Encoding
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.data.table import Table
from grandrounds.explain.explainers.cases import Question
from grandrounds.explain.explainers.linear import linear_layer
from grandrounds.explain.features import Features
from grandrounds.models.dense import class_probabilities
from grandrounds.runs.run_rows import CaseRow, is_unseen

if TYPE_CHECKING:
    from grandrounds.runs.model import TrainedModel
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import ComparisonRows

SCHEMA = 1
"""Version of the record's JSON; docs/explain.md describes it."""

MEAN = "the mean of all sites' patients"
_EXACT = 1e-9  # rounding error of a sum


@dataclass(frozen=True)
class Attribution:
    """Attribution to one clinical column: its value, its percentile among all sites' patients, and its contribution."""

    column: str
    value: float | str | None
    percentile: float | None
    share: float | None
    contribution: float
    odds_ratio: float | None  # factor on the odds; None where the contribution is a probability
    points: float | None  # change in risk in percentage points; None for more than two classes
    imputed: bool  # the value is missing, and a typical value was used instead
    margin: float | None = None  # points by which noise may have moved the percentile or share; None: there is no noise
    low: float | None = None  # lower end of the contribution's 95% interval; None: the model has no standard errors
    high: float | None = None

    @property
    def direction(self) -> str:
        """The effect on the risk: "raises", "lowers" or "does nothing"."""
        return "raises" if self.contribution > 0 else "lowers" if self.contribution < 0 else "does nothing"

    def to_dict(self) -> dict[str, object]:
        """Return the attribution as plain JSON; its interval only where it has one."""
        values = {key: v for key, v in vars(self).items() if key not in ("low", "high") or v is not None}
        return {**values, "direction": self.direction}


@dataclass(frozen=True)
class CaseExplanation:
    """Explanation of one patient: base + all contributions + remainder = score, the target class's probability in `unit`."""

    number: int
    source: str
    labels: ColumnLabels
    site: str | None
    part: str | None
    model_owner: str  # "the common model", or the name of its owner
    label: str  # the column that is predicted
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    target_class: str  # the class that is explained: the event of two classes, else the predicted one
    decision: str
    threshold: float | None  # of two classes
    outcome: str | None
    unit: str
    base: float
    baseline: float  # the base as a probability of the explained class
    score: float
    remainder: float
    explainer: str
    start: str  # description of the base
    population: ComparisonPopulation  # population of percentiles and shares
    attributions: tuple[Attribution, ...]  # all columns, the strongest first
    quality: tuple[Note, ...]
    zero_weight_columns: tuple[str, ...]  # columns that a linear model gives no weight
    bias: tuple[Flag, ...]
    notes: tuple[str, ...]
    interval: tuple[float, float] | None = None  # 95% interval of the score, where the model has standard errors

    @property
    def risk_interval(self) -> tuple[float, float] | None:
        """The 95% interval of the probability: that of the score, back-transformed."""
        if self.interval is None or len(self.classes) != 2:
            return None
        low, high = (_risk(z, self.unit) for z in self.interval)
        return low, high

    @property
    def probability(self) -> float:
        """The probability of the target class."""
        return self.probabilities[self.classes.index(self.target_class)]

    @property
    def event(self) -> str:
        """The event that the probability is of."""
        return f"{self.label} = {self.target_class}"

    @property
    def amplifiers(self) -> tuple[Attribution, ...]:
        """The columns that raise the risk, the strongest first."""
        return tuple(r for r in self.attributions if r.contribution > 0)

    @property
    def mitigators(self) -> tuple[Attribution, ...]:
        """The columns that lower the risk, the strongest first."""
        return tuple(r for r in self.attributions if r.contribution < 0)

    @property
    def verdict(self) -> str | None:
        """The decision compared with the outcome; None where the outcome is not known, or the model knew it."""
        return verdict(self.decision, self.outcome, self.target_class, self.probability, self.threshold, part=self.part)

    def waterfall(self) -> list[dict[str, str | float | None]]:
        """List the steps from the base to the score, the strongest first and the remainder last."""
        steps: list[tuple[str | None, float]] = [
            (r.column, r.contribution) for r in self.attributions if r.contribution
        ]
        steps += [(None, self.remainder)] if abs(self.remainder) > _EXACT else []
        reached = accumulate((c for _, c in steps), initial=self.base)
        next(reached)
        return [
            {"column": name, "contribution": c, "score": z, "risk": self.risk_at(z)}
            for (name, c), z in zip(steps, reached, strict=True)
        ]

    def risk_at(self, score: float) -> float | None:
        """Convert a score to the target class's probability; None for more than two classes."""
        return _risk(score, self.unit) if len(self.classes) == 2 else None

    def to_dict(self) -> dict[str, object]:
        """Return the record as plain JSON, in the form that docs/explain.md describes."""
        used = {r.column for r in (*self.amplifiers, *self.mitigators)}
        population = self.population.summary
        return dict(
            plain(
                {
                    "schema": SCHEMA,
                    "kind": "table",
                    "case": self.number,
                    "data": self.source,
                    "site": self.site,
                    "part": self.part,
                    "by": self.model_owner,
                    "label": self.label,
                    "explained": self.target_class,
                    "event": self.event,
                    "probability": self.probability,
                    **({} if self.risk_interval is None else {"probability_interval": self.risk_interval}),
                    "probabilities": dict(zip(self.classes, self.probabilities, strict=True)),
                    "decision": self.decision,
                    "threshold": self.threshold,
                    "outcome": self.outcome,
                    "verdict": self.verdict,
                    "baseline": self.baseline,
                    "unit": self.unit,
                    "base": self.base,
                    "score": self.score,
                    **({} if self.interval is None else {"score_interval": self.interval}),
                    "remainder": self.remainder,
                    "explainer": self.explainer,
                    "start": self.start,
                    "waterfall": self.waterfall(),
                    "amplifiers": [r.to_dict() for r in self.amplifiers],
                    "mitigators": [r.to_dict() for r in self.mitigators],
                    "unused": [r.column for r in self.attributions if r.column not in used],
                    "percentiles": {
                        "patients": None if population is None else population.rows,
                        "from": self.population.words,
                    },
                    "quality": [asdict(note) for note in self.quality],
                    "bias": [flag.to_dict() for flag in self.bias],
                    "notes": self.notes,
                }
            )
        )


def verdict(
    decision: str, outcome: str | None, event: str, risk: float, threshold: float | None, *, part: str | None
) -> str | None:
    """Compare a decision with the outcome.

    A model that is right on rows of its training was not shown to be right, so they have no verdict.

    Args:
        decision: The class decided on.
        outcome: The true class; None where it is not known.
        event: The class whose risk it is.
        risk: The probability of the event.
        threshold: The threshold of two classes; None for more.
        part: The data split of the row; None for a new patient.

    Returns:
        "right", "wrong", "false alarm", "near miss" or "missed"; None where the outcome is not known, or the model knew it.
    """
    if outcome is None or not is_unseen(part):
        return None
    if decision == outcome:
        return "right"
    if threshold is None:
        return "wrong"
    if outcome != event:
        return "false alarm"
    return "near miss" if is_near(risk, threshold) else "missed"


def explain_table_row(
    run: Run,
    model: TrainedModel,
    case_row: CaseRow,
    comparison: Callable[[], ComparisonRows],
    *,
    model_owner: str,
    user: str | None,
    task: str,
    explainer: str,
    protected: Sequence[str] = (),
) -> CaseExplanation:
    """Explain one row of a table with one model; comparison rows are read only where the explainer needs them."""
    assert isinstance(case_row.rows, Table) and model.schema is not None and isinstance(model.encoding, Encoding)
    prediction = model.predict(case_row.rows, task=task)
    outputs = [model.encoding.classes.index(word) for word in prediction.classes]
    target_class = str(prediction.decisions[0]) if prediction.event is None else prediction.event.word
    contrast = contrast_weights(
        model.net.outputs, outputs, model.encoding.classes.index(target_class), kernel=model.net.kernel
    )
    prepared = prepare(run, model, case_row, comparison, user=user, explainer=explainer, contrast=contrast)
    inputs, values, population, start, question = (
        prepared.inputs, prepared.values, prepared.population, prepared.start, prepared.question,
    )  # fmt: skip
    flagged = flag_columns(tuple(values), protected)
    parts = attribute_score(question, explainer)
    scale = ScoreScale(score_unit(model.net), parts.score, two=len(outputs) == 2)
    errors = standard_errors(run, model, question, explainer)
    attributions = list_attributions(question.features.names, parts.contributions, values, scale, errors)
    people = population.summary
    mean = None
    if people is not None and not people.in_cells:
        mean = start_at_mean(people, model.encoding, question.background.dtype).background
    return CaseExplanation(
        number=case_row.number,
        source=case_row.source,
        labels=ColumnLabels.of_plan(run.plan["data"]),
        site=case_row.site,
        part=case_row.part,
        model_owner=model_owner,
        label=model.schema.label,
        classes=prediction.classes,
        probabilities=tuple(prediction.probabilities[0].tolist()),
        target_class=target_class,
        decision=str(prediction.decisions[0]),
        threshold=model.threshold if len(outputs) == 2 else None,
        outcome=case_row.outcome,
        unit=scale.unit,
        base=parts.base,
        baseline=_baseline(parts, outputs, prediction.classes.index(target_class), unit=scale.unit),
        score=parts.score,
        remainder=parts.remainder,
        explainer=explainer,
        start=start.words,
        population=population,
        attributions=attributions,
        quality=(*(note for v in values.values() for note in v.notes), *find_contradictions(inputs)),
        zero_weight_columns=zero_weight_columns(question),
        bias=_bias_flags(attributions, flagged, scale, _column_effects(question, parts, mean), model.threshold),
        notes=(*case_row.notes, *([start.note] if start.note else [])),
        interval=None if errors is None else errors.around(parts.score, errors.score),
    )


_EXACT_FOR_LINEAR = ("shap", "coefficients", "integrated_gradients")
"""Explainers whose contributions of a linear model are b (x - reference)."""


@dataclass(frozen=True, eq=False)
class PreparedCase:
    """A row as an explainer reads it: its values, the population, the starting point and the question."""

    inputs: Dataset
    values: Mapping[str, Value]
    population: ComparisonPopulation
    start: StartingPoint
    question: Question


def prepare(
    run: Run,
    model: TrainedModel,
    case_row: CaseRow,
    comparison: Callable[[], ComparisonRows],
    *,
    user: str | None,
    explainer: str,
    contrast: Array,
) -> PreparedCase:
    """Read a row's values and choose the rows that it is compared with.

    Args:
        run: The run that the model is of.
        model: The model.
        case_row: The row to explain.
        comparison: Gives the rows to compare with; called only where the explainer needs them.
        user: The site whose model it is.
        explainer: A name in EXPLAINERS.
        contrast: Weights of the model's outputs in the score.
    """
    assert isinstance(case_row.rows, Table) and model.schema is not None and isinstance(model.encoding, Encoding)
    inputs = read_new_rows(case_row.rows, model.schema)
    population = load_population(run, model.encoding)
    values = read_values(inputs, model.encoding, model.schema, population.summary, stand_in=_stand_in(run))
    start = choose_start(model, explainer, population.summary, comparison, site=user, budget=has_budget(run))
    wide = start.background.dtype
    question = Question(
        model=model.net,
        theta=model.theta.astype(wide),
        x=model.encoding.encode(inputs, wide),
        background=start.background,
        features=Features.from_columns(model.encoding.sources),
        contrast=contrast,
        seed=run.plan["seed"],
    )
    return PreparedCase(inputs, values, population, start, question)


def standard_errors(
    run: Run, model: TrainedModel, question: Question, explainer: str, *, factor: float = 1.0
) -> ScoreErrors | None:
    """Compute standard errors of the explanation; None for a model that is not the run's own estimates.

    Args:
        run: The run.
        model: The model.
        question: The patient and the rows to compare with.
        explainer: A name in EXPLAINERS.
        factor: Unit of the model's output in the units of the estimates.
    """
    if explainer not in _EXACT_FOR_LINEAR or model.net.outputs != 1 or not is_linear(question.model):
        return None
    assert isinstance(model.encoding, Encoding)
    weights, _ = linear_layer(question.model, question.theta)
    estimates = matching_estimates(run.summary, factor * weights[:, 0], model.encoding.features)
    if estimates is None:
        return None
    errors = score_errors(
        estimates,
        question.x[0].astype(float),
        question.background.mean(axis=0).astype(float),
        inputs=model.encoding.features,
        columns=model.encoding.sources,
    )
    is_common = model is run.model or np.array_equal(model.theta, run.model.theta)
    return errors if is_common else replace(errors, score=None)  # an intercept of the site's own has another error


def _stand_in(run: Run) -> str:
    """Name the value that a missing number is read as."""
    data = run.plan["data"]
    return "the agreed middle" if data.get("encoding") == "public" else f"the consortium's {data['impute']}"


@dataclass(frozen=True)
class ScoreScale:
    """The unit of contributions, and the score that they lead to."""

    unit: str
    score: float
    two: bool  # classes: of more, the score alone does not tell the probability

    def odds_ratio(self, contribution: float) -> float | None:
        return float(np.exp(contribution)) if self.unit == LOG_ODDS else None

    def without(self, contribution: float) -> float | None:
        """Compute the risk without a contribution."""
        return _risk(self.score - contribution, self.unit) if self.two else None

    def points(self, contribution: float) -> float | None:
        """Compute the change of risk by a contribution, in percentage points."""
        rest = self.without(contribution)
        return None if rest is None else 100 * (_risk(self.score, self.unit) - rest)


def list_attributions(
    names: tuple[str, ...],
    contributions: Array,
    values: Mapping[str, Value],
    scale: ScoreScale,
    errors: ScoreErrors | None,
) -> tuple[Attribution, ...]:
    """List the contributions of all columns with their values, the strongest first."""
    order = np.argsort(-np.abs(contributions), kind="stable")
    attributions = []
    for f in order:
        v, c = values[names[f]], float(contributions[f])
        shown = (v.value, v.percentile, v.share, c, scale.odds_ratio(c), scale.points(c), v.imputed, v.margin)
        ends = None if errors is None else errors.around(c, errors.contributions[names[f]])
        attributions.append(Attribution(names[f], *shown, *(ends or ())))
    return tuple(attributions)


def _column_effects(
    question: Question, parts: ScoreAttribution, mean: Array | None
) -> tuple[dict[str, float], str | None]:
    """Compute each column's contribution and what it is relative to: for a linear model the mean patient."""
    contributions, reference = parts.contributions, None
    if mean is not None and is_linear(question.model):
        contributions, reference = attribute_score(replace(question, background=mean), "shap").contributions, MEAN
    return dict(zip(question.features.names, contributions.tolist(), strict=True)), reference


def _bias_flags(
    attributions: Sequence[Attribution],
    flagged: Mapping[str, str],
    scale: ScoreScale,
    moves: tuple[Mapping[str, float], str | None],
    threshold: float,
) -> tuple[Flag, ...]:
    """List the flagged attributes that move this risk, the strongest first."""
    by_column, reference = moves
    risk = _risk(scale.score, scale.unit)
    out = []
    for r in attributions if scale.two else ():
        moved = by_column[r.column]
        points, rest = scale.points(moved), scale.without(moved)
        if r.column in flagged and points is not None and rest is not None and is_visible(points):
            decides = (rest >= threshold) != (risk >= threshold)
            out.append(Flag(r.column, flagged[r.column], r.value, moved, points, rest, reference, decides))
    return tuple(sorted(out, key=lambda flag: -abs(flag.points)))


def _risk(score: float, unit: str) -> float:
    """Convert a score of two classes to a probability."""
    return score if unit == PROBABILITY else float(class_probabilities(np.array([[score]]))[0, 1])


def _baseline(parts: ScoreAttribution, outputs: list[int], place: int, *, unit: str) -> float:
    """Convert the base to a probability: of one logit its sigmoid, of several their softmax within the task."""
    if unit == PROBABILITY:
        return parts.base
    start = parts.start if len(parts.start) == 1 else parts.start[outputs]
    return float(class_probabilities(start[None])[0, place])
