"""E-values of checks: likelihood ratios of a tilted distribution of codes against that of the reference rows.

An e-value is a number e >= 0 whose mean is at most one for patients like the reference rows. Each table below gives log e of each
code of a variable; NaN where the code says nothing, for example a missing value about the size of the number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from grandrounds.capabilities.watch.statistics.checks import (
    CALIBRATION,
    DISCRIMINATION,
    DOWN,
    EXPLANATION,
    MISSING,
    NET_BENEFIT,
    PREVALENCE,
    RANGE,
    SCORE,
    SHIFT,
    UNSEEN,
    UP,
)
from grandrounds.capabilities.watch.statistics.variables import ABSENT, ATTRIBUTION, FIRST, HIGH, LOW, NEW, Variable
from grandrounds.core.arrays import Array

ODDS, MORE = 3.0, 0.2
"""Tilts of a share: its odds times ODDS, and MORE of all patients on top."""
LEAST_SHARE = 0.05
"""Share of the reference rows from which a category, or the missing values of a column, are watched for a fall."""
RARE = 0.01
"""A share below this is watched as this one: an alarm needs more than a few patients."""
SHIFTS = (0.45, 1.2)
"""Tilts of a number in its normal score: mean moved by about so many standard deviations."""
TOLERANCE = 0.1
"""Shift of a mean, in standard deviations, that is not counted as a change."""
CLIP = 2.5
LEAST_VALUES = 20
"""Known values in the reference rows that a check of a shift needs."""
FACTORS = (1.5, 2.2)
"""Tilts of a number by a factor, up and down: a wrong unit."""
MOST_RATIO = 8.0
BLEND = 0.2
"""Share of the reference in the tilted distribution of a factor, so that no code alone excludes it."""
PREVALENCE_ODDS = (2.0,)
INTERCEPTS = (0.4, 0.8)
"""Tilts of calibration: log-odds of the event above or below what the model says."""
SLOPES = (0.5, 0.0)
"""Tilts of discrimination: slope of the log-odds in the score, against one in the reference rows."""
BENEFITS = (0.2, 0.5)


@dataclass(frozen=True, eq=False)
class Tilt:
    """One check of a variable: tables (m, size) of log e, one for each of its m tilts.

    Attributes:
        kind: Kind of the check.
        direction: "up" or "down".
        level: Category or class, or None.
        tables: log e before it is normalised on the reference rows.
        exact: The mean of e over the reference rows is made one. Otherwise it is at most one: shares are smoothed, because none
            of few rows does not mean never.
        shown: Numbers (size,) whose mean the alarm shows, such as 1 for missing; None for the values themselves.
        slack: Evidence (m,) that is subtracted for each patient, for changes that are too small to count.
    """

    kind: str
    direction: str
    level: int | None
    tables: Array
    exact: bool
    shown: Array | None
    slack: Array | float = 0.0


def tilt_number(variable: Variable, counts: Array, raw: Array) -> Iterator[Tilt]:
    """Yield the checks of a numeric column from counts (size,) of its codes and its values in the reference rows."""
    yield from tilt_missing(counts)
    codes = np.arange(variable.size)
    if variable.single:
        rare = (counts[FIRST:] == 1).sum()
        yield _rise(UNSEEN, None, np.isin(codes, variable.gaps), rare, counts.sum())
    if np.isfinite(variable.span).any():
        outside = (codes == LOW) | (codes == HIGH)
        yield _rise(RANGE, None, outside, counts[outside].sum(), counts.sum())
    yield from tilt_shift(variable, counts, SHIFT, None, _factors(variable, counts, raw))


def tilt_missing(counts: Array) -> Iterator[Tilt]:
    """Yield the checks of missing values."""
    absent = np.arange(len(counts)) == ABSENT
    yield _rise(MISSING, None, absent, counts[ABSENT], counts.sum())
    if counts[ABSENT] >= LEAST_SHARE * counts.sum() and counts[ABSENT] < counts.sum():
        yield _fall(MISSING, None, absent, counts[ABSENT], counts.sum())


def tilt_category(counts: Array) -> Iterator[Tilt]:
    """Yield the checks of a categorical column: missing, unseen, and the share of each category that is not rare."""
    codes, known = np.arange(len(counts)), counts[NEW:].sum()
    yield from tilt_missing(counts)
    yield _rise(UNSEEN, None, codes == NEW, counts[NEW], counts.sum())
    for code in codes[FIRST:]:
        if LEAST_SHARE * known <= counts[code] <= (1 - LEAST_SHARE) * known:
            for make in (_rise, _fall):
                yield make(SHIFT, int(code) - FIRST, codes == code, counts[code], known, ignored=codes == ABSENT)


def tilt_shift(
    variable: Variable, counts: Array, kind: str, level: int | None, factors: tuple[Array, Array]
) -> Iterator[Tilt]:
    """Yield an upward and a downward shift: exponential tilts of the normal score, and changes by a factor."""
    scores = normal_scores(variable, counts)
    if (counts[variable.order] > 0).sum() < 2 or counts[variable.order].sum() < LEAST_VALUES:
        return
    for sign, direction, more in ((1, UP, factors[0]), (-1, DOWN, factors[1])):
        tables = np.stack([sign * theta * scores for theta in SHIFTS])
        slack = TOLERANCE * np.concatenate([SHIFTS, np.full(len(more), SHIFTS[0])])
        yield Tilt(kind, direction, level, np.concatenate([tables, more]), True, None, slack)


def normal_scores(variable: Variable, counts: Array) -> Array:
    """Return the normal score (size,) of each code: the normal quantile of its middle rank, at most `CLIP`; NaN if missing."""
    scores = np.full(variable.size, np.nan)
    shares = counts[variable.order] / max(counts[variable.order].sum(), 1)
    middle = np.cumsum(shares) - shares / 2
    inverse, edge = NormalDist().inv_cdf, NormalDist().cdf(CLIP)
    scores[variable.order] = [inverse(min(max(u, 1 - edge), edge)) for u in middle]
    return scores


def _factors(variable: Variable, counts: Array, raw: Array) -> tuple[Array, Array]:
    """Return tables of log e (m, size) for values times each factor, and divided by it; none for a column of one value."""
    known = raw[np.isfinite(raw)]
    codes = variable.order
    smooth = (counts[codes] + 0.5) / (counts[codes].sum() + 0.5 * len(codes))
    out: list[list[Array]] = [[], []]
    if not known.any():
        return np.zeros((0, variable.size)), np.zeros((0, variable.size))
    for factor in FACTORS:
        for side, moved in zip(out, (known * factor, known / factor), strict=True):
            share = np.bincount(variable.place(moved), minlength=variable.size)[codes] / len(moved)
            ratio = np.minimum((1 - BLEND) * share / smooth + BLEND, MOST_RATIO)
            table = np.full(variable.size, np.nan)
            table[codes] = np.log(ratio)
            side.append(table)
    return np.stack(out[0]), np.stack(out[1])


def tilt_number_alone(variable: Variable, counts: Array) -> Iterator[Tilt]:
    """Yield the checks of a risk or an attribution: up and down."""
    kind, level = (EXPLANATION, None) if variable.kind == ATTRIBUTION else (SCORE, variable.level)
    none = np.zeros((0, variable.size))
    yield from tilt_shift(variable, counts, kind, level, (none, none))


def tilt_label(level: int, counts: Array) -> Iterator[Tilt]:
    """Yield prevalence up and down from counts of labels."""
    codes = np.arange(len(counts))
    happened, known = codes == FIRST + 1, counts[FIRST:].sum()
    usual = (counts[FIRST + 1] + 0.5) / (known + 1)
    for sign, direction in ((1, UP), (-1, DOWN)):
        others = [_odds(usual, odds**sign) for odds in PREVALENCE_ODDS]
        yield _bernoulli(PREVALENCE, direction, level, happened, usual, others, codes < FIRST)


def tilt_outcome(level: int, counts: Array, logits: Array, values: Array) -> Iterator[Tilt]:
    """Yield calibration and discrimination: label given the recalibrated risk.

    Args:
        level: Number of the class.
        counts: Counts (size,) of codes in the reference rows.
        logits: Recalibrated log-odds (bins,) of each bin of the risk.
        values: Predicted risk (bins,) of each bin, shown in the alarm.
    """
    known = counts[FIRST:].reshape(-1, 2)
    usual, weight = _sigmoid(logits), known.sum(axis=1)
    prevalence = float(known[:, 1].sum() / weight.sum())
    absent = np.full(FIRST, np.nan)

    def table(risk: Array) -> Array:
        pairs = np.stack([np.log((1 - risk) / (1 - usual)), np.log(risk / usual)], axis=1)
        return np.concatenate([absent, pairs.ravel()])

    events = np.tile([0.0, 1.0], len(logits))
    excess = np.concatenate([absent, events - np.repeat(values, 2)])
    for sign, direction in ((1, UP), (-1, DOWN)):
        tables = np.stack([table(_sigmoid(logits + sign * more)) for more in INTERCEPTS])
        yield Tilt(CALIBRATION, direction, level, tables, True, excess)
    centred = np.repeat(values - np.average(values, weights=weight), 2)
    contrast = (events - prevalence) * centred / max(prevalence * (1 - prevalence), 1e-9)
    flat = [table(_sigmoid(_intercept(slope * logits, weight, prevalence) + slope * logits)) for slope in SLOPES]
    yield Tilt(DISCRIMINATION, DOWN, level, np.stack(flat), True, np.concatenate([absent, contrast]))


def tilt_decision(counts: Array, threshold: float) -> Iterator[Tilt]:
    """Yield net benefit down: true positives less false positives at the odds of the threshold."""
    odds = threshold / (1 - threshold)
    benefit = np.array([0.0, 0.0, -odds, 1.0])
    shares = counts[FIRST:] / max(counts[FIRST:].sum(), 1)
    spread = float(np.sqrt(shares @ (benefit - shares @ benefit) ** 2))
    if spread > 0:
        absent = np.full(FIRST, np.nan)
        tables = np.stack([np.concatenate([absent, -theta * benefit / spread]) for theta in BENEFITS])
        yield Tilt(NET_BENEFIT, DOWN, None, tables, True, np.concatenate([absent, benefit]))


def recalibrate(logits: Array, events: Array) -> tuple[float, float]:
    """Fit intercept and slope of the events in the model's log-odds, with a weak pull towards (0, 1)."""
    beta, pull = np.array([0.0, 1.0]), np.array([0.1, 1.0])
    x = np.stack([np.ones(len(logits)), logits], axis=1)
    for _ in range(25):
        risk = _sigmoid(x @ beta)
        slope = x.T @ (events - risk) - pull * (beta - [0.0, 1.0])
        curve = (x.T * (risk * (1 - risk))) @ x + np.diag(pull)
        step = np.linalg.solve(curve, slope)
        beta = beta + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-10:
            break
    return float(beta[0]), float(beta[1])


