"""Quality of attributions without a truth mask, for tables and images.

Faithfulness measures the score while features are removed: `predict(x)` gives the score (n,) of each row's explained class,
as a probability or a logit. It is always called with all n rows in their order, so each row may have a class of its own.
Attributions are (n, d) for a table, (n, H, W) for an image (its channels go together), or (n, F) for `features`; values
of inputs or pixels are added up where features group them. Most positive first: attributions keep their sign here.

`randomisation` is a sanity check: parameters are drawn anew, and an explanation that does not change ignores the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, prod
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.explain.features import Features
from grandrounds.metrics.classification import mean_defined, ratio

Predict = Callable[[Array], Array]

STEPS = 20
"""Points of a removal curve, unless there are fewer features."""

_ROUNDING = 1e-12  # of the largest value
_WINDOW = 7  # pixels of SSIM's window, as in scikit-image
_LUMINANCE, _CONTRAST = 0.01**2, 0.03**2  # Wang et al. 2004: keep the ratios of dark windows finite


@dataclass(frozen=True)
class Curve:
    """Scores (n, s) after a growing share (s,) of features was removed (or inserted), the most important first."""

    share: Array
    score: Array

    @property
    def area(self) -> Array:
        """Area under each row's curve, (n,), by trapezoids: a mean score."""
        out: Array = (self.score[:, 1:] + self.score[:, :-1]) @ (np.diff(self.share) / 2)
        return out


def deletion_auc(
    predict: Predict,
    x: Array,
    attributions: Array,
    *,
    baseline: Array | float = 0.0,
    steps: int = STEPS,
    features: Features | None = None,
) -> Array:
    """Return the mean score (n,) while features are replaced by the baseline, most important first: low is good.

    Petsiuk et al. (2018).
    """
    return removal_curve(predict, x, attributions, baseline=baseline, steps=steps, features=features).area


def insertion_auc(
    predict: Predict,
    x: Array,
    attributions: Array,
    *,
    baseline: Array | float = 0.0,
    steps: int = STEPS,
    features: Features | None = None,
) -> Array:
    """Mean score (n,) while features replace the baseline, most important first: high is good."""
    return removal_curve(predict, x, attributions, baseline=baseline, steps=steps, features=features, insert=True).area


def removal_curve(
    predict: Predict,
    x: Array,
    attributions: Array,
    *,
    baseline: Array | float = 0.0,
    steps: int = STEPS,
    features: Features | None = None,
    insert: bool = False,
) -> Curve:
    """Compute the curve behind deletion (or insertion): one forward of all rows a step. `baseline` is broadcast to x."""
    values, index = _group_attributions(x, attributions, features)
    if steps < 1:
        raise BadInput(f"steps = {steps}: a removal curve needs at least one", code="too-few-steps")
    count = values.shape[1]
    rank = np.argsort(np.argsort(-values, axis=1, kind="stable"), axis=1)
    taken = np.unique(np.rint(np.linspace(0, count, min(steps, count) + 1)).astype(int))
    first, rest = (x, _broadcast_baseline(x, baseline)) if insert else (_broadcast_baseline(x, baseline), x)
    score = [_score(predict, np.where(_expand_to_inputs(x, (rank < k)[:, index]), first, rest)) for k in taken]
    return Curve(taken / count, np.stack(score, axis=1))


def faithfulness_correlation(
    predict: Predict,
    x: Array,
    attributions: Array,
    *,
    baseline: Array | float = 0.0,
    subset: int,
    runs: int = 100,
    rng: np.random.Generator,
    features: Features | None = None,
) -> Array:
    """Correlate the score lost with the attributions removed, over random subsets: Pearson, (n,) (Bhatt et al. 2020).

    Each row draws `runs` subsets of its own. NaN where the score or the attributions never change.
    """
    values, index = _group_attributions(x, attributions, features)
    if not 1 <= subset < values.shape[1] or runs < 2:
        raise BadInput(
            f"subset = {subset}, runs = {runs}: subsets are of 1 to {values.shape[1] - 1} features, drawn at least twice",
            code="subset-out-of-range",
        )
    full_score, empty = _score(predict, x), _broadcast_baseline(x, baseline)
    lost, removed = np.empty((2, len(x), runs))
    for r in range(runs):
        key = rng.random(values.shape)
        out = key <= np.partition(key, subset - 1, axis=1)[:, subset - 1, None]
        lost[:, r] = full_score - _score(predict, np.where(_expand_to_inputs(x, out[:, index]), empty, x))
        removed[:, r] = (values * out).sum(axis=1)
    return correlation(removed, lost)


