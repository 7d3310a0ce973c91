"""Exchanged columns: a pair whose values fit the agreed schema better the other way round, and columns out of line.

Three kinds of evidence. Both columns are far from their own agreed distribution and near to the other's. A column that is never
above another (a minimum and a mean) is above it in most rows. A column has lost its agreed rank correlation, and another has it.
A column that has lost its correlations while no other has them was sorted or shifted by itself.

False alarms are controlled by asking that both columns of a pair be far, and the pair near after the exchange; lost
correlations must differ by more than `LOST` standard errors and be less than `KEPT` of the agreed size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.agreement.check import Finding
from grandrounds.data.agreement.relations import as_numbers, correlation_score, rank_correlation
from grandrounds.data.agreement.schema import AgreedColumn, DataSchema
from grandrounds.data.agreement.units import distance
from grandrounds.data.table import Table, is_number, missing_mask, to_text

SWAPPED = "swapped-columns"
MISALIGNED = "misaligned-column"

FEWEST = 20
"""Values below which a column is left out."""

FAR = 0.8
"""Distance from which a column of numbers is not like the agreed one."""

WORDS_FAR = 0.25
"""The same for words: share of the cells that would have to change to give the agreed shares."""

RATIO = 0.4
"""Largest distance after the exchange, as a share of that before."""

LOST = 6.0
KEPT = 0.35
STRONG = 0.5
"""Agreed correlation from which its loss counts."""

_ORDER = 0.5  # share of rows out of order from which a pair is exchanged


@dataclass(frozen=True)
class _Site:
    """One agreed column of the table: its schema, numbers and words."""

    column: AgreedColumn
    numbers: Array | None  # values that are present
    shares: dict[str, float]  # of words


def check_exchanged(table: Table, schema: DataSchema) -> Iterator[Finding]:
    """Find pairs of columns that were exchanged, and columns whose values do not belong to their rows.

    Args:
        table: The site's table.
        schema: The agreed schema, with quantiles, shares, relations or orders.
    """
    sites = [s for c in schema.columns if c.name in table.columns and (s := _read_site(table, c)) is not None]
    exchanged: set[str] = set()
    for first, second, how in [*_pairs_by_distribution(sites), *_pairs_by_order(table, sites)]:
        if not exchanged & {first, second}:
            exchanged |= {first, second}
            yield from _name_pair(first, second, how)
    yield from _check_relations(table, sites, exchanged)


def _name_pair(first: str, second: str, how: str) -> Iterator[Finding]:
    for name, other in ((first, second), (second, first)):
        yield Finding("error", SWAPPED, name, f"seems to be exchanged with '{other}' ({how}): exchange their names")


def _read_site(table: Table, column: AgreedColumn) -> _Site | None:
    values = table.columns[column.name]
    present = values[~missing_mask(values)]
    if len(present) < FEWEST:
        return None
    numbers = present if present.dtype == np.float64 else None
    if numbers is None and all(is_number(w) for w in present[:FEWEST].tolist()):
        readable = [float(w) for w in present.tolist() if is_number(w)]
        numbers = np.array(readable) if len(readable) > 0.9 * len(present) else None
    shares: dict[str, float] = {}
    if column.values or numbers is None:
        words, counts = np.unique(to_text(present).astype(str), return_counts=True)
        shares = {str(w): float(n) / len(present) for w, n in zip(words, counts, strict=True)}
    return _Site(column, numbers, shares)


def _misfit(site: _Site, agreed: AgreedColumn) -> float | None:
    """Measure how unlike an agreed column a site's values are, 1 being the limit of what hospitals have; None: not known."""
    if agreed.quantiles:
        if site.numbers is None:
            return 5.0
        return distance(agreed.quantiles, site.numbers) / FAR
    if not agreed.shares:
        return None
    if not site.shares:
        return 5.0  # measurements in place of words
    expected = dict(zip(agreed.values, agreed.shares, strict=True))
    both = set(expected) | set(site.shares)
    return sum(abs(expected.get(w, 0.0) - site.shares.get(w, 0.0)) for w in both) / 2 / WORDS_FAR


def _pairs_by_distribution(sites: Sequence[_Site]) -> list[tuple[str, str, str]]:
    """Find pairs that are both far as they are, and near the other way round; the clearest first."""
    far = [(s, m) for s in sites if (m := _misfit(s, s.column)) is not None and m >= 1]
    found: list[tuple[float, str, str, str]] = []
    for i, (a, before_a) in enumerate(far):
        for b, before_b in far[i + 1 :]:
            after_a, after_b = _misfit(a, b.column), _misfit(b, a.column)
            if after_a is None or after_b is None:
                continue
            before, after = before_a + before_b, after_a + after_b
            if after <= RATIO * before and max(after_a, after_b) <= max(1.0, RATIO * min(before_a, before_b)):
                found.append(
                    (after / before, a.column.name, b.column.name, "each fits the other's agreed distribution")
                )
    return [(a, b, how) for _, a, b, how in sorted(found)]


