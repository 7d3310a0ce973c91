"""Gradient-boosted trees by LightGBM, a strong baseline for tables.

Boosting grows each tree on the residuals of all earlier trees, so models of several sites cannot be averaged. This model is for
methods 'pooled' (all rows together) and 'local' (each site alone), round after round. It is stored as LightGBM's own text and
nothing is unpickled; LightGBM is
needed to fit and to predict, and is imported only then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, install_extra
from grandrounds.models.boosted_text import (
    CACHED_TEXTS,
    BoostedLayout,
    compose_text,
    constant_trees,
    output_count,
    scale_scores,
    strip_text,
)
from grandrounds.models.trees import MAX_DEPTH

_APART = (
    "gradient-boosted trees of several sites cannot be averaged: use model 'trees', which is fitted from sums over hospitals, "
    "or method 'pooled' or 'local'"
)

METHODS = ("pooled", "local")
"""Methods that fit one model without averaging."""

REFUSALS: dict[str, str] = {
    "averaging": _APART,
    "fedavg": _APART,
    "fedprox": "boosted trees have no gradient for FedProx's term; use method 'pooled' or 'local'",
    "fedopt": "boosted trees have no parameters for a server optimiser; "
    "use method 'pooled' or 'local'",
    "scaffold": "boosted trees have no gradient for SCAFFOLD's control variates to correct; "
    "use method 'pooled' or 'local'",
    "moon": "boosted trees have no hidden representation, so MOON has nothing to contrast; "
    "use method 'pooled' or 'local'",
    "async": "late boosted trees cannot be blended into a newer model; use method 'pooled' or 'local'",
    "masking": "boosted trees cannot be summed, as secure aggregation requires; set privacy.secure = false or use another model",
    "dp_sgd": "boosted trees have no gradient for DP-SGD to clip; "
    "use a logistic model or an mlp",
    "proximal": "boosted trees have no gradient for a proximal term; use stability 'none'",
    "anchor": "boosted trees have no gradient for an anchor to change; use stability 'none'",
    "permuted_anchor": "boosted trees have no gradient for an anchor to change; use stability 'none'",
    "anchored_scaffold": "boosted trees have no gradient for control variates and an anchor; use stability 'none'",
    "alignment": "boosted trees have no gradient that could align their attributions with others'; use stability 'none'",
    "clustered": _APART,
    "robust": _APART,
    "distance": _APART,
    "reference": _APART,
    "noise": "boosted trees have no gradient to add noise to; set train.noise = 0",
    "finetune": "boosted trees cannot be fine-tuned; set train.finetune = 0",
    "attack": "boosted trees have no update that this attack could change; use label-flip or label-shuffle",
    "temperature": "boosted trees have no last layer to divide by a temperature; use evaluation.calibrate = 'platt', "
    "or none",
    "keep_optimizer": "boosted trees are grown without an optimizer, so there is no optimizer state to keep; set "
    "train.keep_optimizer = false",
}
"""Features that boosted trees do not support, with the reason."""

LEAVES = 31
"""Maximum number of leaves: LightGBM's default."""


