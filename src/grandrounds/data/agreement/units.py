"""Units of common clinical measures, and the detection of a column that was written in another unit.

Factors follow from molar masses (glucose 180.16 g/mol, cholesterol 386.65, creatinine 113.12, urea 60.06, bilirubin 584.66,
calcium 40.08, magnesium 24.305, phosphorus 30.974, urate 168.11, lactate 90.08, triglycerides 885.7 by convention, the
haemoglobin monomer 16,114), or are exact. HbA1c is the NGSP-IFCC master equation.

A column's quartiles are compared with the consortium's, as they are and after each known conversion. A value's place is
measured in deviations of the agreed column, one for each side of the median (on a log scale where the agreed values are
positive). The distance of a site is the mean, over its three quartiles, of how far each is from the place it would have if
the site were like the consortium. A unit is suspected where the distance is large as it is, and small after a conversion.
docs/site.md reports how often that is right on real hospitals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.agreement.schema import LEVELS, AgreedColumn

Linear = tuple[float, float]  # factor, offset


@dataclass(frozen=True)
class Measure:
    """One quantity: words that name it, its units as (factor, offset) to the first of them, and its usual value in that."""

    name: str
    words: tuple[str, ...]
    units: Mapping[str, Linear]
    usual: float


@dataclass(frozen=True)
class Conversion:
    """`agreed = factor * here + offset`."""

    measure: str
    site_unit: str
    agreed: str
    factor: float
    offset: float = 0.0

    @property
    def units(self) -> tuple[str, str]:
        """Both units as they are usually written."""
        return format_unit(self.site_unit), format_unit(self.agreed)

    def __str__(self) -> str:
        size = f"multiply by {self.factor:.4g}"
        if not self.offset:
            return size
        return f"{size} and {'add' if self.offset > 0 else 'subtract'} {abs(self.offset):.4g}"


def _scaled(**units: float) -> dict[str, Linear]:
    """Units of one quantity by their factors to the first; `__` stands for the stroke in a unit, `pct` for per cent."""
    return {name.replace("__", "/").replace("pct", "%"): (factor, 0.0) for name, factor in units.items()}


_GRAMS = _scaled(g__dl=1, g__l=0.1)
_SHARE = _scaled(pct=1, fraction=100)
_ENZYME = _scaled(u__l=1, ukat__l=60)
_CELLS = {"10^9/l": (1.0, 0.0), "/ul": (0.001, 0.0)}
_PRESSURE = _scaled(mmhg=1, kpa=7.50062)
_BLOOD_PRESSURE = ("pressure", "bp", "sbp", "dbp", "map", "trestbps", "meanbp", "systolic", "diastolic")

MEASURES = (
    Measure("cholesterol", ("cholesterol", "chol", "ldl", "hdl"), _scaled(mmol__l=1, mg__dl=1 / 38.67), 4.8),
    Measure("triglycerides", ("triglycerides", "triglyceride", "trig", "tg"), _scaled(mmol__l=1, mg__dl=1 / 88.57), 1.4),
    Measure("glucose", ("glucose", "glu", "sugar", "gluc"), _scaled(mmol__l=1, mg__dl=1 / 18.016), 7),
    Measure("creatinine", ("creatinine", "crea", "creat", "scr"), _scaled(mg__dl=1, umol__l=1 / 88.40), 1.0),
    Measure(
        "urea nitrogen",
        ("bun", "ureanitrogen"),
        {**_scaled(mg__dl=1, mmol__l=2.8014), "mg/dl of urea": (0.46646, 0.0)},
        20,
    ),
    Measure(
        "urea", ("urea",), {**_scaled(mmol__l=1, mg__dl=1 / 6.006), "mg/dl of urea nitrogen": (1 / 2.8014, 0.0)}, 6.5
    ),
    Measure("bilirubin", ("bilirubin", "bili", "tbil"), _scaled(mg__dl=1, umol__l=1 / 17.10), 0.8),
    Measure(
        "haemoglobin",
        ("haemoglobin", "hemoglobin", "hgb", "hb"),
        _scaled(g__dl=1, g__l=0.1, mmol__l=1.6114),
        12.5,
    ),
    Measure("albumin", ("albumin", "alb"), _GRAMS, 3.5),
    Measure("protein", ("protein", "totalprotein"), _GRAMS, 6.8),
    Measure("MCHC", ("mchc",), _GRAMS, 33),
    Measure("calcium", ("calcium", "ca"), _scaled(mg__dl=1, mmol__l=4.008, meq__l=2.004), 8.8),
    Measure("ionised calcium", ("ionizedcalcium", "ionisedcalcium", "cai", "ica"), _scaled(mmol__l=1, mg__dl=1 / 4.008), 1.15),
    Measure("magnesium", ("magnesium", "mg"), _scaled(mg__dl=1, mmol__l=2.4305, meq__l=1.21525), 2.0),
    Measure("phosphate", ("phosphate", "phosphorus", "phos"), _scaled(mg__dl=1, mmol__l=3.0974), 3.5),
    Measure("uric acid", ("uricacid", "urate", "uric"), _scaled(mg__dl=1, umol__l=1 / 59.48, mmol__l=16.811), 5.5),
    Measure("lactate", ("lactate", "lact"), _scaled(mmol__l=1, mg__dl=1 / 9.008), 1.8),
    Measure("C-reactive protein", ("crp", "reactive"), _scaled(mg__l=1, mg__dl=10), 20),
    Measure("fibrinogen", ("fibrinogen", "fgn"), _scaled(mg__dl=1, g__l=100), 350),
    Measure("troponin", ("troponin", "tnt", "tni", "trop"), _scaled(ng__ml=1, ng__l=0.001), 0.05),
    Measure("HbA1c", ("hba1c", "a1c"), {"%": (1.0, 0.0), "mmol/mol": (0.09148, 2.152)}, 6.0),
    Measure("platelets", ("platelets", "platelet", "plt"), _CELLS, 220),
    Measure("white cells", ("wbc", "leukocytes", "leucocytes"), _CELLS, 9),
    Measure("haematocrit", ("haematocrit", "hematocrit", "hct"), _SHARE, 36),
    Measure("oxygen saturation", ("spo2", "o2sat", "sao2", "saturation"), _SHARE, 97),
    Measure("inspired oxygen", ("fio2",), _SHARE, 40),
    Measure("lymphocytes", ("lymphocytes", "lymph"), _SHARE, 15),
    Measure("neutrophils", ("neutrophils", "neut"), _SHARE, 75),
    Measure("ejection fraction", ("lvef", "ejection"), _SHARE, 55),
    Measure("alanine transaminase", ("alt", "sgpt"), _ENZYME, 25),
    Measure("aspartate transaminase", ("ast", "sgot"), _ENZYME, 28),
    Measure("alkaline phosphatase", ("alp",), _ENZYME, 80),
    Measure("lactate dehydrogenase", ("ldh",), _ENZYME, 220),
    Measure("creatine kinase", ("ck", "cpk"), _ENZYME, 120),
    Measure("blood pressure", _BLOOD_PRESSURE, _PRESSURE, 100),
    Measure("carbon dioxide tension", ("paco2", "pco2"), _PRESSURE, 40),
    Measure("oxygen tension", ("pao2", "po2"), _PRESSURE, 95),
    Measure("temperature", ("temperature", "temp"), {"c": (1.0, 0.0), "f": (5 / 9, -160 / 9), "k": (1.0, -273.15)}, 37),
    Measure("weight", ("weight", "wt"), _scaled(kg=1, lb=0.45359237, g=0.001), 78),
    Measure("height", ("height", "ht"), _scaled(cm=1, m=100, **{"in": 2.54}), 169),
    Measure("age", ("age",), _scaled(years=1, months=1 / 12, days=1 / 365.25), 60),
    Measure("length of stay", ("los", "stay", "duration"), _scaled(days=1, hours=1 / 24, minutes=1 / 1440, weeks=7), 5),
    Measure("urine", ("urine", "urineoutput"), _scaled(ml=1, l=1000), 1600),
)  # fmt: skip

_SPELLINGS = {
    "degc": "c", "celsius": "c", "degf": "f", "fahrenheit": "f", "kelvin": "k", "lbs": "lb", "pounds": "lb",
    "kgs": "kg", "inch": "in", "inches": "in", "year": "years", "y": "years", "yr": "years", "yrs": "years",
    "month": "months", "day": "days", "d": "days",
    "hour": "hours", "h": "hours", "hrs": "hours", "min": "minutes", "minute": "minutes", "week": "weeks",
    "percent": "%", "pct": "%", "mmofhg": "mmhg", "torr": "mmhg",
    "iu/l": "u/l", "mg/100ml": "mg/dl", "mg%": "mg/dl", "meters": "m", "metres": "m", "ug/l": "ng/ml", "pg/ml": "ng/l",
    "10e9/l": "10^9/l", "109/l": "10^9/l", "k/ul": "10^9/l", "10^3/ul": "10^9/l", "/mm3": "/ul", "cells/ul": "/ul",
    "millilitres": "ml", "litres": "l", "liters": "l", "ratio": "fraction",
}  # fmt: skip
_CAPITALS = {"c": "degrees Celsius", "f": "degrees Fahrenheit", "k": "kelvin", "mmhg": "mmHg", "kpa": "kPa", "u/l": "U/L",
             "in": "inches", "lb": "pounds", "l": "litres"}  # fmt: skip
_SPREAD = {"std", "sd", "stdev", "deviation", "iqr", "range", "delta", "change", "diff"}
_LONG = 5  # letters of a word that is looked for inside another
_NEAR = 4.0  # an agreed median so many times the usual one is of something else


def plain_unit(text: str) -> str:
    """Normalise the spelling of a unit: "mg/dL", "mg / dl" and "mg per dl" are the same."""
    word = text.strip().lower().replace("µ", "u").replace("μ", "u").replace("mcg", "ug").replace("mcmol", "umol")
    word = word.replace("°", "").replace("degrees", "").replace(" per ", "/").replace("x10", "10")
    word = re.sub(r"\s+", " " if " of " in word else "", word)
    return _SPELLINGS.get(word, word)


def format_unit(unit: str) -> str:
    """Write a unit with its usual capitals."""
    word = _CAPITALS.get(unit, unit).replace("/dl", "/dL").replace("/ul", "/uL")
    return re.sub(r"/l\b", "/L", re.sub(r"\bml\b", "mL", word)).replace("meq", "mEq")


def conversions(name: str, *, unit: str = "", median: float | None = None) -> tuple[Conversion, ...]:
    """List the units that a column may have been mistaken for, by its agreed unit, or by its name.

    Without a unit the name alone decides, and the agreed unit is the one in which the agreed `median` is nearest to
    what is usual. A column of differences or deviations (temp_std) is converted without the offset.
    """
    words, stated = _words(name), plain_unit(unit)
    named = _measure_by_name(words)
    if stated:
        measures = (
            [named] if named is not None and stated in named.units else [m for m in MEASURES if stated in m.units]
        )
        pairs = [(m, stated) for m in measures]
    elif named is not None and median is not None and (guess := _nearest(named, median)):
        pairs = [(named, guess)]
    else:
        pairs = []
    best: dict[tuple[str, float], Conversion] = {}
    for measure, agreed in pairs:
        for unit_here in measure.units:
            c = _convert_units(measure, unit_here, agreed)
            c = replace(c, offset=0.0) if words & _SPREAD else c
            if c.factor != 1 or c.offset:
                best.setdefault((unit_here, round(c.factor, 6)), c)
    return tuple(best.values())


def _convert_units(measure: Measure, site_unit: str, agreed: str) -> Conversion:
    """Convert `site_unit` to the measure's first unit, and from there to the agreed one."""
    (a, b), (c, d) = measure.units[site_unit], measure.units[agreed]
    return Conversion(measure.name, site_unit, agreed, a / c, (b - d) / c)


