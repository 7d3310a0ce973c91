"""The hand-written gradients against torch autograd, finite differences and arithmetic done by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.arrays import save
from grandrounds.core.rng import generator
from grandrounds.models.dense import Dense, class_probabilities, probabilities, targets
from tests.support import refused

WIDTHS = [(5, 1), (5, 3), (5, 7, 1), (4, 6, 5, 3)]


def batch(model: Dense, *, sites: int = 3, rows: int = 6, seed: int = 0):
    rng = generator(seed, purpose="test")
    theta = rng.normal(size=(sites, model.layout.size))
    x = rng.normal(size=(sites, rows, model.widths[0]))
    classes = max(2, model.outputs)
    y = rng.integers(0, classes, size=sites * rows)
    target = targets(y, model.outputs, float).reshape(sites, rows, -1)
    weight = rng.uniform(0, 1, size=(sites, rows))
    return theta, x, target, weight, y.reshape(sites, rows)


def loss(model: Dense, theta, x, target, weight) -> np.ndarray:
    """Weighted cross-entropy per site, written plainly."""
    p = class_probabilities(model.logits(theta, x))
    t = np.concatenate([1 - target, target], axis=-1) if model.outputs == 1 else target
    return -(weight[..., None] * t * np.log(p)).sum(axis=(-1, -2))


@pytest.mark.parametrize("widths", WIDTHS)
def test_gradient_equals_finite_differences(widths):
    model = Dense(widths)
    theta, x, target, weight, _ = batch(model)
    out = np.empty_like(theta)
    model.gradient(theta, x, target, weight, out)
    for j in range(theta.shape[1]):
        step = np.zeros_like(theta)
        step[:, j] = 1e-6
        numeric = (loss(model, theta + step, x, target, weight) - loss(model, theta - step, x, target, weight)) / 2e-6
        np.testing.assert_allclose(out[:, j], numeric, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("widths", WIDTHS)
def test_gradients_equal_torch_autograd(widths):
    torch = pytest.importorskip("torch")
    model = Dense(widths)
    theta, x, target, weight, y = batch(model)
    out = np.empty_like(theta)
    model.gradient(theta, x, target, weight, out)
    inputs = model.input_gradient(theta, x, target)
    for k in range(len(theta)):
        params = [torch.tensor(a, requires_grad=True) for a in model.layout.views(theta[k]).values()]
        rows = torch.tensor(x[k], requires_grad=True)
        h = rows
        for i in range(0, len(params), 2):
            h = h @ params[i] + params[i + 1]
            h = torch.relu(h) if i < len(params) - 2 else h
        if model.outputs == 1:
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                h[:, 0], torch.tensor(y[k]).double(), reduction="none"
            )
        else:
            losses = torch.nn.functional.cross_entropy(h, torch.tensor(y[k]), reduction="none")
        (losses * torch.tensor(weight[k])).sum().backward(retain_graph=True)
        ours = model.layout.views(out[k])
        for mine, theirs in zip(ours.values(), params, strict=True):
            np.testing.assert_allclose(mine, theirs.grad.numpy(), rtol=1e-9, atol=1e-11)
        (by_row,) = torch.autograd.grad(losses.sum(), rows)
        np.testing.assert_allclose(inputs[k], by_row.numpy(), rtol=1e-9, atol=1e-11)


def test_logistic_gradient_by_hand():
    """One row x = (1, 2), y = 1, zero weights: p = 1/2, so the gradient is -1/2 * (1, 2) and -1/2 for the bias."""
    model = Dense((2, 1))
    out = np.empty((1, 3))
    model.gradient(np.zeros((1, 3)), np.array([[[1.0, 2.0]]]), np.ones((1, 1, 1)), np.ones((1, 1)), out)
    np.testing.assert_array_equal(out, [[-0.5, -1.0, -0.5]])


def test_soft_targets_are_a_mixture_of_hard_ones():
    model = Dense((4, 3))
    theta, x, _, weight, _ = batch(model)
    one, other, mixed = (np.empty_like(theta) for _ in range(3))
    a, b = np.zeros((3, 6, 3)), np.zeros((3, 6, 3))
    a[..., 0], b[..., 2] = 1, 1
    model.gradient(theta, x, a, weight, one)
    model.gradient(theta, x, b, weight, other)
    model.gradient(theta, x, 0.3 * a + 0.7 * b, weight, mixed)
    np.testing.assert_allclose(mixed, 0.3 * one + 0.7 * other, rtol=1e-10, atol=1e-12)


@given(st.integers(1, 5), st.integers(1, 9), st.sampled_from(WIDTHS), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_site_in_a_stack_gets_the_bits_it_gets_alone(sites, rows, widths, seed):
    model = Dense(widths)
    theta, x, target, weight, _ = (a.astype(np.float32) for a in batch(model, sites=sites, rows=rows, seed=seed))
    together = np.empty_like(theta)
    model.gradient(theta, x, target, weight, together)
    for k in range(sites):
        alone = np.empty_like(theta[:1])
        model.gradient(theta[k : k + 1], x[k : k + 1], target[k : k + 1], weight[k : k + 1], alone)
        np.testing.assert_array_equal(alone[0], together[k])


@pytest.mark.parametrize("z", [0.0, 50.0, -50.0, 1e4, -1e4])
def test_probabilities_never_overflow(z):
    with np.errstate(all="raise", under="ignore"):
        p = probabilities(np.array([[z]]))
        q = probabilities(np.array([[z, 0.0, -z]]))
    assert 0 <= p[0, 0] <= 1
    assert q.sum() == pytest.approx(1)


def test_wrong_parameters_are_refused_by_name():
    layout = Dense((3, 1)).layout
    with pytest.raises(Exception, match=r"layer0\.bias"):
        layout.pack({"layer0.weight": np.zeros((3, 1))})
    with pytest.raises(Exception, match=r"layer0\.weight.*\(2, 1\)"):
        layout.pack({"layer0.weight": np.zeros((2, 1)), "layer0.bias": np.zeros(1)})


def test_a_model_starts_from_the_weights_of_a_file(tmp_path):
    made = Dense((3, 2, 1)).init(5)
    save(tmp_path / "model.safetensors", Dense((3, 2, 1)).layout.views(made))
    found = Dense((3, 2, 1), weights=str(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(found.init(0), made)
    assert np.abs(made).min() > 0


@pytest.mark.parametrize(
    ("name", "arrays", "code"),
    [
        ("model.safetensors", {"layer0.weight": np.ones((4, 1)), "layer0.bias": np.ones(1)}, "mismatched-weights"),
        ("model.safetensors", {"layer0.weight": np.ones((3, 1))}, "mismatched-weights"),
        ("model.safetensors", {"layer0.weight": np.full((3, 1), np.nan), "layer0.bias": np.ones(1)}, "not-finite"),
        ("model.npz", {}, "not-safetensors"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, name, arrays, code):
    save(tmp_path / name, arrays)
    with refused(code):
        Dense((3, 1), weights=str(tmp_path / name)).init(0)
