"""Random forests: trained at each site with scikit-learn, joined as a union of trees, stored as plain arrays.

Trees cannot be averaged, so a federation of forests takes one round: each site fits its own, the server joins them by the sites'
weights, and the vote of the union is the weighted mean of the sites' votes. scikit-learn is needed only for fitting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.models.trees import DTYPES, MAX_DEPTH, Forest, combine, round_down, single_leaf

REFUSALS: dict[str, str] = {
    "fedprox": "a forest has no gradient for FedProx's term; use fedavg",
    "fedopt": "a forest has no parameters for a server optimiser; use fedavg",
    "scaffold": "a forest has no gradient for SCAFFOLD's control variates; use fedavg",
    "moon": "a forest has no hidden representation, so MOON has nothing to contrast; use fedavg",
    "async": "a late forest cannot be blended into a newer one, only joined to it; use synchronous rounds",
    "masking": "trees cannot be summed, as secure aggregation requires; set privacy.secure = false or use another model",
    "dp_sgd": "a forest has no gradient for DP-SGD to clip; use a logistic model or an mlp",
    "proximal": "a forest has no gradient for a proximal term; use stability 'none'",
    "anchor": "a forest has no gradient, so an anchor has nothing to hold; use stability 'none'",
    "permuted_anchor": "a forest has no gradient, so an anchor has nothing to hold; use stability 'none'",
    "anchored_scaffold": "a forest has no gradient for control variates and an anchor; use stability 'none'",
    "alignment": "a forest has no gradient, so its attributions cannot be aligned with others'; use stability 'none'",
    "clustered": "a forest is grown anew in each round and cannot continue from its cluster's; use fedavg or local",
    "robust": "trees are joined and not averaged, so robust rules do not apply; use robust = 'none'",
    "distance": "forests have no distance; weigh by data_size or uniform",
    "reference": "forests of different sizes are not scored together; weigh by data_size or uniform",
    "noise": "a forest has no gradient to add noise to; set train.noise = 0",
    "finetune": "a forest cannot be fine-tuned; set train.finetune = 0",
    "attack": "a forest has no update that this attack could change; use label-flip or label-shuffle",
    "temperature": "a forest has no last layer for calibration; set evaluation.calibrate = 'none'",
    "class_weights": "a forest supports no class weights; leave train.class_weights out, or use another model",
    "keep_optimizer": "a forest is fitted without an optimizer, so there is no optimizer state to keep; set "
    "train.keep_optimizer = false",
}
"""Features that a forest does not support, with the reason."""

_MARK = 0x475246  # "GRF" opens every vector; below 2**24, so float32 holds it too
_HEADER = 4  # mark, trees, nodes, classes


def fit_forest(
    x: Array, y: Array, *, classes: int, trees: int = 50, depth: int = 10, seed: int, min_leaf: int = 1
) -> Forest:
    """Fit a site's forest: scikit-learn's RandomForestClassifier with random_state = seed mod 2**32.

    A class the site has never seen gets a share of zero. A site with one class needs no trees: it
    gives a single leaf.
    """
    _check_data(x, y, classes=classes)
    if trees < 1 or min_leaf < 1 or not 1 <= depth <= MAX_DEPTH:
        raise BadInput(
            f"a forest needs at least one tree, leaves of at least one row, and a depth of 1 to {MAX_DEPTH}",
            code="bad-tree-settings",
        )
    if (y == y[0]).all():
        return single_leaf(np.eye(classes)[y[0]])
    from sklearn.ensemble import RandomForestClassifier

    fitted = RandomForestClassifier(
        n_estimators=trees, max_depth=depth, min_samples_leaf=min_leaf, random_state=seed % 2**32, n_jobs=1
    )
    return from_sklearn(fitted.fit(x, y), classes=classes)


def from_sklearn(fitted: Any, *, classes: int) -> Forest:
    """Convert a fitted RandomForestClassifier, whose labels are class numbers, to arrays."""
    columns = np.asarray(fitted.classes_)
    forests = [_convert_tree(e.tree_, columns=columns, classes=classes) for e in fitted.estimators_]
    return combine(forests, np.ones(len(forests)))


def _convert_tree(tree: Any, *, columns: Array, classes: int) -> Forest:
    share = np.zeros((tree.node_count, classes), np.float32)
    share[:, columns] = tree.value[:, 0, :] / tree.value[:, 0, :].sum(axis=1, keepdims=True)
    leaf = tree.children_left < 0
    return Forest(
        feature=np.where(leaf, -1, tree.feature)[None],
        threshold=np.where(leaf, 0, round_down(tree.threshold))[None],
        left=tree.children_left[None],
        right=tree.children_right[None],
        value=share[None],
        weight=np.ones(1),
    )


def _check_data(x: Array, y: Array, *, classes: int) -> None:
    if x.ndim != 2 or y.shape != x.shape[:1] or not len(y):
        raise BadInput(
            f"a forest cannot be fitted to rows of shape {x.shape} with labels of shape {y.shape}",
            code="mismatched-shapes",
        )
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= classes:
        raise BadInput(
            f"the labels of a forest of {classes} classes must be whole numbers from 0 to {classes - 1}",
            code="label-out-of-range",
        )
    with np.errstate(over="ignore"):
        if not np.isfinite(x.astype(np.float32)).all():
            raise BadInput(
                "a forest cannot be fitted to values that are missing or too large for float32", code="not-finite"
            )


@dataclass(frozen=True)
class ForestLayout:
    """The flat form of a forest: one float64 vector with header and arrays.

    So a forest can be sent and stored like a parameter vector. Vectors differ in length, as forests do. They are checked against
    the model: its depth also bounds the memory of untrusted trees.
    """

    features: int | None = None
    classes: int | None = None
    depth: int | None = None

    def pack(self, params: Mapping[str, Array], *, dtype: np.typing.DTypeLike = np.float64) -> Array:
        """Pack the six named arrays into one flat vector, checked as untrusted input.

        float32 is kept (it changes no decision of a fitted forest); any other type gives float64.
        """
        if set(params) != set(DTYPES):
            extra = sorted(set(params) ^ set(DTYPES))
            raise BadInput(
                f"the parameters do not fit a forest: {', '.join(extra)} missing or unknown", code="unknown-parameters"
            )
        forest = self._check_limits(Forest(**params))
        header = np.array([_MARK, forest.trees, forest.nodes, forest.classes])
        parts = [header, *(getattr(forest, name).ravel() for name in DTYPES)]
        return np.concatenate(parts, dtype=np.float32 if np.dtype(dtype) == np.float32 else np.float64)

    def views(self, vector: Array) -> dict[str, Array]:
        """Return the six named arrays in their own types: read-only copies, not views of the vector."""
        return forest_arrays(self.forest(vector))

    def forest(self, vector: Array) -> Forest:
        """Unpack the forest of a vector; refuse anything malformed."""
        trees, nodes, classes = _sizes(vector)
        shapes = dict.fromkeys(DTYPES, (trees, nodes)) | {"value": (trees, nodes, classes), "weight": (trees,)}
        ends = np.cumsum([_HEADER, *(int(np.prod(shape)) for shape in shapes.values())])
        parts = np.split(vector, ends)[1:-1]
        return self._check_limits(Forest(**{n: a.reshape(s) for a, (n, s) in zip(parts, shapes.items(), strict=True)}))

    def _check_limits(self, forest: Forest) -> Forest:
        if self.features is not None and forest.feature.max() >= self.features:
            raise BadInput(
                f"the forest asks for column {forest.feature.max()}, but there are {self.features}",
                code="unknown-column",
            )
        if self.classes is not None and forest.classes != self.classes:
            raise BadInput(
                f"the forest votes on {forest.classes} classes, the model has {self.classes}", code="mismatched-classes"
            )
        if self.depth is not None and (forest.depth > self.depth or forest.nodes >= 2 ** (self.depth + 1)):
            raise BadInput(f"the forest is larger than trees of depth {self.depth} can be", code="forest-too-large")
        return forest


def _sizes(vector: Array) -> tuple[int, int, int]:
    """Read trees, nodes and classes from the header; check the vector's length against them."""
    number = vector.dtype.kind == "f" and vector.dtype.itemsize in (4, 8)
    if vector.ndim != 1 or not number or vector.size < _HEADER or vector[0] != _MARK:
        raise BadInput("these parameters are not a forest: the header is missing", code="damaged-model")
    sizes = vector[1:_HEADER]
    if not ((sizes >= 1) & (sizes <= vector.size) & (sizes == np.trunc(sizes))).all():
        raise BadInput("these parameters are not a forest: the sizes in the header are invalid", code="damaged-model")
    trees, nodes, classes = (int(n) for n in sizes)
    if vector.size != _HEADER + trees * nodes * (4 + classes) + trees:
        raise BadInput(
            "these parameters are not a forest: the length does not match the header", code="damaged-model"
        )
    return trees, nodes, classes


