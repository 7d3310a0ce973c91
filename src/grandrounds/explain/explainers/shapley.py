"""Explain tables by Shapley values: the explainer that chooses the algorithm for a model, and slower algorithms for single cases.

Values explain the logit: that of a binary model, or of a chosen class; of a forest, its vote. Features
that are left out are drawn from an agreed background (interventional), so sites with one background can be compared.

Trees are explained by SHAP's TreeExplainer. Its path-dependent variant is not used: it would need the number of patients at each
node of every site, and would not be comparable between sites. TreeExplainer stores thresholds in float32, rounded either way,
and counts nodes in 16 bits. So thresholds are rounded down first, which changes no decision about a float32 row, and larger
trees are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.explain.explainers.gradients import (
    check_background,
    check_outputs,
    magnitudes,
    path_gradients,
    sum_by_feature,
)
from grandrounds.explain.explainers.linear import as_dense
from grandrounds.explain.features import Features
from grandrounds.models.dense import Dense
from grandrounds.models.protocol import COLUMN_KERNELS, GRADIENT_FREE
from grandrounds.models.trees import Forest, round_down

if TYPE_CHECKING:
    from grandrounds.explain.rule import SketchRule

MAX_EXACT_FEATURES = 12
"""Largest number of features for enumeration: each further one doubles the work."""

Scores = Callable[[Array], Array]
"""Rows (m, d) to scores (m, C)."""

TreeDump = dict[str, Any]
"""One tree in a form that SHAP's TreeExplainer reads: its own, or LightGBM's dump."""


@dataclass(frozen=True)
class Shap:
    """Shapley values over an agreed background (B, d), by the fastest algorithm for a model.

    Linear models: exact, in closed form. Forests and boosted trees: exact, by TreeExplainer. MLPs and torch nets: path
    gradients with `steps` points a path, which are not exact Shapley values (see `paths`). `shap_deep`, `shap_kernel`
    and `exact_shapley` are there for single cases.
    """

    features: Features
    background: Array
    steps: int = 10

    @classmethod
    def from_rule(cls, rule: SketchRule, features: Features, background: Array) -> Shap:
        """Make the explainer that a rule describes."""
        return cls(features, background=background, steps=rule.steps)

    def signed(self, model: Any, theta: Array, x: Array, outputs: Array) -> Array:
        """Signed values (n, F), added up within features, for each row's output."""
        check_background(x, self.background)
        if model.kernel in GRADIENT_FREE:
            chosen = check_outputs(model, len(x), outputs)
            values = tree_shap(model, theta, x, self.background)[np.arange(len(x)), chosen]
        else:
            values = path_gradients(model, theta, x, self.background, steps=self.steps, outputs=outputs)
        return sum_by_feature(self.features, values)

    def rows(self, model: Any, theta: Array, x: Array, target: Array, offsets: Array) -> Array:
        return magnitudes(self.signed, model, theta, x, target)


def scores(model: Any, theta: Array) -> Scores:
    """Return the function of rows that is explained: logits (m, C), or the vote of a forest."""
    if model.kernel == "forest":
        forest = model.layout.forest(theta)
        return lambda x: forest.probabilities(x)
    return lambda x: model.logits(theta, x)


def exact_shapley(f: Scores, x: Array, background: Array, features: Features | None = None) -> Array:
    """Compute Shapley values (n, C, F) from all 2^F coalitions of at most 12 features.

    phi_j = sum over S without j of |S|! (F - |S| - 1)! / F! (v(S with j) - v(S)) (Shapley 1953), v(S) the mean over the
    background of f where the features in S are the row's. `features` groups inputs; without it each input is a feature.
    """
    check_background(x, background)
    grouped = features or Features.from_inputs([str(j) for j in range(x.shape[1])])
    count = len(grouped)
    if count > MAX_EXACT_FEATURES:
        raise BadInput(
            f"exact Shapley values go through 2^{count} coalitions of {count} features; "
            f"use shap_kernel for more than {MAX_EXACT_FEATURES}",
            code="too-many-features",
        )
    coalitions = (np.arange(2**count)[:, None] >> np.arange(count)) & 1 == 1
    size = coalitions.sum(axis=1, keepdims=True)
    share = np.array([1 / (count * comb(count - 1, s)) for s in range(count)])
    weight = np.where(coalitions, share[np.maximum(size - 1, 0)], -share[np.minimum(size, count - 1)])
    keep = coalitions[:, grouped.feature_index]
    values = [np.mean([f(np.where(keep, row, other)) for other in background], axis=0) for row in x]
    return np.stack([value.T @ weight for value in values])


