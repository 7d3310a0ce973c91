"""MOON's pull on features is the slope of its loss, and stays finite where a row has no features."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grandrounds.core.rng import generator
from grandrounds.models.dense import Dense
from grandrounds.site.contrast import Contrast, unit
from grandrounds.site.stack import Part

MU, T = 1.7, 0.4


def loss(h: np.ndarray, towards: np.ndarray, away: np.ndarray, weight: np.ndarray, *, mu: float, t: float) -> float:
    """sum_i weight_i * mu * eq. 3 of Li et al. 2021, for features (B, width)."""

    def cosine(a, b):
        return (a * b).sum(axis=-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)

    near, far = np.exp(cosine(h, towards) / t), np.exp(cosine(h, away) / t)
    return float((weight * mu * -np.log(near / (near + far))).sum())


rows = st.integers(1, 4)
shapes = st.tuples(rows, st.integers(1, 5))
numbers = st.floats(-3, 3, width=32)


@given(st.data(), shapes, st.sampled_from([0.1, 0.5, 2.0]), st.sampled_from([0.01, 1.0, 5.0]))
@settings(max_examples=80, deadline=None)
def test_the_pull_is_the_slope_of_the_loss(data, shape, t, mu):
    h, towards, away = (data.draw(hnp.arrays(np.float64, shape, elements=numbers)) for _ in range(3))
    assume(all(np.linalg.norm(a, axis=1).min() > 0.3 for a in (h, towards, away)))
    weight = data.draw(hnp.arrays(np.float64, shape[0], elements=st.floats(0, 1, width=32)))
    contrast = Contrast(unit(towards), unit(away), mu, t)
    got = contrast.pull(np.arange(shape[0])[None], weight[None])(h[None])[0]
    eps, slopes = 1e-6, np.zeros(shape)
    for at in np.ndindex(*shape):
        step = np.zeros(shape)
        step[at] = eps
        up, down = (loss(h + s, towards, away, weight, mu=mu, t=t) for s in (step, -step))
        slopes[at] = (up - down) / (2 * eps)
    np.testing.assert_allclose(got, slopes, atol=1e-5 * max(1, mu / t), rtol=1e-4)


def test_the_pull_by_hand():
    """h = (2, 0) with towards = (1, 0), away = (0, 1): s_g = 1, s_p = 0, and only the second entry turns h.

    dl/ds_p = sigmoid((s_p - s_g) / T) / T, ds_p/dh = (0, 1) / 2, ds_g/dh = 0.
    """
    contrast = Contrast(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), MU, T)
    got = contrast.pull(np.array([[0]]), np.array([[0.5]]))(np.array([[[2.0, 0.0]]]))
    np.testing.assert_allclose(got, [[[0, 0.5 * MU / T / (1 + np.exp(1 / T)) / 2]]])


def test_each_row_is_pulled_by_its_own_features():
    """Rows are named by their number in the part, in any order, and a row of weight zero feels nothing."""
    rng = generator(0, purpose="features")
    towards, away = unit(rng.normal(size=(6, 3))), unit(rng.normal(size=(6, 3)))
    h, contrast = rng.normal(size=(2, 2, 3)), Contrast(towards, away, MU, T)
    named, weight = np.array([[5, 0], [2, 2]]), np.array([[0.5, 0.25], [1.0, 0.0]])
    got = contrast.pull(named, weight)(h)
    for at in np.ndindex(2, 2):
        single = Contrast(towards[[named[at]]], away[[named[at]]], MU, T)
        alone = single.pull(np.zeros((1, 1), int), weight[at].reshape(1, 1))(h[at].reshape(1, 1, 3))
        np.testing.assert_allclose(got[at], alone[0, 0])
    assert not got[1, 1].any()
    assert got[0].all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_without_features_are_finite(dtype):
    """ReLUs may all be off, under any of the three models; float32 stays float32."""
    zero, some = np.zeros((1, 3), dtype), np.array([[0.6, 0.8, 0.0]], dtype)
    for h in (zero, some, 1e-20 * some, 1e10 * some):
        for towards in (zero, some):
            for away in (zero, some):
                pull = Contrast(unit(towards), unit(away), MU, T).pull(np.array([[0]]), np.ones((1, 1), dtype))
                got = pull(h[None])
                assert np.isfinite(got).all()
                assert got.dtype == dtype


def test_a_dead_hidden_layer_does_not_move():
    """The pull on a row whose units are all off ends at the ReLU, on the NumPy kernel as in torch."""
    model = Dense((2, 3, 1))
    theta = model.init(0, np.float64)[None].copy()
    model.layout.views(theta)["layer0.bias"][:] = -100
    x, target, weight = np.ones((1, 4, 2)), np.ones((1, 4, 1)), np.full((1, 4), 0.25)
    fixed = unit(generator(0, purpose="features").normal(size=(8, 3)))
    pull = Contrast(fixed[:4], fixed[4:], MU, T).pull(np.arange(4)[None], weight)
    out = np.empty_like(theta)
    model.gradient(theta, x, target, weight, out, pull)
    moved = model.layout.views(out)
    assert not moved["layer0.weight"].any()
    assert not moved["layer0.bias"].any()
    assert moved["layer1.bias"].any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torch_has_the_same_loss_and_the_same_slope(dtype):
    torch = pytest.importorskip("torch")
    from grandrounds.site.torch_job import _contrastive

    rng = generator(1, purpose="features")
    h, towards, away = (np.abs(rng.normal(size=(7, 4))) for _ in range(3))
    h[0] = towards[1] = away[2] = 0
    contrast = Contrast(unit(towards), unit(away), MU, T)
    weight = rng.uniform(size=7)
    kind = getattr(torch, dtype)
    z = torch.tensor(h, dtype=kind, requires_grad=True)
    rest = (torch.tensor(a, dtype=kind) for a in (contrast.towards, contrast.away))
    losses = _contrastive(z, *rest, T) * MU
    (losses * torch.tensor(weight, dtype=kind)).sum().backward()
    slope = contrast.pull(np.arange(7)[None], weight[None])(h[None])[0]
    np.testing.assert_allclose(z.grad.numpy(), slope, rtol=1e-4, atol=1e-5)
    assert losses[0].item() == pytest.approx(MU * np.log(2))
    expected = loss(h[3:], towards[3:], away[3:], weight[3:], mu=MU, t=T)
    assert (losses[3:].detach().double().numpy() * weight[3:]).sum() == pytest.approx(expected, rel=1e-5)


def test_fixed_features_are_each_sites_own():
    """Members' rows have the features of the global model and of the site's own last one; others' rows stay empty."""
    rng = generator(2, purpose="features")
    model, sizes = Dense((3, 5, 2)), [4, 2, 3]
    x = rng.normal(size=(9, 3))
    part = Part(x, np.zeros(9, int), np.zeros((9, 2)), np.zeros(9, int), np.cumsum([0, *sizes]))
    start, members = rng.normal(size=model.layout.size), np.array([2, 0])
    previous = rng.normal(size=(2, model.layout.size))
    made = Contrast.build(model, x, part, members, start=start, previous=previous, mu=MU, temperature=T)
    assert (made.mu, made.temperature) == (MU, T)
    np.testing.assert_allclose(made.towards[:4], unit(model.features(start, x[:4])))
    np.testing.assert_allclose(made.towards[6:], unit(model.features(start, x[6:])))
    np.testing.assert_allclose(made.away[6:], unit(model.features(previous[0], x[6:])))
    np.testing.assert_allclose(made.away[:4], unit(model.features(previous[1], x[:4])))
    assert not made.towards[4:6].any()
    assert not made.away[4:6].any()
    own = np.stack([start, previous[0]])  # sites that start from models of their own
    each = Contrast.build(model, x, part, members, start=own, previous=previous, mu=MU, temperature=T)
    np.testing.assert_allclose(each.towards[:4], unit(model.features(previous[0], x[:4])))
    lengths = np.linalg.norm(made.away, axis=1)
    np.testing.assert_allclose(lengths[lengths > 0], 1)
