"""The gradient sketch against arithmetic done by hand, Captum's InputXGradient, and the torch kernel."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.rng import generator
from grandrounds.explain.explainer import measure
from grandrounds.explain.explainers import gradients as gradient
from grandrounds.explain.explainers.gradients import Gradient
from grandrounds.explain.features import Features
from grandrounds.models.boosted import BoostedModel
from grandrounds.models.dense import Dense, probabilities, targets
from grandrounds.models.forest import ForestModel
from tests.support import refused

WIDTHS = [(5, 1), (5, 10), (5, 8, 1), (5, 8, 6, 10)]
SINGLE = Features.from_inputs("abcde")
GROUPED = Features.from_columns(["age", "ward", "ward", "lactate", "age"])


def cohort(n: int, model: Dense, *, models: int = 3, seed: int = 0, dtype=np.float64):
    """Models (K, P), rows and targets."""
    rng = generator(seed, purpose="cohort")
    theta = rng.normal(size=(models, model.layout.size)).astype(dtype)
    y = rng.integers(0, max(2, model.outputs), n)
    return theta, rng.normal(size=(n, 5)).astype(dtype), targets(y, model.outputs, dtype)


def one_site(x) -> np.ndarray:
    return np.array([0, len(x)])


def test_a_logistic_row_by_hand():
    """x = (1, 2), w = (3, -1), bias -1, y = 1: the logit is 0 and p = 1/2, so x . gradient is -1/2 (3, -2)."""
    x, theta = np.array([[1.0, 2.0]]), np.array([3.0, -1.0, -1.0])
    single = Gradient(Features.from_inputs("ab")).rows(Dense((2, 1)), theta, x, np.ones((1, 1)), one_site(x))
    np.testing.assert_allclose(single, [[1.5, 1.0]], rtol=1e-12)
    together = Gradient(Features.from_columns(["a", "a"])).rows(Dense((2, 1)), theta, x, np.ones((1, 1)), one_site(x))
    np.testing.assert_allclose(together, [[0.5]], rtol=1e-12)  # |-1.5 + 1|: added up before the sign is dropped


@pytest.mark.parametrize("features", [SINGLE, GROUPED], ids=["single", "grouped"])
@pytest.mark.parametrize("widths", WIDTHS)
def test_captums_input_x_gradient_agrees(widths, features):
    torch = pytest.importorskip("torch")
    attr = pytest.importorskip("captum.attr")
    model = Dense(widths)
    theta, x, target = cohort(30, model)
    found = Gradient(features).rows(model, theta, x, target, one_site(x))
    goal = torch.from_numpy(target)
    for k in range(len(theta)):
        layers = [(torch.from_numpy(w.copy()), torch.from_numpy(b.copy())) for w, b in model.layers(theta[k])]

        def loss(rows, layers=layers):
            for w, b in layers[:-1]:
                rows = torch.relu(rows @ w + b)
            logits = rows @ layers[-1][0] + layers[-1][1]
            if model.outputs > 1:
                return torch.nn.functional.cross_entropy(logits, goal, reduction="none")
            return torch.nn.functional.binary_cross_entropy_with_logits(logits, goal, reduction="none")[:, 0]

        signed = attr.InputXGradient(loss).attribute(torch.from_numpy(x).requires_grad_()).detach().numpy()
        summed = np.stack([signed[:, inputs].sum(axis=1) for inputs in features.groups], axis=1)
        np.testing.assert_allclose(found[k], np.abs(summed), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("widths", WIDTHS)
def test_a_torch_model_gets_what_the_same_dense_model_gets(widths):
    pytest.importorskip("torch")
    from grandrounds.models.torch_build import torch_dense

    dense = Dense(widths)
    theta, x, target = cohort(25, dense)
    net = torch_dense(dense, device="cpu", precision="float64")
    ours, theirs = (Gradient(GROUPED).rows(m, theta, x, target, one_site(x)) for m in (dense, net))
    np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(Gradient(GROUPED).rows(net, theta[1], x, target, one_site(x)), theirs[1])


def test_a_linear_models_sketch_is_error_times_weight_times_value():
    model = Dense((5, 1))
    theta, x, target = cohort(200, model, models=1)
    found = measure(Gradient(SINGLE), model, theta, x, target).values[0]
    miss = np.abs(probabilities(model.logits(theta[0], x)) - target)
    np.testing.assert_allclose(found, (miss * np.abs(x * theta[0, :5])).mean(axis=0), rtol=1e-9)


def test_an_input_without_weight_counts_for_nothing():
    model = Dense((5, 8, 6, 10))
    theta, x, target = cohort(20, model, dtype=np.float32)
    for own in theta:
        model.layers(own)[0][0][2] = 0
    found = Gradient(SINGLE).rows(model, theta, x, target, one_site(x))
    assert not found[..., 2].any()
    assert found[..., [0, 1, 3, 4]].any(axis=1).all()


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=5),
    st.sampled_from(WIDTHS),
    st.sampled_from([SINGLE, GROUPED]),
    st.integers(0, 1000),
)
@settings(max_examples=50, deadline=None)
def test_models_and_sites_get_the_bits_they_get_alone(sizes, widths, features, seed):
    model = Dense(widths)
    offsets = np.cumsum([0, *sizes])
    theta, x, target = cohort(int(offsets[-1]), model, seed=seed, dtype=np.float32)
    how = Gradient(features)
    together = how.rows(model, theta, x, target, offsets)
    assert together.shape == (3, len(x), len(features))
    assert together.dtype == np.float32
    for k in range(3):
        np.testing.assert_array_equal(how.rows(model, theta[k], x, target, offsets), together[k])
    for a, b in pairwise(offsets):
        alone = how.rows(model, theta, x[a:b], target[a:b], np.array([0, b - a]))
        np.testing.assert_array_equal(alone, together[:, a:b])


def test_blocks_of_any_size_give_the_same_bits_and_leave_the_rows_alone(monkeypatch):
    model = Dense((5, 8, 10))
    theta, x, target = cohort(40, model, models=7, dtype=np.float32)
    before = x.copy()
    whole = Gradient(GROUPED).rows(model, theta, x, target, one_site(x))
    monkeypatch.setattr(gradient, "_BLOCK", 2 * x.nbytes)
    np.testing.assert_array_equal(Gradient(GROUPED).rows(model, theta, x, target, one_site(x)), whole)
    np.testing.assert_array_equal(x, before)


@pytest.mark.filterwarnings("error")
def test_a_model_that_diverged_gives_no_number_and_no_warning():
    model = Dense((5, 8, 10))
    theta, x, target = cohort(20, model, dtype=np.float32)
    theta[1] = np.inf
    found = Gradient(SINGLE).rows(model, theta, x, target, one_site(x))
    assert np.isnan(found[1]).any()
    assert np.isfinite(found[[0, 2]]).all()


@pytest.mark.parametrize("model", [ForestModel(features=5, classes=2), BoostedModel(features=5, classes=2)])
def test_trees_have_no_gradient_and_are_referred_to_permutation(model):
    x = np.zeros((4, 5))
    with refused("no-gradient"):
        Gradient(SINGLE).rows(model, model.init(0), x, np.zeros((4, model.outputs)), one_site(x))


def test_rows_of_another_width_are_refused():
    x = np.zeros((4, 6))
    with refused("mismatched-shapes", match="5 inputs"):
        Gradient(SINGLE).rows(Dense((6, 1)), np.zeros(7), x, np.zeros((4, 1)), one_site(x))
