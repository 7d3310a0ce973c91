"""Scores of many rows at once equal those of a walk from node to node, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.capabilities.statistics.models.column_trees import walk_tree
from tests.capabilities.statistics.models.random_trees import random_arrays, random_rows, tree_model


@pytest.mark.parametrize("depth", range(1, 9))
def test_scores_equal_a_walk_of_any_depth(depth):
    model = tree_model(classes=3 if depth == 4 else 2)
    trees = model.trees(random_arrays(model, trees=7, depth=depth, edges=20, seed=depth))
    bins = trees.bin(model.values(random_rows(model, 9000 if depth == 3 else 500)))
    walked = np.repeat(trees.start[:, None], len(bins), axis=1)
    for t in range(trees.trees):
        walked[trees.output[t]] += trees.value[t][walk_tree(bins, trees.column[t], trees.masks[t])]
    assert np.array_equal(trees.scores(bins), walked.T)
    assert len(np.unique(walked)) > 5


def test_rows_and_trees_may_be_none():
    model = tree_model()
    theta = model.pack(random_arrays(model))
    assert model.logits(theta, random_rows(model, 0)).shape == (0, 1)
    assert model.shapley(theta, random_rows(model, 0), random_rows(model, 3)).shape == (0, 1, 11)
