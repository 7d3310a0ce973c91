"""How good attributions are: on models whose truth is known, and number for number beside Quantus and scikit-image."""

from __future__ import annotations

import copy
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import entropy as scipy_entropy
from scipy.stats import spearmanr

from grandrounds.core.rng import generator
from grandrounds.explain.features import Features
from grandrounds.explain.quality import (
    concentration,
    correlation,
    deletion_auc,
    entropy,
    faithfulness_correlation,
    gini,
    insertion_auc,
    layer_names,
    randomisation,
    randomize,
    rank_correlation,
    removal_curve,
    similarity,
)
from grandrounds.models.dense import Dense
from grandrounds.models.forest import ForestModel
from tests.support import refused

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

seeds = st.integers(0, 2**32 - 1)
PLAIN = {"abs": False, "normalise": False, "disable_warnings": True}


def linear(seed: int, n: int = 4, d: int = 5):
    """A linear model, rows, what stands in for a missing value, and the exact contributions."""
    rng = generator(seed, purpose="linear")
    w, x, b = rng.normal(size=d), rng.normal(size=(n, d)), rng.normal(size=d)
    return (lambda rows: rows @ w), x, b, w * (x - b)


def test_a_deletion_curve_by_hand():
    def predict(rows):
        return rows @ np.array([4.0, 2.0, 1.0])

    x, a = np.ones((1, 3)), np.array([[4.0, 2.0, 1.0]])
    curve = removal_curve(predict, x, a)
    assert curve.score.tolist() == [[7, 3, 1, 0]]
    np.testing.assert_allclose(curve.share, [0, 1 / 3, 2 / 3, 1])
    assert deletion_auc(predict, x, a) == pytest.approx((5 + 2 + 0.5) / 3)
    assert insertion_auc(predict, x, a) == pytest.approx((2 + 5 + 6.5) / 3)
    assert removal_curve(predict, x, a, steps=1).score.tolist() == [[7, 0]]
    assert removal_curve(predict, x, a, baseline=np.array([0, 0, 5.0])).score.tolist() == [[7, 3, 1, 5]]


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_exact_attributions_have_the_best_curve_of_all_orders(seed):
    predict, x, b, exact = linear(seed, n=2)
    deleted, inserted = deletion_auc(predict, x, exact, baseline=b), insertion_auc(predict, x, exact, baseline=b)
    orders = np.array(list(permutations(range(5))), float)
    every = [
        (
            deletion_auc(predict, x, np.tile(order, (2, 1)), baseline=b),
            insertion_auc(predict, x, np.tile(order, (2, 1)), baseline=b),
        )
        for order in orders
    ]
    down, up = np.array(every).transpose(1, 0, 2)
    np.testing.assert_allclose(deleted, down.min(axis=0), atol=1e-12)
    np.testing.assert_allclose(inserted, up.max(axis=0), atol=1e-12)
    assert (deleted < np.median(down, axis=0)).all()  # most shuffles are worse


@settings(max_examples=30, deadline=None)
@given(seeds, st.sampled_from([1, 3, 9]), st.floats(1e-3, 1e3))
def test_deleting_the_first_is_inserting_the_last(seed, steps, scale):
    predict, x, b, exact = linear(seed, d=9)
    forward = removal_curve(predict, x, exact, baseline=b, steps=steps)
    back = removal_curve(predict, x, -scale * exact, baseline=b, steps=steps, insert=True)
    np.testing.assert_allclose(1 - back.share[::-1], forward.share, atol=1e-12)
    np.testing.assert_allclose(back.score[:, ::-1], forward.score, atol=1e-12)
    np.testing.assert_allclose(forward.score[:, 0], predict(x))
    np.testing.assert_allclose(forward.score[:, -1], predict(b))
    assert (forward.area <= forward.score.max(axis=1) + 1e-12).all()
    order = generator(seed, purpose="order").permutation(9)
    mixed = deletion_auc(
        lambda rows: predict(rows[:, np.argsort(order)]), x[:, order], exact[:, order], baseline=b[order]
    )
    np.testing.assert_allclose(mixed, deletion_auc(predict, x, exact, baseline=b), atol=1e-12)


