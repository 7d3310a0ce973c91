"""Platt scaling across sites: the slope and intercept that calibrate a finished model's probabilities.

    sigma(slope * s + intercept), s the log-odds of a validation row

Fitted by Newton's method to sums over all sites' rows, so the fit equals that on pooled rows (Platt 1999, with smoothed targets,
which keep it finite if scores separate the classes). `PrivatePlatt` fits it to noisy counts instead.
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
from grandrounds.protocol.tasks import PLATT, TALLIES, spec_of
from grandrounds.site import platt as site

if TYPE_CHECKING:
    from grandrounds.privacy.accounting import Event

START_LINES = np.array([[slope, 0.0] for slope in (0.0, 1 / 16, 1 / 4, 1.0, 4.0, 16.0)])
"""Candidate starting lines; the best is used, so that badly scaled scores need no further exchanges."""

STEP_SHARES = np.array([1.0, 0.5, 0.25, 0.125, 0.03125, 0.0078125])
"""Fractions of a Newton step that one exchange tries; the one with the lowest loss is used."""

EXCHANGES = spec_of(PLATT).per_round
_SMALL = 1e-5  # step size at which the fit ends
_NEAR = 1e-3  # total gain in nats at which the fit ends: below it, rounding dominates


@dataclass(frozen=True)
class PlattLine:
    """A fitted line; `refused` is the reason if it must not be used."""

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
        """Compute Newton's step from the k-th line, and its predicted gain."""
        _, p, ps, v, vs, vss = self.lines[k]
        t, ts = self.targets
        down = np.array([ts - ps, t - p])
        ridge = 1e-10 * (v + vss) + 1e-12
        step: Array = np.linalg.solve(np.array([[vss + ridge, vs], [vs, v + ridge]]), down)
        return step, float(down @ step) / 2


def fit_by_newton() -> Generator[Array, PlattSums, PlattLine]:
    """Fit a line by Newton's method: yields lines (M, 2), receives their sums, returns the line of lowest loss."""
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
    """Return the line, refused if it would reverse or flatten the model's ranking."""
    slope, intercept = (float(v) for v in line)
    why = ""
    if not (np.isfinite(line).all() and slope > 0):
        why = (
            f"Platt's slope on the validation rows is {slope:.3g}, not above 0: calibration would reverse the model's "
            "ranking, so the model is left uncalibrated"
        )
    return PlattLine(slope, intercept, exchanges, why)


def fit_platt(served: ModelAssignment) -> Generator[Ask, Answers, PlattLine]:
    """Fit a line to the validation rows of all sites, each scored by the model in use. Only sums over sites are needed."""
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


_ONE_CLASS = "the validation rows have only one class: the model is left uncalibrated"

MAX_SCORE = 8.0
"""Range of scores that is searched: -8 to 8, odds of 3,000 to 1."""

LOCATING_SHARE = 0.3
"""Share of the budget for the range of scores; the rest is for their outcomes."""

_CELLS, _FINAL = 32, 8
_WIDTH = 3.0  # standard deviations on each side of the mean that the final cells cover


@dataclass(frozen=True)
class PrivatePlatt:
    """Platt scaling within a budget (epsilon, delta) of the validation rows: two releases, neighbouring data differ in one row.

    First, how many rows score in each of 32 cells from -8 to 8; then, by outcome, in 8 cells over three deviations around
    the mean that the first gave. A row is in one cell of each, so it moves one count by one. The rest is post-processing.
    Without secure aggregation each site adds its own discrete Laplace noise (delta is not needed); with it the sites add shares
    of one Gaussian draw to the sum. Noisy Newton steps were worse in every case measured. Shares of the Gaussian draw are
    rounded to less than a millionth of a count.
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
        """Return the privacy events to charge to the validation rows before the Ask."""
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
        """Compute the noise of both releases so that together they equal one Gaussian release of the whole budget: 1 / sigma^2
        adds up."""
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
            why = "too few validation rows to calibrate within this budget: the model is left uncalibrated"
            return PlattLine(0.0, 0.0, 2, why)
        return fit_counts(_cell_centres(edges), positive, negative)

    def _counts(
        self, served: ModelAssignment, edges: Array, share: float, rule: SecureRule | None, *, by_outcome: bool
    ) -> Generator[Ask, Answers, tuple[Array, float]]:
        """Return the consortium's noisy counts, and the standard deviation of the noise."""
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
                "calibration with shared noise needs secure sums: set privacy.secure = true",
                code="needs-secure-aggregation",
            )
        answers = yield ask.withholding("counts")
        summed = yield from secure_sum(
            rule, answers, bits=STATISTIC_BITS, bound=MAX_ROWS, purpose=TALLIES, noise=sigma
        )
        more = float(np.sqrt(max(1.0, len(summed.sites) / fewest_honest(max(1, len(answers))))))
        return np.asarray(summed.values["counts"], float), sigma * more


MAX_ROWS = 2.0**31
"""Upper bound of a count in a secure sum, above any hospital's rows."""


def score_moments(rows: Array, edges: Array) -> tuple[float, float]:
    """Compute the mean and deviation of scores counted in cells; of the whole range if all cells are empty."""
    if not rows.any():
        rows = np.ones(len(edges) - 1)
    middles, width = _cell_centres(edges), float(edges[1] - edges[0])
    mean = float(np.average(middles, weights=rows))
    within = float(np.average((middles - mean) ** 2, weights=rows)) - width**2 / 12
    return mean, float(np.sqrt(max(within, (width / 4) ** 2)))


def fit_counts(scores: Array, positive: Array, negative: Array) -> PlattLine:
    """Fit a line to rows counted at a few scores, (cells,) each."""
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