def forest_arrays(forest: Forest) -> dict[str, Array]:
    """Return the six arrays by name, in their order in the vector."""
    return {name: getattr(forest, name) for name in DTYPES}


def to_vector(forest: Forest) -> Array:
    """Pack a forest into one float64 vector."""
    return ForestLayout().pack(forest_arrays(forest))


def from_vector(vector: Array, *, features: int | None = None) -> Forest:
    """Unpack a forest; refuse one that is malformed or asks for a column the data do not have."""
    return ForestLayout(features=features).forest(vector)


@dataclass(frozen=True)
class ForestModel:
    """Random forest behind the `Model` protocol."""

    features: int
    classes: int
    trees: int = 50
    depth: int = 10
    kernel: ClassVar[str] = "forest"

    @cached_property
    def layout(self) -> ForestLayout:
        return ForestLayout(features=self.features, classes=self.classes, depth=self.depth)

    @property
    def outputs(self) -> int:
        """Always one column for each class, also for two classes."""
        return self.classes

    @property
    def site_bytes(self) -> int:
        """Estimated size of a site's forest, for trees of a few thousand rows."""
        return 8 * self.trees * (1 << min(self.depth + 1, 12)) * (4 + self.classes)

    def init(self, seed: int, dtype: np.typing.DTypeLike = np.float64) -> Array:
        """Return the empty start: one leaf with equal class probabilities. The seed has no effect."""
        return self.layout.pack(forest_arrays(single_leaf(np.full(self.classes, 1 / self.classes))), dtype=dtype)

    def logits(self, theta: Array, x: Array) -> Array:
        """Compute the log of the vote (n, C), clipped at 1e-6, so that softmax gives the vote back."""
        vote: Array = np.clip(self.layout.forest(theta).probabilities(self._rows(x)), 1e-6, None)
        return np.log(vote, out=vote)

    def fit(self, x: Array, y: Array, *, seed: int) -> Array:
        """Fit a site's forest, as a vector. Sites need different seeds, or their trees are the same."""
        forest = fit_forest(self._rows(x), y, classes=self.classes, trees=self.trees, depth=self.depth, seed=seed)
        return self.layout.pack(forest_arrays(forest))

    def with_temperature(self, theta: Array, temperature: float) -> Array:
        """Refuse: a forest supports no temperature."""
        raise BadInput(REFUSALS["temperature"], code="unsupported-calibration")

    def with_platt(self, theta: Array, *, slope: float, intercept: float) -> Array:
        """Refuse: a forest's vote is a mean of shares, and no change of its leaves is a change of its log-odds."""
        raise BadInput(REFUSALS["temperature"], code="unsupported-calibration")

    def combine(self, models: Array | Sequence[Array], weights: Array) -> Array:
        """Join the sites' forests into a vector; each is checked before it is joined."""
        return self.layout.pack(forest_arrays(combine([self.layout.forest(m) for m in models], weights)))

    def _rows(self, x: Array) -> Array:
        if x.ndim != 2 or x.shape[1] != self.features:
            raise BadInput(
                f"the forest reads rows of {self.features} columns, not an array of shape {x.shape}",
                code="mismatched-shapes",
            )
        return x