def test_features_and_tiles_go_as_a_whole_with_all_channels():
    groups = Features.from_columns(["ward", "age", "ward", "ward"])
    seen = []

    def predict(rows):
        seen.append(rows.copy())
        return rows.reshape(len(rows), -1).sum(axis=1)

    removal_curve(predict, np.ones((1, 4)), np.array([[0.1, 0.25, 0.1, 0.1]]), features=groups)
    assert [rows[0].tolist() for rows in seen] == [[1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]]  # 0.3 before 0.25
    seen.clear()
    tiles, x = Features.from_tiles(4, 4, (2, 2)), np.ones((2, 3, 4, 4), np.float32)
    heat = np.zeros((2, 4, 4))
    heat[0, 3, 0], heat[1, 0, 2:] = 5, 1  # tile 2, tile 1
    by_pixel = deletion_auc(predict, x, heat, features=tiles, baseline=np.arange(3.0).reshape(3, 1, 1))
    assert len(seen) == 5 and seen[1].dtype == np.float32  # one forward a step, as many steps as tiles
    for row, box in ((0, np.s_[:, 2:, :2]), (1, np.s_[:, :2, 2:])):
        expected = np.ones((3, 4, 4))
        expected[box] = np.arange(3.0)[:, None, None]
        assert (seen[1][row] == expected).all()
    by_tile = deletion_auc(predict, x, tiles.sum_inputs(heat.reshape(2, 16)), features=tiles, baseline=0.0)
    assert by_tile.shape == by_pixel.shape == (2,)
    assert len(removal_curve(predict, x, heat).share) == 17  # without features: pixels


def test_each_row_has_a_class_of_its_own():
    rng = generator(0, purpose="classes")
    w, x, y = rng.normal(size=(6, 3)), rng.normal(size=(5, 6)), np.array([0, 2, 1, 2, 0])
    together = deletion_auc(lambda rows: (rows @ w)[np.arange(5), y], x, w.T[y] * x)
    alone = [deletion_auc(lambda r, c=c: r @ w[:, c], x[[i]], w[:, c] * x[[i]])[0] for i, c in enumerate(y)]
    np.testing.assert_allclose(together, alone)


def test_faithfulness_is_one_for_exact_attributions_and_undefined_for_empty_ones():
    exactly, x, b, exact = linear(1)

    def of(a, subset=2, predict=None):
        return faithfulness_correlation(
            predict or exactly, x, a, baseline=b, subset=subset, runs=20, rng=generator(0, purpose="subsets")
        )

    np.testing.assert_allclose(of(exact), 1)
    np.testing.assert_allclose(of(-3 * exact, subset=4), -1)
    other = of(exact[:, ::-1])
    assert (np.abs(other) < 0.999).all() and (other == of(exact[:, ::-1])).all()
    assert np.isnan(of(exact, predict=lambda rows: np.full(len(rows), 0.3))).all()
    exactly, x, b, _ = linear(1, d=20)
    assert np.isnan(of(np.full((4, 20), 0.1), subset=7)).all()  # any seven sum to the same, but for rounding


