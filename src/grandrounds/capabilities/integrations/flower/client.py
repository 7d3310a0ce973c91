"""Metrics that a client adds to the MetricRecord of its reply, from plain callables and NumPy arrays of any framework.

metrics = {"num-examples": len(x), **sse_report(predict, x_reference, y_reference)}
return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)

`predict` takes rows (n, d) and returns probabilities of the trained model: (n,) or (n, 1) of the event, or (n, C) of
classes. Keys are the names of the package's reports with the prefix `grandrounds.`, so that they do not collide with the
app's keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.agreement import grid_accuracy, xai_accuracy
from grandrounds.explain.explainer import Importances
from grandrounds.explain.explainers.shapley import mean_direction, unit_vector
from grandrounds.explain.features import Features
from grandrounds.explain.rationale import score_logits
from grandrounds.explain.rule import SketchRule
from grandrounds.explain.sketch import Sketches
from grandrounds.explain.trust import distribution
from grandrounds.metrics import ScoredRows, scores
from grandrounds.site.explain import sketched

PREFIX = "grandrounds."
"""Prefix of our keys in a MetricRecord."""

KEEP, ROUND = f"{PREFIX}keep", f"{PREFIX}round"
"""Keys of a message's ConfigRecord: the node keeps its model until it is requested, and the round of that model."""

SITE = f"{PREFIX}site"
"""Key of a reply's ConfigRecord: the node's own name, for the record only."""

UPLOAD = "grandrounds_upload"
"""Action of the message that requests a stored model: `@app.train("grandrounds_upload")`."""


@dataclass(frozen=True)
class ReportColumns:
    """Columns of a report.

    Attributes:
        columns: Names of the columns.
        lists: Columns that are lists.
        optional: Columns that may be omitted.
        helper: Function that computes them.
    """

    columns: tuple[str, ...]
    lists: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    helper: str = ""


REPORTS = {
    "sketch": ReportColumns(("sketch", "sketch.total", "sketch.flat"), lists=("sketch",), helper="sse_report"),
    "val_loss": ReportColumns(("val_loss",), helper="sse_report(..., validation=(x, y))"),
    "ece": ReportColumns(("ece",), helper="sse_report(..., validation=(x, y))"),
    "shap": ReportColumns(
        ("shap.shares", "shap.direction"),
        lists=("shap.shares", "shap.direction"),
        optional=("shap.direction",),
        helper="fedxchain_report",
    ),
    "trust": ReportColumns(("trust.accuracy",), helper="fedxchain_report(..., accuracy=...)"),
    "rationale": ReportColumns(
        ("rationale.accuracy", "rationale.loss", "rationale.xai", "rationale.grid"),
        optional=("rationale.loss", "rationale.xai", "rationale.grid"),
        helper="xfed_report",
    ),
}
"""Reports by the names that methods use; `model`, `count` and `steps` come from Flower itself."""


def metric_key(column: str) -> str:
    """Return the key of a report's column in a MetricRecord."""
    return f"{PREFIX}{column}"


Predict = Callable[[Array], Array]
Report = dict[str, float | int | list[float]]

_MIN_PROBABILITY = 1e-15
"""Smallest distance of a probability from 0 and 1, so that a log loss is finite."""


def sse_report(
    predict: Predict,
    x: Array,
    y: Array | None,
    *,
    columns: Sequence[str] = (),
    seed: int = 0,
    repeats: int = 3,
    validation: tuple[Array, Array] | None = None,
) -> Report:
    """Compute SSE-AGG's report: a sketch of the model by permutation importance (eq. 2-3).

    Args:
        predict: The model's probabilities.
        x: Reference rows (n, d), the same at all nodes: sketches of other rows cannot be compared.
        y: Their classes (n,); None: importance is the change of the model's own predictions.
        columns: The clinical column of each input (d,), so that one-hot inputs are permuted together; by default each input
            is permuted separately.
        seed: Seed of the permutations, the same at all nodes.
        repeats: Permutations of each column, the same at all nodes.
        validation: The node's own rows (x, y) for the signals worst_site and calibration (eq. 6-7): validation loss and
            calibration error.

    Returns:
        The metrics.

    Raises:
        BadInput: `predict` does not return probabilities.
    """
    model = _PredictModel.from_callable(predict, x[:1])
    rows = np.asarray(x, float)
    names = tuple(columns) or tuple(str(j) for j in range(rows.shape[1]))
    rule = SketchRule("permutation", seed, score="log_loss" if y is not None else "self", repeats=repeats)
    target = model.target(np.zeros(len(rows), np.int64) if y is None else y)
    explainer = rule.explainer(Features.from_columns(names), None)
    sketch = sketched(rule, explainer, model, np.zeros((1, 0)), rows, target, names=("node",), round=0)
    report = _sketch_report(sketch["sketch"][0], float(sketch["sketch.total"][0]), bool(sketch["sketch.flat"][0]))
    return report if validation is None else report | _validation_report(model, *validation)


def sse_report_of(importances: Array) -> Report:
    """Compute SSE-AGG's report from importances of your own explainer: |input x gradient|, |SHAP|, occlusion.

    Args:
        importances: Importances (n, F) of rows, or (F,), of the same reference rows at all nodes and in one unit (nats of a
            loss, log-odds); sites whose importances are much larger or smaller than others' count as outliers.

    Returns:
        The metrics.
    """
    rows = np.atleast_2d(np.asarray(importances, float))
    mean = rows.mean(axis=0, keepdims=True)
    names = tuple(str(f) for f in range(mean.shape[1]))
    sketches = Sketches.from_importances(("node",), names, Importances(mean, np.zeros_like(mean)))
    total = 0.0 if sketches.flat[0] else float(np.maximum(mean, 0).sum())
    return _sketch_report(sketches.values[0], total, bool(sketches.flat[0]))