def entropy(values: Array) -> Array:
    """Entropy in nats of |values| as shares along the last axis, (...); all zero counts as spread evenly."""
    from scipy.special import entr

    return np.asarray(entr(_shares(values)).sum(axis=-1))


def concentration(heat: Array) -> Array:
    """1 - entropy / ln F of each of n explanations (n, F) or (n, H, W): 0 spread evenly, 1 all on one feature."""
    if not heat.size:
        raise BadInput(f"explanations of shape {heat.shape} have no value: give at least one", code="no-values")
    flat = heat.reshape(len(heat), -1)
    size = flat.shape[1]
    return np.clip(1 - entropy(flat) / log(size), 0.0, 1.0) if size > 1 else np.zeros(len(flat))


def gini(values: Array) -> Array:
    """Gini index of |values| along the last axis, (...): 0 spread evenly, (F - 1) / F all on one feature."""
    p = np.sort(_shares(values), axis=-1)
    size = p.shape[-1]
    return np.asarray((p * (2 * np.arange(1, size + 1) - size - 1)).sum(axis=-1) / size)


def similarity(a: Array, b: Array) -> Array:
    """Structural similarity (SSIM, Wang et al. 2004) of heat maps (..., H, W), pair by pair: 1 is the same image.

    Absolute heat, each map over its maximum; windows of 7 x 7 (the shorter side of a smaller map), sample covariance.
    """
    if a.shape != b.shape or a.ndim < 2 or min(a.shape[-2:]) < 2:
        raise BadInput(
            f"heat maps {a.shape} and {b.shape} cannot be compared: give two of one shape (..., H, W)",
            code="mismatched-shapes",
        )
    side = min(_WINDOW, *a.shape[-2:])
    one, two = _scale_to_maximum(a, (-1, -2)), _scale_to_maximum(b, (-1, -2))
    mean_a, mean_b = _window_means(one, side), _window_means(two, side)
    sample = side**2 / (side**2 - 1)
    var_a, var_b = (
        sample * (_window_means(one**2, side) - mean_a**2),
        sample * (_window_means(two**2, side) - mean_b**2),
    )
    both = sample * (_window_means(one * two, side) - mean_a * mean_b)
    alike = (2 * mean_a * mean_b + _LUMINANCE) * (2 * both + _CONTRAST)
    alike /= (mean_a**2 + mean_b**2 + _LUMINANCE) * (var_a + var_b + _CONTRAST)
    return np.asarray(alike.mean(axis=(-1, -2)))


def rank_correlation(a: Array, b: Array) -> Array:
    """Spearman's rank correlation along the last axis, ties at their mean rank; NaN where one side is constant."""
    from scipy.stats import rankdata

    return correlation(rankdata(a, axis=-1), rankdata(b, axis=-1))


def correlation(a: Array, b: Array) -> Array:
    """Pearson's correlation along the last axis; NaN where one side is constant."""
    a, b = _centre(a), _centre(b)
    size = np.sqrt((a * a).sum(axis=-1)) * np.sqrt((b * b).sum(axis=-1))
    return np.clip(ratio((a * b).sum(axis=-1), size), -1.0, 1.0)


def _centre(v: Array) -> Array:
    """v less its mean along the last axis; zero where it does not vary beyond rounding."""
    varies = np.ptp(v, axis=-1, keepdims=True) > _ROUNDING * np.abs(v).max(axis=-1, keepdims=True)
    return np.where(varies, v - v.mean(axis=-1, keepdims=True), 0.0)


def _group_attributions(x: Array, attributions: Array, features: Features | None) -> tuple[Array, Array]:
    """Attributions (n, F), and for each input or pixel the feature it belongs to."""
    if not (x.size and attributions.size):
        raise BadInput(
            f"rows {x.shape} with attributions {attributions.shape} have nothing to evaluate: give at least one row",
            code="no-values",
        )
    places = prod(x.shape[1:]) if x.ndim < 4 else prod(x.shape[2:])
    flat = attributions.reshape(len(attributions), -1).astype(float)
    index = np.arange(places) if features is None else features.feature_index
    if features is not None and flat.shape[1] == places:
        flat = features.sum_inputs(flat)
    shape = (len(x), places if features is None else len(features))
    if x.ndim not in (2, 4) or len(index) != places or flat.shape != shape:
        raise BadInput(
            f"attributions {attributions.shape} do not fit rows {x.shape}: give one value for each input, "
            "each pixel (summed over channels) or each feature",
            code="mismatched-shapes",
        )
    if not np.isfinite(flat).all():
        raise BadInput(
            "attributions have values that are not finite; check their model", code="not-finite"
        )
    return flat, index


