"""Exchanged columns: a pair whose values fit the agreed schema better the other way round, and columns out of line.

The cost of reading a column's values as an agreed column is a sum of squared differences in standard deviations between
hospitals: of numbers the distance of their quartiles and of their agreed rank correlations, of words their shares and profiles,
and of both the share of missing values. A pair was exchanged where both together cost at least `GAIN` less the other way round,
and neither costs much more. A column that has lost all its strong correlations while no exchange explains it was sorted or
shifted by itself.

False alarms are controlled by `GAIN`: on clean sites of other hospitals than the reference (`bench/quality_tables.py`, part
"tuning") no pair of columns gained more than 2.8 by an exchange, and 98% of the pairs that were exchanged gained more than 10.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from grandrounds.capabilities.quality.assessment.categories import compare_levels
from grandrounds.core.arrays import Array
from grandrounds.data.agreement.check import Finding
from grandrounds.data.agreement.relations import as_numbers, correlation_score, rank_correlation
from grandrounds.data.agreement.schema import LEVELS, AgreedColumn, DataSchema
from grandrounds.data.agreement.units import quartile_distance
from grandrounds.data.table import Table, is_number, missing_mask, to_text

SWAPPED = "swapped-columns"
MISALIGNED = "misaligned-column"

FEWEST = 20
"""Values below which a column is left out."""

GAIN = 10.0
RATIO = 0.85
"""Largest cost after the exchange, as a share of that before."""

STRONG = 0.5
"""Agreed correlation from which its loss counts."""

LOST = 6.0
"""Standard errors between the agreed correlation and one that is lost."""

_KEPT = 0.35  # share of a correlation that is not lost
_QUARTILES = 0.35  # standard deviation of the distance of quartiles between hospitals
_CORRELATION = 0.15  # of rank correlations
_MISSING = 0.25  # of the share of missing values
_MOST_MISSING = 9.0
_MOST = 50.0  # cost of one difference, so that no single one decides
_MOST_CORRELATION = 16.0
_ROWS = 3000  # rows for correlations; more add time and no evidence


@dataclass
class _Costs:
    """Costs of reading a site's columns as agreed columns; each is computed once."""

    table: Table
    columns: dict[str, AgreedColumn]
    numbers: dict[str, Array]  # of columns with correlations
    quartiles: dict[str, Array | None]  # (3,) of columns that hold numbers
    missing: dict[str, float]  # share of missing values
    correlations: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)

    def own(self, name: str) -> float:
        """Cost of a column as itself."""
        return self.total(name, name, name)

    def values_cost(self, name: str, agreed: str) -> float:
        """Cost of the distribution of numbers alone; 0 for words."""
        quantiles = self.columns[agreed].quantiles
        if not quantiles:
            return 0.0
        quartiles = self.quartiles[name]
        return _MOST if quartiles is None else min((quartile_distance(quantiles, quartiles) / _QUARTILES) ** 2, _MOST)

    def total(self, name: str, agreed: str, other: str) -> float:
        """Cost of the values of `name` as the column `agreed`, without its relation to `other`, the second of the pair."""
        column = self.columns[agreed]
        gaps = 0.0
        if column.missing_share is not None:
            gaps = min(((self.missing[name] - column.missing_share) / _MISSING) ** 2, _MOST_MISSING)
        if not column.quantiles:
            words = to_text(self.table.columns[name])
            cost = compare_levels(column, words, self.numbers, leave_out=(name, agreed, other))[1]
            present = [w for w in words.tolist() if w is not None]
            unknown = sum(w not in column.values for w in present) / max(len(present), 1)
            return gaps + _MOST * unknown + (_MOST if cost is None else float(np.trace(cost)))
        cost_here = gaps + self.values_cost(name, agreed)
        if name not in self.numbers:
            return cost_here
        for partner, rho in column.relations:
            if partner in self.numbers and partner not in (name, agreed, other):
                here, n = self.correlate(name, partner)
                if n >= 2 * FEWEST:
                    gap = (here - rho) / (_CORRELATION + 1 / np.sqrt(n))
                    cost_here += min(gap**2, _MOST_CORRELATION)
        return float(cost_here)

    def correlate(self, first: str, second: str) -> tuple[float, int]:
        """Rank correlation of two columns, and its rows."""
        key = (min(first, second), max(first, second))
        if key not in self.correlations:
            self.correlations[key] = rank_correlation(self.numbers[first], self.numbers[second])
        return self.correlations[key]


