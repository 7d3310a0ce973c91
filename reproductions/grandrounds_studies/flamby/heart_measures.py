"""Accuracy of a run on FLamby's test rows of Fed-Heart-Disease, and each hospital's comparison with its majority class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import nan
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array, load
from grandrounds.core.rng import generator
from grandrounds.data.sets import fed_heart
from grandrounds.data.sets.fed_heart import FEATURES, TINY
from grandrounds.data.sets.heart import HOSPITALS
from grandrounds_studies.flamby.heart_setting import CYCLIC, LOCAL
from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

CENTRES = tuple(HOSPITALS)
"""Sites in the order of FLamby's centres 0 to 3."""

DRAWS = 10_000
"""Bootstrap draws of test rows."""


@dataclass(frozen=True)
class TestRows:
    """Test rows of one hospital.

    Attributes:
        x: Inputs in standard deviations of the hospital's own training rows, (n, 13).
        pooled: Inputs in standard deviations of all training rows, (n, 13).
        ill: 1 for a patient with disease, (n,).
        majority: The more frequent answer among the hospital's training rows.
    """

    x: Array
    pooled: Array
    ill: Array
    majority: int


@dataclass(frozen=True)
class Hospital:
    """Result of a model at one hospital: shares of its n test rows.

    Attributes:
        accuracy: Rows with a right answer at threshold 0.5.
        majority: Rows with a right answer of the majority class of the training rows.
        wins: Rows that the model has right and the majority class wrong.
        losses: Rows that the majority class has right and the model wrong.
        rows: Number of rows.
        log_loss: Mean log loss.
    """

    accuracy: float
    majority: float
    wins: float
    losses: float
    rows: int
    log_loss: float

    @property
    def is_below(self) -> bool:
        """True if the majority class has more rows right."""
        return self.losses - self.wins > 0.5 / self.rows

    @property
    def is_clearly_below(self) -> bool:
        """True if the 95% interval of the paired difference from the majority class lies below 0 (bootstrap of test rows)."""
        shares = [self.wins, self.losses, 1 - self.wins - self.losses]
        drawn = generator(0, purpose="bootstrap").multinomial(self.rows, np.clip(shares, 0, 1), DRAWS)
        return bool(np.quantile((drawn[:, 0] - drawn[:, 1]) / self.rows, 0.975) < 0)


@cache
def test_rows() -> dict[str, TestRows]:
    """Return the test rows of each hospital."""
    tables = fed_heart.load(), fed_heart.load_scaled()
    recorded, scaled = (np.stack([t.column(name) for name in FEATURES], axis=1) for t in tables)
    trained = tables[0].column("part") == "train"
    ill = np.asarray(tables[0].column("disease") == "yes", float)
    pooled = (recorded - recorded[trained].mean(axis=0)) / (recorded[trained].std(axis=0, ddof=1) + TINY)
    found = {}
    for name in CENTRES:
        mine = tables[0].column("hospital") == name
        test = mine & ~trained
        found[name] = TestRows(scaled[test], pooled[test], ill[test], int(ill[mine & trained].mean() > 0.5))
    return found


test_rows.__test__ = False  # type: ignore[attr-defined]


def compare_answers(logits: Array, rows: TestRows) -> Hospital:
    """Compare the answers of a model, given as logits (n,), with the truth and with the majority class."""
    right = np.asarray((logits > 0) == rows.ill)
    usual = np.asarray(rows.ill == rows.majority)
    loss = np.logaddexp(0.0, np.where(rows.ill == 1, -logits, logits))
    return Hospital(
        accuracy=float(right.mean()),
        majority=float(usual.mean()),
        wins=float((right & ~usual).mean()),
        losses=float((usual & ~right).mean()),
        rows=len(right),
        log_loss=float(loss.mean()),
    )


