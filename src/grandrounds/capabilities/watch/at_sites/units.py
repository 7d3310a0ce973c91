"""Recognise a change of unit: values that are all multiplied by one factor, or temperatures in the other scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grandrounds.capabilities.watch.at_sites.sums import NumberFigures

FACTORS: tuple[tuple[float, str, str], ...] = (
    (18.016, "mg/dL", "mmol/L, as of glucose"),
    (38.67, "mg/dL", "mmol/L, as of cholesterol"),
    (88.57, "mg/dL", "mmol/L, as of triglycerides"),
    (9.009, "mg/dL", "mmol/L, as of lactate"),
    (2.801, "mg/dL", "mmol/L, as of urea nitrogen"),
    (6.006, "mg/dL", "mmol/L, as of urea"),
    (4.008, "mg/dL", "mmol/L, as of calcium"),
    (2.431, "mg/dL", "mmol/L, as of magnesium"),
    (3.097, "mg/dL", "mmol/L, as of phosphate"),
    (1 / 88.42, "mg/dL", "umol/L, as of creatinine"),
    (1 / 17.1, "mg/dL", "umol/L, as of bilirubin"),
    (1 / 59.48, "mg/dL", "umol/L, as of uric acid"),
    (1.611, "g/dL", "mmol/L, as of haemoglobin"),
    (7.5006, "mmHg", "kPa"),
    (2.2046, "lb", "kg"),
    (1 / 2.54, "inch", "cm"),
    (365.25, "days", "years"),
    (30.44, "days", "months"),
    (12.0, "months", "years"),
    (24.0, "hours", "days"),
    (60.0, "minutes", "hours"),
    (100.0, "percent, cm", "a share of one, m"),
    (10.0, "g/L, mm", "g/dL, cm"),
    (1000.0, "mg, g", "g, kg"),
)
"""Old value / new value, with the old and the new unit; each also in the other direction. Molar masses of the substances."""

LEAST_FACTOR = 1.4
"""Smallest factor that is called a change of unit."""
_LIKE = 0.35  # difference of the deviations of logarithms, in parts of the larger one
_Z = 1.96
_CLOSE = 0.05  # distance from a known factor on the log scale, besides the sampling error


@dataclass(frozen=True)
class UnitChange:
    """A change of unit.

    Attributes:
        factor: Old value / new value, as measured.
        words: Known conversions with about that factor; "" where none is close.
    """

    factor: float
    words: str

    @property
    def sentence(self) -> str:
        """The finding as text."""
        if not math.isfinite(self.factor):
            return f"Values look like {self.words}"
        size, way = (self.factor, "smaller") if self.factor > 1 else (1 / self.factor, "larger")
        known = f" ({self.words})" if self.words else ""
        digits = 0 if size >= 20 else 1
        return f"Values are about {size:.{digits}f} times {way}{known}"


def find_unit_change(before: NumberFigures, now: NumberFigures, column: str = "") -> UnitChange | None:
    """Compare a column before and since a change.

    A change of unit moves the logarithm of every value by the same amount, so their spread stays. A column with values of zero
    or below has no logarithms, and only the scale of temperatures is tried.

    Args:
        before: The column among reference patients.
        now: The column since the change.
        column: Its name: of several conversions with about the same factor, the one of that substance is named.

    Returns:
        The change of unit; None where values differ in another way.
    """
    if (temperature := _temperature(before, now)) is not None:
        return temperature
    if any(math.isnan(v) for v in (before.log_mean, now.log_mean)):
        return None
    spread = max(before.log_sd, now.log_sd)
    present = now.rows * (1 - now.missing)
    if present < 3 or (spread and abs(before.log_sd - now.log_sd) > (_LIKE + _Z / math.sqrt(2 * (present - 1))) * spread):
        return None
    log_factor = before.log_mean - now.log_mean
    if abs(log_factor) < math.log(LEAST_FACTOR):
        return None
    error = spread * math.sqrt(1 / present + 1 / before.rows)
    if abs(log_factor) < 3 * error:
        return None
    known = [*FACTORS, *((1 / f, b.split(", as")[0] + _substance(b), a.split(", as")[0]) for f, a, b in FACTORS)]
    near = sorted(
        (entry for entry in known if abs(math.log(entry[0]) - log_factor) <= _CLOSE + _Z * error),
        key=lambda entry: (not _names(column, entry), abs(math.log(entry[0]) - log_factor)),
    )
    shown = near[:1] if near and _names(column, near[0]) else near[:2]
    texts = [f"{a} to {b} is a factor of {max(f, 1 / f):.4g}" for f, a, b in shown]
    return UnitChange(math.exp(log_factor), "; ".join(texts))


def _names(column: str, entry: tuple[float, str, str]) -> bool:
    """Tell whether a column's name begins like the substance of a conversion, or has that beginning in it."""
    return any(", as of " in unit and unit.split(", as of ")[1][:4] in column.lower() for unit in entry[1:])


def _substance(unit: str) -> str:
    return ", as" + unit.split(", as")[1] if ", as" in unit else ""


def _temperature(before: NumberFigures, now: NumberFigures) -> UnitChange | None:
    """Recognise body temperatures that changed between Celsius and Fahrenheit."""
    for (low, high), (new_low, new_high), words in (
        ((30, 44), (86, 112), "degrees Fahrenheit, and were Celsius"),
        ((86, 112), (30, 44), "degrees Celsius, and were Fahrenheit"),
    ):
        if low < before.mean < high and new_low < now.mean < new_high:
            return UnitChange(math.inf, words)
    return None
