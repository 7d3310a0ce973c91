"""Platt scaling across sites: the slope and intercept that make a finished model's probabilities come true.

    sigma(slope * s + intercept), s the log-odds of a validation row

Fitted by Newton's method to sums over all sites' rows, so the line is that of the pooled rows (Platt 1999, with the smoothed
targets that keep it finite where scores separate the classes). `PrivatePlatt` fits it to noisy counts instead.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.secure import STATISTIC_BITS, SecureRule, secure_sum
from grandrounds.protocol.messages import Answers, Ask, Value
from grandrounds.protocol.tasks import PLATT, SPECS, TALLIES
from grandrounds.site import platt as site

if TYPE_CHECKING:
    from grandrounds.privacy.accounting import Event

START_LINES = np.array([[slope, 0.0] for slope in (0.0, 1 / 16, 1 / 4, 1.0, 4.0, 16.0)])
"""Where to begin: the best of these, so that scores far too large or too small cost no further exchanges."""

STEP_SHARES = np.array([1.0, 0.5, 0.25, 0.125, 0.03125, 0.0078125])
"""Shares of a Newton step that are tried at once, in one exchange: the one with the least loss is taken."""

EXCHANGES = SPECS[PLATT].per_round
_SMALL = 1e-5  # a step that ends it; Newton's next would be its square
_NEAR = 1e-3  # nats in all that a step could gain: from here on losses differ by less than sums are rounded by


@dataclass(frozen=True)
class PlattLine:
    """A fitted line, or, where `refused` says why, one that a model must not be given."""

    slope: float
    intercept: float
    exchanges: int = 0
    refused: str = ""


@dataclass(frozen=True)
class PlattSums:
    """`outcomes` (4,): positives, negatives, sums of their scores; `lines` (M, 6): as `site.platt.line_sums`."""

    outcomes: Array
    lines: Array

    @property
    def targets(self) -> tuple[float, float]:
        """Sums of t and of t s: a positive's target is (n+ + 1) / (n+ + 2), a negative's 1 / (n- + 2)."""
        positive, negative, of_positive, of_negative = self.outcomes
        high, low = (positive + 1) / (positive + 2), 1 / (negative + 2)
        return positive * high + negative * low, of_positive * high + of_negative * low

    def losses(self, lines: Array) -> Array:
        """Total cross-entropy at each line, (M,)."""
        t, ts = self.targets
        total: Array = self.lines[:, 0] - lines[:, 0] * ts - lines[:, 1] * t
        return total

    def step(self, k: int) -> tuple[Array, float]:
        """Newton's step from the k-th line, and what it would gain if the loss were the parabola it takes it for."""
        _, p, ps, v, vs, vss = self.lines[k]
        t, ts = self.targets
        down = np.array([ts - ps, t - p])
        ridge = 1e-10 * (v + vss) + 1e-12
        step: Array = np.linalg.solve(np.array([[vss + ridge, vs], [vs, v + ridge]]), down)
        return step, float(down @ step) / 2


def fit_by_newton() -> Generator[Array, PlattSums, PlattLine]:
    """Fit a line by Newton's method: yields lines (M, 2), is sent their sums, returns the line of least loss."""
    lines = START_LINES
    sums = yield lines
    losses = sums.losses(lines)
    k = int(np.argmin(losses))
    for exchange in range(1, EXCHANGES):
        line, least = lines[k], losses[k]
        step, gain = sums.step(k)
        if np.abs(step).max() <= _SMALL * (1 + np.abs(line).max()):
            return check_line(line + step, exchange)
        lines = line + STEP_SHARES[:, None] * step
        sums = yield lines
        losses = sums.losses(lines)
        k = 0 if gain < _NEAR else int(np.argmin(losses))
        if gain >= _NEAR and not losses[k] < least:
            return check_line(line, exchange + 1)
    return check_line(lines[k], EXCHANGES)


