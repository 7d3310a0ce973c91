"""Hidden tiles against Captum, by hand and on nets that look at a known place; heat maps pooled over tiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax, rel_entr, softmax

from grandrounds.core.rng import generator
from grandrounds.explain.explainer import measure
from grandrounds.explain.explainers.heat import HEATS, heat
from grandrounds.explain.explainers.occlusion import Occlusion, Tiles, score_drop
from grandrounds.explain.features import Features
from grandrounds.models.dense import targets
from tests.support import refused

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from grandrounds.explain.explainers import layers  # noqa: E402
from grandrounds.models import build_model  # noqa: E402
from grandrounds.models.torch_model import TorchModel  # noqa: E402

QUARTERS = Features.from_tiles(28, 28, (4, 4))
logits = arrays(float, (4, 3), elements=st.floats(-30, 30))


def net(*, classes=10, precision="float64", shape=(3, 28, 28)):
    spec = {"name": "small-cnn", "inputs": shape, "classes": classes, "norm": "group", "stem": "small", "weights": None}
    return build_model(spec, kernel="torch", device="cpu", precision=precision)


def pictures(n=5, shape=(3, 28, 28), *, classes=10, dtype=float):
    rng = generator(0, purpose="pictures")
    y = rng.integers(0, classes, n)
    return rng.standard_normal((n, *shape)).astype(dtype), y, targets(y, 1 if classes == 2 else classes, dtype)


def rows(explainer, model, theta, x, target):
    return explainer.rows(model, theta, x, target, np.array([0, len(x)]))


class Corner(nn.Module):
    """Looks at the first pixels alone: logits (0, sum of the top left 2 x 2, 0)."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 1))

    def forward(self, x):
        return x[:, 0, :2, :2].sum((1, 2))[:, None] * self.weight.T


def corner() -> tuple[TorchModel, np.ndarray]:
    model = TorchModel(Corner(), outputs=3, initial=lambda seed: {}, device="cpu", precision="float64")
    return model, np.array([0.0, 1.0, 0.0])


def test_only_the_tile_a_net_looks_at_counts():
    """Its four pixels are 0.5 each: logits (0, 2, 0) become (0, 0, 0), and the loss log(2 + e^2) - 2 becomes log 3."""
    model, theta = corner()
    features = Features.from_tiles(6, 6, (3, 3))
    x = np.full((1, 1, 6, 6), 0.5)
    found = rows(Occlusion(features), model, theta, x, np.array([[0.0, 1, 0]]))
    assert found[0, 0] == pytest.approx(np.log(3) - (np.log(2 + np.e**2) - 2))
    assert (found[0, 1:] == 0).all()
    assert rows(Occlusion(features), model, theta, x, np.array([[1.0, 0, 0]]))[0, 0] == pytest.approx(
        np.log(3) - np.log(2 + np.e**2)
    )
    right = rows(Occlusion(features, "accuracy"), model, theta, -x, np.array([[0.0, 1, 0]]))
    assert (right == 0).all()  # wrong before: class 0; and wrong without the tile: the first of equals
    lost = rows(Occlusion(features, "accuracy"), model, theta, x, np.array([[0.0, 1, 0]]))
    assert lost.tolist() == [[1.0] + [0.0] * 8]
    before = softmax([0, 2, 0])
    moved = rows(Occlusion(features, "self"), model, theta, x, np.zeros((1, 3)))
    assert moved[0, 0] == pytest.approx(rel_entr(before, np.full(3, 1 / 3)).sum())
    assert (moved[0, 1:] == 0).all()


@pytest.mark.parametrize("classes", [2, 10])
def test_occlusion_is_captums(classes):
    attr = pytest.importorskip("captum.attr", reason="captum is not installed: no parity with it")
    model = net(classes=classes)
    theta = model.init(1, np.float64)
    x, y, target = pictures(classes=classes)
    model.point_at(model.tensor(theta))
    model.net.eval()

    def minus_loss(x):
        out = model.net(x)
        if classes == 2:
            out = torch.cat([torch.zeros_like(out), out], 1)
        return -nn.functional.cross_entropy(out, torch.as_tensor(y), reduction="none")

    tile = (3, 7, 7)
    theirs = attr.Occlusion(minus_loss).attribute(torch.as_tensor(x), sliding_window_shapes=tile, strides=tile)
    theirs = theirs.detach().numpy()[:, 0, ::7, ::7].reshape(len(x), 16)
    found = rows(Occlusion(QUARTERS), model, theta, x, target)
    np.testing.assert_allclose(found, theirs, atol=1e-12)
    assert np.abs(found).max() > 1e-3


