"""Rows of real hospitals, as sites and pooled, for tests of regressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from grandrounds.data.sets import heart
from grandrounds.statistics.question import Rows

HEART = (
    "age", "sex=male", "resting_bp", "cholesterol", "high_fasting_sugar=yes", "max_heart_rate", "exercise_angina=yes",
    "st_depression", "cp=typical", "cp=atypical", "cp=non-anginal", "ecg=ST-T", "ecg=hypertrophy",
)  # fmt: skip
"""The 13 columns of FLamby's Fed-Heart-Disease, numbers in standard deviations."""


def standardise(x: np.ndarray) -> np.ndarray:
    """Return columns in standard deviations; columns of two values stay."""
    numbers = np.array([len(np.unique(column)) > 2 for column in x.T])
    mean, sd = np.where(numbers, x.mean(0), 0), np.where(numbers, x.std(0), 1)
    return (x - mean) / sd


def by_site(x: np.ndarray, y: np.ndarray, site: np.ndarray, **more: np.ndarray) -> dict[str, Rows]:
    """Deal pooled rows to their sites."""
    return {
        str(s): Rows(x[site == s], y[site == s], **{k: v[site == s] for k, v in more.items()}) for s in np.unique(site)
    }


def pool(sites: Mapping[str, Rows], get: Callable[[Rows], np.ndarray]) -> np.ndarray:
    """Put rows of all sites below each other."""
    return np.concatenate([get(rows) for rows in sites.values()])


@cache
def heart_rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X (740, 13), y and the number of the hospital: the rows of FLamby's Fed-Heart-Disease."""
    sites, x, y = [], [], []
    for k, file in enumerate(heart.FILES):
        lines = heart.locate_file(file).read_text().splitlines()
        rows = np.array([[np.nan if v == "?" else float(v) for v in line.split(",")] for line in lines if line])
        rows = rows[np.isfinite(rows[:, :10]).all(1)]
        cp, ecg = rows[:, 2], rows[:, 6]
        columns = [*rows[:, [0, 1, 3, 4, 5, 7, 8, 9]].T, cp == 1, cp == 2, cp == 3, ecg == 1, ecg == 2]
        x.append(np.column_stack(columns).astype(float))
        y.append((rows[:, 13] > 0).astype(float))
        sites.append(np.full(len(rows), k))
    return standardise(np.concatenate(x)), np.concatenate(y), np.concatenate(sites)
