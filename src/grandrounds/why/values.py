"""A patient's values as a clinician reads them: in clinical units, beside the training rows, with what is odd about them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.arrays import Array
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Categorical, Encoding, Numeric
from grandrounds.data.schema import Column


@dataclass(frozen=True)
class Value:
    """One column of one patient. A number (or an ordered level) has a percentile, a category the share of its like."""

    value: float | str | None  # None: missing
    percentile: float | None  # 0 to 100, among the training rows of all sites that have a value
    share: float | None  # 0 to 1: the training rows with this category; of a missing value, those that miss it too
    note: str = ""


def percentile(value: float, others: Array) -> float | None:
    """Where a value stands among others (n,), 0 to 100: those below it and half of those alike; gaps do not count."""
    known = others[~np.isnan(others)]
    if not len(known):
        return None
    return float(100 * ((known < value).mean() + (known == value).mean() / 2))


def values_of(row: Dataset, encoding: Encoding, data: Dataset, training: Array, *, impute: str) -> dict[str, Value]:
    """The patient of a data set of one row, column by column; `training` says which rows of `data` were trained on."""
    kinds = {c.name: c for c in data.schema.columns}
    out = {rule.name: _number(row, rule, kinds[rule.name], data, training, impute) for rule in encoding.numeric}
    return out | {rule.name: _category(row, rule, data, training) for rule in encoding.categorical}


def short(value: float) -> str:
    """A number with four digits, as people write it: never 1e+03, whole numbers in full."""
    digits = max(4, len(str(int(abs(value))))) if abs(value) < 1e15 else 4
    return str(np.format_float_positional(value, precision=digits, fractional=False, trim="-"))


def _number(row: Dataset, rule: Numeric, column: Column, data: Dataset, training: Array, impute: str) -> Value:
    def words(v: float) -> str:
        if not column.order:
            return short(v)
        return column.order[int(np.clip(round(v), 0, len(column.order) - 1))]

    name = rule.name
    others = data.numeric[training, data.numeric_names.index(name)]
    here = name in row.numeric_names
    v = float(row.numeric[0, row.numeric_names.index(name)]) if here else float("nan")
    if np.isnan(v):
        lacks = f"{name} has no value" if here else f"column '{name}' is absent"
        note = f"{lacks}: the consortium's {impute}, {words(rule.fill)}, stands in for it"
        return Value(None, None, float(np.isnan(others).mean()), note)
    note = ""
    if not rule.low <= v <= rule.high:
        side, read = ("below", rule.low) if v < rule.low else ("above", rule.high)
        note = f"{name} = {words(v)} is {side} what nearly all training rows hold: it is read as {words(read)}"
    elif (known := others[~np.isnan(others)]).size and not known.min() <= v <= known.max():
        note = f"{name} = {words(v)} is outside what any training row holds"
    return Value(words(v) if column.order else v, percentile(v, others), None, note)


def _category(row: Dataset, rule: Categorical, data: Dataset, training: Array) -> Value:
    name = rule.name
    j = data.categorical_names.index(name)
    codes = data.codes[training, j]
    here = name in row.categorical_names
    at = row.categorical_names.index(name) if here else 0
    code = int(row.codes[0, at]) if here else -1
    nothing = f"'{rule.baseline}'" if rule.baseline else "no category"
    if code < 0:
        lacks = f"{name} has no value" if here else f"column '{name}' is absent"
        return Value(None, None, float((codes < 0).mean()), f"{lacks}: it reads as {nothing}")
    word = row.vocabulary[at][code]
    known = data.vocabulary[j]
    share = float((codes == known.index(word)).mean()) if word in known else 0.0
    note = ""
    if word not in (*rule.levels, rule.baseline):
        why = "is rare among" if share else "is on none of"
        reads = "'other'" if rule.other else nothing
        note = f"{name} = '{word}' {why} the training rows: it reads as {reads}"
    return Value(word, None, share, note)
