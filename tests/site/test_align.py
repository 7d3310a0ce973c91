"""Attribution alignment: the sketch by hand, its slope against torch's second derivatives, and models it must not move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.rng import generator
from grandrounds.explain.features import Features
from grandrounds.models.dense import Dense
from grandrounds.site.align import Alignment, rounding_width, sketches
from grandrounds.site.anchor import SharedReference
from grandrounds.site.batches import BatchPlan
from grandrounds.site.numpy_train import train
from grandrounds.site.train_job import TrainConfig, TrainJob
from tests.site.test_numpy_train import part

COLUMNS = Features.from_columns(["age", "ward", "ward", "pulse"])


def drawn(seed: int, *shape: int) -> np.ndarray:
    return generator(seed, purpose="drawn").normal(size=shape)


def slope(model: Dense, theta: np.ndarray, held: Alignment) -> np.ndarray:
    """The gradient (K, P) of the alignment's loss alone."""
    out = np.zeros_like(theta)
    held.add_gradient(model.layers(theta), model.layers(out))
    return out


def loss(model: Dense, theta: np.ndarray, held: Alignment) -> np.ndarray:
    """weight * || E - towards ||_1, rounded off rounding_width zero: (K,)."""
    d = np.abs(sketches(model, theta, held.reference, held.labels[held.mine[: len(theta)]]) - held.towards[: len(theta)])
    delta = rounding_width(d.shape[1])
    return held.weight * np.where(d < delta, d**2 / (2 * delta), d - delta / 2).sum(axis=1)


def test_the_sketch_of_a_logistic_model_by_hand():
    """Rows (1, 2, 1, -1) and (2, 1, 0, 1), weights (1, 0, -1, 1), no bias: logits -1 and 3, so classes 0 and 1.

    The loss's slope along a row is (p - y) w. U(age) = |p1| + |(p2 - 1) 2|; the two inputs of ward are added before the
    absolute value: |p1 (0 - 1)| + 0; U(pulse) = |p1| + |p2 - 1|.
    """
    theta = np.array([[1.0, 0.0, -1.0, 1.0, 0.0]])
    lent = SharedReference(np.array([[1.0, 2.0, 1.0, -1.0], [2.0, 1.0, 0.0, 1.0]]), COLUMNS)
    held = Alignment.build(Dense((4, 1)), lent, theta[0], np.zeros(1, int), weight=1.0, consensus=None)
    np.testing.assert_array_equal(held.labels, [[[0], [1]]])
    p1, q2 = 1 / (1 + np.e), 1 / (1 + np.exp(3.0))
    use = np.array([p1 + 2 * q2, p1, p1 + q2])
    np.testing.assert_allclose(held.towards, [use / use.sum()], rtol=1e-12)


@given(
    st.integers(0, 10**6),
    st.sampled_from([(4, 1), (4, 3), (4, 5, 1), (4, 5, 3), (4, 6, 5, 3)]),
    st.sampled_from([COLUMNS, Features.from_inputs("abcd"), Features.from_columns(["a", "b", "a", "b"])]),
)
@settings(max_examples=60, deadline=None)
def test_the_slope_is_torchs_second_derivative(seed, widths, features):
    """Each of three models of a stack, pulled to a sketch of its own, from one of two starts."""
    torch = pytest.importorskip("torch")
    model = Dense(widths)
    size = model.layout.size
    start = drawn(seed, 2, size)[[0, 1, 0]] / 2
    lent = SharedReference(drawn(seed + 1, 7, 4), features)
    towards = np.abs(drawn(seed + 2, len(features)))
    held = Alignment.build(model, lent, start, np.arange(3), weight=1.7, consensus=towards / towards.sum())
    theta = start + drawn(seed + 3, 3, size) / 3
    got = slope(model, theta, held)
    for k in range(3):
        t = torch.tensor(theta[k], requires_grad=True)
        x = torch.tensor(lent.x, requires_grad=True)
        label = torch.tensor(held.labels[held.mine[k]])
        h, at = x, 0
        for i in range(len(widths) - 1):
            a, b = widths[i : i + 2]
            h = h @ t[at : at + a * b].view(a, b) + t[at + a * b : at + (a + 1) * b]
            h, at = (h.relu() if i < len(widths) - 2 else h), at + (a + 1) * b
        if widths[-1] == 1:
            total = torch.nn.functional.binary_cross_entropy_with_logits(h, label, reduction="sum")
        else:
            total = -(label * h.log_softmax(-1)).sum()
        product = x * torch.autograd.grad(total, x, create_graph=True)[0]
        use = torch.stack([product[:, torch.as_tensor(g)].sum(1).abs().sum() for g in features.groups])
        apart = (use / use.sum() - torch.tensor(held.towards[k])).abs()
        delta = 0.01 / len(features)
        distance = 1.7 * torch.where(apart < delta, apart**2 / (2 * delta), apart - delta / 2).sum()
        (expected,) = torch.autograd.grad(distance, t)
        np.testing.assert_allclose(got[k], expected.numpy(), atol=1e-8, rtol=1e-6)
        np.testing.assert_allclose(loss(model, theta, held)[k], distance.item(), rtol=1e-6)


