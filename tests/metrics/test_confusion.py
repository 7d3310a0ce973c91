from __future__ import annotations

import numpy as np
import pytest

from grandrounds.metrics.scores import accuracy, balanced_accuracy, macro_f1, majority

pytestmark = pytest.mark.filterwarnings("error")

THREE = np.array([[5, 1, 0], [2, 2, 0], [0, 0, 0]])


def test_three_classes_by_hand():
    assert accuracy(THREE) == pytest.approx(7 / 10)
    assert majority(THREE) == pytest.approx(6 / 10)
    assert balanced_accuracy(THREE) == pytest.approx((5 / 6 + 2 / 4) / 2)
    assert macro_f1(THREE) == pytest.approx((10 / 13 + 4 / 7) / 2)


def test_a_class_predicted_but_never_true_counts_in_f1_alone():
    predicted = np.array([[5, 1, 2], [2, 2, 0], [0, 0, 0]])
    assert balanced_accuracy(predicted) == pytest.approx((5 / 8 + 2 / 4) / 2)
    assert macro_f1(predicted) == pytest.approx((10 / 15 + 4 / 7 + 0) / 3)


def test_one_class_has_an_accuracy_but_no_balance():
    single = np.array([[7, 3], [0, 0]])
    assert accuracy(single) == pytest.approx(0.7)
    assert majority(single) == 1.0
    assert np.isnan(balanced_accuracy(single))
    assert macro_f1(single) == pytest.approx((14 / 17 + 0) / 2)


def test_leading_axes_are_scored_apart():
    both = np.stack([THREE, np.zeros((3, 3), int)])
    for figure in (accuracy, majority, balanced_accuracy, macro_f1):
        value = figure(both)
        assert value.shape == (2,)
        assert value[0] == figure(THREE)
        assert np.isnan(value[1])