def _measure_by_name(words: set[str]) -> Measure | None:
    """Find the measure with the longest word that the name holds: "glucose_mg_dl" is glucose, not magnesium."""
    best: tuple[int, Measure | None] = (0, None)
    for measure in MEASURES:
        for word in measure.words:
            inside = len(word) >= _LONG and any(word in w for w in words)
            if (word in words or inside) and len(word) > best[0]:
                best = (len(word), measure)
    return best[1]


def _nearest(measure: Measure, median: float) -> str:
    """Find the unit in which this median is nearest to the usual value; none where it is near in none."""
    if not median > 0:
        return ""
    far = {}
    for unit, (factor, offset) in measure.units.items():
        usual = (measure.usual - offset) / factor
        far[unit] = max(usual / median, median / usual)
    best = min(far, key=lambda unit: far[unit])
    return best if far[best] <= _NEAR else ""


def _words(name: str) -> set[str]:
    """Split a column name into words: at what is no letter or digit, and at capitals within."""
    parts = [w for w in re.split(r"[^A-Za-z0-9]+", name) if w]
    split = [w for part in parts for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[0-9]+", part)]
    return {w.lower() for w in (*parts, *split, "".join(parts))}


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


def suspect_unit(column: AgreedColumn, values: Array) -> Suspicion | None:
    """Guess the unit that a site's values (n,), without missing ones, are in; None where they fit as they are."""
    if len(values) < FEWEST:
        return None
    if column.quantiles:
        return _suspect_by_quantiles(column, values)
    return _suspect_by_range(column, values) if column.range is not None else None


def distance(quantiles: tuple[float, ...], values: Array) -> float:
    """Measure how far a site's quartiles are from the consortium's, in deviations of the consortium."""
    return quartile_distance(quantiles, np.quantile(values, LEVELS[1:4]))


def quartile_distance(quantiles: tuple[float, ...], quartiles: Array) -> float:
    """Measure how far quartiles (3,) are from the consortium's, as `distance` does."""
    agreed = np.array(quantiles)
    if agreed[0] > 0:
        quartiles, agreed = np.log(np.maximum(quartiles, agreed[0] * 1e-9)), np.log(agreed)
    low, middle, high = agreed[0], agreed[2], agreed[4]
    least = max(1e-3 * abs(middle), (high - low) / _OUTER / 10, 1e-9)
    below, above = max((middle - low) / _OUTER, least), max((high - middle) / _OUTER, least)
    places = (quartiles - middle) / np.where(quartiles < middle, below, above)
    return float(np.abs(places - _PLACES).mean())


def _suspect_by_quantiles(column: AgreedColumn, values: Array) -> Suspicion | None:
    spare = SAMPLING / np.sqrt(len(values))
    before = distance(column.quantiles, values)
    if before < FAR + spare:
        return None
    agreed = column.quantiles[2]
    candidates = conversions(column.name, unit=column.unit, median=agreed)
    after = {c: distance(column.quantiles, c.factor * values + c.offset) for c in candidates}
    best = min(after, key=lambda c: after[c], default=None)
    if best is None or after[best] > min(max(CLOSE + spare, before / 5), before / 2):
        return None
    return Suspicion(best, float(np.median(values)), agreed, before >= CERTAIN + spare)


def _suspect_by_range(column: AgreedColumn, values: Array) -> Suspicion | None:
    """Compare without quantiles: nearly all values impossible as they are, and nearly none after a conversion."""
    assert column.range is not None
    low, high = column.range
    middle = (low + high) / 2

    def inside(sample: Array) -> float:
        return float(((sample >= low) & (sample <= high)).mean())

    if inside(values) > 1 - _INSIDE:
        return None
    for c in conversions(column.name, unit=column.unit, median=middle):
        if inside(c.factor * values + c.offset) >= _INSIDE:
            return Suspicion(c, float(np.median(values)), middle, certain=True)
    return None
