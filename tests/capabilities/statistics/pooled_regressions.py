"""Pooled rows of the heart data set with raw columns, and regressions of statsmodels and lifelines on them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

from grandrounds.data.sets.catalog import find_entry

NUMBERS = ["age", "resting_bp", "max_heart_rate"]
WORDS = {"sex": "female", "chest_pain": "asymptomatic"}
"""Categories with their reference: of two levels the first, of more the most frequent."""


@cache
def heart() -> pd.DataFrame:
    """All rows of the heart data set."""
    return pd.DataFrame(dict(find_entry("heart").load().columns))


def complete(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Rows with a value in all columns."""
    return frame.dropna(subset=columns)


def raw_design(frame: pd.DataFrame, numbers: list[str], words: dict[str, str]) -> pd.DataFrame:
    """Raw columns: a constant, numbers as recorded, and 0 or 1 for each level but the reference."""
    out = pd.DataFrame({"(intercept)": np.ones(len(frame))}, index=frame.index)
    for name in numbers:
        out[name] = frame[name].astype(float)
    for name, reference in words.items():
        for level in sorted(set(frame[name]) - {reference}):
            out[f"{name}={level}"] = (frame[name] == level).astype(float)
    return out
