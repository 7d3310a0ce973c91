"""Units of numbers: small factors, factors without a known measure, and columns in two units.

`agreement.units.suspect_unit` finds a known conversion after which a column that is far from the agreed quantiles fits. Here
are three more cases. With many values a known conversion is reported from a smaller distance on. A column that is very far
and fits after a common factor (10, 1000, 24, 18.016 ...) is reported although its measure is not known. A column is in two
units where a part of its values is very far and exactly that part fits after a conversion, or where fractions among whole
numbers become whole after it.

False alarms are controlled by the distances: of 20 sites cut from other hospitals than the reference (`bench/quality_tables.py`,
part "tuning"), 99% of columns were within 0.45 deviations on the eICU demo and within 1.0 on Diabetes 130-US.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.agreement.check import UNITS, Finding
from grandrounds.data.agreement.schema import LEVELS, AgreedColumn, DataSchema
from grandrounds.data.agreement.units import (
    CERTAIN,
    FAR,
    SAMPLING,
    Conversion,
    conversions,
    distance,
    suspect_unit,
)
from grandrounds.data.table import Table

SMALL_FAR = 0.65
"""Deviations from which a known conversion is reported where there are many values."""

MANY = 40
"""Values from which that is so, and from which a common factor or two units are looked for."""

GENERIC_FAR = 2.0
"""Deviations from which a factor without a known measure is reported."""

FACTORS = {
    1000.0: "grams for milligrams, or thousands", 100.0: "per cent for shares, or metres for centimetres",
    10.0: "per decilitre for per litre", 24.0: "hours for days", 1440.0: "minutes for days", 60.0: "minutes for hours",
    7.0: "days for weeks", 12.0: "months for years", 365.25: "days for years", 18.016: "mg/dL for mmol/L of glucose",
    38.67: "mg/dL for mmol/L of cholesterol", 88.4: "umol/L for mg/dL of creatinine", 17.1: "umol/L for mg/dL of bilirubin",
    2.2046: "pounds for kilograms", 2.54: "centimetres for inches", 7.50062: "mmHg for kPa",
}  # fmt: skip
"""Common factors between units, both ways, with an example."""

_PART = (0.08, 0.92)  # share of values in another unit
_OUTSIDE = 3.5  # deviations from which a value is in another unit
_FITS = 2.5  # deviations within which it fits after a conversion
_PURE = 0.9  # share of the far values that must fit
_FRACTION = 0.001  # distance from a whole number, of rounding
_FRACTIONS = (0.05, 0.98)  # share of fractions: a column of fractions alone is a mean, or in another unit altogether
_WHOLE = 0.98  # share of fractions that a conversion must make whole


@dataclass(frozen=True)
class _Scale:
    """Place of values in deviations of the agreed column, one for each side of the median."""

    log: bool
    middle: float
    below: float
    above: float

    def place(self, values: Array) -> Array:
        x = np.log(np.maximum(values, 1e-12)) if self.log else values
        side = np.where(x < self.middle, self.below, self.above)
        return np.asarray((x - self.middle) / side)


def check_units(table: Table, schema: DataSchema) -> Iterator[Finding]:
    """Find columns in another unit that the check of the agreed schema does not report.

    Args:
        table: The site's table.
        schema: The agreed schema; columns without quantiles are left out.
    """
    for column in schema.columns:
        values = table.columns.get(column.name)
        if values is None or values.dtype != np.float64 or not column.quantiles:
            continue
        present = values[~np.isnan(values)]
        if len(present) < MANY or suspect_unit(column, present) is not None:
            continue
        finding = (
            _find_small_factor(column, present)
            or _find_common_factor(column, present)
            or _find_mixture(column, present)
            or _find_fractions(column, present)
        )
        if finding is not None:
            yield finding


def _find_small_factor(column: AgreedColumn, values: Array) -> Finding | None:
    """Find a known conversion from a smaller distance on than for few values."""
    spare = SAMPLING / np.sqrt(len(values))
    before = distance(column.quantiles, values)
    if before < SMALL_FAR + spare:
        return None
    best, after = _best_conversion(column, values)
    if best is None or after > before / 3:
        return None
    return _describe(column, values, best, level="warning")


def _best_conversion(column: AgreedColumn, values: Array) -> tuple[Conversion | None, float]:
    candidates = conversions(column.name, unit=column.unit, median=column.quantiles[2])
    after = {c: distance(column.quantiles, c.factor * values + c.offset) for c in candidates}
    best = min(after, key=lambda c: after[c], default=None)
    return best, np.inf if best is None else after[best]


def _describe(column: AgreedColumn, values: Array, c: Conversion, *, level: str) -> Finding:
    site_unit, agreed = c.units
    text = (
        f"looks like {site_unit} where {column.unit or agreed} is agreed ({c.measure}; its median is {np.median(values):.4g}, "
        f"the consortium's {column.quantiles[2]:.4g}): {c}"
    )
    return Finding("error" if level == "error" else "warning", UNITS, column.name, text)


def _find_common_factor(column: AgreedColumn, values: Array) -> Finding | None:
    spare = SAMPLING / np.sqrt(len(values))
    before = distance(column.quantiles, values)
    if before < GENERIC_FAR + spare:
        return None
    both_ways = {f: (f, f"{words}") for f, words in FACTORS.items()}
    both_ways |= {1 / f: (1 / f, f"{words}, the other way round") for f, words in FACTORS.items()}
    after = {f: distance(column.quantiles, f * values) for f in both_ways}
    best = min(after, key=lambda f: after[f])
    if after[best] > min(max(0.5 + spare, before / 6), before / 3):
        return None
    size = f"multiply by {best:g}" if best >= 1 else f"divide by {1 / best:g}"
    text = (
        f"its median is {np.median(values):.4g}, the consortium's {column.quantiles[2]:.4g}: another unit? It fits if you {size} "
        f"(as {both_ways[best][1]})"
    )
    return Finding("error" if before >= CERTAIN + spare else "warning", UNITS, column.name, text)


def _find_mixture(column: AgreedColumn, values: Array) -> Finding | None:
    """Find a part of the values in another unit: very far as they are, and in place after one conversion."""
    scale = _read_scale(column)
    if scale is None:
        return None
    far = np.abs(scale.place(values)) > _OUTSIDE
    share = float(far.mean())
    if not _PART[0] <= share <= _PART[1]:
        return None
    known = conversions(column.name, unit=column.unit, median=column.quantiles[2])
    factors: list[tuple[float, float, str]] = [(c.factor, c.offset, str(c)) for c in known]
    if not known:
        factors = [(f, 0.0, f"multiply by {f:g}") for f in FACTORS]
        factors += [(1 / f, 0.0, f"divide by {f:g}") for f in FACTORS]
    best, how = 0.0, ""
    for factor, offset, words in factors:
        converted = factor * values[far] + offset
        fits = float((np.abs(scale.place(converted)) <= _FITS).mean())
        middle = abs(float(np.median(scale.place(converted))))
        if fits - 0.1 * middle > best:
            best, how = fits - 0.1 * middle, words
    if best < _PURE - 0.1:
        return None
    text = f"{share:.0%} of the values seem to be in another unit than the others: {how} there, or write one unit"
    return Finding("error" if share >= FAR / 4 else "warning", UNITS, column.name, text)


def _find_fractions(column: AgreedColumn, values: Array) -> Finding | None:
    """Find fractions among whole numbers that one conversion makes whole: a part of the rows in another unit."""
    fraction = np.abs(values - np.round(values)) > _FRACTION
    share = float(fraction.mean())
    if not column.whole or not _FRACTIONS[0] <= share <= _FRACTIONS[1]:
        return None
    for c in conversions(column.name, unit=column.unit, median=column.quantiles[2]):
        converted = c.factor * values[fraction] + c.offset
        if abs(c.factor) > 1 and (np.abs(converted - np.round(converted)) <= _FRACTION * c.factor).mean() >= _WHOLE:
            text = (
                f"{share:.0%} of the values are fractions where whole numbers are agreed, and would be whole if they were in "
                f"{c.units[0]}: {c} there"
            )
            return Finding("warning", UNITS, column.name, text)
    return None


def _read_scale(column: AgreedColumn) -> _Scale | None:
    low, middle, high = (column.quantiles[i] for i in (0, 2, 4))
    log = low > 0
    if log:
        low, middle, high = np.log(low), np.log(middle), np.log(high)
    if not low < middle < high:
        return None
    outer = 1.6448536269514722  # of the 5 and 95% quantiles
    least = (high - low) / outer / 4
    return _Scale(log, middle, max((middle - low) / outer, least), max((high - middle) / outer, least))


assert LEVELS[0] == 0.05 and LEVELS[4] == 0.95