def test_uneven_tiles_are_hidden_one_by_one():
    features = Features.from_tiles(17, 19, (3, 4))
    model = net(classes=3, shape=(2, 17, 19))
    theta = model.init(0, np.float64)
    x, y, target = pictures(3, (2, 17, 19), classes=3)
    found = rows(Occlusion(features), model, theta, x, target)
    now = log_softmax(model.logits(theta, x), axis=1)[np.arange(3), y]
    for f, pixels in enumerate(features.groups):
        hidden = x.copy().reshape(3, 2, -1)
        hidden[:, :, pixels] = 0
        then = log_softmax(model.logits(theta, hidden.reshape(x.shape)), axis=1)[np.arange(3), y]
        np.testing.assert_allclose(found[:, f], now - then, atol=1e-12)


def test_self_agreement_needs_no_labels():
    model = net(classes=2)
    theta = model.init(0, np.float64)
    x, _, target = pictures(classes=2)
    found = rows(Occlusion(QUARTERS, "self"), model, theta, x, target)
    assert (found == rows(Occlusion(QUARTERS, "self"), model, theta, x, 1 - target)).all()
    assert (found > 0).all()


@given(logits, logits, st.floats(-5, 5))
def test_costs_are_those_of_probabilities(before, after, shift):
    target = np.eye(3)[[0, 1, 2, 1]]
    cost = score_drop("log_loss", before, after, target)
    np.testing.assert_allclose(cost, ((log_softmax(before, 1) - log_softmax(after, 1)) * target).sum(1), atol=1e-9)
    np.testing.assert_allclose(score_drop("log_loss", after, before, target), -cost, atol=1e-9)
    np.testing.assert_allclose(score_drop("log_loss", before + shift, after, target), cost, atol=1e-9)
    moved = score_drop("self", before, after, target)
    assert (moved >= 0).all()
    np.testing.assert_allclose(moved, rel_entr(softmax(before, 1), softmax(after, 1)).sum(1), atol=1e-9)
    assert (score_drop("self", before, before, target) == 0).all()
    assert set(score_drop("accuracy", before, after, target)) <= {-1.0, 0.0, 1.0}


@given(arrays(float, (5, 1), elements=st.floats(-30, 30)), arrays(float, (5, 1), elements=st.floats(-30, 30)))
def test_one_logit_costs_what_two_do(before, after):
    y = np.array([0, 1, 1, 0, 1])
    for score in ("log_loss", "self"):
        one = score_drop(score, before, after, targets(y, 1, float))
        two = score_drop(score, *(np.hstack([0 * z, z]) for z in (before, after)), np.eye(2)[y])
        np.testing.assert_allclose(one, two, atol=1e-9)


@pytest.mark.parametrize(
    "explainer", [Occlusion(QUARTERS), Tiles(QUARTERS, "integrated_gradients", steps=2, samples=2)]
)
def test_a_stack_of_models_gives_what_each_gives_alone(explainer, monkeypatch):
    model = net()
    thetas = np.stack([model.init(seed, np.float64) for seed in range(3)])
    x, _, target = pictures()
    alone = np.stack([rows(explainer, model, theta, x, target) for theta in thetas])
    assert alone.shape == (3, 5, 16)
    assert (rows(explainer, model, thetas, x, target) == alone).all()
    monkeypatch.setattr(layers, "side_by_side", lambda model, shape: "groups")
    np.testing.assert_allclose(rows(explainer, model, thetas, x, target), alone, atol=1e-12)
    for most in (5, 20, 40):  # less than one picture's tiles, one model's, two models'
        monkeypatch.setattr(layers, "_BYTES", {"cpu": most * layers.trace_net(model, thetas[0], x[0]).row_bytes})
        np.testing.assert_allclose(rows(explainer, model, thetas, x, target), alone, atol=1e-12)