def _read_figures(figures: Mapping[str, float], rows: TestRows) -> Hospital:
    """Make the same comparison from the figures that a hospital reported: its intercept stays there, and so do its answers."""
    n, ill = len(rows.ill), float(rows.ill.mean())
    hits, passes = figures["sensitivity"] * ill, figures["specificity"] * (1 - ill)
    wins, losses, majority = (passes, ill - hits, ill) if rows.majority else (hits, 1 - ill - passes, 1 - ill)
    return Hospital(hits + passes, majority, wins, losses, n, figures["log_loss"])


def model_of(run: Run, centre: str) -> tuple[Array, float]:
    """Return the coefficients (13,) and the intercept of the model that is scored at a centre.

    Args:
        run: A run of this study whose model is one linear layer.
        centre: The hospital; FLamby scores the model of centre 0 everywhere for Cyclic.
    """
    owner = CENTRES[0] if run.plan["name"].endswith(f": {CYCLIC.label}") else centre
    parameters, _ = load(run.model_file(run.summary["models"].get(owner, "model.safetensors")))
    return np.asarray(parameters["layer0.weight"], float).ravel(), float(parameters["layer0.bias"].ravel()[0])


def stays_at_sites(run: Run) -> bool:
    """True if hospitals have a part of the model, or a choice of the guard, that never leaves them."""
    return "estimates" in run.summary or bool(run.summary.get("personal"))


def hospitals(run: Run) -> dict[str, Hospital]:
    """Return the result at each hospital, of the model that it deploys, on test rows scaled as FLamby scales them."""
    rows = test_rows()
    if stays_at_sites(run):
        figures = (run.summary.get("personal") or run.summary)["per_site"]
        return {name: _read_figures(figures[name], rows[name]) for name in CENTRES}
    models = {name: model_of(run, name) for name in CENTRES}
    return {name: compare_answers(rows[name].x @ w + b, rows[name]) for name, (w, b) in models.items()}


def pooled_test(run: Run) -> float:
    """Return FLamby's "Pooled Test": the accuracy of one model on all test rows, scaled by all training rows."""
    if stays_at_sites(run) or run.plan["name"].endswith(f": {LOCAL.label}"):
        return nan
    w, b = model_of(run, CENTRES[0])
    rows = test_rows().values()
    return float(np.concatenate([((r.pooled @ w + b) > 0) == r.ill for r in rows]).mean())


def _mean_loss(run: Run) -> float:
    found = hospitals(run).values()
    return sum(h.log_loss * h.rows for h in found) / sum(h.rows for h in found)


def _centre(k: int, name: str) -> Measure:
    return Measure(f"centre_{k}", name, lambda run: hospitals(run)[name].accuracy, lower=False)


CLIENT_MEAN = Measure(
    "client_mean", "client mean", lambda run: float(np.mean([h.accuracy for h in hospitals(run).values()])), lower=False
)
EACH = tuple(_centre(k, name) for k, name in enumerate(CENTRES))
POOLED_TEST = Measure("pooled", '"Pooled Test"', pooled_test, lower=False)
LOG_LOSS = Measure("log_loss", "log loss", _mean_loss, lower=True)
BELOW = Measure(
    "below",
    "hospitals below their majority class",
    lambda run: float(sum(h.is_below for h in hospitals(run).values())),
    digits=0,
    shown=False,
)
CLEARLY_BELOW = Measure(
    "clearly_below",
    "hospitals clearly below their majority class",
    lambda run: float(sum(h.is_clearly_below for h in hospitals(run).values())),
    digits=0,
    shown=False,
)
HARMED = Measure(
    "harmed",
    "harmed hospitals, as the run reports them",
    lambda run: float(len(run.summary["personal"]["harmed"])) if run.summary.get("personal") else nan,
    digits=0,
    shown=False,
)
MEASURES = (CLIENT_MEAN, *EACH, POOLED_TEST, LOG_LOSS, BELOW, CLEARLY_BELOW, HARMED)