def small_net(kind: str):
    """A net with weights in float64 that takes float32 rows, as Quantus gives them, and its score of classes y."""
    import torch
    from torch import nn

    class Exact(nn.Module):
        def forward(self, x):
            return x.double()

    torch.manual_seed(5)
    if kind == "table":
        layers, shape = (nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)), (7, 12)
    else:
        layers, shape = (nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)), (7, 1, 6, 6)
    net = nn.Sequential(Exact(), *layers).double().eval()
    rng = generator(9, purpose="net")
    x, y = rng.normal(size=shape).astype(np.float32), rng.integers(0, 3, 7)

    def predict(rows):
        with torch.no_grad():
            return net(torch.as_tensor(rows)).numpy()[np.arange(7), y]

    attributions = rng.normal(size=(7, *shape[-2:]) if kind == "picture" else shape)
    # Quantus wants channels, of a table too, and attributions with them
    given = {"model": net, "x_batch": x.reshape(7, 1, *x.shape[-(x.ndim // 2) :]), "y_batch": y}
    given |= {"a_batch": attributions[:, None], "channel_first": True, "device": "cpu", "softmax": False}
    return predict, x, attributions, given


@pytest.mark.parametrize("kind", ["table", "picture"])
@pytest.mark.parametrize("step", [1, 3])
def test_the_removal_curve_is_pixel_flipping(kind, step):
    quantus = pytest.importorskip("quantus")
    predict, x, attributions, given = small_net(kind)
    flipped = np.array(quantus.PixelFlipping(features_in_step=step, perturb_baseline=0.25, **PLAIN)(**given))
    steps = x[0].size // step
    curve = removal_curve(predict, x, attributions, baseline=0.25, steps=steps)
    np.testing.assert_allclose(curve.score[:, 1:], flipped, rtol=1e-6, atol=1e-9)
    area = deletion_auc(predict, x, attributions, baseline=0.25, steps=steps)
    # its own area calls a function that NumPy 2.4 no longer has, and leaves out the untouched row
    whole = np.concatenate([predict(x)[:, None], flipped], axis=1)
    np.testing.assert_allclose(area, trapezoid(whole, dx=1 / steps), rtol=1e-6, atol=1e-9)


class Replayed:
    """Random numbers that choose the given subsets, one after another."""

    def __init__(self, subsets):
        self.subsets = iter(subsets)

    def random(self, shape):
        keys = np.ones(shape)
        np.put_along_axis(keys, next(self.subsets), 0.0, axis=1)
        return keys + np.arange(shape[1]) * 1e-3


@pytest.mark.parametrize("kind", ["table", "picture"])
def test_faithfulness_is_quantus_s_on_the_same_subsets(kind):
    quantus = pytest.importorskip("quantus")
    from quantus.functions.perturb_func import batch_baseline_replacement_by_indices

    drawn = []

    def remember(arr, indices, **options):
        drawn.append(indices)
        return batch_baseline_replacement_by_indices(arr, indices, **options)

    predict, x, attributions, given = small_net(kind)
    metric = quantus.FaithfulnessCorrelation(
        nr_runs=15, subset_size=3, perturb_func=remember, perturb_baseline=0.25, return_aggregate=False, **PLAIN
    )
    theirs = metric(**given)
    assert len(drawn) == 15
    ours = faithfulness_correlation(predict, x, attributions, baseline=0.25, subset=3, runs=15, rng=Replayed(drawn))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)


def test_spread_by_hand():
    values = np.array([[1.0, 1, 1, 1], [0, 0, -7, 0], [0, 0, 0, 0], [2, 0, 2, 0]])
    np.testing.assert_allclose(entropy(values), [np.log(4), 0, np.log(4), np.log(2)])
    np.testing.assert_allclose(gini(values), [0, 0.75, 0, 0.5], atol=1e-15)
    np.testing.assert_allclose(concentration(values), [0, 1, 0, 0.5], atol=1e-15)
    np.testing.assert_allclose(concentration(values.reshape(4, 2, 2)), concentration(values))
    assert concentration(np.ones((2, 1))).tolist() == [0, 0]
    assert np.isnan(entropy(np.array([np.nan, 1.0])))


@settings(max_examples=50, deadline=None)
@given(seeds, st.integers(2, 30), st.floats(1e-200, 1e200))
def test_spread_has_bounds_and_knows_neither_scale_nor_order(seed, size, scale):
    rng = generator(seed, purpose="spread")
    values = rng.exponential(size=(3, size)) ** rng.integers(1, 6)
    for measure, most in ((entropy, np.log(size)), (gini, 1 - 1 / size), (concentration, 1.0)):
        found = measure(values)
        assert ((found >= 0) & (found <= most + 1e-12)).all()
        np.testing.assert_allclose(measure(-scale * values[:, rng.permutation(size)]), found, atol=1e-12)
    peak = values.copy()
    peak[np.arange(3), values.argmax(axis=1)] *= 2
    assert (gini(peak) > gini(values)).all() and (concentration(peak) > concentration(values)).all()


def test_spread_agrees_with_quantus_and_scipy():
    quantus = pytest.importorskip("quantus")
    heat = generator(0, purpose="heat").exponential(size=(6, 1, 8, 8))
    given = {"model": None, "x_batch": heat, "y_batch": np.zeros(6, int)}
    flat = heat.reshape(6, 64)
    theirs = quantus.Complexity(**PLAIN)(**given, a_batch=heat.copy())
    np.testing.assert_allclose(entropy(flat), theirs, rtol=1e-9)
    np.testing.assert_allclose(entropy(flat), scipy_entropy(flat, axis=1), rtol=1e-12)
    sparse = quantus.Sparseness(**PLAIN)(**given, a_batch=heat.copy())
    np.testing.assert_allclose(gini(flat), sparse, rtol=1e-6)  # Quantus adds 1e-7 to every value


def test_similarity_is_scikit_image_s():
    skimage = pytest.importorskip("skimage.metrics")
    rng = generator(0, purpose="maps")
    a, b = rng.exponential(size=(2, 5, 14, 19))
    b[0], b[1] = a[0] + 0.1 * b[0], a[1]
    theirs = [
        skimage.structural_similarity(p / p.max(), q / q.max(), data_range=1.0) for p, q in zip(a, b, strict=True)
    ]
    np.testing.assert_allclose(similarity(a, b), theirs, rtol=1e-9)
    np.testing.assert_allclose(similarity(3 * a, -b / 5), similarity(a, b), rtol=1e-9)
    assert similarity(a[1], b[1]) == pytest.approx(1) and similarity(a, b)[0] > similarity(a, b)[2]
    small = skimage.structural_similarity(a[2, :5, :5] / a[2, :5, :5].max(), b[2, :5, :5] / b[2, :5, :5].max(),
                                          data_range=1.0, win_size=5)  # fmt: skip
    assert similarity(a[2, :5, :5], b[2, :5, :5]) == pytest.approx(small)
    assert similarity(np.zeros((4, 4)), np.zeros((4, 4))) == 1


@settings(max_examples=50, deadline=None)
@given(seeds)
def test_rank_correlation_is_spearman_s_with_ties(seed):
    a, b = generator(seed, purpose="ties").integers(0, 4, (2, 3, 12)).astype(float)
    a[:, :2], b[:, :2] = [-1, 9], [9, -1]  # never constant
    expected = [spearmanr(p, q).statistic for p, q in zip(a, b, strict=True)]
    np.testing.assert_allclose(rank_correlation(a, b), expected, atol=1e-12)
    assert np.isnan(rank_correlation(np.ones(5), np.arange(5)))
    np.testing.assert_allclose(correlation(a, b), [np.corrcoef(p, q)[0, 1] for p, q in zip(a, b, strict=True)])


def clear_net():
    """An MLP that reads ten features with strengths that fall, and the slope of its score."""
    model = Dense((10, 16, 1))
    theta = model.init(0, np.float64)
    first, _ = model.layers(theta)
    first[0][...] *= 0.6 ** np.arange(10)[:, None]
    x = generator(0, purpose="rows").normal(size=(60, 10))

    def slope(at):
        (w0, b0), (w1, _) = model.layers(at)
        return ((x @ w0 + b0 > 0) * w1[:, 0]) @ w0.T

    return model, theta, x, slope


def test_a_slope_shows_the_model_and_a_picture_of_the_input_does_not():
    model, theta, x, slope = clear_net()
    told = randomisation(slope, model, theta, seed=1)
    assert told.layers == ("layer1", "layer0") and told.correlation.shape == (2, 60)
    assert told.mean[0] > 0.5  # the strengths are in the first layer, still as trained
    assert abs(told.mean[1]) < 0.3
    blind = randomisation(lambda at: x * 2, model, theta, seed=1)
    assert blind.mean.tolist() == [1, 1]
    dead = randomisation(lambda at: np.zeros((3, 4)), model, theta, seed=1)
    assert np.isnan(dead.mean).all()


def test_only_the_layers_asked_for_are_drawn_anew():
    model, theta, _, _ = clear_net()
    kept = theta.copy()
    top = randomize(model, theta, 3, layers=["layer1"])
    assert (theta == kept).all()
    assert (top[: 10 * 16 + 16] == theta[: 10 * 16 + 16]).all() and (top[10 * 16 + 16 :] != theta[10 * 16 + 16 :]).all()
    assert (randomize(model, theta, 3) == model.init(3, np.float64)).all()
    assert (randomize(model, theta, 3) != randomize(model, theta, 4)).all()


def test_a_linear_model_that_starts_at_zero_is_drawn_as_wide_as_it_was():
    model = Dense((400, 1))
    theta = generator(0, purpose="w").normal(scale=3, size=401).astype(np.float32)
    anew = randomize(model, theta, 1)
    assert anew.dtype == np.float32 and anew[-1] == 0
    assert anew[:-1].std() == pytest.approx(3, rel=0.15)
    assert abs(np.corrcoef(anew[:-1], theta[:-1])[0, 1]) < 0.2
    assert randomize(model, np.zeros(401), 1)[:-1].std() == pytest.approx(1, rel=0.15)


def test_randomising_layer_by_layer_is_quantus_s_test():
    quantus = pytest.importorskip("quantus")
    import torch
    from torch import nn

    from grandrounds.models.torch_model import TorchModel

    def start(seed):  # Quantus draws each layer from the same seed
        fresh = copy.deepcopy(net)
        for module in fresh:
            if hasattr(module, "reset_parameters"):
                torch.manual_seed(seed + 1)
                module.reset_parameters()
        return {name: p.detach().numpy().copy() for name, p in fresh.named_parameters()}

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)
    ).eval()
    trained = {name: p.detach().clone() for name, p in net.named_parameters()}
    x = generator(0, purpose="x").normal(size=(6, 1, 6, 6)).astype(np.float32)
    y = np.arange(6) % 3

    def slope(model, inputs, targets, **_):
        rows = torch.tensor(inputs, requires_grad=True)
        model(rows)[np.arange(len(rows)), targets].sum().backward()
        return rows.grad.numpy()

    metric = quantus.MPRT(similarity_func=quantus.correlation_spearman, seed=7, disable_warnings=True)
    theirs = metric(model=net, x_batch=x, y_batch=y, explain_func=slope, channel_first=True, device="cpu")
    model = TorchModel(net, outputs=3, initial=start, device="cpu", precision="float32")
    theta = model.layout.pack({name: p.numpy() for name, p in trained.items()})

    def explain(at):
        model.point_at(model.tensor(at))
        return slope(net, x, y)

    ours = randomisation(explain, model, theta, seed=7)
    assert ours.layers == tuple(name for name in theirs if name != "original") == ("5", "3", "0")
    for layer, found in zip(ours.layers, ours.correlation, strict=True):
        np.testing.assert_allclose(found, theirs[layer], atol=1e-9)
    assert theirs["5"] != theirs["3"] != theirs["0"]


def test_what_does_not_fit_is_refused():
    predict, x, _, exact = linear(0)
    rng = generator(0, purpose="r")
    model, theta, *_ = clear_net()
    pictures = np.ones((4, 3, 2, 2))
    cases = [
        (lambda: deletion_auc(predict, x, exact[:, 1:]), "mismatched-shapes"),
        (lambda: deletion_auc(predict, pictures, pictures), "mismatched-shapes"),
        (lambda: deletion_auc(predict, x, exact, features=Features.from_inputs(["a", "b"])), "mismatched-shapes"),
        (lambda: deletion_auc(predict, x, exact * np.inf), "not-finite"),
        (lambda: deletion_auc(predict, x, exact, steps=0), "too-few-steps"),
        (lambda: deletion_auc(predict, x, exact, baseline=np.ones(3)), "bad-baseline"),
        (lambda: deletion_auc(lambda rows: rows, x, exact), "bad-prediction-shape"),
        (lambda: faithfulness_correlation(predict, x, exact, subset=5, rng=rng), "subset-out-of-range"),
        (lambda: similarity(x, x[:2]), "mismatched-shapes"),
        (lambda: randomize(model, theta, 0, layers=["layer2"]), "unknown-layer"),
        (lambda: layer_names(ForestModel(3, 2, 2, 2)), "no-parameters"),
    ]
    for call, code in cases:
        with refused(code):
            call()


def test_nothing_to_judge_is_refused():
    with refused("no-values"):
        concentration(np.zeros((0, 4, 4)))
    with refused("no-values"):
        deletion_auc(lambda x: x.sum(axis=1), np.zeros((0, 3)), np.zeros((0, 3)))
