"""Path gradients against arithmetic done by hand, Captum, and what they must add up to."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.rng import generator
from grandrounds.explain.explainer import measure
from grandrounds.explain.explainers.gradients import (
    IntegratedGradients,
    PathGradients,
    integrated_gradients,
    path_gradients,
)
from grandrounds.explain.explainers.linear import linear_shap
from grandrounds.explain.features import Features
from grandrounds.models.dense import Dense, targets
from grandrounds.models.forest import ForestModel
from tests.support import refused

WIDTHS = [(5, 1), (5, 3), (5, 7, 1), (4, 6, 5, 3), (3, 8, 6, 4, 1)]


def some(widths: tuple[int, ...], *, seed: int = 0, rows: int = 6, others: int = 4, dtype: type = np.float64):
    """A model with drawn parameters, rows and a background."""
    model = Dense(widths)
    rng = generator(seed, purpose="test")
    theta = rng.normal(size=model.layout.size).astype(dtype)
    x, background = (rng.normal(size=(n, widths[0])).astype(dtype) for n in (rows, others))
    return model, theta, x, background


def torch_model(net, outputs: int, precision: str = "float64"):
    """A torch net of one's own behind the model protocol, and its parameters."""
    from grandrounds.models.torch_model import TorchModel

    named = {n: p.detach().numpy().copy() for n, p in net.named_parameters()}
    model = TorchModel(net, outputs=outputs, initial=lambda seed: named, device="cpu", precision=precision)
    return model, model.init(0, np.float64)


def chain(model: Dense, theta: np.ndarray):
    """The same function as torch's own layers."""
    import torch

    layers: list = []
    for w, b in model.layers(theta):
        layer = torch.nn.Linear(*w.shape).double()
        layer.weight.data, layer.bias.data = torch.tensor(w.T.copy()), torch.tensor(b.copy())
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def test_one_unit_worked_out_by_hand():
    model = Dense((2, 1, 1))
    theta = model.layout.pack(
        {
            "layer0.weight": np.array([[1.0], [1.0]]),
            "layer0.bias": np.array([-1.0]),
            "layer1.weight": np.array([[3.0]]),
            "layer1.bias": np.array([0.5]),
        },
        dtype=float,
    )
    # From (0, 0) to (2, 1), z = 3 alpha - 1 is above zero for the last two thirds: 8 of 12 midpoints.
    found = integrated_gradients(model, theta, np.array([[2.0, 1.0]]), np.zeros(2), steps=12)
    np.testing.assert_allclose(found, [[2 * 3 * 2 / 3, 1 * 3 * 2 / 3]])
    # A second background, (2, 0), from which z = alpha rises above zero at once: all of (0, 1) * 3.
    both = path_gradients(model, theta, np.array([[2.0, 1.0]]), np.array([[0.0, 0.0], [2.0, 0.0]]), steps=12)
    np.testing.assert_allclose(both, [[(4 + 0) / 2, (2 + 3) / 2]])


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("steps", [2, 7])
def test_integrated_gradients_equal_captum(widths, steps):
    import torch
    from captum.attr import IntegratedGradients as CaptumsOwn

    model, theta, x, background = some(widths)
    outputs = np.arange(len(x)) % model.outputs
    theirs = CaptumsOwn(chain(model, theta)).attribute(
        torch.tensor(x),
        torch.tensor(background[:1]),
        target=torch.tensor(outputs),
        n_steps=steps,
        method="riemann_middle",
    )
    ours = integrated_gradients(model, theta, x, background[0], steps=steps, outputs=outputs)
    np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=1e-6)  # Captum keeps its points in float32


def test_path_gradients_are_the_mean_of_integrated_gradients_over_backgrounds():
    model, theta, x, background = some((4, 6, 5, 3))
    each = [integrated_gradients(model, theta, x, b, steps=9, outputs=2) for b in background]
    np.testing.assert_allclose(path_gradients(model, theta, x, background, steps=9, outputs=2), np.mean(each, axis=0))


def test_a_linear_model_needs_no_steps():
    model, theta, x, background = some((5, 3))
    found = path_gradients(model, theta, x, background, steps=1, outputs=1)
    np.testing.assert_array_equal(found, linear_shap(model, theta, x, background)[:, 1])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), widths=st.sampled_from(WIDTHS[2:]))
def test_values_add_up_to_what_the_row_changes(seed, widths):
    model, theta, x, background = some(widths, seed=seed, rows=3)
    change = model.logits(theta, x)[:, 0] - model.logits(theta, background)[:, 0].mean()
    found = path_gradients(model, theta, x, background, steps=2000)
    assert np.abs(found.sum(axis=1) - change).max() <= 0.01 * np.abs(found).sum(axis=1).max()


def test_an_input_the_model_does_not_read_gets_nothing():
    model, theta, x, background = some((4, 6, 5, 3))
    model.layers(theta)[0][0][2] = 0
    found = path_gradients(model, theta, x, background)
    assert not found[:, 2].any()
    assert found[:, [0, 1, 3]].all()


