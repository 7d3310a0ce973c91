"""A linear model as a readable table: each feature with its odds ratio and unit, and the baseline risk."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np

from grandrounds.report.document import table, td

SCHEMA = 1
MAX_LISTED_INPUTS = 200
"""Inputs up to which a report lists them; `rounds show RUN --model` lists any number."""


@dataclass(frozen=True)
class Weight:
    """One input of a linear model.

    Attributes:
        feature: The name of the input.
        column: The clinical column that it comes from.
        kind: "number", "missing", "category" or "product".
        weight: Its weight in the log-odds.
        odds_ratio: e^weight, the factor on the odds for `per` that much of it.
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
    """A linear model: its non-zero weights, the largest first, intercept, threshold and calibration."""

    label: str
    positive: str
    weights: tuple[Weight, ...]
    zeros: int
    intercept: float
    threshold: float
    calibration: str

    @property
    def baseline(self) -> float:
        """Return the risk of a patient with average numbers and the reference categories."""
        with np.errstate(over="ignore"):  # a model that diverged
            return float(1 / (1 + np.exp(-self.intercept)))

    def to_dict(self) -> dict[str, Any]:
        """Write the model as a JSON object."""
        rows = [{**asdict(w), "effect": w.effect} for w in self.weights]
        return {"schema": SCHEMA, **asdict(self), "baseline_risk": self.baseline, "weights": rows}


def sentences(model: ReadableModel) -> list[str]:
    """Write the sentences under the table."""
    zeros = [f"{model.zeros} weights are zero and not listed."] if model.zeros > 1 else []
    zeros += ["One weight is zero and not listed."] if model.zeros == 1 else []
    return [
        *zeros,
        f"Intercept {model.intercept:+.3f}: a baseline risk of {model.baseline:.1%}, for a patient with average numbers and "
        "the reference categories.",
        f"Calibration: {model.calibration}.",
        f"A risk of {model.threshold:.3g} or more counts as {model.positive}.",
    ]


HEADS = ("feature", "weight", "odds ratio", "per", "risk")


def cells(w: Weight) -> tuple[str, str, str, str, str]:
    """Write a row of the table as text."""
    return w.feature, f"{w.weight:+.3f}", f"{w.odds_ratio:#.3g}", w.per, w.effect


def model_section(model: ReadableModel | None) -> list[str]:
    """Write the report's section on a readable model; empty where there is none."""
    if model is None:
        return []
    rows = [[td(escape(text)) for text in cells(w)] for w in model.weights]
    notes = " ".join(sentences(model))
    intro = (
        f"The log-odds of {model.label} = {model.positive} are the intercept and the sum of the weights below, each times its "
        "input. An odds ratio is the factor by which the odds change."
    )
    return ["<h2>Model equation</h2>", f"<p>{escape(intro)}</p>", table(HEADS, rows), f"<p>{escape(notes)}</p>"]
