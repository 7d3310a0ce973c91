"""One model on scoring pictures, picture by picture, worked out by hand; and its baselines."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.core.rng import generator
from grandrounds.explain.rationale import (
    SHUFFLES,
    HeatScores,
    RationaleRule,
    baselines,
    score_images,
    score_rationale,
    shuffle_weights,
)

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.explain.test_heat import net, own  # noqa: E402
from tests.explain.test_rationale import RULE  # noqa: E402
from tests.explain.test_rationale import scored as some_pictures  # noqa: E402

BY_HAND = RationaleRule(seed=0, top=0.5, grid=0, steps=5, samples=1, sigma=0.0)


def linear():
    """Of a linear net integrated gradients from 0 are weights x pixels; here the weights are 4, 1, -2, 1."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    with torch.no_grad():
        module[1].weight.copy_(torch.tensor([[4.0, 1, -2, 1]]))
        module[1].bias.zero_()
    return own(module, outputs=1)


def four():
    """Four pictures of 2 x 2 pixels: all ones, (-1, 0, 1, 3), (1, 1, 1, -1), all ones; the last has a full mask."""
    x = np.array([[1, 1, 1, 1], [-1, 0, 1, 3], [1, 1, 1, -1], [1, 1, 1, 1]], float).reshape(4, 1, 2, 2)
    masks = np.array([[1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 1, 1], [1, 1, 1, 1]], bool).reshape(4, 2, 2)
    return x, np.array([1, 0, 0, 1]), masks


def test_every_figure_of_a_linear_net_is_the_one_worked_out_by_hand():
    """Logits 4, -3, 2, 4; heat (4, 1, 2, 1), (4, 0, 2, 3), (4, 1, 2, 1); of each the two hottest pixels count.

    r: 2.5 / 1.5, 2 / (7 / 3), (7 / 3) / 1. Masked, the logits are 5, -2 and 1: the third picture is still called wrong.
    """
    model, theta = linear()
    x, y, masks = four()
    found = score_images(BY_HAND, model, theta, x, y, masks)
    assert found.right.tolist() == [1, 1, 0, 1] and found.heated is not None
    np.testing.assert_allclose(found.logits[:, 0], [4, -3, 2, 4])
    np.testing.assert_allclose(found.heated.ratio, [5 / 3, 6 / 7, 7 / 3, np.nan])
    np.testing.assert_allclose(found.heated.in_mask, [1 / 2, 0, 2 / 3, np.nan])
    np.testing.assert_allclose(found.heated.iou, [1 / 3, 0, 2 / 3, np.nan])
    np.testing.assert_allclose(found.masked_right, [1, 1, 0, np.nan])
    losses = [np.log1p(np.exp(-4)), np.log1p(np.exp(-3)), np.log1p(np.exp(2)), np.log1p(np.exp(-4))]
    assert found.figures() == pytest.approx(
        {
            "accuracy": 3 / 4,
            "cross_entropy": np.mean(losses),
            "xai": 2 / 3,
            "in_mask": 7 / 18,
            "iou": 1 / 3,
            "masked_accuracy": 2 / 3,
            "pictures": 4,
            "scored": 3,
        }
    )


def test_the_printed_form_counts_a_ratio_of_one():
    heat, masks = np.ones((1, 2, 2)), four()[2][:1]
    assert HeatScores.from_heat(heat, masks, RationaleRule(seed=0, form="nonzero")).figures()["xai"] == 1
    assert HeatScores.from_heat(heat, masks, RationaleRule(seed=0)).figures()["xai"] == 0


def test_it_agrees_with_what_a_site_reports():
    model = net(shape=(1, 28, 28))
    x, y, masks = some_pictures()
    theta = model.init(3, np.float64)
    said = score_rationale(RULE, model, theta[None], x, y, masks)
    found = score_images(RULE, model, theta, x, y, masks).figures()
    for name, signal in {"accuracy": "accuracy", "loss": "cross_entropy", "xai": "xai", "grid": "grid"}.items():
        assert said[f"rationale.{name}"][0] == found[signal]


