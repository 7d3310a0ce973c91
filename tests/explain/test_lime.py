"""LIME against Captum's, scikit-learn's ridge, and linear models, whose attributions are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.rng import generator
from grandrounds.explain.explainer import measure
from grandrounds.explain.explainers.lime import Lime, lime
from grandrounds.explain.explainers.linear import linear_shap
from grandrounds.explain.features import Features
from grandrounds.models.dense import targets
from grandrounds.models.forest import ForestModel
from tests.explain.test_paths import chain, some
from tests.support import refused

GROUPED = Features(("age", "ward", "lactate"), np.array([0, 1, 2, 1]))


def test_a_linear_model_is_explained_exactly_from_one_background_row():
    model, theta, x, background = some((4, 1))
    w = model.layers(theta)[0][0][:, 0]
    found = lime(
        lambda r: model.logits(theta, r)[:, 0],
        x[0],
        Features.from_inputs("abcd"),
        background[:1],
        samples=60,
        ridge=1e-9,
    )
    np.testing.assert_allclose(found, w * (x[0] - background[0]), atol=1e-8)


def test_with_many_background_rows_a_linear_model_is_explained_on_average():
    model, theta, x, background = some((4, 1), others=30)
    expected = GROUPED.sum_inputs(linear_shap(model, theta, x, background)[:, 0])[0]
    found = [
        lime(lambda r: model.logits(theta, r)[:, 0], x[0], GROUPED, background, samples=2000, seed=seed)
        for seed in range(20)
    ]
    spread = np.std(found, axis=0) / np.sqrt(20)
    assert (np.abs(np.mean(found, axis=0) - expected) < 4 * spread).all()
    assert (spread < 0.05).all()


@pytest.mark.parametrize("ridge", [1e-3, 1.0])
def test_the_same_samples_give_what_captum_gives(ridge):
    import torch
    from captum._utils.models.linear_model import SkLearnRidge
    from captum.attr import Lime as CaptumsOwn

    model, theta, x, background = some((4, 6, 5, 3))
    ours = Lime(GROUPED, background[:1], samples=80, seed=3, ridge=ridge)

    def samples(original, **_):
        for kept in ours.keep_mask:
            yield torch.tensor(kept[None].astype(np.int64))

    def near(original, perturbed, kept, **_):
        return float(np.exp(-(3 - kept.sum().item()) / (0.75**2 * 3)))

    theirs = CaptumsOwn(
        chain(model, theta), SkLearnRidge(alpha=ridge), similarity_func=near, perturb_func=samples
    ).attribute(
        torch.tensor(x[:1]),
        torch.tensor(background[:1]),
        target=2,
        feature_mask=torch.tensor(GROUPED.feature_index[None]),
        n_samples=80,
        return_input_shape=False,
    )
    np.testing.assert_allclose(ours.signed(model, theta, x[:1], np.array([2]))[0], theirs[0].numpy(), atol=1e-4)


def test_the_fit_is_scikit_learns_weighted_ridge():
    from sklearn.linear_model import Ridge

    model, theta, x, background = some((4, 6, 1))
    ours = Lime(GROUPED, background, samples=50, seed=1, ridge=0.3)
    scores = model.logits(theta, ours.sample_around(x[0]))[:, 0]
    theirs = Ridge(alpha=0.3).fit(ours.keep_mask, scores, sample_weight=ours.proximity)
    np.testing.assert_allclose(ours.signed(model, theta, x[:1], np.array([0]))[0], theirs.coef_, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), samples=st.integers(2, 60))
def test_a_feature_is_kept_or_drawn_as_a_whole(seed, samples):
    rng = generator(seed, purpose="test")
    background = rng.normal(size=(7, 4))
    row = np.full(4, 9.0)
    around = Lime(GROUPED, background, samples=samples, seed=seed)
    found = around.sample_around(row)
    np.testing.assert_array_equal(found[0], row)
    for f, inputs in enumerate(GROUPED.groups):
        for sample, kept in zip(found[:, inputs], around.keep_mask[:, f], strict=True):
            wanted = row[None, inputs] if kept else background[:, inputs]
            assert (wanted == sample).all(axis=1).any()
    np.testing.assert_allclose(around.proximity[0], 1)
    assert (np.diff(around.proximity[np.argsort(around.keep_mask.sum(axis=1))]) >= 0).all()


def test_the_seed_decides_the_samples():
    model, theta, x, background = some((4, 6, 1), others=20)

    def explained(seed):
        return lime(lambda r: model.logits(theta, r)[:, 0], x[0], GROUPED, background, samples=200, seed=seed)

    np.testing.assert_array_equal(explained(1), explained(1))
    assert not np.array_equal(explained(1), explained(2))
    kept = [Lime(GROUPED, background, seed=seed).keep_mask for seed in (1, 2)]
    assert not np.array_equal(*kept)


def test_in_the_loop_rows_and_models_share_their_samples():
    model, theta, x, background = some((4, 6, 5, 3), others=20)
    y = np.array([0, 2, 1, 1, 0, 2])
    explainer = Lime(GROUPED, background, samples=100, seed=4)
    both = np.stack([theta, -theta])
    found = explainer.rows(model, both, x, targets(y, 3, float), np.array([0, 6]))
    assert found.shape == (2, 6, 3)
    for k, own in enumerate(both):
        for i, c in enumerate(y):
            alone = lime(
                lambda r, own=own, c=c: model.logits(own, r)[:, c], x[i], GROUPED, background, samples=100, seed=4
            )
            np.testing.assert_allclose(found[k, i], np.abs(alone), atol=1e-12)
    np.testing.assert_allclose(measure(explainer, model, both, x, targets(y, 3)).values, found.mean(axis=1))


def test_a_forest_is_explained_by_its_vote():
    rng = generator(0, purpose="test")
    x = rng.normal(size=(200, 4))
    y = (x[:, 2] > 0).astype(int)
    model = ForestModel(features=4, classes=2, trees=10, depth=2)
    theta = model.fit(x, y, seed=0)
    found = Lime(Features.from_inputs("abcd"), x[:50]).signed(model, theta, x[100:110], np.ones(10, int))
    assert (np.abs(found).argmax(axis=1) == 2).all()
    np.testing.assert_array_equal(np.sign(found[:, 2]), np.where(x[100:110, 2] > 0, 1, -1))
    assert np.abs(found).max() < 1


def test_what_lime_cannot_explain_is_refused():
    _, _, x, background = some((4, 6, 3))
    with refused("bad-prediction-shape", match=r"\(5000, 4\)"):
        lime(lambda r: r, x[0], GROUPED, background)
    with refused("too-few-samples", match="not 1"):
        Lime(GROUPED, background, samples=1)
    with refused("bad-background"):
        lime(lambda r: r[:, 0], x[0], GROUPED, background[:, :2])
