"""Trees of a model 'trees' in the formats of LightGBM and XGBoost, for a table with one column for each clinical column.

A number is as recorded, a category the number of its level (in the order of the text's or file's list of levels, from 0), and a
missing value NaN. A level that the list does not have is "other" where the list ends with it, else missing.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.plain_trees import LARGEST, Node, PlainTrees, Split, plain_trees
from grandrounds.core.outcome import CLASSIFICATION, COUNT
from grandrounds.data.kinds import task_of
from grandrounds.runs.model import TrainedModel

_EQUALS = "\\u003d"  # "=" in JSON: the text's lines are key=value
_XGBOOST_ROOT = 2**31 - 1  # parent of a root


def to_lightgbm(model: TrainedModel) -> str:
    """Write the trees as a LightGBM model text, which `lightgbm.Booster(model_str=...)` reads.

    Args:
        model: A model 'trees'.

    Returns:
        The text. `predict` gives probabilities, numbers, expected counts, or for survival the risk score.
    """
    trees = plain_trees(model).in_outcome_units(model)
    task, k = task_of(model.encoding), trees.outputs
    objective = f"multiclass num_class:{k}" if k > 1 else "binary sigmoid:1"
    if task != CLASSIFICATION:
        objective = "poisson" if task == COUNT else "regression"
    names = _plain_names(trees)
    infos = [":".join(map(str, range(len(c.levels)))) if c.is_category else "[-1e+300:1e+300]" for c in trees.columns]
    head = [
        "tree",
        "version=v4",
        f"num_class={k}",
        f"num_tree_per_iteration={k}",
        "label_index=0",
        f"max_feature_idx={len(names) - 1}",
        f"objective={objective}",
        f"feature_names={' '.join(names)}",
        f"feature_infos={' '.join(infos)}",
        f"levels={_levels(trees).replace('=', _EQUALS)}",  # LightGBM skips what it does not know
    ]
    blocks = [_lightgbm_tree(root, number) for number, root in enumerate(_in_turns(trees))]
    end = ["end of trees", "", "parameters:", "end of parameters", "", "pandas_categorical:null", ""]
    return "\n".join(["\n".join([*head, "", ""]), *blocks, "\n".join(end)])


def xgboost_text(model: TrainedModel) -> str:
    """Write the trees as the text of an XGBoost model."""
    return json.dumps(to_xgboost(model))


def to_xgboost(model: TrainedModel) -> dict[str, Any]:
    """Write the trees as an XGBoost model, which `xgboost.Booster(model_file=...)` reads from JSON.

    Args:
        model: A model 'trees'.

    Returns:
        The values. XGBoost computes in 32 bits: thresholds are rounded to the nearest such number, as the rows are.
    """
    trees = plain_trees(model).in_outcome_units(model)
    task, k = task_of(model.encoding), trees.outputs
    objective: dict[str, Any] = {"name": "binary:logistic", "reg_loss_param": {"scale_pos_weight": "1"}}
    if task == COUNT:
        objective = {"name": "count:poisson", "poisson_regression_param": {"max_delta_step": "0.7"}}
    elif task != CLASSIFICATION:
        objective = {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}}
    elif k > 1:
        objective = {"name": "multi:softprob", "softmax_multiclass_param": {"num_class": str(k)}}
    roots = _in_turns(trees)
    rounds = len(roots) // k
    booster = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(roots))},
        "iteration_indptr": [k * i for i in range(rounds + 1)],
        "tree_info": [t % k for t in range(len(roots))],
        "trees": [_xgboost_tree(root, number, len(trees.columns)) for number, root in enumerate(roots)],
    }
    base = "5E-1" if task == CLASSIFICATION and k == 1 else "1E0" if task == COUNT else "0E0"
    return {
        "learner": {
            "attributes": {"levels": _levels(trees)},
            "feature_names": _plain_names(trees),
            "feature_types": ["c" if c.is_category else "float" for c in trees.columns],
            "gradient_booster": {"model": booster, "name": "gbtree"},
            "learner_model_param": {
                "base_score": base,
                "boost_from_average": "0",
                "num_class": str(k if k > 1 else 0),
                "num_feature": str(len(trees.columns)),
                "num_target": "1",
            },
            "objective": objective,
        },
        "version": [2, 1, 0],
    }


def _plain_names(trees: PlainTrees) -> list[str]:
    """Write the names of columns with letters, digits, "_", "." and "-" alone, which both programs read; doubles are numbered."""
    out: list[str] = []
    for column in trees.columns:
        name = re.sub(r"[^\w.-]", "_", column.name) or "_"
        out.append(name if name not in out else f"{name}_{len(out)}")
    return out


def _levels(trees: PlainTrees) -> str:
    """Write the levels of each category, in the order of their numbers, as JSON."""
    return json.dumps({c.name: list(c.words) for c in trees.columns if c.is_category})


def _in_turns(trees: PlainTrees) -> list[Node]:
    """Order the trees as boosters do, one of each output in turn; the first of each is the constant."""
    by_output: list[list[Node]] = [[float(v)] for v in trees.constant]
    for root, output in zip(trees.roots, trees.output, strict=True):
        by_output[output].append(root)
    longest = max(map(len, by_output))
    return [row[i] if i < len(row) else 0.0 for i in range(longest) for row in by_output]


def _number_nodes(root: Node) -> list[tuple[Node, int]]:
    """List the nodes of a tree with the place of their parent, the root first; siblings are neighbours."""
    out: list[tuple[Node, int]] = [(root, -1)]
    for place, (node, _) in enumerate(out):
        if isinstance(node, Split):
            out += [(node.left, place), (node.right, place)]
    return out


def _lightgbm_tree(root: Node, number: int) -> str:
    nodes = _number_nodes(root)
    splits = [i for i, (node, _) in enumerate(nodes) if isinstance(node, Split)]
    leaves = [i for i, (node, _) in enumerate(nodes) if not isinstance(node, Split)]
    place = {i: k for k, i in enumerate(splits)} | {i: -1 - k for k, i in enumerate(leaves)}
    children: dict[int, list[int]] = {i: [] for i in splits}
    for i, (_, parent) in enumerate(nodes):
        if parent >= 0:
            children[parent].append(place[i])
    columns, thresholds, kinds, left, right = [], [], [], [], []
    boundaries, bits = [0], []
    for i in splits:
        node = nodes[i][0]
        assert isinstance(node, Split)
        a, b = children[i]
        if node.levels is None:
            thresholds.append(f"{node.threshold:.17g}")
            kinds.append(8 | (2 if node.missing_left else 0))
        else:
            chosen = node.levels
            if node.missing_left:  # a missing category always goes right, so the sides change places
                a, b = b, a
                chosen = node.others
            words = [0] * (max(chosen, default=0) // 32 + 1)
            for level in chosen:
                words[level // 32] |= 1 << level % 32
            thresholds.append(str(len(boundaries) - 1))
            boundaries.append(boundaries[-1] + len(words))
            bits += words
            kinds.append(1 | 8)
        columns.append(node.column)
        left.append(a)
        right.append(b)
    values = [f"{nodes[i][0]:.17g}" for i in leaves]
    lines: dict[str, Any] = {
        "num_leaves": [len(leaves)],
        "num_cat": [len(boundaries) - 1],
        "split_feature": columns,
        "split_gain": [0] * len(splits),
        "threshold": thresholds,
        "decision_type": kinds,
        "left_child": left,
        "right_child": right,
        "leaf_value": values,
        "leaf_weight": [0] * len(leaves),
        "leaf_count": [0] * len(leaves),
        "internal_value": [0] * len(splits),
        "internal_weight": [0] * len(splits),
        "internal_count": [0] * len(splits),
    }
    if bits:
        lines |= {"cat_boundaries": boundaries, "cat_threshold": bits}
    lines |= {"is_linear": [0], "shrinkage": [1]}
    return "\n".join([f"Tree={number}", *(f"{n}={' '.join(map(str, v))}" for n, v in lines.items()), "", ""])


def _xgboost_tree(root: Node, number: int, columns: int) -> dict[str, Any]:
    nodes = _number_nodes(root)
    count = len(nodes)
    left, right = [-1] * count, [-1] * count
    for i, (_, parent) in enumerate(nodes):
        if parent >= 0 and left[parent] < 0:
            left[parent], right[parent] = i, i + 1
    conditions, indices, kinds, default_left = [0.0] * count, [0] * count, [0] * count, [0] * count
    categories: list[int] = []
    places, starts, sizes = [], [], []
    for i, (node, _) in enumerate(nodes):
        if not isinstance(node, Split):
            conditions[i] = float(np.float32(node))
            continue
        indices[i], default_left[i] = node.column, int(node.missing_left)
        if node.levels is None:
            conditions[i] = float(_above(node.threshold))
            continue
        kinds[i] = 1  # categories of the list go right
        others = sorted(node.others) or [len(node.levels)]  # XGBoost refuses an empty list; no level has this number
        places.append(i)
        starts.append(len(categories))
        sizes.append(len(others))
        categories += others
    return {
        "base_weights": [0.0] * count,
        "categories": categories,
        "categories_nodes": places,
        "categories_segments": starts,
        "categories_sizes": sizes,
        "default_left": default_left,
        "id": number,
        "left_children": left,
        "loss_changes": [0.0] * count,
        "parents": [parent if parent >= 0 else _XGBOOST_ROOT for _, parent in nodes],
        "right_children": right,
        "split_conditions": conditions,
        "split_indices": indices,
        "split_type": kinds,
        "sum_hessian": [0.0] * count,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(columns),
            "num_nodes": str(count),
            "size_leaf_vector": "1",
        },
    }


def _above(threshold: float) -> np.float32:
    """Return the number t with x < t in 32 bits exactly where x <= threshold in 32 bits."""
    near = np.float32(threshold)
    return near if near >= np.float32(LARGEST) else np.nextafter(near, np.float32(np.inf))
