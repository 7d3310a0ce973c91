"""Attribute inference: posterior guesses, published intervals, and the attacker without the model."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.privacy.attacks.attribute import (
    difference_interval,
    guess_values,
    impute_values,
    proportion_interval,
    wilson,
)


def share(right: int, n: int) -> np.ndarray:
    return np.arange(n) < right


def test_a_guess_weighs_the_prior_with_the_likelihood():
    likelihood = np.log([[0.9, 0.5], [0.9, 0.2]])
    assert guess_values(np.array([0.5, 0.5]), likelihood).tolist() == [0, 0]
    assert guess_values(np.array([0.3, 0.7]), likelihood).tolist() == [1, 0]  # 0.27 < 0.35, 0.27 > 0.14
    assert guess_values(np.array([[0.3, 0.7], [0.1, 0.9]]), likelihood).tolist() == [1, 1]


def test_intervals_are_those_of_newcombe_1998():
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert difference_interval(share(56, 70), share(48, 80)) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    assert wilson(0.0, 20)[0] == 0.0 and wilson(1.0, 20)[1] == 1.0


def test_rows_of_one_patient_count_once():
    alone = proportion_interval(share(30, 50))
    doubled = np.repeat(share(30, 50), 3)
    assert proportion_interval(doubled, np.repeat(np.arange(50), 3)) == pytest.approx(alone)
    assert proportion_interval(doubled)[1] > alone[1], "as if they were other patients, the interval is too narrow"


def test_the_attacker_without_the_model_learns_from_other_columns():
    known = np.eye(2)[[0, 0, 0, 1, 1, 1, 0, 1]]
    target = np.array([0, 0, 0, 1, 1, 1, -1, -1])  # the last two are to be guessed
    assert impute_values(known, target, 2).argmax(axis=1)[-2:].tolist() == [0, 1]
    prior = np.array([0, 0, 0, 0, 1, -1])
    assert impute_values(np.ones((6, 1)), prior, 2).argmax(axis=1)[-1] == 0, "a column that tells nothing leaves the prior"
