"""Shapley values against enumeration, axioms, SHAP's own explainers, and models whose reasons are known."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.core.rng import generator
from grandrounds.explain.explainer import measure
from grandrounds.explain.explainers.gradients import path_gradients
from grandrounds.explain.explainers.lime import Lime
from grandrounds.explain.explainers.linear import Coefficients, linear_shap
from grandrounds.explain.explainers.shapley import (
    Shap,
    exact_shapley,
    forest_shap,
    scores,
    shap_deep,
    shap_kernel,
    tree_shap,
)
from grandrounds.explain.features import Features
from grandrounds.models.boosted import BoostedModel
from grandrounds.models.dense import Dense, targets
from grandrounds.models.forest import ForestModel, fit_forest, forest_arrays, from_sklearn
from grandrounds.models.trees import Forest, combine, single_leaf
from tests.explain.test_paths import some, torch_model
from tests.support import refused

EDGES = np.array([0, 1])


def trained(model: Dense, x: np.ndarray, y: np.ndarray, *, seed: int = 0, steps: int = 300) -> np.ndarray:
    """Parameters after some steps of plain gradient descent."""
    theta, target = model.init(seed, float)[None], targets(y, model.outputs, float)[None]
    weight, slope = np.full((1, len(x)), 1 / len(x)), np.empty((1, model.layout.size))
    for _ in range(steps):
        model.gradient(theta, x[None], target, weight, slope)
        theta -= 0.5 * slope
    return theta[0]


def breast_cancer(columns: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Standardised, and rounded to float32, which is how trees see it."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    x = x[:, columns]
    return ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32).astype(float), y


def wine() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    return ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32).astype(float)[:, :6], y


def single(d: int) -> Features:
    return Features.from_inputs([str(j) for j in range(d)])


# --- enumeration ------------------------------------------------------------------------------------


def test_shapley_values_worked_out_by_hand():
    x, background = np.array([[1.0, 2.0, 3.0]]), np.zeros((1, 3))
    found = exact_shapley(lambda r: np.stack([r[:, 0] * r[:, 1] + r[:, 2], r.prod(axis=1)], axis=1), x, background)
    np.testing.assert_allclose(found, [[[1, 1, 3], [2, 2, 2]]])  # a product is shared alike by those it needs


def test_enumeration_is_the_mean_over_all_orders_in_which_features_arrive():
    model, theta, x, background = some((4, 6, 1), rows=2, others=3)
    f = scores(model, theta)
    expected = np.zeros((2, 4))
    for order in permutations(range(4)):
        for i, row in enumerate(x):
            state = background.copy()
            for j in order:
                before = f(state).mean()
                state[:, j] = row[j]
                expected[i, j] += (f(state).mean() - before) / 24
    np.testing.assert_allclose(exact_shapley(f, x, background)[:, 0], expected, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_axioms_hold(seed):
    model, theta, x, background = some((5, 6, 2), seed=seed, rows=2, others=3)
    w = model.layers(theta)[0][0]
    w[3], w[1] = 0, w[0]  # input 3 is never read; 0 and 1 are read alike, and have the same values
    x[:, 1], background[:, 1] = x[:, 0], background[:, 0]
    f = scores(model, theta)
    found = exact_shapley(f, x, background)
    np.testing.assert_allclose(found.sum(axis=2), f(x) - f(background).mean(axis=0), atol=1e-10)
    np.testing.assert_allclose(found[..., 3], 0, atol=1e-12)
    np.testing.assert_allclose(found[..., 0], found[..., 1], atol=1e-10)


def test_a_feature_of_several_inputs_is_one_player():
    features = Features(("category", "age"), np.array([0, 0, 1]))
    x, background = np.array([[1.0, 2.0, 3.0]]), np.zeros((1, 3))
    found = exact_shapley(lambda r: r[:, :1] * r[:, 1:2] + r[:, 2:], x, background, features)
    np.testing.assert_allclose(found, [[[2, 3]]])


def test_enumeration_stops_at_twelve_features():
    with refused("too-many-features", match="13 features"):
        exact_shapley(lambda r: r, np.zeros((1, 13)), np.zeros((1, 13)))


# --- linear models ----------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3])
def test_the_closed_form_equals_linear_explainer_and_enumeration(classes):
    import shap
    from sklearn.linear_model import LogisticRegression

    x, y = breast_cancer(list(range(8))) if classes == 2 else wine()
    fitted = LogisticRegression().fit(x, y)
    model = Dense((x.shape[1], 1 if classes == 2 else classes))
    theta = np.concatenate([fitted.coef_.T.ravel(), fitted.intercept_])
    background = x[:50]
    theirs = shap.LinearExplainer(fitted, background).shap_values(x[60:80])
    ours = linear_shap(model, theta, x[60:80], background)
    assert ours.shape == (20, model.outputs, x.shape[1])
    np.testing.assert_allclose(ours, np.moveaxis(theirs.reshape(20, x.shape[1], -1), 2, 1), atol=1e-6)
    exact = exact_shapley(scores(model, theta), x[60:63], background)
    np.testing.assert_allclose(ours[:3], exact, atol=1e-10)


def test_coefficients_are_read_as_they_are():
    features = Features(("age", "ward"), np.array([0, 1, 1]))
    x, target = np.ones((4, 3)), np.ones((4, 1))
    binary, theta = Dense((3, 1)), np.array([-2.0, 3.0, 4.0, 9.0])
    both = Coefficients(features).rows(binary, np.stack([theta, 2 * theta]), x, target, EDGES)
    np.testing.assert_allclose(both, [[[2, 5]] * 4, [[4, 10]] * 4])
    several = Dense((3, 2))
    weights = np.array([3.0, 4.0, 0.0, 0.0, 5.0, 12.0, 7.0, 7.0])
    np.testing.assert_allclose(Coefficients(features).rows(several, weights, x, target, EDGES), [[5, 13]] * 4)
    importances = measure(Coefficients(features), binary, np.stack([theta, -theta]), x, target)
    np.testing.assert_allclose(importances.values, [[2, 5], [2, 5]])
    np.testing.assert_array_equal(importances.error, 0)


def test_coefficients_of_a_logistic_model_on_torch_and_of_nothing_else():
    from grandrounds.models.torch_build import torch_dense

    model, theta, x, _ = some((5, 3))
    explainer, target = Coefficients(single(5)), np.ones((len(x), 3))
    twin = torch_dense(model, device="cpu", precision="float32")
    np.testing.assert_array_equal(
        explainer.rows(twin, theta, x, target, EDGES), explainer.rows(model, theta, x, target, EDGES)
    )
    deeper, own, rows, _ = some((5, 4, 1))
    for other, params in ((deeper, own), (ForestModel(features=5, classes=2), np.zeros(3))):
        with refused("needs-linear-model"):
            explainer.rows(other, params, rows, target, EDGES)


# --- trees ------------------------------------------------------------------------------------------


def test_a_forest_of_arrays_equals_tree_explainer_on_scikit_learns_own():
    import shap
    from sklearn.ensemble import RandomForestClassifier

    x, y = breast_cancer(list(range(10)))
    fitted = RandomForestClassifier(10, max_depth=6, random_state=0).fit(x, y)
    background, rows = x[:40], x[50:170:10]
    theirs = shap.TreeExplainer(fitted, background).shap_values(rows)
    found = forest_shap(from_sklearn(fitted, classes=2), rows, background)
    np.testing.assert_allclose(found, np.moveaxis(theirs, 2, 1), atol=1e-7)


def test_a_threshold_between_two_neighbours_in_float32_is_not_rounded_up():
    import shap
    from sklearn.ensemble import RandomForestClassifier

    x, y = wine()
    fitted = RandomForestClassifier(10, max_depth=6, random_state=0).fit(x, y)
    background, rows = x[:40], x[50:70:10]
    exact = exact_shapley(fitted.predict_proba, rows, background)
    theirs = shap.TreeExplainer(fitted, background).shap_values(rows, check_additivity=False)
    found = forest_shap(from_sklearn(fitted, classes=3), rows, background)
    np.testing.assert_allclose(found, exact, atol=1e-6)
    assert np.abs(np.moveaxis(theirs, 2, 1) - exact).max() > 0.01  # what SHAP says of scikit-learn's own thresholds


def test_a_union_of_forests_is_explained_by_its_weights_and_every_background_row():
    x, y = breast_cancer([0, 1, 4, 5])
    background = x[:150]  # SHAP by itself would draw a hundred of them
    forests = [fit_forest(x[cut], y[cut], classes=2, trees=4, depth=4, seed=1) for cut in (slice(200), slice(200, 400))]
    union = combine([*forests, single_leaf(np.array([0.5, 0.5]))], np.array([3.0, 1.0, 4.0]))
    rows = x[400:403]
    parts = [forest_shap(forest, rows, background) for forest in forests]
    np.testing.assert_allclose(forest_shap(union, rows, background), (3 * parts[0] + parts[1]) / 8, atol=1e-8)
    exact = exact_shapley(union.probabilities, rows, background)
    np.testing.assert_allclose(forest_shap(union, rows, background), exact, atol=1e-6)


@pytest.mark.parametrize("data", ["breast-cancer", "wine"])
def test_boosted_trees_are_explained_in_logits_class_by_class(data):
    x, y = breast_cancer(list(range(6))) if data == "breast-cancer" else wine()
    model = BoostedModel(features=6, classes=int(y.max()) + 1, trees=5, depth=3)
    theta = model.fit(x, y, seed=0)
    background, rows = x[:20], x[[30, 90, 140]]
    exact = exact_shapley(scores(model, theta), rows, background)
    np.testing.assert_allclose(tree_shap(model, theta, rows, background), exact, atol=1e-6)
    explainer = Shap(single(6), background)
    found = explainer.rows(model, theta, rows, targets(y[[30, 90, 140]], model.outputs), EDGES)
    chosen = y[[30, 90, 140]] if model.outputs > 1 else np.zeros(3, int)
    np.testing.assert_allclose(found, np.abs(exact[np.arange(3), chosen]), atol=1e-6)
    assert not explainer.rows(model, model.init(0), rows, targets(y[:3], model.outputs), EDGES).any()


def test_a_tree_too_large_for_shap_is_refused():
    inner, nodes = 2**15 - 1, 2**16 - 1
    split = np.arange(nodes) < inner
    child = 2 * np.arange(nodes) + 1
    forest = Forest(
        feature=np.where(split, 0, -1)[None],
        threshold=np.zeros((1, nodes)),
        left=np.where(split, child, -1)[None],
        right=np.where(split, child + 1, -1)[None],
        value=np.full((1, nodes, 2), 0.5),
        weight=np.ones(1),
    )
    with refused("trees-too-large", match="32767"):
        forest_shap(forest, np.zeros((1, 1)), np.zeros((1, 1)))


def test_trees_that_say_the_same_to_all_have_no_reasons_and_strange_rows_are_refused():
    model = ForestModel(features=3, classes=2)
    rows = np.zeros((2, 3))
    assert not tree_shap(model, model.init(0), rows, rows).any()
    for bad in (np.zeros((2, 4)), np.full((2, 3), np.nan)):
        with refused("bad-rows", match="3"):
            tree_shap(model, model.init(0), rows, bad)


# --- the explainer that picks -----------------------------------------------------------------------


def test_shap_picks_the_way_that_a_model_has():
    x, y = breast_cancer([0, 1, 4, 5, 6])
    features = Features(("a", "b", "c"), np.array([0, 1, 2, 2, 1]))
    explainer, rows = Shap(features, x[:30], steps=7), x[40:44]
    linear, mlp = Dense((5, 1)), Dense((5, 8, 1))
    forest = ForestModel(features=5, classes=2, trees=5, depth=4)
    target = targets(y[40:44], 1)
    closed = features.sum_inputs(linear_shap(linear, np.arange(6.0), rows, x[:30])[:, 0])
    np.testing.assert_allclose(explainer.rows(linear, np.arange(6.0), rows, target, EDGES), np.abs(closed))
    theta = mlp.init(0, float)
    along = features.sum_inputs(path_gradients(mlp, theta, rows, x[:30], steps=7))
    np.testing.assert_array_equal(explainer.rows(mlp, theta, rows, target, EDGES), np.abs(along))
    grown = forest.fit(x, y, seed=0)
    vote = features.sum_inputs(exact_shapley(scores(forest, grown), rows, x[:30])[:, 1])
    np.testing.assert_allclose(explainer.signed(forest, grown, rows, np.ones(4, int)), vote, atol=1e-6)
    both = explainer.rows(forest, grown, rows, targets(y[40:44], 2), EDGES)
    np.testing.assert_allclose(both, np.abs(vote), atol=1e-6)
    with refused("unknown-output", match="no output 2"):
        explainer.signed(forest, grown, rows, np.full(4, 2))


def test_forests_of_different_sizes_are_measured_side_by_side():
    x, y = breast_cancer([0, 1, 4])
    model = ForestModel(features=3, classes=2, trees=3, depth=3)
    several = [model.fit(x[:200], y[:200], seed=0), model.layout.pack(forest_arrays(single_leaf(np.array([0.2, 0.8]))))]
    found = measure(Shap(single(3), x[:20]), model, several, x[300:310], targets(y[300:310], 2))
    assert found.values[0].all()
    assert not found.values[1].any()


@pytest.mark.parametrize("kind", ["linear", "mlp", "forest", "boosted"])
def test_a_site_without_rows_has_no_importances(kind):
    x, y = breast_cancer([0, 1, 4])
    model = {
        "linear": Dense((3, 1)),
        "mlp": Dense((3, 4, 1)),
        "forest": ForestModel(features=3, classes=2, trees=2, depth=2),
        "boosted": BoostedModel(features=3, classes=2, trees=2, depth=2),
    }[kind]
    own = model.init(0) + 1 if isinstance(model, Dense) else model.fit(x, y, seed=0)
    target, offsets = targets(y[:9], model.outputs), np.array([0, 0, 9])
    for explainer in (Shap(single(3), x[:5]), Lime(single(3), x[:5], samples=50)):
        found = measure(explainer, model, [own, own], x[:9], target, offsets)
        np.testing.assert_array_equal(found.values[0], 0)
        assert found.values[1].all()


@pytest.mark.parametrize("hidden", [(16,), (8, 8), (64, 32)])
def test_path_gradients_rank_as_exact_shapley_values_do(hidden):
    from scipy.stats import spearmanr

    x, y = breast_cancer([0, 1, 4, 5, 6, 20, 24, 27])
    model = Dense((8, *hidden, 1))
    theta = trained(model, x, y)
    rng = generator(0, purpose="test")
    rows, background = x[rng.choice(len(x), 15)], x[rng.choice(len(x), 20)]
    exact = exact_shapley(scores(model, theta), rows, background)[:, 0]
    found = path_gradients(model, theta, rows, background)
    assert spearmanr(found.ravel(), exact.ravel()).statistic > 0.98
    importance = spearmanr(np.abs(found).mean(axis=0), np.abs(exact).mean(axis=0)).statistic
    assert importance > 0.9
    assert np.linalg.norm(found - exact) < 0.2 * np.linalg.norm(exact)


def test_the_columns_that_decide_the_label_come_first():
    rng = generator(3, purpose="test")
    x = rng.normal(size=(400, 6))
    y = ((x[:, 1] > 0) ^ (x[:, 4] > 0)).astype(int)  # neither column tells anything by itself
    model = Dense((6, 16, 1))
    theta = trained(model, x, y, steps=2000)
    assert ((model.logits(theta, x)[:, 0] > 0) == y).mean() > 0.9
    found = measure(Shap(single(6), x[:40]), model, theta[None], x[100:200], targets(y[100:200], 1))
    assert set(np.argsort(found.values[0])[-2:]) == {1, 4}
    assert found.values[0][[1, 4]].min() > 3 * np.delete(found.values[0], [1, 4]).max()


# --- single cases -----------------------------------------------------------------------------------


def test_deep_explainer_adds_up_and_meets_the_path_integral_of_one_hidden_layer():
    model, theta, x, background = some((5, 9, 3))
    found = shap_deep(model, theta, x, background)
    assert found.shape == (6, 3, 5)
    change = model.logits(theta, x) - model.logits(theta, background).mean(axis=0)
    np.testing.assert_allclose(found.sum(axis=2), change, atol=1e-9)
    along = path_gradients(model, theta, x, background, steps=5000, outputs=2)
    np.testing.assert_allclose(found[:, 2], along, atol=5e-3)


def test_deep_explainer_follows_a_torch_net_of_layers_and_refuses_one_it_cannot_follow():
    import torch
    from torch.nn.functional import relu

    class Between(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = torch.nn.Linear(5, 9), torch.nn.Linear(9, 2)

        def forward(self, x):
            return self.two(relu(self.one(x)))

    torch.manual_seed(0)
    layers = [torch.nn.Linear(5, 9), torch.nn.ReLU(), torch.nn.Linear(9, 2)]
    model, theta = torch_model(torch.nn.Sequential(*layers), 2)
    _, _, x, background = some((5, 9, 2))
    found = shap_deep(model, 2 * theta, x, background)
    change = model.logits(2 * theta, x) - model.logits(2 * theta, background).mean(axis=0)
    np.testing.assert_allclose(found.sum(axis=2), change, atol=1e-9)
    hidden, own = torch_model(Between(), 2)
    with refused("unsupported-net"):
        shap_deep(hidden, own, x, background)
    forest = ForestModel(features=5, classes=2)
    with refused("no-gradient"):
        shap_deep(forest, forest.init(0), x, background)


def test_kernel_explainer_is_exact_with_all_coalitions():
    model, theta, x, background = some((5, 6, 3), rows=2)
    exact = exact_shapley(scores(model, theta), x, background)
    np.testing.assert_allclose(shap_kernel(model, theta, x, background), exact, atol=1e-8)
    rows, y = breast_cancer([0, 1, 4, 5])
    forest = ForestModel(features=4, classes=2, trees=3, depth=3)
    grown = forest.fit(rows, y, seed=0)
    vote = shap_kernel(forest, grown, rows[:2], rows[10:20])
    np.testing.assert_allclose(vote, tree_shap(forest, grown, rows[:2], rows[10:20]), atol=1e-8)


def test_kernel_explainer_keeps_to_its_own_seed():
    model, theta, x, background = some((14, 6, 1), rows=1)
    np.random.seed(5)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = shap_kernel(model, theta, x, background, samples=60, seed=1)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    np.random.seed(6)  # noqa: NPY002
    np.testing.assert_array_equal(shap_kernel(model, theta, x, background, samples=60, seed=1), first)
    assert not np.array_equal(shap_kernel(model, theta, x, background, samples=60, seed=2), first)
    assert first.all()  # no lasso keeps ten features and drops the rest