def check_line(line: Array, exchanges: int) -> PlattLine:
    """Return the line, refused where it would turn the model's ranking round or level it."""
    slope, intercept = (float(v) for v in line)
    why = ""
    if not (np.isfinite(line).all() and slope > 0):
        why = (
            f"Platt's slope on the validation rows is {slope:.3g}: a higher score is no higher risk there, and a calibration "
            "must not turn a model round, so it is left uncalibrated"
        )
    return PlattLine(slope, intercept, exchanges, why)


def fit_platt(served: ModelAssignment) -> Generator[Ask, Answers, PlattLine]:
    """Return the line of the validation rows of all sites, each scored by the model it uses. Only sums over sites are needed."""
    work = fit_by_newton()
    lines = next(work)
    while True:
        shared: dict[str, Value] = {"model": served.model, "lines": lines}
        answers = yield Ask("platt", shared=shared, each=served.payloads(), report=("sums",), summed=("sums",))
        sums = PlattSums(*(np.asarray(answers.totals[f"sums.{part}"], float) for part in ("outcomes", "lines")))
        if not sums.outcomes[:2].all():
            return PlattLine(0.0, 0.0, 1, _ONE_CLASS)
        try:
            lines = work.send(sums)
        except StopIteration as end:
            fitted: PlattLine = end.value
            return fitted


_ONE_CLASS = "the validation rows do not hold both classes, so they set no calibration: the model is left uncalibrated"

MAX_SCORE = 8.0
"""Scores are looked for between -8 and 8: odds of 3,000 to 1."""

LOCATING_SHARE = 0.3
"""Share of the budget that finds out where the scores lie; the rest is spent on their outcomes there."""

_CELLS, _FINAL = 32, 8
_WIDTH = 3.0  # deviations to each side of the mean that the final cells cover


