"""The private additive model's two halves: counts whose sensitivity is stated, and scores from noisy counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.capabilities.statistics.models.steps import step_bins
from grandrounds.capabilities.statistics.private_scores import (
    VARIANCES,
    ScoreBins,
    count_cells,
    count_sensitivity,
    fit_scores,
)
from tests.support import refused

COLUMNS = (
    Column("age", place=0, missing=2),
    Column("lactate", place=1),
    Column("ward", levels=(3, 4, 5), words=("a", "b", "other")),
)
BINS = ScoreBins.from_ranges(COLUMNS, {"age": (30.0, 90.0), "lactate": (0.0, 6.0)}, bins=3)


def rows(n: int, seed: int = 0) -> tuple[Any, Any]:
    """Inputs of n patients, some beyond the usual ranges, some values missing; older patients die more often."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, 6))
    x[:, 0], x[:, 1] = rng.normal(60, 25, n), rng.exponential(2.0, n)
    x[:, 2] = rng.random(n) < 0.2
    x[np.arange(n), 3 + rng.integers(0, 3, n)] = 1.0
    x[rng.random(n) < 0.1, 3:] = 0.0
    return x, rng.random(n) < 1 / (1 + np.exp(-(x[:, 0] - 75) / 10))


def test_counts_by_hand() -> None:
    x = np.array([[50.0, 7.0, 0, 1, 0, 0], [50.1, 1.0, 1, 0, 0, 0]])
    counts = count_cells(BINS, x, np.array([True, False]))
    assert BINS.edges == ((50.0, 70.0), (2.0, 4.0), ())
    age = [0, 0, 0, 1, 0, 0, 0, 0]  # 50 is in the lowest third; the second patient's age is missing
    age[0] = 1
    lactate = [0, 0, 1, 0, 0, 0, 0, 1]
    ward = [1, 0, 0, 1, 0, 0, 0, 0]
    assert counts.tolist() == [*age, *lactate, *ward, 1, 1]
    assert counts.dtype == np.int64 and len(counts) == BINS.cells


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(0, 10**6))
def test_one_patient_changes_the_counts_by_the_stated_sensitivity(n: int, seed: int) -> None:
    x, event = rows(n + 1, seed)
    change = count_cells(BINS, x, event) - count_cells(BINS, x[1:], event[1:])
    assert np.linalg.norm(change) == pytest.approx(count_sensitivity(len(COLUMNS))) == pytest.approx(2.0)
    assert sorted(change[change != 0].tolist()) == [1] * 4


def test_counts_add_over_sites() -> None:
    x, event = rows(60)
    parts = [count_cells(BINS, x[k::3], event[k::3]) for k in range(3)]
    assert (np.sum(parts, axis=0) == count_cells(BINS, x, event)).all()


@pytest.mark.parametrize("is_number", [False, True])
def test_scores_are_the_average_of_gaussian_posteriors(is_number: bool) -> None:
    """Against scipy: 40 events of 100, 10 of 100, 30 of 200, and noise of 5 in every count."""
    from scipy.stats import multivariate_normal

    column = Column("c", place=0) if is_number else Column("c", levels=(0, 1, 2), words=("a", "b", "c"))
    bins = ScoreBins((column,), ((1.0, 2.0) if is_number else (),))
    counts = np.array([0, 0, 60, 40, 90, 10, 170, 30, 320, 80.0])
    (found,) = fit_scores(bins, counts, noise=5.0).columns
    r, n, c1 = 0.2, np.array([5.0, 100, 100, 200]), np.array([0.0, 40, 10, 30])  # an empty bin counts as the noise
    h = r * (1 - r) * n
    z = (c1 - r * np.array([0.0, 100, 100, 200])) / h
    v = np.diag((h + 25 * (r**2 + (1 - r) ** 2)) / h**2)
    alike = np.eye(4)
    if is_number:
        alike[1:, 1:] = np.exp(-np.abs(np.subtract.outer(range(3), range(3))) / 3)
    chances = np.array([multivariate_normal.pdf(z, np.zeros(4), a * alike + v) for a in VARIANCES])
    means = np.array([a * alike @ np.linalg.solve(a * alike + v, z) for a in VARIANCES])
    assert found.score == pytest.approx(chances @ means / chances.sum(), abs=1e-12)
    assert found.signal == pytest.approx(chances @ VARIANCES / chances.sum())
    assert found.score[1] > 0.2 > found.score[2] and (found.error[1:] > 0).all() and found.is_used
    assert found.rows.tolist() == [0, 100, 100, 200]


def test_levels_without_noise_are_shrunk_log_odds() -> None:
    """Levels with very many rows have the score z = u / h itself."""
    bins = ScoreBins((Column("ward", levels=(0, 1), words=("a", "b")),), ((),))
    counts = 1e6 * np.array([0, 0, 60, 40, 90, 10, 150, 50])
    scores = fit_scores(bins, counts, noise=0.0)
    assert scores.rate == 0.25 and scores.intercept == pytest.approx(np.log(1 / 3))
    assert scores.columns[0].score[1:] == pytest.approx([0.8, -0.8], rel=1e-5)  # 15 / (100 * 3/16)


def test_a_number_without_signal_is_off_and_one_with_signal_rises() -> None:
    x, event = rows(4000)
    age, lactate, _ = fit_scores(BINS, count_cells(BINS, x, event), noise=0.0).columns
    assert (np.diff(age.score[1:]) > 0.5).all()
    assert np.abs(lactate.score).max() < 0.15


def test_scores_of_pure_noise_are_shrunk_to_a_tenth() -> None:
    """Forty draws in ten columns without signal: noise of 20 in counts of 167 is 1.2 log-odds before shrinkage."""
    bins = ScoreBins.from_ranges(
        tuple(Column(f"c{k}", place=k) for k in range(10)), {f"c{k}": (0, 1) for k in range(10)}, bins=6
    )
    x, event = np.random.default_rng(1).random((1000, 10)), np.arange(1000) % 10 == 0
    counts, sizes = count_cells(bins, x, event), []
    for seed in range(40):
        noisy = counts + np.random.default_rng(seed).normal(0, 20.0, bins.cells)
        sizes += [np.abs(c.score).mean() for c in fit_scores(bins, noisy, noise=20.0).columns]
    assert np.median(sizes) < 0.12


def test_the_question_survives_the_message_and_damage_is_refused() -> None:
    values = BINS.to_values()
    assert ScoreBins.from_values(values) == BINS
    for damage in (
        {"edges": values["edges"][:2]},
        {"edges": values["edges"][:, ::-1]},
        {"edges": np.full((3, 2), np.nan)},
        {"edges": np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]])},
        {"columns": "[]", "edges": np.empty((0, 0))},
        {"columns": "no list"},
    ):
        with refused("malformed-message"):
            ScoreBins.from_values({**values, **damage})
    with refused("bad-answer"):
        fit_scores(BINS, np.zeros(3), noise=1.0)


def test_bins_of_rows_are_those_of_the_model() -> None:
    """Counts and scores read a row by the same function, so a patient gets the score of the bin that counted them."""
    x, event = rows(50)
    counts = count_cells(BINS, x, event)
    places = step_bins(np.where(x[:, 2:3] > 0.5, np.nan, x[:, :1]), [np.array(BINS.edges[0])])[:, 0]
    assert (np.bincount(2 * places + event, minlength=8) == counts[:8]).all()