@pytest.mark.parametrize("spoil", [lambda m: None, np.zeros_like, np.ones_like], ids=["no masks", "empty", "full"])
def test_without_masks_there_is_only_what_can_be_had(spoil):
    model = net(shape=(1, 28, 28))
    x, y, masks = some_pictures()
    found = score_images(RULE, model, model.init(0, np.float64), x, y, spoil(masks))
    assert set(found.figures()) == {"accuracy", "cross_entropy", "grid", "pictures", "scored"}
    assert found.figures()["scored"] == 0 and found.heated is None


@pytest.mark.parametrize("value", [np.nan, 1e200], ids=["no numbers", "overflow"])
def test_a_model_that_diverged_has_no_figure_and_raises_nothing(value):
    model = net(shape=(1, 28, 28))
    x, y, masks = some_pictures()
    with np.errstate(all="raise"):
        found = score_images(RULE, model, np.full_like(model.init(0, np.float64), value), x, y, masks).figures()
    assert (found["pictures"], found["scored"]) == (12, 12)
    assert all(np.isnan(v) for name, v in found.items() if name not in ("pictures", "scored"))


# Baselines


def test_heat_that_looks_at_nothing_scores_what_it_must():
    """Masks of the left half: noise is at 1/2 and 1/4; a blob in the middle, or in each cell, is the same on both sides."""
    model = net(shape=(1, 28, 28))
    x, y, masks = some_pictures()
    found = baselines(model, model.init(0, np.float64), x, y, masks, RULE)
    assert set(found) == {"noise", "centre blob", "blob per cell", "shuffled weights"}
    assert found["noise"]["xai"] == pytest.approx(0.5, abs=0.03)
    assert found["noise"]["grid"] == pytest.approx(0.25, abs=0.03)
    assert found["noise"]["in_mask"] == pytest.approx(0.25, abs=0.01)
    assert found["centre blob"]["grid"] == found["blob per cell"]["grid"] == pytest.approx(0.25)
    middle = np.zeros_like(masks)
    middle[:, 10:18, 10:18] = True
    found = baselines(model, model.init(0, np.float64), x, y, middle, RULE)
    assert found["centre blob"]["xai"] == 1 and found["blob per cell"]["xai"] == 0, "objects are centred"


def test_shuffled_weights_keep_every_block_and_lose_their_order():
    model = net(shape=(1, 28, 28))
    theta = model.init(0, np.float64)
    other = shuffle_weights(model, theta, generator(0, purpose="test"))
    assert (other != theta).mean() > 0.9
    for _, at, _ in model.layout.slices:
        assert sorted(other[at]) == sorted(theta[at])


def test_the_shuffled_net_is_the_mean_of_several_and_the_same_each_time():
    model = net(shape=(1, 28, 28))
    x, y, masks = some_pictures()
    theta = model.init(0, np.float64)
    found = baselines(model, theta, x, y, masks, RULE)["shuffled weights"]
    assert found == baselines(model, theta, x, y, masks, RULE)["shuffled weights"]
    rng = generator(RULE.seed, purpose="shuffled weights")
    each = [
        score_images(RULE, model, shuffle_weights(model, theta, rng), x, y, masks).figures() for _ in range(SHUFFLES)
    ]
    for name in ("accuracy", "cross_entropy", "xai", "in_mask", "iou", "masked_accuracy", "grid"):
        assert found[name] == pytest.approx(np.mean([e[name] for e in each]))


def test_without_masks_and_scenes_only_shuffled_weights_have_a_score():
    model = net(shape=(1, 28, 28))
    x, y, _ = some_pictures()
    found = baselines(model, model.init(0, np.float64), x, y, None, RationaleRule(seed=0, grid=0, steps=1, samples=1))
    assert found["noise"] == found["centre blob"] == found["blob per cell"] == {}
    assert set(found["shuffled weights"]) == {"accuracy", "cross_entropy"}
