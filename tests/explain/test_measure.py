from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import sem

import grandrounds.explain.explainer as module
from grandrounds.core.rng import generator
from grandrounds.data.encoding import Categorical, Encoding, Numeric
from grandrounds.data.image_encoding import ImageEncoding
from grandrounds.explain.explainer import measure
from grandrounds.explain.features import Features, build_features

pytestmark = pytest.mark.filterwarnings("error")


@dataclass(frozen=True)
class Linear:
    """|w_j x_j| added up within a feature: what a linear model without intercept makes of each row, exactly.

    It notes how many models it was given at once.
    """

    features: Features
    asked: list[int]

    def rows(self, model: Any, theta: np.ndarray, x: np.ndarray, target: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        self.asked.append(theta.size // x.shape[1])
        return self.features.sum_inputs(np.abs(theta[..., None, :] * x))


def linear(features: int) -> Linear:
    return Linear(Features.from_inputs([f"x{j}" for j in range(features)]), [])


def cohort(rows: int, features: int, seed: int = 0) -> np.ndarray:
    return generator(seed, purpose="test").normal(size=(rows, features))


def nothing(x: np.ndarray) -> np.ndarray:
    return np.zeros((len(x), 1))


def test_importance_is_the_mean_over_rows_by_hand():
    x = np.array([[1.0, 2.0], [3.0, -2.0]])
    found = measure(linear(2), None, np.array([[1.0, 1.0], [2.0, 0.0]]), x, nothing(x))
    assert found.values.tolist() == [[2.0, 2.0], [4.0, 0.0]]
    assert found.error == pytest.approx(np.array([[1 / np.sqrt(2), 0.0], [np.sqrt(2), 0.0]]))


def test_a_known_model_is_found_out():
    """E|w x| of a standard normal input is |w| sqrt(2 / pi)."""
    weights = np.array([0.0, -1.0, 2.0, 0.5])
    x = cohort(4000, 4)
    found = measure(linear(4), None, weights[None], x, nothing(x))
    assert (np.abs(found.values[0] - np.abs(weights) * np.sqrt(2 / np.pi)) <= 3 * found.error[0]).all()


def test_the_standard_error_is_the_spread_over_rows_by_the_root_of_their_number():
    x, theta = cohort(200, 5), cohort(3, 5, seed=1)
    found = measure(linear(5), None, theta, x, nothing(x))
    each = np.abs(theta[:, None] * x)
    assert found.error == pytest.approx(sem(each, axis=1, ddof=0), rel=1e-12)
    edges = np.array([0, 60, 200])
    by_site = measure(linear(5), None, theta[0], x, nothing(x), edges)
    assert by_site.error == pytest.approx(np.stack([sem(each[0, :60], ddof=0), sem(each[0, 60:], ddof=0)]), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 1000))
def test_a_site_among_others_has_the_numbers_it_has_alone(counts, seed):
    offsets = np.concatenate([[0], np.cumsum(counts)])
    x, theta = cohort(offsets[-1], 4, seed), cohort(len(counts), 4, seed + 1)
    one = measure(linear(4), None, theta[0], x, nothing(x), offsets)
    own = measure(linear(4), None, theta, x, nothing(x), offsets)
    listed = measure(linear(4), None, list(theta), x, nothing(x), offsets)
    for k, (start, stop) in enumerate(pairwise(offsets)):
        cut = x[start:stop]
        for found, model in ((one, theta[0]), (own, theta[k]), (listed, theta[k])):
            alone = measure(linear(4), None, model[None], cut, nothing(cut))
            assert found.values[k] == pytest.approx(alone.values[0], rel=1e-9)
            assert found.error[k] == pytest.approx(alone.error[0], rel=1e-6, abs=1e-12)


def test_a_site_without_rows_has_no_importances():
    x = cohort(6, 3)
    found = measure(linear(3), None, np.ones(3), x, nothing(x), np.array([0, 4, 4, 6]))
    assert found.values[1].tolist() == [0, 0, 0]
    assert found.error[1].tolist() == [0, 0, 0]
    assert found.values[2] == pytest.approx(np.abs(x[4:]).mean(axis=0))


def test_many_models_are_measured_block_by_block_to_the_bit(monkeypatch):
    x, theta = cohort(50, 4), cohort(11, 4, seed=1)
    whole, parts = linear(4), linear(4)
    expected = measure(whole, None, theta, x, nothing(x))
    monkeypatch.setattr(module, "_BYTES", 3 * 8 * 50 * 4)
    found = measure(parts, None, theta, x, nothing(x))
    assert (whole.asked, parts.asked) == ([11], [3, 3, 3, 2])
    assert (found.values == expected.values).all()
    assert (found.error == expected.error).all()


def test_models_that_differ_in_size_come_as_a_list():
    """As forests do: here every model is measured for itself, and gives what a stack gives."""
    x, theta = cohort(20, 4), cohort(3, 4, seed=1)
    stacked, listed = linear(4), linear(4)
    assert measure(stacked, None, theta, x, nothing(x)).values == pytest.approx(
        measure(listed, None, list(theta), x, nothing(x)).values, rel=1e-14
    )
    assert (stacked.asked, listed.asked) == ([3], [1, 1, 1])


def test_columns_gather_their_inputs_in_order_of_first_sight():
    features = Features.from_columns(["age", "lactate", "lactate", "sex", "age"])
    assert features.names == ("age", "lactate", "sex")
    assert features.feature_index.tolist() == [0, 1, 1, 2, 0]
    assert [group.tolist() for group in features.groups] == [[0, 4], [1, 2], [3]]
    assert features.sum_inputs(np.array([[1.0, 2.0, 4.0, 8.0, 16.0]])).tolist() == [[17.0, 6.0, 8.0]]
    assert len(features) == 3


def test_the_importance_of_a_column_is_that_of_its_inputs_together():
    x, theta = cohort(30, 5), cohort(2, 5, seed=1)
    grouped = Linear(Features.from_columns(["a", "b", "b", "c", "a"]), [])
    whole = measure(linear(5), None, theta, x, nothing(x)).values
    found = measure(grouped, None, theta, x, nothing(x)).values
    assert found == pytest.approx(whole[:, [0, 1, 3]] + np.stack([whole[:, 4], whole[:, 2], 0 * whole[:, 0]], axis=1))


def test_inputs_for_themselves_are_left_as_they_are():
    features = Features.from_inputs(["a", "b", "c"])
    values = cohort(2, 3)
    assert features.single
    assert features.sum_inputs(values) is values
    swapped = Features(("a", "b"), np.array([1, 0]))
    assert not swapped.single  # as many inputs as features, but in another order
    assert swapped.sum_inputs(np.array([3.0, 5.0])).tolist() == [5.0, 3.0]


def test_tiles_of_an_uneven_picture_by_hand():
    features = Features.from_tiles(3, 5, (2, 2))
    assert features.feature_index.reshape(3, 5).tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [2, 2, 2, 3, 3]]
    assert features.names[1] == "tile (1, 2)"
    assert features.sum_inputs(np.arange(15.0)).tolist() == [0 + 1 + 2 + 5 + 6 + 7, 3 + 4 + 8 + 9, 33, 27]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.data())
