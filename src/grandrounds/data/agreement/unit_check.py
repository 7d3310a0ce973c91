"""Whether a column looks as if it was written in another unit: its quartiles against the consortium's, as they are and
as they would be after each known conversion.

A value's place is told in deviations of the agreed column, one for each side of the median (on a log scale where the
agreed values are positive). The distance of a site is the mean, over its three quartiles, of how far each is from the
place it would have if the site were like the consortium. A unit is suspected where the distance is large as it is, and
small after a conversion. How often that is right on real hospitals: docs/site-data.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.agreement.schema import LEVELS, AgreedColumn
from grandrounds.data.agreement.units import Conversion, conversions

FEWEST = 5
"""Values below which quartiles say nothing."""

FAR, CERTAIN = 1.0, 2.5
"""Deviations from which a column is suspected, and from which it is refused."""

CLOSE = 0.75
"""Deviations within which a converted column fits, or a fifth of what it was; where there are few values SAMPLING /
sqrt(n) more. In any case it must be half of what it was."""

SAMPLING = 1.0
_PLACES = np.array([-0.6744897501960817, 0.0, 0.6744897501960817])  # of quartiles among deviations
_OUTER = 1.6448536269514722  # of the 5 and 95 % quantiles
_INSIDE = 0.9  # share within the range that fits, where no quantiles are agreed


@dataclass(frozen=True)
class Suspicion:
    """A conversion after which a site's column fits, and the evidence."""

    conversion: Conversion
    median: float  # of the site, as it is
    agreed: float  # of the consortium; of a column without quantiles the middle of its range
    certain: bool


def suspected(column: AgreedColumn, values: Array) -> Suspicion | None:
    """The unit that a site's values (n,), without missing ones, seem to be in; None where they fit as they are."""
    if len(values) < FEWEST:
        return None
    if column.quantiles:
        return _by_quantiles(column, values)
    return _by_range(column, values) if column.range is not None else None


def distance(quantiles: tuple[float, ...], values: Array) -> float:
    """How far a site's quartiles are from where the consortium's are, in deviations of the consortium."""
    quartiles, agreed = np.quantile(values, LEVELS[1:4]), np.array(quantiles)
    if agreed[0] > 0:
        quartiles, agreed = np.log(np.maximum(quartiles, agreed[0] * 1e-9)), np.log(agreed)
    low, middle, high = agreed[0], agreed[2], agreed[4]
    least = max(1e-3 * abs(middle), (high - low) / _OUTER / 10, 1e-9)
    below, above = max((middle - low) / _OUTER, least), max((high - middle) / _OUTER, least)
    places = (quartiles - middle) / np.where(quartiles < middle, below, above)
    return float(np.abs(places - _PLACES).mean())


def _by_quantiles(column: AgreedColumn, values: Array) -> Suspicion | None:
    spare = SAMPLING / np.sqrt(len(values))
    before = distance(column.quantiles, values)
    if before < FAR + spare:
        return None
    agreed = column.quantiles[2]
    known = conversions(column.name, unit=column.unit, median=agreed)
    after = {c: distance(column.quantiles, c.factor * values + c.offset) for c in known}
    best = min(after, key=lambda c: after[c], default=None)
    if best is None or after[best] > min(max(CLOSE + spare, before / 5), before / 2):
        return None
    return Suspicion(best, float(np.median(values)), agreed, before >= CERTAIN + spare)


def _by_range(column: AgreedColumn, values: Array) -> Suspicion | None:
    """Without quantiles: nearly all values impossible as they are, and nearly none after a conversion."""
    assert column.range is not None
    low, high = column.range
    middle = (low + high) / 2

    def inside(found: Array) -> float:
        return float(((found >= low) & (found <= high)).mean())

    if inside(values) > 1 - _INSIDE:
        return None
    for c in conversions(column.name, unit=column.unit, median=middle):
        if inside(c.factor * values + c.offset) >= _INSIDE:
            return Suspicion(c, float(np.median(values)), middle, certain=True)
    return None