def to_logits(risk: Array) -> Array:
    """Return the log-odds of a risk that is kept away from 0 and 1."""
    bounded = np.clip(risk, 1e-4, 1 - 1e-4)
    return np.asarray(np.log(bounded / (1 - bounded)))


def upper_share(count: float, total: float) -> float:
    """Return the largest share that still counts as usual: a standard error and the tolerance above the smoothed share."""
    share = (count + 0.5) / (total + 1)
    spread = np.sqrt(share * (1 - share))
    return float(np.clip(share + spread / np.sqrt(total + 1) + TOLERANCE * spread, RARE, 1 - RARE))


def _rise(
    kind: str, level: int | None, inside: Array, count: float, total: float, *, ignored: Array | None = None
) -> Tilt:
    usual = upper_share(count, total)
    others = [_odds(usual, ODDS), usual + MORE * (1 - usual)]
    return _bernoulli(kind, UP, level, inside, usual, others, ignored)


def _fall(
    kind: str, level: int | None, inside: Array, count: float, total: float, *, ignored: Array | None = None
) -> Tilt:
    usual = 1 - upper_share(total - count, total)
    return _bernoulli(kind, DOWN, level, inside, usual, [_odds(usual, 1 / ODDS), usual * (1 - MORE)], ignored)


def _bernoulli(
    kind: str,
    direction: str,
    level: int | None,
    inside: Array,
    usual: float,
    others: list[float],
    ignored: Array | None,
) -> Tilt:
    tables = np.stack([np.where(inside, np.log(other / usual), np.log((1 - other) / (1 - usual))) for other in others])
    shown = inside.astype(np.float64)
    if ignored is not None:
        tables[:, ignored], shown[ignored] = np.nan, np.nan
    return Tilt(kind, direction, level, tables, False, shown)


def _odds(share: float, times: float) -> float:
    odds = times * share / (1 - share)
    return float(odds / (1 + odds))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -30, 30))))


def _intercept(logits: Array, weight: Array, prevalence: float) -> float:
    """Find the intercept with which the mean risk is the prevalence."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if np.average(_sigmoid(middle + logits), weights=weight) < prevalence else (low, middle)
        )
    return (low + high) / 2
