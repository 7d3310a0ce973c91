"""Heat maps as numbers: worked out by hand on a net of four weights, on dark maps, and between sites."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log

import numpy as np
import pytest

from grandrounds.core.rng import generator
from grandrounds.explain.map_metrics import (
    MAP_NUMBERS,
    NUMBERS,
    SIMILARITY_NUMBERS,
    SIZE,
    MapRule,
    compare_maps,
    label_numbers,
    mean,
    mean_site_similarity,
    measure_maps,
)
from grandrounds.explain.quality import similarity
from tests.support import refused

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from grandrounds.models.torch_model import TorchModel  # noqa: E402

SALIENCY = MapRule(("saliency",), rows=16, seed=0)


def linear(weights) -> tuple[TorchModel, np.ndarray]:
    """One logit, w x, of pictures of 2 x 2: its saliency is |w|, whatever the picture."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    held = {"1.weight": np.array([weights], float), "1.bias": np.zeros(1)}
    model = TorchModel(module, outputs=1, initial=lambda seed: held, device="cpu", precision="float64")
    return model, model.init(0, np.float64)


def sigmoid(z: float) -> float:
    return 1 / (1 + exp(-z))


def area(scores) -> float:
    """Trapezoids of width 1/4."""
    return sum((a + b) / 8 for a, b in pairwise(scores))


def test_numbers_worked_out_by_hand():
    """w = (3, 1, 0, 0), all pixels 1: logits fall from 4 to 1 to 0 as the hottest pixels go; class 0 has the other side."""
    model, theta = linear([3, 1, 0, 0])
    x, masks = np.ones((2, 1, 2, 2)), np.zeros((2, 2, 2), bool)
    masks[:, 0, 0] = True
    one = measure_maps(SALIENCY, model, theta[None], x[:1], np.array([1]), masks[:1])
    gone, come = (area([sigmoid(z) for z in logits]) for logits in ([4, 1, 0, 0, 0], [0, 3, 4, 4, 4]))
    even = -0.75 * log(0.75) - 0.25 * log(0.25)
    gini = (0 * -3 + 0 * -1 + 0.25 * 1 + 0.75 * 3) / 4
    np.testing.assert_allclose(one.numbers["saliency"][0], [1 - even / log(4), gini, 0.75, gone, come, 0])
    other = measure_maps(SALIENCY, model, theta[None], x[:1], np.array([0]), None).numbers["saliency"][0]
    np.testing.assert_allclose(other[3:5], [1 - gone, 1 - come])
    assert np.isnan(other[MAP_NUMBERS.index("inside")]), "without a mask nobody knows what is inside"
    both = measure_maps(SALIENCY, model, theta[None], x, np.array([0, 1]), masks)
    np.testing.assert_allclose(both.numbers["saliency"][0, 3:5], [0.5, 0.5])
    np.testing.assert_allclose(both.probabilities[0], [[1 - sigmoid(4), sigmoid(4)]] * 2)


def test_a_stack_of_models_is_each_of_them():
    model, theta = linear([3, 1, 0, 0])
    x, y = generator(0, purpose="pictures").standard_normal((3, 1, 2, 2)), np.array([0, 1, 1])
    two = measure_maps(SALIENCY, model, np.stack([theta, -2 * theta]), x, y, None)
    for j, own in enumerate((theta, -2 * theta)):
        alone = measure_maps(SALIENCY, model, own[None], x, y, None)
        np.testing.assert_array_equal(two.numbers["saliency"][j], alone.numbers["saliency"][0])
        np.testing.assert_array_equal(two.heat["saliency"][j], alone.heat["saliency"][0])


def test_dark_maps_are_counted_and_left_out():
    """A net that looks at nothing is not 'even and outside the mask', and two of them are not 'alike'."""
    model, theta = linear([0, 0, 0, 0])
    found = measure_maps(
        SALIENCY, model, theta[None], np.ones((2, 1, 2, 2)), np.array([0, 1]), np.eye(2, dtype=bool)[None][[0, 0]]
    )
    assert found.numbers["saliency"][0, -1] == 1
    assert np.isnan(found.numbers["saliency"][0, :-1]).all()
    dark, lit = np.zeros((1, 4, 4)), np.arange(16.0).reshape(1, 4, 4)
    assert np.isnan(compare_maps(dark, dark)).all()
    ssim, rank = compare_maps(dark, lit)
    assert ssim < 0.1 and np.isnan(rank)
    np.testing.assert_allclose(compare_maps(np.concatenate([dark, lit]), np.concatenate([dark, lit])), [1, 1])


def test_likeness_of_the_same_and_of_the_opposite():
    a = generator(0, purpose="maps").random((2, 8, 8))
    np.testing.assert_allclose(compare_maps(a, 3 * a), [1, 1])
    assert compare_maps(a, 1 - a)[1] == pytest.approx(-1)


def test_between_sites_is_the_mean_over_pairs():
    a, b = generator(1, purpose="maps").random((2, 1, 8, 8))
    ssim, rank = mean_site_similarity(np.stack([a, a, b]))
    one = similarity(a, b)[0]
    assert ssim == pytest.approx((1 + 2 * one) / 3)
    assert rank == pytest.approx((1 + 2 * compare_maps(a, b)[1]) / 3)


def test_means_leave_out_what_is_unknown():
    found = mean(np.array([[1.0, np.nan, np.nan], [3.0, 4.0, np.nan]]))
    np.testing.assert_array_equal(found, [2, 4, np.nan])


def test_numbers_have_their_names_in_the_order_they_are_sent_in():
    told = label_numbers(np.arange(2 * SIZE).reshape(2, SIZE), ("a", "b"))
    assert list(told["b"]) == list(NUMBERS) == ["local", "common", "alike", "since"]
    assert told["a"]["common"]["concentration"] == len(MAP_NUMBERS)
    assert told["b"]["alike"] == {name: SIZE + 2 * len(MAP_NUMBERS) + i for i, name in enumerate(SIMILARITY_NUMBERS)}
    assert list(told["a"]["since"].values()) == [14, 15, 16, 17]


def test_a_rule_travels_as_text_and_strange_ones_are_refused():
    rule = MapRule(("grad_cam", "normgrad"), rows=5, seed=3)
    assert MapRule.from_json(rule.to_json()) == rule
    for text in ("{}", "[1]", "no", '{"names": ["saliency"], "rows": 1, "seed": 0, "more": 1}'):
        with refused("unreadable-rule"):
            MapRule.from_json(text)