def _pairs_by_order(table: Table, sites: Sequence[_Site]) -> Iterator[tuple[str, str, str]]:
    by_name = {s.column.name: s for s in sites}
    found: list[tuple[float, str, str]] = []
    for site in sites:
        for other in site.column.at_most:
            if other not in by_name or site.numbers is None or by_name[other].numbers is None:
                continue
            low, high = table.columns[site.column.name], table.columns[other]
            if low.dtype != np.float64 or high.dtype != np.float64:
                continue
            both = ~np.isnan(low) & ~np.isnan(high)
            above = float((low[both] > high[both]).mean()) if both.sum() >= FEWEST else 0.0
            if above >= _ORDER and _fits_exchanged(site, by_name[other]):
                found.append((-above, site.column.name, other))
    for _, low_name, high_name in _most_violated(found):
        yield low_name, high_name, f"'{low_name}' is above '{high_name}' in most rows, and never was elsewhere"


def _most_violated(found: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Order pairs so that the two columns with most violations come first: minimum and maximum before a mean between them."""
    names = [name for _, a, b in found for name in (a, b)]
    return sorted(found, key=lambda f: (-(names.count(f[1]) + names.count(f[2])), f[0]))


def _fits_exchanged(a: _Site, b: _Site) -> bool:
    """Tell whether the exchange brings both nearer to their agreed distributions, or hardly changes them."""
    parts = (_misfit(a, b.column), _misfit(b, a.column), _misfit(a, a.column), _misfit(b, b.column))
    if any(p is None for p in parts):
        return False
    after_a, after_b, before_a, before_b = (float(p or 0.0) for p in parts)
    return after_a + after_b <= before_a + before_b + 0.1


def _check_relations(table: Table, sites: Sequence[_Site], exchanged: set[str]) -> Iterator[Finding]:
    """Find columns without their agreed correlations, and the column that has them instead."""
    numbers = {s.column.name: n for s in sites if (n := _as_numbers(table, s.column)) is not None}
    lost = {s.column.name: names for s in sites if (names := _lost_relations(s.column, numbers))}
    # a column is out of line where all its strong relations are lost, with partners that have others left
    broken = [name for name, names in lost.items() if name not in exchanged and not set(names) & exchanged]
    central = [name for name in broken if not all(len(lost.get(other, ())) > len(lost[name]) for other in lost[name])]
    done: set[str] = set()
    by_name = {s.column.name: s for s in sites}
    for name in central:
        if name in done:
            continue
        other = _find_owner(by_name[name], sites, numbers)
        if other is not None and other not in exchanged:
            done |= {name, other}
            yield from _name_pair(name, other, "each has the other's agreed correlations")
    for name in central:
        if name not in done and not set(lost[name]) & done and len(lost[name]) >= 2:
            partners = ", ".join(repr(other) for other in lost[name])
            text = f"has lost its correlation with {partners}: were its rows sorted or shifted alone?"
            done |= {name, *lost[name]}
            yield Finding("warning", MISALIGNED, name, text)


def _as_numbers(table: Table, column: AgreedColumn) -> Array | None:
    ordered = () if column.kind == "ordinal" else column.shares
    if column.values and not column.shares:
        return None
    return as_numbers(table.columns[column.name], column.values, ordered)


def _lost_relations(column: AgreedColumn, numbers: dict[str, Array]) -> tuple[str, ...]:
    """List partners of strong agreed correlations that are gone, if all of them are."""
    strong = [(other, rho) for other, rho in column.relations if abs(rho) >= STRONG and other in numbers]
    if column.name not in numbers or not strong:
        return ()
    gone = [other for other, rho in strong if _is_lost(numbers[column.name], numbers[other], rho)]
    return tuple(gone) if len(gone) == len(strong) else ()


def _is_lost(x: Array, y: Array, agreed: float) -> bool:
    rho, n = rank_correlation(x, y)
    if n < 2 * FEWEST:
        return False
    return abs(rho) < KEPT * abs(agreed) and correlation_score(rho, agreed, n) > LOST


def _find_owner(site: _Site, sites: Sequence[_Site], numbers: dict[str, Array]) -> str | None:
    """Find the column that has this one's agreed correlations, and whose distribution fits, both ways."""
    strong = [(other, rho) for other, rho in site.column.relations if abs(rho) >= STRONG and other in numbers]
    best: tuple[float, str] | None = None
    for candidate in sites:
        name = candidate.column.name
        if name == site.column.name or name not in numbers or any(name == other for other, _ in strong):
            continue
        parts = (_misfit(candidate, site.column), _misfit(site, candidate.column))
        if any(p is None or p > 1 for p in parts):
            continue
        gaps = [abs(rank_correlation(numbers[name], numbers[other])[0] - rho) for other, rho in strong]
        agreed = dict(candidate.column.relations)
        mine = [abs(agreed.get(other, 0.0) - rho) for other, rho in strong]  # a column that always had them is no owner
        if max(gaps) <= 0.25 and min(mine) > 0.25 and (best is None or max(gaps) < best[0]):
            best = (max(gaps), name)
    return None if best is None else best[1]