def shap_deep(model: Any, theta: Array, x: Array, background: Array) -> Array:
    """Run SHAP's DeepExplainer on an MLP or a torch net: signed values (n, C, ...) of the logits, in the shape of x.

    DeepLIFT's rescale rule averaged over the background: values sum exactly, but are not exact Shapley values.
    """
    import shap
    import torch

    check_background(x, background)
    dense = as_dense(model)
    if dense is None and model.kernel != "torch":
        raise BadInput(
            "DeepExplainer reads layers, which trees do not have; explain them by 'shap'", code="no-gradient"
        )
    if dense is not None:
        net, dtype, device = _torch_layers(dense, theta), torch.float64, torch.device("cpu")
    else:
        model.point_at(model.tensor(theta))
        net, dtype, device = deepcopy(model.net).eval(), model.dtype, model.device
    explainer = shap.DeepExplainer(net, torch.as_tensor(background).to(device, dtype))
    try:
        values = explainer.shap_values(torch.as_tensor(x).to(device, dtype))
    except AssertionError:
        raise BadInput(
            "this net has steps between its layers that SHAP's DeepExplainer cannot follow, so its values would not add "
            "up; use path_gradients, or shap_kernel",
            code="unsupported-net",
        ) from None
    return np.moveaxis(values, -1, 1)


def shap_kernel(model: Any, theta: Array, x: Array, background: Array, *, samples: int = 2048, seed: int = 0) -> Array:
    """Run SHAP's KernelExplainer on any model of tables: signed values (n, C, d) of logits, or of a forest's vote.

    `samples` coalitions a row, each against every background row: accurate with many, and slow. Unlike SHAP's default, no
    feature is removed by a lasso.
    """
    import shap

    check_background(x, background)
    f = scores(model, theta)
    with _global_seed(seed):
        explainer = shap.KernelExplainer(lambda rows: np.asarray(f(rows), float), background)
        values = explainer.shap_values(x, nsamples=samples, l1_reg=False, silent=True)
    return np.moveaxis(np.asarray(values).reshape(*x.shape, model.outputs), 2, 1)


@contextmanager
def _global_seed(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator for SHAP, which draws from it; restore its state afterwards."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(int(generator(seed, purpose="kernel-shap").integers(2**32)))  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


def _torch_layers(dense: Dense, theta: Array) -> Any:
    """Build the model as a chain of torch's own layers, which DeepExplainer supports."""
    import torch
    from torch import nn

    chain: list[nn.Module] = []
    for w, b in dense.layers(theta):
        layer = nn.Linear(*w.shape).double()
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(np.array(w.T, float)))
            layer.bias.copy_(torch.from_numpy(np.array(b, float)))
        chain += [layer, nn.ReLU()]
    return nn.Sequential(*chain[:-1])


_NODES = 2**15 - 1


def tree_shap(model: Any, theta: Array, x: Array, background: Array) -> Array:
    """Compute exact Shapley values of a forest's vote (a probability) or of boosted trees' logits, (n, C, d).

    Rows are read in float32, as scikit-learn does and as they are trained on here.
    """
    for rows in (x, background):
        if rows.ndim != 2 or rows.shape[1] != model.features or not np.isfinite(rows).all():
            raise BadInput(
                f"the trees read rows of {model.features} finite numbers; these rows have shape {rows.shape}, "
                "or values that are missing or infinite",
                code="bad-rows",
            )
    if model.kernel in COLUMN_KERNELS:
        values: Array = model.shapley(theta, x, background)
        return values
    if model.kernel == "forest":
        return forest_shap(model.layout.forest(theta), x, background)
    return _boosted_shap(model, theta, x, background)