def _broadcast_baseline(x: Array, value: Array | float) -> Array:
    """Return the value of a removed input, for every row."""
    try:
        return np.broadcast_to(np.asarray(value, x.dtype if x.dtype.kind == "f" else float), x.shape)
    except ValueError:
        raise BadInput(
            f"a baseline of shape {np.shape(value)} does not fit rows {x.shape}: give one value, "
            "one for each input, or (C, 1, 1) for images",
            code="bad-baseline",
        ) from None


def _expand_to_inputs(x: Array, chosen: Array) -> Array:
    """Chosen inputs or pixels (n, places) in the shape of x; all channels of a pixel go together."""
    return chosen.reshape(len(x), 1, *x.shape[2:]) if x.ndim == 4 else chosen


def _score(predict: Predict, x: Array) -> Array:
    scores = np.asarray(predict(x), float)
    if scores.shape != x.shape[:1]:
        raise BadInput(
            f"predict gave {scores.shape} for {len(x)} rows; it must return one score per row", code="bad-prediction-shape"
        )
    return scores


def _shares(values: Array) -> Array:
    """|values| over their sum along the last axis; even shares where all are zero."""
    part = _scale_to_maximum(values, -1)
    total = part.sum(axis=-1, keepdims=True)
    return np.where(total == 0, 1 / part.shape[-1], part / np.where(total == 0, 1.0, total))


def _scale_to_maximum(values: Array, axis: int | tuple[int, ...]) -> Array:
    size = np.abs(np.asarray(values, float))
    top = size.max(axis=axis, keepdims=True)
    out: Array = size / np.where(top == 0, 1.0, top)
    return out


def _window_means(heat: Array, side: int) -> Array:
    """The mean of every full window of a map (..., H, W)."""
    windows = np.lib.stride_tricks.sliding_window_view(heat, (side, side), axis=(-2, -1))
    return np.asarray(windows.mean(axis=(-1, -2)))


@dataclass(frozen=True)
class Randomisation:
    """Rank correlation (L, n) of each row's explanation before and after layers, from the top down, were drawn anew."""

    layers: tuple[str, ...]
    correlation: Array

    @property
    def mean(self) -> Array:
        """Mean over rows, (L,): low at the last is a pass; high means that the explanation does not show the model."""
        return mean_defined(self.correlation)


def randomisation(explain: Callable[[Array], Array], model: Any, theta: Array, *, seed: int) -> Randomisation:
    """Run the sanity check of Adebayo et al. (2018): layers are drawn anew from the top, one more each time, to the last.

    `explain(theta)` gives attributions (n, ...) of the same rows by that model; their absolute values are compared.
    """
    layers = layer_names(model)[::-1]
    before = explain(theta)
    after = (explain(randomize(model, theta, seed, layers=layers[: i + 1])) for i in range(len(layers)))
    size = np.abs(before).reshape(len(before), -1)
    return Randomisation(layers, np.stack([rank_correlation(size, np.abs(a).reshape(size.shape)) for a in after]))


def randomize(model: Any, theta: Array, seed: int, *, layers: Sequence[str] | None = None) -> Array:
    """Draw a model's parameters, or those of some layers, anew as at its start.

    A linear model starts at zero, which explains nothing: weights that start alike are drawn from a normal
    distribution as wide as the trained ones.
    """
    names = layer_names(model)
    for layer in layers or ():
        if layer not in names:
            raise BadInput(f"the model has no layer '{layer}'; it has {', '.join(names)}", code="unknown-layer")
    out, start = theta.copy(), model.init(seed, theta.dtype)
    rng = generator(seed, purpose="randomised")
    for name, span, shape in model.layout.slices:
        if layers is None or _layer_name(name) in layers:
            fresh = start[span]
            if len(shape) > 1 and (fresh == fresh[0]).all():
                fresh = rng.normal(scale=theta[span].std() or 1.0, size=prod(shape))
            out[span] = fresh
    return out


def layer_names(model: Any) -> tuple[str, ...]:
    """Return the names of a model's layers, from the input up; refuse trees and models of whole columns, which have none."""
    if not hasattr(model.layout, "slices"):
        raise BadInput(
            f"a model of kind '{model.kernel}' has no layers that could be drawn anew; use a logistic model, an mlp or a net",
            code="no-parameters",
        )
    return tuple(dict.fromkeys(_layer_name(name) for name, _, _ in model.layout.slices))


def _layer_name(name: str) -> str:
    return name.rpartition(".")[0] or name