def test_tiles_cut_a_picture_into_nearly_equal_rectangles(height, width, data):
    down, across = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    features = Features.from_tiles(height, width, (down, across))
    assert len(features) == len(set(features.names)) == down * across
    sides = []
    for group in features.groups:
        rows, columns = np.unique(group // width), np.unique(group % width)
        assert len(group) == len(rows) * len(columns)
        assert (np.diff(rows) == 1).all()
        assert (np.diff(columns) == 1).all()
        sides.append((len(rows), len(columns)))
    tall, wide = zip(*sides, strict=True)
    assert max(tall) - min(tall) <= 1
    assert max(wide) - min(wide) <= 1
    assert np.sort(np.concatenate(features.groups)).tolist() == list(range(height * width))
    pixels = generator(0, purpose="test").random((2, height * width))
    assert features.sum_inputs(pixels) == pytest.approx(
        np.stack([pixels[:, g].sum(axis=1) for g in features.groups], axis=1)
    )


def test_the_features_of_prepared_data():
    table = Encoding(
        numeric=(Numeric("age", 60, 0, 120, 60, 15, False), Numeric("lactate", 2, 0, 20, 2, 1, True)),
        categorical=(Categorical("unit", ("ICU", "ward"), True),),
        classes=("alive", "died"),
        class_counts=(5, 5),
    )
    features = build_features(table, grid=4)
    assert features.names == ("age", "lactate", "unit")
    assert features.feature_index.tolist() == [0, 1, 1, 2, 2, 2]
    pictures = ImageEncoding(shape=(3, 3, 9), mean=(0, 0, 0), std=(1, 1, 1), classes=("no", "yes"), class_counts=(1, 1))
    tiles = build_features(pictures, grid=4)
    assert (tiles.grid, tiles.size) == ((3, 4), (3, 9))  # no tile without a pixel
    assert np.bincount(tiles.feature_index).min() > 0
