"""Shapley values of trees: all coalitions, SHAP's own TreeExplainer, and sums; arrays of strangers."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.capabilities.statistics.models.column_trees import TreesModel
from grandrounds.capabilities.statistics.models.columns import write_columns
from grandrounds.core.errors import BadInput
from grandrounds.explain.explainers.shapley import Shap, exact_shapley, tree_shap
from grandrounds.explain.features import Features
from grandrounds.models import build_model
from tests.capabilities.statistics.models.random_trees import (
    CATEGORIES,
    FEATURES,
    NUMBERS,
    random_arrays,
    random_rows,
    tree_model,
)

COLUMNS = Features.from_columns(("age", "pressure", "oxygen", "age", "pressure", "sex", "sex", *["ward"] * 4))


@pytest.mark.parametrize(("classes", "depth"), [(2, 3), (3, 2), (2, 5)])
def test_values_equal_all_coalitions_of_columns_with_sets_and_missing_values(classes, depth):
    model = tree_model(classes=classes)
    theta = model.with_platt(model.pack(random_arrays(model, trees=9, depth=depth)), slope=0.7, intercept=0.3)
    x, background = random_rows(model, 12), random_rows(model, 9, seed=2)
    brute = exact_shapley(lambda rows: model.logits(theta, rows), x, background, COLUMNS)
    found = tree_shap(model, theta, x, background)
    explainer, outputs = Shap(COLUMNS, background), range(model.outputs)
    by_column = np.stack([explainer.signed(model, theta, x, np.full(12, c)) for c in outputs], axis=1)
    assert np.abs(by_column - brute).max() < 1e-10
    gap = model.logits(theta, x) - model.logits(theta, background).mean(axis=0)
    assert np.abs(found.sum(axis=2) - gap).max() < 1e-10


def test_values_equal_those_of_shap_on_trees_of_numbers():
    shap = pytest.importorskip("shap")
    model = tree_model(NUMBERS)
    arrays = random_arrays(model, trees=8, depth=4, edges=12, seed=3)
    trees = model.trees(arrays)
    x, background = random_rows(model, 40), random_rows(model, 30, seed=5)
    x[:, 3:5] = background[:, 3:5] = 0  # no missing values: SHAP sends them left or right by threshold
    described = []
    for t in range(trees.trees):
        leaf, node = trees.column[t] < 0, np.arange(trees.column.shape[1])
        cut = np.array([int(m >> 1).bit_length() for m in trees.masks[t].tolist()])  # edges below the cut
        inner = np.where(leaf, 0, trees.column[t])
        left, right = (np.where(leaf, -1, 2 * node + k) for k in (1, 2))
        described.append(
            {
                "children_left": left,
                "children_right": right,
                "children_default": left,
                "features": inner,
                "thresholds": np.where(leaf, 0.0, trees.edges[inner, np.maximum(cut - 1, 0)]) + 1e-6,
                "values": trees.value[t][:, None],
                "node_sample_weight": np.ones(len(leaf)),
            }
        )
    explainer = shap.TreeExplainer(
        {"trees": described}, shap.maskers.Independent(background[:, :3], 1000), feature_perturbation="interventional"
    )
    theirs = np.asarray(explainer.shap_values(x[:, :3], check_additivity=False)).reshape(40, 3)
    ours = model.shapley(model.pack(arrays), x, background)[:, 0, :3]
    assert np.abs(ours).max() > 0.1
    assert np.abs(ours - theirs).max() < 1e-6  # SHAP stores thresholds and values of such trees in float32


def test_a_model_before_its_fit_scores_0_and_explains_nothing():
    columns = write_columns(NUMBERS + CATEGORIES)
    model = build_model({"name": "trees", "inputs": [FEATURES], "classes": 3, "columns": columns, "options": {}})
    x = random_rows(tree_model(), 5)
    theta = model.init(0)
    assert isinstance(model, TreesModel)
    assert model.logits(theta, x).tolist() == [[0.0] * 3] * 5
    assert not model.shapley(theta, x, x).any()


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("edges", lambda a: a[:4], "edges of bins"),
        ("edge_counts", lambda a: np.where(np.arange(5) == 4, 1.0, a), "a mask has bins"),
        ("edges", lambda a: np.where(np.arange(5)[:, None] == 4, a + 0.5, a), "levels of 'ward'"),
        ("start", lambda a: np.zeros(2), "2 outputs, not 1"),
        ("column", lambda a: np.where(a == 4, 5, a), "no edges"),
        ("low", lambda a: a + 2**20, "a mask has bins"),
        ("value", lambda a: a[:, :3], "has shape"),
    ],
)
def test_damaged_arrays_are_refused(name, change, problem):
    model = tree_model()
    arrays = random_arrays(model)
    theta = model.pack({**arrays, name: change(arrays[name])})
    with pytest.raises(BadInput, match=problem):
        model.logits(theta, random_rows(model, 2))


def test_trees_of_another_table_are_refused():
    small = tree_model(NUMBERS)
    theta = small.pack(random_arrays(small))
    with pytest.raises(BadInput, match="3 columns, not 5"):
        tree_model().logits(theta, random_rows(small, 2))