def forest_shap(forest: Forest, x: Array, background: Array) -> Array:
    """Compute Shapley values (n, C, d) of the weighted vote."""
    threshold = round_down(forest.threshold).astype(float)
    trees = [
        {
            "children_left": forest.left[t],
            "children_right": forest.right[t],
            "children_default": forest.left[t],
            "features": forest.feature[t],
            "thresholds": threshold[t],
            "values": forest.value[t] * forest.weight[t],
            "node_sample_weight": np.ones(forest.nodes),  # required, without effect here
        }
        for t in range(forest.trees)
    ]
    return _interventional(trees, x, background, outputs=forest.classes)


def _boosted_shap(model: Any, theta: Array, x: Array, background: Array) -> Array:
    """Compute Shapley values (n, C, d) of the raw scores. LightGBM deals its trees to the classes in turn."""
    from grandrounds.models.boosted import booster

    text = model.layout.text(theta)
    if not model.layout.count(text):
        return np.zeros((len(x), model.outputs, model.features))
    trees = [_round_thresholds(tree) for tree in booster(text).dump_model()["tree_info"]]
    classes = [trees[c :: model.outputs] for c in range(model.outputs)]
    return np.concatenate([_interventional(class_trees, x, background, outputs=1) for class_trees in classes], axis=1)


def _round_thresholds(tree: TreeDump) -> TreeDump:
    """Round the thresholds of LightGBM's description of a tree down, in place."""
    nodes = [tree["tree_structure"]]
    while nodes:
        node = nodes.pop()
        if "threshold" in node:
            node["threshold"] = float(round_down(np.asarray(node["threshold"], float)))
            nodes += [node["left_child"], node["right_child"]]
    return tree


def _interventional(trees: list[TreeDump], x: Array, background: Array, *, outputs: int) -> Array:
    """Compute Shapley values (n, outputs, d) of a sum of trees in one of the forms that SHAP reads."""
    import shap

    with np.errstate(over="ignore"):
        explained, reference = (rows.astype(np.float32).astype(float) for rows in (x, background))
    every = shap.maskers.Independent(reference, max_samples=len(reference))  # the default keeps 100 rows
    explainer = shap.TreeExplainer({"trees": trees}, every, feature_perturbation="interventional")
    if explainer.model.values.shape[1] > _NODES or x.shape[1] > _NODES:
        raise BadInput(
            f"SHAP explains trees of at most {_NODES} nodes and columns; use 'permutation', or a smaller depth",
            code="trees-too-large",
        )
    values = explainer.shap_values(explained, check_additivity=False)
    return np.moveaxis(np.asarray(values, float).reshape(*x.shape, outputs), 2, 1)


def direction(model: Any, theta: Array, x: Array, background: Array, *, steps: int = 10) -> Array:
    """Return the direction of each input's effect on each output: a unit vector (C * d,), which absolute SHAP values lose.

    A model trained on flipped labels relies on the right features in the wrong direction: its mean |SHAP| is that of an honest
    one, and this vector is the opposite.

    mean over rows of phi_j * sign(x_j - mean background_j), for the SHAP values phi of every output; of a linear model
    w_j * mean |x_j - b_j|. All zeros if no input has an effect.
    """
    if not len(x):
        return np.zeros(model.outputs * x.shape[1])
    explainer = Shap(Features.from_inputs([str(j) for j in range(x.shape[1])]), background, steps)
    phi = [explainer.signed(model, theta, x, np.full(len(x), c)) for c in range(model.outputs)]
    return unit_vector(np.concatenate([mean_direction(values, x, background) for values in phi]).astype(float))


def mean_direction(values: Array, x: Array, background: Array) -> Array:
    """Average phi_j sign(x_j - mean background_j) over rows, for SHAP values phi (n, d)."""
    signed: Array = (values * np.sign(np.asarray(x) - np.asarray(background).mean(axis=0))).mean(axis=0)
    return signed


def unit_vector(vector: Array) -> Array:
    """Scale a vector to length 1; zeros stay zeros."""
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else vector