@dataclass(frozen=True)
class BoostedModel:
    """Boosted trees behind the `Model` protocol. `trees` is the number of boosting rounds per call of `fit`."""

    features: int
    classes: int
    trees: int = 50
    depth: int = 10
    lr: float = 0.1
    kernel: ClassVar[str] = "boosted"

    @cached_property
    def layout(self) -> BoostedLayout:
        return BoostedLayout(features=self.features, classes=self.classes, depth=self.depth)

    @property
    def outputs(self) -> int:
        return output_count(self.classes)

    @property
    def site_bytes(self) -> int:
        """Size of the trees that a round adds, at about 75 bytes of text per leaf."""
        return 200 * self.trees * self.outputs * min(LEAVES, 1 << self.depth)

    def init(self, seed: int, dtype: np.typing.DTypeLike = np.float64) -> Array:
        """Return the model without trees, whose scores are zero. The seed changes nothing."""
        return self.layout.vector(compose_text("", features=self.features, classes=self.classes), dtype=dtype)

    def logits(self, theta: Array, x: Array) -> Array:
        """Compute raw scores (n, outputs): one log-odds for two classes, else one score a class."""
        text, x = self.layout.text(theta), self._rows(x)
        if not len(x) or not self.layout.count(text):
            return np.zeros((len(x), self.outputs))
        raw = booster(text).predict(x, raw_score=True, num_threads=1)
        return np.asarray(raw, np.float64).reshape(len(x), self.outputs)

    def fit(self, x: Array, y: Array, *, seed: int, start: Array | None = None, weight: Array | None = None) -> Array:
        """Add `trees` rounds of boosting on these rows to the model `start`, and return it as a vector.

        The same rows give the same bits: one thread, no sampling. The seed matters only above 200,000
        rows, of which LightGBM looks at a sample to choose its bins.

        A new model starts from the class shares, as LightGBM does, unless a class has no row here. Its
        score would be log(1e-15), which costs 34 for each such patient elsewhere; the start is then the
        shares with one imagined row more in each class, log((n_c + 1) / (n + C)). Rows of a single class grow no tree, and leave
        a model with trees unchanged. Only relative values of `weight` (n,) matter, and rows of weight zero are ignored. LightGBM
        may stop early if no split helps.
        """
        if self.trees < 1 or not 1 <= self.depth <= MAX_DEPTH or not 0 < self.lr < np.inf:
            raise BadInput(
                f"boosted trees need at least one tree, a depth of 1 to {MAX_DEPTH} and a learning rate above 0",
                code="bad-tree-settings",
            )
        x, y, weight = _check_training_rows(self._rows(x), y, weight, classes=self.classes)
        begun = self.layout.text(self.init(seed) if start is None else start)
        shares = np.bincount(y, weights=weight, minlength=self.classes)
        if not self.layout.count(begun) and not shares.all():
            begun = constant_trees(shares, features=self.features)
        if np.count_nonzero(shares) > 1:
            begun = self._grow(x, y, weight, begun, seed=seed)
        return self.layout.vector(begun)

    def with_temperature(self, theta: Array, temperature: float) -> Array:
        """Refuse: a temperature would have to be written into every leaf."""
        raise BadInput(REFUSALS["temperature"], code="unsupported-calibration")

    def with_platt(self, theta: Array, *, slope: float, intercept: float) -> Array:
        """Return the model whose one score s is slope * s + intercept: every leaf scaled, and a further tree of one leaf."""
        return self.layout.vector(scale_scores(self.layout.text(theta), slope, intercept), dtype=theta.dtype)

    def combine(self, models: Array | Sequence[Array], weights: Array) -> Array:
        """Return the one model that has all the weight, as it is; refuse several."""
        values = np.asarray(weights, np.float64)
        if not len(models) or values.shape != (len(models),):
            raise BadInput(
                f"{len(models)} models do not match weights of shape {values.shape}; give one weight per model",
                code="mismatched-shapes",
            )
        if not (np.isfinite(values).all() and (values >= 0).all() and values.any()):
            raise BadInput("the weights of models must be finite, not negative, and not all zero", code="bad-weights")
        if np.count_nonzero(values) > 1:
            raise BadInput(_APART, code="cannot-average-trees")
        only = np.asarray(models[int(values.argmax())])
        self.layout.text(only)
        return only

    def _grow(self, x: Array, y: Array, weight: Array | None, begun: bytes, *, seed: int) -> bytes:
        """Return the text after `trees` more rounds of boosting from the text `begun`."""
        lightgbm = _lightgbm()
        settings = self._settings(len(y), seed=seed)
        rows = lightgbm.Dataset(x, label=y, weight=weight, params=settings, free_raw_data=False)
        before = booster(begun) if self.layout.count(begun) else None
        grown = lightgbm.train(settings, rows, self.trees, init_model=before, keep_training_booster=True)
        return strip_text(grown.model_to_string(num_iteration=-1), features=self.features, classes=self.classes)

    def _settings(self, rows: int, *, seed: int) -> dict[str, object]:
        """Return LightGBM's parameters. Its 20 rows a leaf would leave a small site without a split.

        Below 200 rows a leaf needs a tenth of them, and at least one; a bin needs no more rows than a leaf.
        """
        least = min(20, max(1, rows // 10))
        return {
            "objective": "binary" if self.outputs == 1 else "multiclass",
            "num_class": self.outputs,
            "learning_rate": self.lr,
            "max_depth": self.depth,
            "num_leaves": min(LEAVES, 1 << self.depth),
            "min_data_in_leaf": least,
            "min_data_in_bin": min(3, least),
            "feature_fraction": 1.0,
            "bagging_fraction": 1.0,
            "bagging_freq": 0,
            "seed": seed % 2**31,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1,
            "verbosity": -1,
        }

    def _rows(self, x: Array) -> Array:
        if x.ndim != 2 or x.shape[1] != self.features:
            raise BadInput(
                f"the boosted trees read rows of {self.features} columns, not an array of shape {x.shape}",
                code="mismatched-shapes",
            )
        return x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)


def _lightgbm() -> Any:
    """Import LightGBM; raise BadInput with the install command if it is missing."""
    try:
        import lightgbm
    except ImportError:
        raise BadInput(
            f"model.name is 'lightgbm', which needs the package lightgbm; {install_extra('baselines')}",
            code="missing-package",
        ) from None
    except OSError as e:
        raise BadInput(
            f"model.name is 'lightgbm', but its library cannot be loaded: {e}", code="broken-library"
        ) from None
    return lightgbm


@lru_cache(maxsize=CACHED_TEXTS)
def booster(text: bytes) -> Any:
    """Parse a checked text into LightGBM's own object; the last few are cached."""
    lightgbm = _lightgbm()
    try:
        return lightgbm.Booster(model_str=text.decode("ascii"))
    except lightgbm.basic.LightGBMError as e:
        raise BadInput(f"LightGBM cannot read these boosted trees: {e}", code="damaged-model") from None


def _check_training_rows(
    x: Array, y: Array, weight: Array | None, *, classes: int
) -> tuple[Array, Array, Array | None]:
    """Check rows, labels and weights; scale weights to mean 1 and leave out rows of weight zero.

    Weights are scaled because LightGBM requires a minimum absolute weight per leaf.
    """
    if y.shape != x.shape[:1] or not len(y):
        raise BadInput(
            f"boosted trees cannot be fitted to rows of shape {x.shape} with labels of shape {y.shape}",
            code="mismatched-shapes",
        )
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= classes:
        raise BadInput(
            f"the labels of boosted trees of {classes} classes must be whole numbers from 0 to {classes - 1}",
            code="label-out-of-range",
        )
    if not np.isfinite(x).all():
        raise BadInput("boosted trees cannot be fitted to values that are missing or infinite", code="not-finite")
    if weight is None:
        return x, y, None
    values = np.asarray(weight, np.float64)
    if values.shape != y.shape or not (np.isfinite(values).all() and (values >= 0).all() and values.any()):
        raise BadInput(
            "the weights of rows must be one for each, finite, not negative, and not all zero", code="bad-weights"
        )
    keep = values > 0
    return x[keep], y[keep], values[keep] / values[keep].mean()
