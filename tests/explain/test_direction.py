"""Which way reasons point: by hand for linear models, opposite for opposite models, and nothing where nothing counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.rng import generator
from grandrounds.explain.explainers.shapley import direction
from grandrounds.models.dense import Dense
from grandrounds.models.forest import ForestModel
from tests.explain.test_shapley import breast_cancer, trained


def linear(weights, outputs=1) -> tuple[Dense, np.ndarray]:
    w = np.array(weights, float).reshape(-1, outputs)
    return Dense((len(w), outputs)), np.concatenate([w.ravel(), np.zeros(outputs)])


def test_of_a_linear_model_it_is_the_weight_times_the_mean_distance_from_the_background():
    """phi = w (x - b), and times the side of x it is w |x - b|: means 2, 1 and 3, so (4, -3, 0) / 5 of w (2, -3, 0)."""
    model, theta = linear([2.0, -3.0, 0.0])
    x, background = np.array([[3.0, 1.0, 4.0], [-1.0, 3.0, -2.0]]), np.array([[1.0, 2.0, 1.0]])
    np.testing.assert_allclose(direction(model, theta, x, background), [0.8, -0.6, 0.0], atol=1e-12)


def test_of_several_outputs_it_is_one_vector_of_all():
    model, theta = linear([[3.0, 0.0], [0.0, -4.0]], outputs=2)
    found = direction(model, theta, np.array([[1.0, 1.0], [-1.0, -1.0]]), np.zeros((1, 2)))
    np.testing.assert_allclose(found, [0.6, 0.0, 0.0, -0.8], atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.1, 50))
def test_a_model_turned_round_points_the_other_way_and_size_does_not_matter(seed, scale):
    rng = generator(seed, purpose="direction")
    model, theta = linear(rng.standard_normal(5))
    x, background = rng.standard_normal((7, 5)), rng.standard_normal((3, 5))
    found = direction(model, theta, x, background)
    assert np.linalg.norm(found) == pytest.approx(1)
    np.testing.assert_allclose(direction(model, -theta, x, background), -found, atol=1e-9)
    np.testing.assert_allclose(direction(model, scale * theta, x, background), found, atol=1e-9)
    np.testing.assert_allclose(direction(model, theta, x[::-1], background), found, atol=1e-9)


def test_where_no_input_counts_or_no_row_is_there_it_is_all_zeros():
    model, theta = linear([0.0, 0.0])
    assert direction(model, theta, np.ones((4, 2)), np.zeros((1, 2))).tolist() == [0.0, 0.0]
    model, theta = linear([1.0, 1.0])
    assert direction(model, theta, np.empty((0, 2)), np.zeros((1, 2))).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["logistic", "mlp", "forest"])
def test_what_was_learnt_from_flipped_labels_points_against_what_was_learnt_from_true_ones(kind):
    """Mean |SHAP| cannot tell the two apart; this can, whatever the model."""
    x, y = breast_cancer(list(range(6)))
    background = x.mean(axis=0, keepdims=True)

    def learnt(labels: np.ndarray, rows: slice) -> tuple[object, np.ndarray]:
        if kind == "forest":
            model = ForestModel(features=6, classes=2, trees=8, depth=4)
            return model, model.fit(x[rows], labels[rows], seed=0)
        model = Dense((6, 1) if kind == "logistic" else (6, 5, 1))
        return model, trained(model, x[rows], labels[rows], steps=150)

    model, here = learnt(y, slice(0, 250))
    _, there = learnt(y, slice(250, 500))
    _, flipped = learnt(1 - y, slice(250, 500))
    seen = x[500:530]
    own, honest, turned = (direction(model, theta, seen, background) for theta in (here, there, flipped))
    assert own @ honest > 0.4, "columns that say the same take turns in forests"
    assert own @ turned < -0.4
