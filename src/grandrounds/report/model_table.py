"""A linear model as a readable table: each feature with its odds ratio (rate ratio, hazard ratio) and unit, and the baseline."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np

from grandrounds.core.outcome import CLASSIFICATION, COUNT, REGRESSION, SURVIVAL
from grandrounds.data.sets.labels import NO_LABELS, ColumnLabels
from grandrounds.report.document import ON_PAPER, table, td

SCHEMA = 1
RATIOS = {CLASSIFICATION: "odds ratio", COUNT: "rate ratio", SURVIVAL: "hazard ratio", REGRESSION: "change"}
"""The effect of an input by task: a factor, or for a number the change in its units."""
PREDICTORS = {CLASSIFICATION: "log-odds", COUNT: "log expected count", SURVIVAL: "log hazard", REGRESSION: "prediction"}
"""The weighted sum by task."""
MAX_LISTED_INPUTS = 200
"""Inputs up to which a report lists them; `rounds show RUN --model` lists any number."""


@dataclass(frozen=True)
class Weight:
    """One input of a linear model.

    Attributes:
        feature: The name of the input.
        column: The clinical column that it comes from.
        kind: "number", "missing", "category" or "product".
        weight: Its weight in the log-odds (the log expected count, the log hazard, or the prediction of a number).
        odds_ratio: e^weight, the factor on the odds (the count, the hazard) for `per` that much of it.
        per: The change that the odds ratio is for, as text.
        step: That amount of a number in its own unit; None otherwise.
        odds_ratio_per_unit: The factor on the odds for one such unit; None otherwise.
    """

    feature: str
    column: str
    kind: str  # "number", "missing", "category" or "product"
    weight: float
    odds_ratio: float
    per: str
    step: float | None = None
    odds_ratio_per_unit: float | None = None

    @property
    def effect(self) -> str:
        """Return the direction in which the input moves the risk."""
        return "raises" if self.weight > 0 else "lowers"


@dataclass(frozen=True)
class ReadableModel:
    """A linear model: its non-zero weights, the largest first, intercept, threshold and calibration.

    `task` is the type of its outcome; threshold, calibration and `positive` are of classes alone.
    """

    label: str
    positive: str
    weights: tuple[Weight, ...]
    zeros: int
    intercept: float
    threshold: float
    calibration: str
    task: str = CLASSIFICATION

    @property
    def baseline(self) -> float:
        """Return the risk (the prediction, the expected count) of a patient with average numbers and reference categories."""
        with np.errstate(over="ignore"):  # a model that diverged
            if self.task == CLASSIFICATION:
                return float(1 / (1 + np.exp(-self.intercept)))
            return float(np.exp(self.intercept)) if self.task == COUNT else self.intercept

    def to_dict(self) -> dict[str, Any]:
        """Write the model as a JSON object."""
        rows = [{**asdict(w), "effect": w.effect} for w in self.weights]
        if self.task == CLASSIFICATION:
            values = asdict(self)
            del values["task"]
            return {"schema": SCHEMA, **values, "baseline_risk": self.baseline, "weights": rows}
        ratio = RATIOS[self.task].replace(" ", "_")
        for row in rows:
            factor, each = row.pop("odds_ratio"), row.pop("odds_ratio_per_unit")
            row |= {} if self.task == REGRESSION else {ratio: factor, f"{ratio}_per_unit": each}
        out = {"schema": SCHEMA, "task": self.task, "label": self.label, "weights": rows, "zeros": self.zeros}
        return out if self.task == SURVIVAL else {**out, "intercept": self.intercept, "baseline": self.baseline}


def sentences(model: ReadableModel, labels: ColumnLabels = NO_LABELS) -> list[str]:
    """Write the sentences under the table."""
    zeros = [f"{model.zeros} weights are zero and not listed."] if model.zeros > 1 else []
    zeros += ["One weight is zero and not listed."] if model.zeros == 1 else []
    if model.task == SURVIVAL:
        return [*zeros, "The log hazard is relative to a patient whose inputs are all zero; it has no intercept."]
    if model.task != CLASSIFICATION:
        what = "an expected count" if model.task == COUNT else "a prediction"
        return [
            *zeros,
            f"Intercept {model.intercept:+.4g}: {what} of {model.baseline:.4g}, for a patient with average numbers and the "
            "reference categories.",
        ]
    return [
        *zeros,
        f"Intercept {model.intercept:+.3f}: a baseline risk of {model.baseline:.1%}, for a patient with average numbers and "
        "the reference categories.",
        f"Calibration: {model.calibration}.",
        f"Flagged as {labels.name_event(model.label, model.positive)} at a risk of {model.threshold:.1%} or more.",
    ]


_EFFECTS = {CLASSIFICATION: "risk", COUNT: "count", SURVIVAL: "risk", REGRESSION: "prediction"}


def heads(model: ReadableModel) -> tuple[str, ...]:
    """Return the heads of the table; a number has no ratio."""
    if model.task == REGRESSION:
        return ("feature", "change", "comparison", _EFFECTS[REGRESSION])
    return ("feature", "weight", RATIOS[model.task], "comparison", _EFFECTS[model.task])


def cells(w: Weight, task: str = CLASSIFICATION, labels: ColumnLabels = NO_LABELS) -> tuple[str, ...]:
    """Write a row of the table as text.

    Args:
        w: The weight.
        task: The type of the outcome.
        labels: Clinical names and units of the columns.
    """
    name = w.feature
    if w.kind != "product" and w.feature.startswith(w.column):
        name = labels.find(w.column).name + w.feature.removeprefix(w.column)
    if task == REGRESSION:
        return name, f"{w.weight:+.4g}", _comparison(w, labels), w.effect
    return name, f"{w.weight:+.3f}", f"{w.odds_ratio:#.3g}", _comparison(w, labels), w.effect


def _comparison(w: Weight, labels: ColumnLabels) -> str:
    """Write the change that a weight is for: "per SD (26.2 mg/dl)", "vs. missing"."""
    if w.kind != "number":
        return w.per
    unit = labels.find(w.column).unit
    if not unit:
        return f"per {w.per}"
    return f"per {w.per[:-1]} {unit})" if w.per.endswith(")") else f"per {w.per} {unit}"


def equation_title(model: ReadableModel, labels: ColumnLabels = NO_LABELS) -> str:
    """Name the weighted sum: 'log-odds of died = 1', 'prediction of days'."""
    is_class = model.task == CLASSIFICATION
    event = labels.name_event(model.label, model.positive) if is_class else labels.find(model.label).name
    return f"{PREDICTORS[model.task]} of {event}"


def model_section(model: ReadableModel | None, labels: ColumnLabels = NO_LABELS) -> list[str]:
    """Write the report's section on a readable model; empty where there is none.

    Args:
        model: The model.
        labels: Clinical names and units of the columns.
    """
    if model is None:
        return []
    rows = [[td(escape(text)) for text in cells(w, model.task, labels)] for w in model.weights]
    notes = " ".join(sentences(model, labels))
    intro = f"The {equation_title(model, labels)} is the intercept and the sum of the weights below, each times its input."
    if model.task == CLASSIFICATION:
        intro = (
            f"The {equation_title(model, labels)} are the intercept and the sum of the weights below, each times "
            "its input. An odds ratio is the factor by which the odds change."
        )
    shown = table(heads(model), rows)
    if len(rows) > ON_PAPER:  # the style hides the rows after these on paper
        cut = f"<p class='on-paper quiet'>The {ON_PAPER} largest of {len(rows)} weights; report.html lists all.</p>"
        shown = f"<div class='first-rows'>{shown}</div>{cut}"
    return ["<h2>Model equation</h2>", f"<p>{escape(intro)}</p>", shown, f"<p>{escape(notes)}</p>"]