def fedxchain_report(
    attributions: Array, *, accuracy: float | None, against: tuple[Array, Array] | None = None
) -> Report:
    """Compute FedXChain's report: SHAP values of a node's own rows as shares (eq. 3), and the accuracy on held-out rows.

    Args:
        attributions: SHAP values (n, F) with one background at all nodes, or they cannot be compared.
        accuracy: The model's accuracy on held-out rows; None for a node without any.
        against: (x, background), (n, F) and (B, F): adds the direction of attributions, for trust.signed.

    Returns:
        The metrics.
    """
    values = np.atleast_2d(np.asarray(attributions, float))
    out: Report = {
        metric_key("shap.shares"): distribution(np.abs(values).mean(axis=0)).tolist(),
        metric_key("trust.accuracy"): float("nan") if accuracy is None else float(accuracy),
    }
    if against is not None:
        out[metric_key("shap.direction")] = unit_vector(mean_direction(values, *against)).tolist()
    return out


def xfed_report(
    predict: Predict,
    x: Array,
    y: Array,
    *,
    heats: Array | None = None,
    masks: Array | None = None,
    scenes: tuple[Array, Array, int] | None = None,
    form: str = "mass",
) -> Report:
    """Compute XFed's report: accuracy on shared scoring images, and the share of images with heat in the correct region.

    Args:
        predict: The model's probabilities.
        x: Images (n, ...) that all nodes have.
        y: Their classes (n,).
        heats: Importance of each pixel for the true class (n, H, W), by any attribution. XAI accuracy is the share of
            images with more heat inside the mask (IoU-ratio above 1; sec. 3).
        masks: The correct region (n, H, W).
        scenes: Heats (m, H, W) of grid scenes, their correct cells (m,) and the cells on a side, for score "grid".
        form: Form of the IoU-ratio.

    Returns:
        The metrics.

    Raises:
        BadInput: Heats have no masks, there are neither heats nor scenes, or `predict` does not return probabilities.
    """
    if (heats is None) != (masks is None) or (heats is None and scenes is None):
        raise BadInput("xfed_report needs heats with their masks, or scenes with their cells", code="missing-argument")
    model = _PredictModel.from_callable(predict, x[:1])
    answers = score_logits(model.logits(None, x), np.asarray(y, np.int64))
    out: Report = {
        metric_key("rationale.accuracy"): float(answers.right.mean()),
        metric_key("rationale.loss"): float(answers.loss.mean()),
    }
    if heats is not None and masks is not None:
        share = xai_accuracy(heats, masks, form=form)
        out[metric_key("rationale.xai")] = float(share) if share.count else float("nan")
    if scenes is not None:
        warm, cells, side = scenes
        out[metric_key("rationale.grid")] = float(grid_accuracy(warm, cells, side))
    return out


@dataclass(frozen=True)
class _PredictModel:
    """A client's `predict` as a model for the package's explainers."""

    predict: Predict
    outputs: int
    kernel: ClassVar[str] = "called"

    @classmethod
    def from_callable(cls, predict: Predict, some: Array) -> _PredictModel:
        """Call `predict` once, to find the number of classes."""
        probabilities = np.asarray(predict(some))
        if probabilities.ndim not in (1, 2) or len(probabilities) != len(some):
            raise BadInput(
                f"predict returned an array of shape {probabilities.shape} for {len(some)} rows: return (n,), (n, 1) or "
                "(n, C)",
                code="bad-predictions",
            )
        return cls(predict, 1 if probabilities.ndim == 1 else probabilities.shape[1])

    def logits(self, _: Any, x: Array) -> Array:
        """Convert probabilities to log-odds (n, 1), or to their logarithms (n, C)."""
        p = np.asarray(self.predict(x), float).reshape(len(x), -1)
        if not ((p >= -_MIN_PROBABILITY) & (p <= 1 + 1e-6)).all():
            raise BadInput(
                "predict returned numbers outside 0 to 1: return probabilities (the model's softmax or sigmoid)",
                code="bad-predictions",
            )
        p = np.clip(p, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
        out: Array = np.log(p) - np.log1p(-p) if self.outputs == 1 else np.log(p)
        return out

    def target(self, y: Array) -> Array:
        """Convert classes (n,) to target probabilities, (n, outputs)."""
        classes = np.asarray(y).astype(np.int64)
        if self.outputs == 1:
            return classes[:, None].astype(float)
        out: Array = np.eye(self.outputs)[classes]
        return out


def _sketch_report(sketch: Array, total: float, flat: bool) -> Report:
    values: Report = {"sketch": sketch.tolist(), "sketch.total": total, "sketch.flat": int(flat)}
    return {metric_key(name): value for name, value in values.items()}


def _validation_report(model: _PredictModel, x: Array, y: Array) -> Report:
    """Compute log loss and expected calibration error of a node's own rows; NaN without any."""
    if not len(x):
        return {metric_key("val_loss"): float("nan"), metric_key("ece"): float("nan")}
    classes = max(2, model.outputs)
    scored = ScoredRows.from_logits(model.logits(None, x), np.asarray(y).astype(np.int64), classes=classes)
    figures = scores(scored.exact_tally(np.zeros(len(x), np.int64), (1,)), only=("log_loss", "ece"))
    return {metric_key("val_loss"): float(figures["log_loss"][0]), metric_key("ece"): float(figures["ece"][0])}