@pytest.mark.parametrize("widths", [(30, 64, 32, 1), (30, 16, 3)])
def test_a_rows_bits_do_not_depend_on_the_rows_or_models_beside_it(widths):
    model, theta, x, background = some(widths, rows=23, others=17, dtype=np.float32)
    together = path_gradients(model, theta, x, background)
    assert together.dtype == np.float32
    for i in (0, 11, 22):
        np.testing.assert_array_equal(path_gradients(model, theta, x[i : i + 1], background)[0], together[i])
    explainer = PathGradients(Features.from_inputs([str(j) for j in range(30)]), background)
    target = targets(np.zeros(len(x), int), model.outputs)
    both = explainer.rows(model, np.stack([theta, 2 * theta]), x, target, np.array([0, len(x)]))
    np.testing.assert_array_equal(both[0], np.abs(together))


def test_autograd_gives_the_same_as_the_hand_written_gradients():
    model, theta, x, background = some((4, 6, 5, 3), rows=40, others=5)  # 40 * 5 * 5 points: more than one block
    net, own = torch_model(chain(model, theta), model.outputs)
    outputs = np.arange(len(x)) % 3
    ours = path_gradients(model, theta, x, background, steps=5, outputs=outputs)
    np.testing.assert_allclose(path_gradients(net, own, x, background, steps=5, outputs=outputs), ours, atol=1e-12)


def test_the_torch_twin_of_a_dense_model_is_explained_in_numpy():
    from grandrounds.models.torch_build import torch_dense

    model, theta, x, background = some((4, 6, 5, 3))
    twin = torch_dense(model, device="cpu", precision="float32")  # autograd would round to it
    np.testing.assert_array_equal(
        path_gradients(twin, theta, x, background), path_gradients(model, theta, x, background)
    )


def test_pictures_are_explained_by_tiles_and_add_up():
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(4 * 16, 2)]
    model, theta = torch_model(torch.nn.Sequential(*layers), 2)
    rng = generator(0, purpose="test")
    x, baseline = rng.normal(size=(2, 3, 6, 6)), np.zeros((3, 6, 6))
    explainer = IntegratedGradients(Features.from_tiles(6, 6, (2, 2)), baseline, steps=200)
    found = explainer.signed(model, theta, x, np.array([1, 0]))
    assert found.shape == (2, 4)
    change = model.logits(theta, x) - model.logits(theta, baseline[None])
    np.testing.assert_allclose(found.sum(axis=1), change[[0, 1], [1, 0]], atol=1e-3)
    np.testing.assert_array_equal(
        explainer.rows(model, theta, x, np.array([[0, 1], [1, 0]]), np.array([0, 2])), np.abs(found)
    )


def test_inputs_of_one_feature_are_added_before_the_sign_is_dropped():
    model = Dense((3, 1))
    theta = np.array([2.0, -2.0, 1.0, 0.0])  # weights, bias
    features = Features(("category", "age"), np.array([0, 0, 1]))
    x, background = np.array([[1.0, 1.0, -3.0]]), np.zeros((1, 3))
    found = PathGradients(features, background).rows(model, theta, x, np.ones((1, 1)), np.array([0, 1]))
    np.testing.assert_allclose(found, [[0.0, 3.0]])


def test_in_the_loop_each_row_is_explained_for_its_own_class():
    model, theta, x, background = some((4, 6, 5, 3))
    y = np.array([0, 2, 1, 1, 0, 2])
    features = Features.from_inputs("abcd")
    target, edges = targets(y, 3, float), np.array([0, 4, 6])
    found = PathGradients(features, background, steps=6).rows(model, theta, x, target, edges)
    for i, c in enumerate(y):
        alone = path_gradients(model, theta, x[i : i + 1], background, steps=6, outputs=int(c))
        np.testing.assert_array_equal(found[i], np.abs(alone[0]))
    sites = measure(PathGradients(features, background, steps=6), model, theta, x, target, edges)
    np.testing.assert_allclose(sites.values, [found[:4].mean(axis=0), found[4:].mean(axis=0)])


def test_what_cannot_be_explained_is_refused():
    model, theta, x, background = some((4, 6, 1))
    with refused("too-few-steps"):
        path_gradients(model, theta, x, background, steps=0)
    with refused("bad-background"):
        path_gradients(model, theta, x, background[:, :3])
    with refused("bad-background"):
        path_gradients(model, theta, x, background[:0])
    with refused("unknown-output", match="no output 1"):
        path_gradients(model, theta, x, background, outputs=1)
    forest = ForestModel(features=4, classes=2)
    with refused("no-gradient"):
        path_gradients(forest, forest.init(0), x, background)


def test_a_table_is_explained_without_torch_or_shap():
    code = """
import sys, numpy as np
from grandrounds.explain.features import Features
from grandrounds.explain.explainers import gradients, lime, linear, shapley
from grandrounds.models.dense import Dense
model = Dense((3, 4, 1))
x = np.eye(3, dtype=np.float32)
explainer = shapley.Shap(Features.from_inputs("abc"), x)
assert explainer.rows(model, model.init(0), x, np.ones((3, 1)), np.array([0, 3])).shape == (3, 3)
heavy = {"torch", "shap", "captum", "pandas", "sklearn", "lightgbm"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