@dataclass(frozen=True)
class PrivatePlatt:
    """Platt's line for a budget (epsilon, delta) of the validation rows: one row more or less, two releases.

    First, how many rows score in each of 32 cells from -8 to 8; then, by outcome, in 8 cells over three deviations around
    the mean that the first gave. A row is in one cell of each, so it moves one count by one. Everything after is made of
    these counts alone. Without secure aggregation each site adds discrete Laplace noise of its own (delta is not needed);
    with it the sites add shares of one Gaussian draw to the sum.

    Noisy Newton steps, the other way to do it, were worse in every case measured (docs/calibration.md). The shares of the
    Gaussian draw are rounded to the ring's step, less than a millionth of a count; counts are whole and lie on it.
    """

    epsilon: float
    delta: float = 1e-5
    secure: bool = False

    def __post_init__(self) -> None:
        if not (np.isfinite(self.epsilon) and self.epsilon > 0 and 0 < self.delta < 1):
            raise BadInput(
                "a private calibration needs an epsilon above 0 and a delta between 0 and 1",
                code="setting-out-of-range",
            )

    def events(self) -> tuple[Event, ...]:
        """Return the privacy events to charge to the validation rows before they are asked."""
        from grandrounds.privacy.accounting import Event

        releases = ("where validation scores lie", "validation scores by outcome")
        if self.secure:
            trust = "secure aggregation"
            return tuple(
                Event("gaussian", release, sigma=self._sigma(share), of="validation", trust=trust)
                for release, share in zip(releases, (LOCATING_SHARE, 1 - LOCATING_SHARE), strict=True)
            )
        return tuple(
            Event("laplace", release, epsilon=share * self.epsilon, of="validation")
            for release, share in zip(releases, (LOCATING_SHARE, 1 - LOCATING_SHARE), strict=True)
        )

    def _sigma(self, share: float) -> float:
        """Deviations such that both releases together are one Gaussian release of the whole budget: 1 / sigma^2 adds up."""
        from grandrounds.privacy.accounting import noise_for

        return noise_for(self.epsilon, self.delta, steps=1) / float(np.sqrt(share))

    def fit(self, served: ModelAssignment, rule: SecureRule | None = None) -> Generator[Ask, Answers, PlattLine]:
        """Fit the line as `fit_platt` does, from noisy counts. `rule`: the run's secure aggregation, where `secure` is set."""
        edges = np.linspace(-MAX_SCORE, MAX_SCORE, _CELLS + 1)
        rows, noise = yield from self._counts(served, edges, LOCATING_SHARE, rule, by_outcome=False)
        mean, deviation = score_moments(np.where(rows > 3 * noise, rows, 0.0), edges)
        edges = mean + deviation * np.linspace(-_WIDTH, _WIDTH, _FINAL + 1)
        rows, noise = yield from self._counts(served, edges, 1 - LOCATING_SHARE, rule, by_outcome=True)
        negative, positive = np.where(rows > noise, rows, 0.0)
        if not (positive.any() and negative.any()):
            why = "too few validation rows for a calibration within this budget: the model is left uncalibrated"
            return PlattLine(0.0, 0.0, 2, why)
        return fit_counts(_cell_centres(edges), positive, negative)

    def _counts(
        self, served: ModelAssignment, edges: Array, share: float, rule: SecureRule | None, *, by_outcome: bool
    ) -> Generator[Ask, Answers, tuple[Array, float]]:
        """Return the consortium's counts with their noise, and the noise's deviation."""
        shared: dict[str, Value] = {"model": served.model, "edges": edges, "by_outcome": by_outcome}
        ask = Ask("platt", shared=shared, each=served.payloads(), report=("counts",))
        if self.secure:
            return (yield from self._hidden(ask, self._sigma(share), rule))
        e = share * self.epsilon
        answers = yield Ask(ask.task, {**shared, "epsilon": e}, ask.each, report=ask.report, summed=("counts",))
        spread = float(np.sqrt(2 * len(answers) * np.exp(-e))) / -float(np.expm1(-e))
        return np.asarray(answers.totals["counts"], float), spread

    def _hidden(self, ask: Ask, sigma: float, rule: SecureRule | None) -> Generator[Ask, Answers, tuple[Array, float]]:
        from grandrounds.privacy.secagg import fewest_honest

        if rule is None:
            raise BadInput(
                "a calibration with noise in shares needs secure sums: set privacy.secure = true",
                code="needs-secure-aggregation",
            )
        answers = yield ask.withholding("counts")
        summed = yield from secure_sum(
            rule, answers, bits=STATISTIC_BITS, bound=MAX_ROWS, purpose=TALLIES, noise=sigma
        )
        more = float(np.sqrt(max(1.0, len(summed.sites) / fewest_honest(max(1, len(answers))))))
        return np.asarray(summed.values["counts"], float), sigma * more


MAX_ROWS = 2.0**31
"""The largest count of a secure sum: beyond what a hospital holds."""


def score_moments(rows: Array, edges: Array) -> tuple[float, float]:
    """Compute the mean and deviation of scores counted in cells; of the whole range where no cell has rows."""
    if not rows.any():
        rows = np.ones(len(edges) - 1)
    middles, width = _cell_centres(edges), float(edges[1] - edges[0])
    mean = float(np.average(middles, weights=rows))
    within = float(np.average((middles - mean) ** 2, weights=rows)) - width**2 / 12
    return mean, float(np.sqrt(max(within, (width / 4) ** 2)))


def fit_counts(scores: Array, positive: Array, negative: Array) -> PlattLine:
    """Return the line of rows that are counted at a few scores: (cells,) each."""
    owner = np.zeros(len(scores), np.int64)
    outcomes = site.outcome_sums(scores, positive, negative, owner, sites=1)[0]
    work: Generator[Array, PlattSums, PlattLine] = fit_by_newton()
    lines = next(work)
    while True:
        line_sums = site.line_sums(scores, positive + negative, owner, lines, sites=1)[0]
        try:
            lines = work.send(PlattSums(outcomes, line_sums))
        except StopIteration as end:
            fitted: PlattLine = end.value
            return fitted


def _cell_centres(edges: Array) -> Array:
    middles: Array = (edges[1:] + edges[:-1]) / 2
    return middles
