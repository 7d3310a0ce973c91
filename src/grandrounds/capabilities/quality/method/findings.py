"""Differences between sites, from their counts: units, distributions, missing values, codes, outcome, dates, copies.

A finding names a site, an agreed column and a fixed code. Its text has shares of counts, agreed words and names, and no value of
a patient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from grandrounds.capabilities.quality.method.comparison import (
    FEWEST,
    Effect,
    Rules,
    compare_block,
    guess_unit,
    stack_block,
)
from grandrounds.capabilities.watch.method.comparison import holm
from grandrounds.core.arrays import Array
from grandrounds.data.agreement.bins import COLUMN, COPIES, DATES, OUTCOME, PATIENTS, AgreedBins, ColumnBins

UNIT, DISTRIBUTION, MISSING, OUTSIDE = "unit", "distribution", "missing", "out-of-range"
UNKNOWN, UNUSED, PREVALENCE, YEARS = "unknown-codes", "unused-code", "prevalence", "years"
REPEATED, SEVERAL = "repeated-rows", "repeated-patients"
CODES = (UNIT, DISTRIBUTION, MISSING, OUTSIDE, UNKNOWN, UNUSED, PREVALENCE, YEARS, REPEATED, SEVERAL)
"""All codes of differences between sites."""

Counts = Mapping[str, Array]

_EMPTY = 0.95  # share of missing values from which a column counts as empty
_ODDS = 4.0  # ratio of the odds of the event that is named
_RARE = 0.05  # share of rows that is too small to name
_NEVER = 20.0  # rows that would have a code, at a site that never uses it


@dataclass(frozen=True)
class SiteFinding:
    """One difference of one site from the others; `column` is empty where it concerns rows."""

    site: str
    column: str
    code: str
    level: str  # "error" or "warning"
    text: str
    effect: float
    p: float

    def to_dict(self) -> dict[str, object]:
        """Convert to plain values."""
        return asdict(self)


@dataclass(frozen=True)
class _Candidate:
    finding: SiteFinding
    is_large: bool


def find_differences(bins: AgreedBins, sites: Mapping[str, Counts], rules: Rules, *, event: str = "") -> list[SiteFinding]:
    """Name the sites whose counts differ from those of all others.

    Args:
        bins: The agreed bins.
        sites: Counts of each site by block (`fill_hidden`).
        rules: Thresholds.
        event: The class whose share is the prevalence; "": the last class.

    Returns:
        The differences, errors first, then by effect. All tests of a comparison share one level (Holm's correction).
    """
    tested = [
        *(c for column in bins.columns for c in _compare_column(column, sites, rules)),
        *_compare_outcome(bins, sites, rules, event),
        *_compare_years(bins, sites, rules),
        *_compare_copies(bins, sites, rules),
    ]
    kept = holm([c.finding.p for c in tested], rules.level) if tested else np.zeros(0, bool)
    found = [c.finding for c, is_certain in zip(tested, kept.tolist(), strict=True) if is_certain and c.is_large]
    return sorted(_drop_repeated(found), key=lambda f: (f.level != "error", -f.effect))


def column_effects(bins: AgreedBins, sites: Mapping[str, Counts], rules: Rules) -> dict[str, dict[str, float]]:
    """Return the effect of each site in each column, for a table of all: by column, by site."""
    out = {}
    for column in bins.columns:
        counts = stack_block(sites, f"{COLUMN}{column.name}")[:, 1:]
        effects = compare_block(counts, noise=rules.noise)
        out[column.name] = {site: e.pooled for site, e in zip(sites, effects, strict=True)}
    return out


def _drop_repeated(findings: Sequence[SiteFinding]) -> list[SiteFinding]:
    """Leave out what follows from another finding of the same column: a wrong unit is also another distribution."""
    causes = {UNIT: (DISTRIBUTION, OUTSIDE), UNKNOWN: (DISTRIBUTION, UNUSED), DISTRIBUTION: (UNUSED,)}
    known = {(f.site, f.column, f.code) for f in findings}
    follows = {(site, column, other) for site, column, code in known for other in causes.get(code, ())}
    return [f for f in findings if (f.site, f.column, f.code) not in follows]


def _compare_column(column: ColumnBins, sites: Mapping[str, Counts], rules: Rules) -> Iterator[_Candidate]:
    counts = stack_block(sites, f"{COLUMN}{column.name}")
    rows = np.maximum(counts, 0.0).sum(axis=1)
    gaps = np.column_stack([counts[:, 0], rows - counts[:, 0]])
    total = counts.sum(axis=0)
    values = compare_block(counts[:, 1:], noise=rules.noise)
    outside = column.outside
    out_of_range = compare_block(np.column_stack([counts[:, outside].sum(axis=1), counts[:, ~outside].sum(axis=1)]))
    for k, (site, missing) in enumerate(zip(sites, compare_block(gaps, noise=rules.noise), strict=True)):
        own, others = counts[k], total - counts[k]
        yield _missing(site, column, own, others, missing, rules)
        present = max(float(np.maximum(own[1:], 0.0).sum()), 1.0)
        if column.edges:
            yield _numbers(site, column, own, others, values[k], rules)
            if outside.any():
                share = float(own[outside].sum() / present)
                least = max(_RARE, _beyond_noise(rules, int(outside.sum()), present))
                text = f"{share:.0%} of the values are outside what is agreed as possible"
                yield _make(site, column.name, OUTSIDE, text, out_of_range[k], share >= least, error=share > rules.effect)
        elif column.levels:
            yield from _codes(site, column, own, others, values[k], rules)


def _beyond_noise(rules: Rules, cells: int, rows: float) -> float:
    """Return a share of rows that noise alone does not reach: negative counts are set to 0, so their noise adds up."""
    return rules.noise * (0.4 * cells + 4 * float(np.sqrt(cells))) / max(rows, 1.0)


def _make(
    site: str, column: str, code: str, text: str, effect: Effect, is_large: bool, *, error: bool = False
) -> _Candidate:
    found = SiteFinding(site, column, code, "error" if error else "warning", text, effect.pooled, effect.p)
    return _Candidate(found, is_large)


def _missing(site: str, column: ColumnBins, own: Array, others: Array, effect: Effect, rules: Rules) -> _Candidate:
    here, there = (float(c[0] / max(c.sum(), 1.0)) for c in (own, others))
    text = f"{here:.0%} of the rows have no value, {there:.0%} at the other sites"
    is_empty = here >= _EMPTY and there < _EMPTY - rules.effect
    if is_empty:
        text = f"the column is empty, and {1 - there:.0%} of the rows at the other sites have a value: was it exported?"
    return _make(site, column.name, MISSING, text, effect, is_empty or effect.is_large(rules.effect), error=is_empty)


def _numbers(site: str, column: ColumnBins, own: Array, others: Array, effect: Effect, rules: Rules) -> _Candidate:
    is_large = effect.is_large(rules.effect)
    conversion = guess_unit(column, own, others) if is_large else None
    if conversion is not None:
        here, agreed = conversion.units
        text = (
            f"looks like {here} where {column.unit or agreed} is agreed ({conversion.measure}; {effect.pooled:.0%} of its values "
            f"are in other bins than those of the other sites): {conversion}"
        )
        return _make(site, column.name, UNIT, text, effect, True, error=True)
    shares = [np.maximum(c[1:], 0.0) / max(float(np.maximum(c[1:], 0.0).sum()), 1.0) for c in (own, others)]
    place = int(np.argmax(np.abs(shares[0] - shares[1])))
    text = (
        f"{effect.pooled:.0%} of its values are in other bins than those of the other sites; most of all "
        f"{column.names[place + 1]}: {shares[0][place]:.0%}, elsewhere {shares[1][place]:.0%}. Compare unit, device and patients"
    )
    return _make(site, column.name, DISTRIBUTION, text, effect, is_large, error=effect.pooled >= 2 * rules.effect)


def _codes(
    site: str, column: ColumnBins, own: Array, others: Array, effect: Effect, rules: Rules
) -> Iterator[_Candidate]:
    here, there = (np.maximum(c[1:], 0.0) / max(float(np.maximum(c[1:], 0.0).sum()), 1.0) for c in (own, others))
    unknown = float(here[-1])
    text = f"{unknown:.0%} of its codes are not among the agreed values ({there[-1]:.0%} at the other sites): was it recoded?"
    least = max(_RARE, _beyond_noise(rules, 1, float(np.maximum(own, 0.0).sum())))
    is_odd = unknown >= least and unknown - float(there[-1]) >= _RARE
    yield _make(site, column.name, UNKNOWN, text, effect, is_odd, error=unknown > rules.effect)
    place = int(np.argmax(np.abs(here - there)))
    text = (
        f"{effect.pooled:.0%} of its codes are others than at the other sites; most of all '{column.names[place + 1]}': "
        f"{here[place]:.0%}, elsewhere {there[place]:.0%}"
    )
    yield _make(site, column.name, DISTRIBUTION, text, effect, effect.is_large(rules.effect))
    expected = there[:-1] * float(np.maximum(own[1:], 0.0).sum())
    never = np.flatnonzero((here[:-1] == 0) & (expected >= _NEVER) & (there[:-1] >= _RARE))
    if len(never) and not rules.noise:
        first = int(never[np.argmax(expected[never])])
        text = f"the code '{column.levels[first]}' is never used; {there[first]:.0%} of the rows at the other sites have it"
        yield _make(site, column.name, UNUSED, text, effect, True)


def _compare_outcome(bins: AgreedBins, sites: Mapping[str, Counts], rules: Rules, event: str) -> Iterator[_Candidate]:
    if not bins.classes:
        return
    counts = stack_block(sites, OUTCOME)
    place = event_column(bins, event)
    name = bins.classes[place]
    binary = np.column_stack([counts[:, place], counts.sum(axis=1) - counts[:, place]])
    rates = (binary[:, 0] + 0.5) / (binary.sum(axis=1) + 1)
    others = (binary[:, 0].sum() - binary[:, 0] + 0.5) / (binary.sum() - binary.sum(axis=1) + 1)
    for k, (site, effect) in enumerate(zip(sites, compare_block(binary, noise=rules.noise), strict=True)):
        here, there = float(np.clip(rates[k], 1e-6, 1 - 1e-6)), float(np.clip(others[k], 1e-6, 1 - 1e-6))
        odds = (here / (1 - here)) / (there / (1 - there))
        ratio = max(odds, 1 / max(odds, 1e-9))
        is_large = effect.is_large(rules.effect) or (ratio >= _ODDS and effect.is_large(_RARE))
        mirrored = abs(here - (1 - there)) < abs(here - there) / 4
        hint = ": are the classes exchanged?" if mirrored else ""
        text = f"'{name}' is the outcome of {here:.1%} of its rows, {there:.1%} at the other sites{hint}"
        yield _make(site, "", PREVALENCE, text, effect, is_large, error=mirrored)


def event_column(bins: AgreedBins, event: str) -> int:
    """Return the place of the event among the classes; the last class where it is none of them."""
    return bins.classes.index(event) if event in bins.classes else len(bins.classes) - 1


def _compare_years(bins: AgreedBins, sites: Mapping[str, Counts], rules: Rules) -> Iterator[_Candidate]:
    """Find sites with dates in years of which the others have no rows, and sites without readable dates."""
    if bins.years is None:
        return
    counts = np.maximum(stack_block(sites, DATES), 0.0)
    total = counts.sum(axis=0)
    effects = compare_block(counts, noise=rules.noise)
    for k, site in enumerate(sites):
        own, others = counts[k], total - counts[k]
        n, m = max(float(own.sum()), 1.0), max(float(others.sum()), 1.0)
        lonely = (others / m < rules.least / m + 1e-12) & (own > 0)
        lonely[0] = False
        share, undated = float(own[lonely].sum() / n), float(own[0] / n)
        names = bins.blocks[DATES]
        if lonely.any():
            places = np.flatnonzero(lonely)
            span = names[places[0]] if len(places) == 1 else f"{names[places[0]]} to {names[places[-1]]}"
            text = f"{share:.0%} of its dates are in years of which the other sites have no rows ({span}): are dates shifted?"
            yield _make(site, "", YEARS, text, effects[k], share >= rules.effect, error=share >= 2 * rules.effect)
        elif undated >= _RARE:
            text = f"{undated:.0%} of its rows have no readable date, {others[0] / m:.0%} at the other sites"
            yield _make(site, "", YEARS, text, effects[k], undated - others[0] / m >= _RARE)


def _compare_copies(bins: AgreedBins, sites: Mapping[str, Counts], rules: Rules) -> Iterator[_Candidate]:
    parts = [(COPIES, REPEATED, "of its rows equal another one in every agreed column")]
    if bins.patients and not rules.noise:
        parts.append((PATIENTS, SEVERAL, "of its patients have more than one row"))
    for block, code, words in parts:
        counts = np.maximum(stack_block(sites, block), 0.0)
        total = counts.sum(axis=0)
        for k, (site, effect) in enumerate(zip(sites, compare_block(counts, noise=rules.noise), strict=True)):
            here = float(counts[k, 1] / max(counts[k].sum(), 1.0))
            rest = total - counts[k]
            there = float(rest[1] / max(rest.sum(), 1.0))
            text = f"{here:.1%} {words}, {there:.1%} at the other sites"
            least = _RARE if code == REPEATED else rules.effect
            is_large = here > there and counts[k].sum() >= FEWEST and effect.is_large(least)
            yield _make(site, "", code, text, effect, is_large, error=code == REPEATED and here > rules.effect)