def check_exchanged(table: Table, schema: DataSchema) -> Iterator[Finding]:
    """Find pairs of columns that were exchanged, and columns whose values do not belong to their rows.

    Args:
        table: The site's table.
        schema: The agreed schema, with quantiles, shares and relations.
    """
    step = max(1, len(table) // _ROWS)
    costs = _read_costs(table.take(slice(None, None, step)) if step > 1 else table, schema)
    exchanged: set[str] = set()
    for first, second in _find_pairs(costs):
        if not exchanged & {first, second}:
            exchanged |= {first, second}
            for name, other in ((first, second), (second, first)):
                text = (
                    f"seems to be exchanged with '{other}': each fits the other's agreed values; exchange their names"
                )
                yield Finding("error", SWAPPED, name, text)
    yield from _check_relations(costs, exchanged)


def _read_costs(table: Table, schema: DataSchema) -> _Costs:
    columns, numbers, missing = {}, {}, {}
    quartiles: dict[str, Array | None] = {}
    for column in schema.columns:
        if column.name not in table.columns or not (column.quantiles or column.shares):
            continue
        raw = table.columns[column.name]
        present = raw[~missing_mask(raw)]
        if len(present) < FEWEST:
            continue
        columns[column.name] = column
        missing[column.name] = 1 - len(present) / len(raw)
        parsed = _parse(present)
        quartiles[column.name] = None if parsed is None else np.quantile(parsed, LEVELS[1:4])
        ordered = () if column.kind == "ordinal" else column.shares
        as_number = as_numbers(raw, column.values, ordered)
        if as_number is not None and (~np.isnan(as_number)).sum() >= FEWEST:
            numbers[column.name] = as_number
    return _Costs(table, columns, numbers, quartiles, missing)


def _parse(present: Array) -> Array | None:
    """Read cells as numbers where nearly all are."""
    if present.dtype == np.float64:
        return present
    if not all(is_number(w) for w in present[:FEWEST].tolist()):
        return None
    readable = [float(w) for w in present.tolist() if is_number(w)]
    return np.array(readable) if len(readable) > 0.9 * len(present) else None


def _find_pairs(costs: _Costs) -> list[tuple[str, str]]:
    """Find pairs that gain by an exchange, the largest gain first."""
    names = list(costs.columns)
    own = {name: costs.own(name) for name in names}
    found: list[tuple[float, str, str]] = []
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            before = own[a] + own[b]
            if before < GAIN or costs.values_cost(a, b) + costs.values_cost(b, a) > RATIO * before:
                continue
            now = (costs.total(a, a, b), costs.total(b, b, a))
            after = (costs.total(a, b, a), costs.total(b, a, b))
            gain = sum(now) - sum(after)
            worse = max(after[0] - now[0], after[1] - now[1])  # a fault of one column alone makes the other worse
            if gain >= GAIN and sum(after) <= RATIO * sum(now) and worse <= gain / 4:
                found.append((-gain, a, b))
    return [(a, b) for _, a, b in sorted(found)]


def _check_relations(costs: _Costs, exchanged: set[str]) -> Iterator[Finding]:
    """Find columns without any of their strong agreed correlations, where the partners have others left."""
    lost = {name: partners for name in costs.columns if (partners := _lost_relations(costs, name))}
    done = set(exchanged)
    for name, partners in sorted(lost.items(), key=lambda item: -len(item[1])):
        if len(partners) < 2 or done & {name, *partners}:
            continue
        done |= {name, *partners}
        listed = ", ".join(repr(other) for other in partners)
        text = f"has lost its correlation with {listed}: were its rows sorted or shifted alone?"
        yield Finding("warning", MISALIGNED, name, text)


def _lost_relations(costs: _Costs, name: str) -> tuple[str, ...]:
    """List partners of strong agreed correlations that are gone, if all of them are."""
    if name not in costs.numbers:
        return ()
    relations = costs.columns[name].relations
    strong = [(other, rho) for other, rho in relations if abs(rho) >= STRONG and other in costs.numbers]
    gone = []
    for other, rho in strong:
        here, n = costs.correlate(name, other)
        if n >= 2 * FEWEST and abs(here) < _KEPT * abs(rho) and correlation_score(here, rho, n) > LOST:
            gone.append(other)
    return tuple(gone) if len(gone) == len(strong) else ()