def test_steps_along_the_slope_bring_sketches_together():
    """Sites are pulled from different starts to one sketch and get there, each by its own way."""
    model, lent = Dense((4, 8, 3)), SharedReference(drawn(1, 30, 4), COLUMNS)
    theta = drawn(2, 3, model.layout.size) / 2
    held = Alignment.build(model, lent, theta, np.arange(3), weight=1.0, consensus=np.array([0.2, 0.5, 0.3]))
    before = loss(model, theta, held)
    for _ in range(400):
        theta = theta - 0.01 * slope(model, theta, held)
    assert (before > 0.1).all()
    assert (loss(model, theta, held) < before / 20).all()


@pytest.mark.parametrize("widths", [(4, 1), (4, 5, 3)])
def test_a_sketch_that_is_there_already_does_not_pull(widths):
    """In the first round each site's start is its own consensus, so the first step is that of plain training."""
    model, held = Dense(widths), part([20], outputs=widths[-1])
    start = drawn(3, model.layout.size)
    lent = SharedReference(drawn(4, 9, 4), COLUMNS)
    own = Alignment.build(model, lent, start, np.zeros(1, int), weight=100.0, consensus=None)
    assert np.abs(slope(model, start[None], own)).max() < 1e-9
    one = np.zeros(1, int)

    def trained(steps, **more):
        work = TrainConfig(seed=0, round=1, lr=0.1, steps=steps, batch=8, alignment=1.0)
        plan = BatchPlan.draw(held, one, names=("a",), config=work)
        return train(TrainJob(model, held, one, start, work, **more), plan).theta

    np.testing.assert_allclose(trained(1, reference=lent), trained(1), atol=1e-9)
    assert np.abs(trained(3, reference=lent) - trained(3)).max() > 1e-4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bias", [0.0, -100.0, 100.0])
def test_a_model_that_uses_no_feature_is_left_alone(bias, dtype):
    """Weights of zero, or ReLUs all off: there is no sketch, and no number that is not one."""
    model = Dense((4, 5, 1))
    theta = np.zeros((2, model.layout.size), dtype)
    model.layout.views(theta)["layer1.bias"][:] = bias
    model.layout.views(theta)["layer1.weight"][1] = 1
    model.layout.views(theta)["layer0.bias"][1] = -1
    lent = SharedReference(drawn(5, 6, 4).astype(dtype), COLUMNS)
    held = Alignment.build(model, lent, theta, np.arange(2), weight=1.0, consensus=np.array([0.2, 0.5, 0.3]))
    got = slope(model, theta, held)
    assert got.dtype == dtype
    assert not got.any()
    np.testing.assert_array_equal(sketches(model, theta, lent, held.labels[held.mine]), 0)


def test_sketches_do_not_depend_on_who_shares_the_stack():
    model, lent = Dense((4, 5, 3)), SharedReference(drawn(6, 40, 4).astype(np.float32), COLUMNS)
    theta = drawn(7, 6, model.layout.size).astype(np.float32)
    labels = np.eye(3, dtype=np.float32)[generator(8, purpose="labels").integers(0, 3, (6, 40))]
    whole = sketches(model, theta, lent, labels)
    np.testing.assert_allclose(whole.sum(axis=1), 1, rtol=1e-6)
    for k in range(6):
        np.testing.assert_array_equal(sketches(model, theta[k : k + 1], lent, labels[k : k + 1])[0], whole[k])
