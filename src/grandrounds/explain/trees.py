"""Shapley values of trees by SHAP's TreeExplainer, from the arrays and texts that travel here.

Interventional: an input that is left out is drawn from the agreed background, so sites that share it can be compared.
The other kind, which follows the training rows down each tree, would need to know how many patients of each site went
which way, and would mean something else at every site.

TreeExplainer keeps thresholds in float32, rounded either way, and counts nodes in 16 bits. So thresholds are rounded
down before it sees them, which changes no decision about a float32 row, and a tree too large for it is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.models.trees import Forest, round_down

_NODES = 2**15 - 1


def tree_shap(model: Any, theta: Array, x: Array, background: Array) -> Array:
    """Exact Shapley values of a forest's vote (a probability) or of boosted trees' logits, (n, C, d).

    Rows are read in float32, as scikit-learn does and as they are trained on here.
    """
    for rows in (x, background):
        if rows.ndim != 2 or rows.shape[1] != model.features or not np.isfinite(rows).all():
            raise BadInput(
                f"the trees read rows of {model.features} finite numbers; these rows have shape {rows.shape}, "
                "or values that are missing or infinite"
            )
    if model.kernel == "forest":
        return forest_shap(model.layout.forest(theta), x, background)
    return _boosted_shap(model, theta, x, background)


def forest_shap(forest: Forest, x: Array, background: Array) -> Array:
    """Shapley values (n, C, d) of the weighted vote."""
    threshold = round_down(forest.threshold).astype(float)
    trees = [
        {
            "children_left": forest.left[t],
            "children_right": forest.right[t],
            "children_default": forest.left[t],
            "features": forest.feature[t],
            "thresholds": threshold[t],
            "values": forest.value[t] * forest.weight[t],
            "node_sample_weight": np.ones(forest.nodes),  # asked for, and of no effect here
        }
        for t in range(forest.trees)
    ]
    return _interventional(trees, x, background, outputs=forest.classes)


def _boosted_shap(model: Any, theta: Array, x: Array, background: Array) -> Array:
    """Shapley values (n, C, d) of the raw scores. LightGBM deals its trees to the classes in turn."""
    from grandrounds.models.boosted import booster

    text = model.layout.text(theta)
    if not model.layout.count(text):
        return np.zeros((len(x), model.outputs, model.features))
    trees = [_rounded(tree) for tree in booster(text).dump_model()["tree_info"]]
    classes = [trees[c :: model.outputs] for c in range(model.outputs)]
    return np.concatenate([_interventional(own, x, background, outputs=1) for own in classes], axis=1)


def _rounded(tree: dict[str, Any]) -> dict[str, Any]:
    """LightGBM's own description of a tree, its thresholds rounded down in place."""
    nodes = [tree["tree_structure"]]
    while nodes:
        node = nodes.pop()
        if "threshold" in node:
            node["threshold"] = float(round_down(np.asarray(node["threshold"], float)))
            nodes += [node["left_child"], node["right_child"]]
    return tree


def _interventional(trees: list[dict[str, Any]], x: Array, background: Array, *, outputs: int) -> Array:
    """(n, outputs, d) of a sum of trees in one of the forms that SHAP reads."""
    import shap

    with np.errstate(over="ignore"):
        seen, others = (rows.astype(np.float32).astype(float) for rows in (x, background))
    every = shap.maskers.Independent(others, max_samples=len(others))  # by itself it would keep 100 rows
    explainer = shap.TreeExplainer({"trees": trees}, every, feature_perturbation="interventional")
    if explainer.model.values.shape[1] > _NODES or x.shape[1] > _NODES:
        raise BadInput(
            f"SHAP explains trees of at most {_NODES} nodes and columns; use 'permutation', or a smaller depth"
        )
    found = explainer.shap_values(seen, check_additivity=False)
    return np.moveaxis(np.asarray(found, float).reshape(*x.shape, outputs), 2, 1)
