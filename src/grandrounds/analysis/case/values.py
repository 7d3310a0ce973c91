"""A patient's values as a clinician reads them: in clinical units, beside all sites' patients, with what is odd about them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.analysis.case.quality import ABSENT, IMPUTED, OUTSIDE, RARE, UNSEEN, UNUSUAL, Note, contradictions
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Categorical, Encoding, Numeric
from grandrounds.data.quantiles import grid_index
from grandrounds.data.schema import Column, Schema
from grandrounds.explain.percentiles import DROWNED, FEWEST, NoisedSpread, Population, Spread

RARE_SHARE = 0.01
"""A category that fewer patients have than this is called rare; so is a number in either end of this size."""


@dataclass(frozen=True)
class Value:
    """One column of one patient. A number (or an ordered level) has a percentile, a category the share of its like."""

    value: float | str | None  # None: missing, and what is read in its place is made up
    percentile: float | None  # 0 to 100, among the training patients of all sites that have a value
    share: float | None  # 0 to 1: the training patients with this category; of a missing value, those that miss it too
    notes: tuple[Note, ...] = ()
    margin: float | None = None  # points by which noise may have moved either; None where there is no noise


def values_of(
    row: Dataset, encoding: Encoding, schema: Schema, population: Population | None, *, stand_in: str
) -> dict[str, Value]:
    """The patient of a data set of one row, column by column."""
    kinds = {c.name: c for c in schema.columns}
    out = {rule.name: _number(row, rule, kinds[rule.name], population, stand_in) for rule in encoding.numeric}
    return out | {rule.name: _category(row, rule, population) for rule in encoding.categorical}


def contradictory(row: Dataset) -> tuple[Note, ...]:
    """What the patient's numbers say against each other."""
    numbers = dict(zip(row.numeric_names, row.numeric[0].tolist(), strict=True))
    return contradictions({name: v for name, v in numbers.items() if not np.isnan(v)})


def short(value: float) -> str:
    """A number with four digits, as people write it: never 1e+03, whole numbers in full."""
    digits = max(4, len(str(int(abs(value))))) if abs(value) < 1e15 else 4
    return str(np.format_float_positional(value, precision=digits, fractional=False, trim="-"))


def share_text(share: float) -> str:
    """A share of patients; a small one is not called none."""
    return "under 1%" if share < RARE_SHARE else f"{share:.0%}"


def _number(row: Dataset, rule: Numeric, column: Column, population: Population | None, stand_in: str) -> Value:
    def words(v: float) -> str:
        if not column.order:
            return short(v)
        return column.order[int(np.clip(round(v), 0, len(column.order) - 1))]

    name = rule.name
    spread = None if population is None else population.numeric.get(name)
    here = name in row.numeric_names
    v = float(row.numeric[0, row.numeric_names.index(name)]) if here else float("nan")
    if np.isnan(v):
        lacks, kind = (f"{name} has no value", IMPUTED) if here else (f"column '{name}' is absent", ABSENT)
        text = f"{lacks}: {stand_in}, {words(rule.fill)}, stands in for it"
        share, margin = (None, None) if spread is None else _missing(spread)
        return Value(None, None, share, (Note(name, kind, text),), margin)
    place = None if spread is None else spread.percentile(v)
    margin = spread.margin(v) if isinstance(spread, NoisedSpread) else None
    notes = []
    if _beyond(v, rule):
        side, read = ("below", rule.low) if v < rule.low else ("above", rule.high)
        usual = "what nearly all training patients have" if isinstance(spread, Spread) else "the agreed range"
        text = f"{name} = {words(v)} is {side} {usual}: it is read as {words(read)}"
        notes.append(Note(name, OUTSIDE, text))
    elif isinstance(spread, NoisedSpread):
        pass  # a hundredth of the patients is below what noise lets through
    elif spread is not None and place in (0, 100):
        low, high = (words(q) for q in (spread.quantiles[0], spread.quantiles[-1]))
        side = "below" if place == 0 else "above"
        text = f"{name} = {words(v)} is {side} what nearly all training patients have ({low} to {high})"
        notes.append(Note(name, OUTSIDE, text))
    elif place is not None and not 100 * RARE_SHARE <= place <= 100 * (1 - RARE_SHARE):
        end = "lowest" if place < 50 else "highest"
        notes.append(Note(name, UNUSUAL, f"{name} = {words(v)} is among the {end} 1% of the training patients' values"))
    return Value(words(v) if column.order else v, place, None, tuple(notes), margin)


def _missing(spread: Spread | NoisedSpread) -> tuple[float | None, float | None]:
    """The share of patients without a value, and how far noise may have moved it."""
    if isinstance(spread, Spread):
        return spread.missing, None
    return None if spread.missing_margin > DROWNED else spread.missing, spread.missing_margin


def _beyond(value: float, rule: Numeric) -> bool:
    """Whether a value is drawn in by more than the width of a cell: bounds are no finer than that."""
    if rule.low <= value <= rule.high:
        return False
    cell, low, high = grid_index(np.array([value, rule.low, rule.high]))
    return not low <= cell <= high


def _category(row: Dataset, rule: Categorical, population: Population | None) -> Value:
    name = rule.name
    shares = None if population is None else population.categorical.get(name)
    margin = None if shares is None or not shares.margin else shares.margin
    if margin is not None and margin > DROWNED:
        shares = None
    here = name in row.categorical_names
    at = row.categorical_names.index(name) if here else 0
    code = int(row.codes[0, at]) if here else -1
    nothing = f"'{rule.baseline}'" if rule.baseline else "no category"
    if code < 0:
        lacks, kind = (f"{name} has no value", IMPUTED) if here else (f"column '{name}' is absent", ABSENT)
        missing = None if shares is None else shares.missing
        return Value(None, None, missing, (Note(name, kind, f"{lacks}: it reads as {nothing}"),), margin)
    word = row.vocabulary[at][code]
    share = None if shares is None or (margin is not None and word not in shares.levels) else shares.levels.get(word, 0.0)
    notes = []
    if word not in (*rule.levels, rule.baseline):
        reads = "'other'" if rule.other else nothing
        kind = RARE if share else UNSEEN
        notes.append(Note(name, kind, f"{name} = '{word}' {_how_rare(share)}: it reads as {reads}"))
    elif share is not None and share < RARE_SHARE and margin is None:
        notes.append(Note(name, RARE, f"{name} = '{word}' is a rare category: it {_how_rare(share)}"))
    return Value(word, None, share, tuple(notes), margin)


def _how_rare(share: float | None) -> str:
    if share is None:
        return "is no category that the model knows"
    return (
        f"is on {100 * share:.2g}% of the training patients"
        if share
        else f"is on fewer than {FEWEST} training patients"
    )
