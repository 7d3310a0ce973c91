"""Tabulate a linear model: the odds ratio of each feature, its unit, and the baseline risk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import COUNT, REGRESSION
from grandrounds.data.encoding import Encoding
from grandrounds.data.kinds import outcome_of
from grandrounds.data.outcome import Outcome
from grandrounds.report.model_table import MAX_LISTED_INPUTS, ReadableModel, Weight
from grandrounds.runs.model import TrainedModel


def readable(model: TrainedModel) -> ReadableModel:
    """Return the table of a linear model of two classes, a number, a count or survival; another model is refused."""
    net, encoding = model.net, model.encoding
    linear = model.spec["name"] in ("logistic", "linear") and isinstance(encoding, Encoding)
    if not (linear and net.outputs == 1 and isinstance(encoding, Encoding)):
        kind = "a logistic model of three classes or more" if linear else f"model '{model.spec['name']}'"
        raise BadInput(
            f"{kind} has no weights to read one by one: `rounds explain RUN` shows the features it relies on",
            code="model-not-readable",
        )
    outcome = outcome_of(encoding)
    if outcome is not None:
        return _readable_outcome(model, encoding, outcome)
    parameters, event = model.parameters, model.event
    assert event is not None
    sign = 1.0 if event.word == encoding.classes[1] else -1.0  # the net's own output is the log-odds of class 1
    values = sign * parameters["layer0.weight"][:, 0].astype(float)
    weights = [_weight(w, *input_info) for w, input_info in zip(values, _inputs(encoding), strict=True) if w != 0]
    return ReadableModel(
        label="" if model.schema is None else model.schema.label,
        positive=event.word,
        weights=tuple(sorted(weights, key=lambda w: (-abs(w.weight), w.feature))),
        zeros=int((values == 0).sum()),
        intercept=sign * float(parameters["layer0.bias"][0]),
        threshold=model.threshold,
        calibration=_calibration(model),
    )


def _readable_outcome(model: TrainedModel, encoding: Encoding, outcome: Outcome) -> ReadableModel:
    """Return the table of a linear model that predicts no class, in the units of its outcome."""
    unit = outcome.scale if outcome.task == REGRESSION else 1.0
    values = unit * model.parameters["layer0.weight"][:, 0].astype(float)
    intercept = unit * float(model.parameters["layer0.bias"][0])
    if outcome.task == REGRESSION:
        intercept += outcome.centre
    elif outcome.task == COUNT:
        intercept += float(np.log(outcome.scale))
    weights = [_weight(w, *input_info) for w, input_info in zip(values, _inputs(encoding), strict=True) if w != 0]
    return ReadableModel(
        label="" if model.schema is None else model.schema.label,
        positive="",
        weights=tuple(sorted(weights, key=lambda w: (-abs(w.weight), w.feature))),
        zeros=int((values == 0).sum()),
        intercept=intercept,
        threshold=model.threshold,
        calibration="none",
        task=outcome.task,
    )


def readable_file(path: Path) -> ReadableModel | None:
    """Return the table of a model file for the report; None where the model is not linear or has too many features."""
    if not path.exists():
        return None
    try:
        weights = readable(TrainedModel.load(path, trust_code=None))  # a plug-in model is not linear
    except BadInput:
        return None
    return weights if len(weights.weights) + weights.zeros <= MAX_LISTED_INPUTS else None


def _weight(weight: float, feature: str, column: str, kind: str, per: str, step: float | None) -> Weight:
    """Build a line of the table. `each`: the odds ratio per unit of the column; None where it overflows."""
    with np.errstate(over="ignore"):
        each = None if step is None else float(np.exp(weight / step))
        odds = float(np.exp(weight))
    each = None if each is None or not np.isfinite(each) else each
    return Weight(feature, column, kind, float(weight), odds, per, step, each)


def _inputs(encoding: Encoding) -> Iterator[tuple[str, str, str, str, float | None]]:
    """Yield for each input, in order: its display name, column, kind, the unit of its weight, and the size of that unit."""
    unit = "quarter of its usual range" if encoding.public else "SD"
    for r in encoding.numeric:
        as_is = (r.centre, r.scale) == (0.0, 1.0)
        step = np.format_float_positional(r.scale, precision=3, fractional=False, trim="-")  # 1000, not 1e+03
        yield r.name, r.name, "number", "1" if as_is else f"{unit} ({step})", r.scale
    for r in encoding.numeric:
        if r.indicator:
            yield f"{r.name} missing", r.name, "missing", "not measured", None
    for c in encoding.categorical:
        against = f"vs. {c.baseline}" if c.baseline else "vs. missing"
        for level in (*c.levels, *(["other"] if c.other else [])):
            yield f"{c.name} = {level}", c.name, "category", against, None
    first = len(encoding.features) - len(encoding.product_places)
    for name, source in zip(encoding.features[first:], encoding.sources[first:], strict=True):
        yield name, source, "product", "product of its inputs", None


def _calibration(model: TrainedModel) -> str:
    c = model.calibration
    if c is None:
        return "none"
    if c.temperature is not None:
        return f"temperature {c.temperature:.3g}, which the weights are divided by already"
    return f"Platt's slope {c.slope:.3g} and intercept {c.intercept:+.3g}, which are in the weights already"
