"""The fixed grid of log-odds on which every site counts its scores.

One grid for all sites, models and rounds is what makes histograms add up. Its edges are even in
asinh(log-odds / SOFTNESS), which is a plain ruler near zero and a logarithmic one far out: young
models, whose scores all lie close together, and saturated ones, whose probabilities round to 0 and
1, are both resolved. Zero (probability one half) is exactly an edge. The two end bins also hold what
lies beyond +-LIMIT. A bin is 0.003 wide at zero, 0.014 at -2.3 (one in eleven) and 0.06 at 10.
"""

from __future__ import annotations

import numpy as np

from grandrounds.metrics.arithmetic import Array, Floats

BINS = 2048
LIMIT = 100.0
SOFTNESS = 0.5
_PER_UNIT = BINS / (2.0 * float(np.arcsinh(LIMIT / SOFTNESS)))


def bin_centres() -> Floats:
    """Log-odds at the middle of each bin, (BINS,)."""
    return _log_odds(np.arange(BINS, dtype=np.float64) + 0.5)


def bin_edges() -> Floats:
    """Log-odds between the bins from -LIMIT to LIMIT, (BINS + 1,)."""
    return _log_odds(np.arange(BINS + 1, dtype=np.float64))


def bin_of(log_odds: Array) -> Array:
    """Index of the bin `[edge, next edge)` that holds each log-odds, any shape."""
    whole = np.floor(np.arcsinh(log_odds * (1.0 / SOFTNESS)) * _PER_UNIT)
    return np.clip(whole, -(BINS // 2), BINS // 2 - 1).astype(np.intp) + BINS // 2


def edge_probability(edge: int) -> float:
    """Probability at the lower edge of bin `edge`: 0 for the first and 1 past the last, as these are open."""
    if edge <= 0:
        return 0.0
    if edge >= BINS:
        return 1.0
    return float(0.5 + 0.5 * np.tanh(0.5 * bin_edges()[edge]))


def place_of(probability: float) -> float:
    """Place of a probability on the grid, in units of bins within [0, BINS]; NaN stays NaN."""
    if probability < 0.0 or probability > 1.0:
        raise ValueError(f"a threshold is a probability between 0 and 1, not {probability}")
    p = np.float64(probability)
    with np.errstate(divide="ignore"):
        log_odds = np.log(p) - np.log1p(-p)
    place = np.arcsinh(log_odds / SOFTNESS) * _PER_UNIT + BINS // 2
    return float(np.clip(place, 0.0, BINS).round(6))


def exact_place(log_odds: Floats) -> Floats:
    """Place of each log-odds on the grid, as `place_of` has it for probabilities, within [0, BINS): none is beyond 1."""
    place: Floats = (np.arcsinh(log_odds / SOFTNESS) * _PER_UNIT + BINS // 2).round(6)
    return np.clip(place, 0.0, np.nextafter(BINS, 0.0))


def _log_odds(place: Floats) -> Floats:
    """Log-odds at a place on the grid, the inverse of what `bin_of` computes; any shape."""
    unbent: Floats = SOFTNESS * np.sinh((place - BINS // 2) / _PER_UNIT)
    return unbent
