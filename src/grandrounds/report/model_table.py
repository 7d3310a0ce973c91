"""A linear model as people read it: each feature with its odds ratio, what that is per, and the risk it starts from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.data.encoding import Encoding
from grandrounds.errors import BadInput
from grandrounds.report.document import table, td
from grandrounds.trained import TrainedModel

SCHEMA = 1
MOST = 200
"""Inputs up to which a report lists them; `rounds show RUN --model` lists any number."""


@dataclass(frozen=True)
class Weight:
    """One input: `odds_ratio` is e^weight, what the odds are multiplied by `per` that much of it.

    `step` is that much of a number in its own unit, and `odds_ratio_per_unit` what one such unit does; None otherwise.
    """

    feature: str
    column: str
    kind: str  # "number", "missing" or "category"
    weight: float
    odds_ratio: float
    per: str
    step: float | None = None
    odds_ratio_per_unit: float | None = None

    @property
    def effect(self) -> str:
        return "raises" if self.weight > 0 else "lowers"


@dataclass(frozen=True)
class Readable:
    """The whole model: the weights that are not zero, the largest first, and what else decides a risk."""

    label: str
    positive: str
    weights: tuple[Weight, ...]
    zeros: int
    intercept: float
    threshold: float
    calibration: str

    @property
    def baseline(self) -> float:
        """The risk of a patient whose numbers lie at their centres and whose categories are those that read 0."""
        with np.errstate(over="ignore"):  # a model that diverged
            return float(1 / (1 + np.exp(-self.intercept)))

    def to_dict(self) -> dict[str, Any]:
        rows = [{**asdict(w), "effect": w.effect} for w in self.weights]
        return {"schema": SCHEMA, **asdict(self), "baseline_risk": self.baseline, "weights": rows}


def readable(model: TrainedModel) -> Readable:
    """The table of a linear model of two classes; any other is refused, with what to use instead."""
    net, encoding = model.net, model.encoding
    linear = model.spec["name"] == "logistic" and isinstance(encoding, Encoding)
    if not (linear and net.outputs == 1 and isinstance(encoding, Encoding)):
        what = "a logistic model of three classes or more" if linear else f"model '{model.spec['name']}'"
        raise BadInput(f"{what} has no weights to read one by one: `rounds explain RUN` says what it goes by")
    parameters, event = model.parameters, model.event
    assert event is not None
    sign = 1.0 if event.word == encoding.classes[1] else -1.0  # the net's own output is the log-odds of class 1
    values = sign * parameters["layer0.weight"][:, 0].astype(float)
    found = [_weight(w, *told) for w, told in zip(values, _inputs(encoding), strict=True) if w != 0]
    return Readable(
        label="" if model.schema is None else model.schema.label,
        positive=event.word,
        weights=tuple(sorted(found, key=lambda w: (-abs(w.weight), w.feature))),
        zeros=int((values == 0).sum()),
        intercept=sign * float(parameters["layer0.bias"][0]),
        threshold=model.threshold,
        calibration=_calibration(model),
    )


def readable_file(path: Path) -> Readable | None:
    """What a report shows of a model file; nothing of a model that is not linear or is too long to read."""
    if not path.exists():
        return None
    try:
        found = readable(TrainedModel.load(path, trust_code=None))  # a module of one's own is not linear
    except BadInput:
        return None
    return found if len(found.weights) + found.zeros <= MOST else None


def _weight(weight: float, feature: str, column: str, kind: str, per: str, step: float | None) -> Weight:
    """`each`: the odds ratio of one unit of the column; none where it is too large for a number (a unit that never occurs)."""
    with np.errstate(over="ignore"):
        each = None if step is None else float(np.exp(weight / step))
        odds = float(np.exp(weight))
    each = None if each is None or not np.isfinite(each) else each
    return Weight(feature, column, kind, float(weight), odds, per, step, each)


def _inputs(encoding: Encoding) -> Iterator[tuple[str, str, str, str, float | None]]:
    """For each input, in order: its name for people, its column, its kind, what a weight is per, and that in its unit."""
    of = "quarter of its usual range" if encoding.public else "deviation"
    for r in encoding.numeric:
        as_is = (r.centre, r.scale) == (0.0, 1.0)
        step = np.format_float_positional(r.scale, precision=3, fractional=False, trim="-")  # 1000, not 1e+03
        yield r.name, r.name, "number", "1" if as_is else f"{of} ({step})", r.scale
    for r in encoding.numeric:
        if r.indicator:
            yield f"{r.name} missing", r.name, "missing", "not measured", None
    for c in encoding.categorical:
        against = f"in place of {c.baseline}" if c.baseline else "against a missing value"
        for level in (*c.levels, *(["other"] if c.other else [])):
            yield f"{c.name} = {level}", c.name, "category", against, None


def _calibration(model: TrainedModel) -> str:
    c = model.calibration
    if c is None:
        return "none"
    if c.temperature is not None:
        return f"temperature {c.temperature:.3g}, which the weights are divided by already"
    return f"Platt's slope {c.slope:.3g} and intercept {c.intercept:+.3g}, which are in the weights already"


def sentences(model: Readable) -> list[str]:
    """What stands under the table."""
    zeros = [f"{model.zeros} weights are zero and not listed."] if model.zeros > 1 else []
    zeros += ["One weight is zero and not listed."] if model.zeros == 1 else []
    return [
        *zeros,
        f"Intercept {model.intercept:+.3f}: a baseline risk of {model.baseline:.1%}, of a patient whose numbers lie at their "
        "centres and whose categories are those that are compared with.",
        f"Calibration: {model.calibration}.",
        f"A risk of {model.threshold:.3g} or more counts as {model.positive}.",
    ]


HEADS = ("feature", "weight", "odds ratio", "per", "risk")


def cells(w: Weight) -> tuple[str, str, str, str, str]:
    """A row of the table as text."""
    return w.feature, f"{w.weight:+.3f}", f"{w.odds_ratio:#.3g}", w.per, w.effect


def model_section(model: Readable | None) -> list[str]:
    """The report's section, where the model can be read."""
    if model is None:
        return []
    rows = [[td(escape(text)) for text in cells(w)] for w in model.weights]
    said = " ".join(sentences(model))
    intro = (
        f"The log-odds of {model.label} = {model.positive} are the intercept and the sum of the weights below, each times its "
        "input. An odds ratio is what the odds are multiplied by."
    )
    return ["<h2>The model, readable</h2>", f"<p>{escape(intro)}</p>", table(HEADS, rows), f"<p>{escape(said)}</p>"]
