"""XFed's four numbers against direct computation, with and without masks, and of models that are none."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.core.rng import generator
from grandrounds.explain.agreement import grid_accuracy, xai_accuracy
from grandrounds.explain.explainers.heat import heat
from grandrounds.explain.rationale import RationaleRule, grid_scenes, score_rationale
from tests.support import refused

pytest.importorskip("torch")

from tests.explain.test_heat import net

HOW = {"steps": 2, "samples": 2, "sigma": 0.5, "seed": 7}
RULE = RationaleRule(seed=7, steps=2, samples=2)


def models(model, count: int) -> np.ndarray:
    return np.stack([model.init(seed, np.float64) for seed in range(count)])


def scored(n=12, *, classes=10, shape=(1, 28, 28)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pictures, classes, and masks of the left half."""
    rng = generator(0, purpose="scored")
    masks = np.broadcast_to(np.arange(shape[2]) < shape[2] // 2, (n, *shape[1:])).copy()
    return rng.standard_normal((n, *shape)), np.arange(n) % classes, masks


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_accuracy_and_loss_are_those_of_the_logits(classes):
    """Two classes have one logit, and the other's is 0."""
    model = net(shape=(1, 28, 28), classes=classes)
    x, y, _ = scored(classes=classes)
    held = 3 * models(model, 3)
    found = score_rationale(RationaleRule(seed=0, grid=0), model, held, x, y, None)
    for k, theta in enumerate(held):
        logits = model.logits(theta, x)
        if classes == 2:
            chance = 1 / (1 + np.exp(-logits[:, 0]))
            chances = np.stack([1 - chance, chance], axis=1)
        else:
            chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        assert found["rationale.accuracy"][k] == (chances.argmax(axis=1) == y).mean()
        assert found["rationale.loss"][k] == pytest.approx(-np.log(chances[np.arange(len(y)), y]).mean())
    assert len(set(found["rationale.loss"])) == 3


@pytest.mark.data("xfed_masks")
def test_xai_accuracy_on_the_published_masks_is_that_of_the_heat_maps(published):
    model = net(shape=(1, 28, 28))
    some = np.arange(0, 102, 6)
    x = published.pixels[some].transpose(0, 3, 1, 2) / 255.0
    y, masks = published.label[some].astype(int), published.masks[some]
    held = models(model, 2)
    for form in ("mass", "pixels", "nonzero"):
        rule = RationaleRule(seed=7, form=form, top=0.1, grid=0, steps=2, samples=2)
        found = score_rationale(rule, model, held, x, y, masks)
        direct = [
            xai_accuracy(heat("integrated_gradients", model, t, x, y, **HOW), masks, form=form, q=0.1) for t in held
        ]
        assert found["rationale.xai"].tolist() == [float(d) for d in direct]
        assert np.isnan(found["rationale.grid"]).all()


def test_grid_accuracy_is_that_of_scenes_which_are_the_same_for_every_model_and_every_call():
    model = net(shape=(1, 28, 28))
    x, y, _ = scored()
    held = models(model, 2)
    found = score_rationale(RULE, model, held, x, y, None)
    scenes = grid_scenes(x, y, 2, generator(7, purpose="scenes"))
    warm = [heat("integrated_gradients", model, t, scenes.x, scenes.y, **HOW) for t in held]
    assert found["rationale.grid"].tolist() == [float(grid_accuracy(w, scenes.cell, 2)) for w in warm]
    one_by_one = [score_rationale(RULE, model, t[None], x, y, None)["rationale.grid"][0] for t in held]
    assert found["rationale.grid"].tolist() == one_by_one
    twins = score_rationale(RULE, model, held[[1, 1]], x, y, None)
    assert all(a == b or np.isnan([a, b]).all() for a, b in twins.values()), "equal models have equal scores"


def test_without_masks_that_can_be_scored_there_is_no_xai_accuracy():
    model = net(shape=(1, 28, 28))
    x, y, masks = scored()
    held = models(model, 1)
    assert np.isnan(score_rationale(RULE, model, held, x, y, None)["rationale.xai"]).all()
    assert np.isnan(score_rationale(RULE, model, held, x, y, np.zeros_like(masks))["rationale.xai"]).all()
    assert np.isfinite(score_rationale(RULE, model, held, x, y, masks)["rationale.xai"]).all()


def test_a_picture_with_an_empty_or_full_mask_has_no_say():
    model = net(shape=(1, 28, 28))
    x, y, masks = scored()
    held = models(model, 1)
    spoiled = masks.copy()
    spoiled[0], spoiled[1] = False, True
    found = score_rationale(RULE, model, held, x, y, spoiled)["rationale.xai"]
    plain = heat("integrated_gradients", model, held[0], x, y, **HOW)
    assert found.tolist() == [float(xai_accuracy(plain[2:], masks[2:]))]


def test_a_model_that_diverged_has_no_scores_and_does_not_spoil_the_others():
    model = net(shape=(1, 28, 28))
    x, y, masks = scored()
    held = models(model, 3)
    alone = score_rationale(RULE, model, held[[0, 2]], x, y, masks)
    held[1] = np.nan
    found = score_rationale(RULE, model, held, x, y, masks)
    for name, values in found.items():
        assert np.isnan(values[1])
        assert values[[0, 2]].tolist() == alone[name].tolist()


def test_a_rule_survives_the_wire_and_one_of_another_version_is_refused():
    rule = RationaleRule(seed=2**70, form="pixels", top=0.1, grid=3, steps=1, samples=2, sigma=0.0)
    assert RationaleRule.from_json(rule.to_json()) == rule
    for text in ('{"seed": 1, "sharpness": 2}', "{}", "[", "3"):
        with refused("unreadable-rule"):
            RationaleRule.from_json(text)