@pytest.mark.parametrize("explainer", [Occlusion(QUARTERS), Tiles(QUARTERS, "saliency")])
def test_a_sites_rows_do_not_depend_on_other_sites(explainer):
    model = net(precision="float32")
    theta = model.init(0)
    x, _, target = pictures(9, dtype=np.float32)
    offsets = np.array([0, 1, 1, 9])
    together = explainer.rows(model, theta, x, target, offsets)
    for a, b in ((0, 1), (1, 9)):
        assert (together[a:b] == rows(explainer, model, theta, x[a:b], target[a:b])).all()


class ThroughLogits:
    """A model that can only be asked for logits."""

    def __init__(self, model):
        self.model = model

    def logits(self, theta, x):
        return self.model.logits(theta, x)


def test_any_model_with_logits_can_be_explained(monkeypatch):
    model = net()
    thetas = np.stack([model.init(seed, np.float64) for seed in range(2)])
    x, _, target = pictures()
    found = rows(Occlusion(QUARTERS), ThroughLogits(model), thetas, x, target)
    np.testing.assert_allclose(found, rows(Occlusion(QUARTERS), model, thetas, x, target), atol=1e-12)
    monkeypatch.setattr("grandrounds.explain.explainers.occlusion._BYTES", 2 * 17 * x[0].nbytes)
    np.testing.assert_allclose(rows(Occlusion(QUARTERS), ThroughLogits(model), thetas, x, target), found, atol=1e-12)


@pytest.mark.parametrize("name", HEATS)
def test_tiles_share_the_mass_of_the_heat_map(name):
    model = net(classes=2)
    theta = model.init(0, np.float64)
    x, y, target = pictures(classes=2)
    explainer = Tiles(QUARTERS, name, samples=2, steps=2, seed=4)
    found = rows(explainer, model, theta, x, target)
    whole = heat(name, model, theta, x, y, samples=2, steps=2, seed=4)
    np.testing.assert_allclose(found, whole.reshape(5, 4, 7, 4, 7).sum((2, 4)).reshape(5, 16))
    assert found.any()


def test_sketches_of_pictures_are_measured_like_those_of_tables():
    model = net(precision="float32")
    thetas = np.stack([model.init(seed) for seed in range(2)])
    x, _, target = pictures(6, dtype=np.float32)
    for explainer in (Occlusion(QUARTERS), Tiles(QUARTERS, "gradient")):
        found = measure(explainer, model, thetas, x, target)
        np.testing.assert_allclose(found.values[1], rows(explainer, model, thetas[1], x, target).mean(0), rtol=1e-6)
        sites = measure(explainer, model, thetas[0], x, target, np.array([0, 4, 6]))
        assert sites.values.shape == (2, 16)


def test_a_model_that_diverged_has_no_costs():
    model = net(precision="float32")
    x, _, target = pictures(2, dtype=np.float32)
    assert np.isnan(rows(Occlusion(QUARTERS), model, np.full(model.layout.size, np.nan, np.float32), x, target)).all()


def test_bad_input_is_refused():
    model = net()
    theta = model.init(0)
    x, _, target = pictures()
    with refused("unknown-score", match="did you mean 'log_loss'"):
        Occlusion(QUARTERS, "logloss")
    with refused("needs-images", match=r"\(5, 4\)"):
        rows(Occlusion(QUARTERS), model, theta, np.zeros((5, 4)), target)
    for explainer in (
        Occlusion(Features.from_tiles(32, 32, (4, 4))),
        Tiles(Features.from_tiles(32, 32, (4, 4)), "saliency"),
    ):
        with refused("mismatched-shapes", match="32x32 .* 28x28"):
            rows(explainer, model, theta, x, target)
    with refused("mismatched-shapes"):
        rows(Occlusion(Features.from_inputs("ab")), model, theta, x, target)
