"""Metrics that a client adds to the MetricRecord of its reply, from plain callables and NumPy arrays: any framework will do.

metrics = {"num-examples": len(x), **sse_report(predict, x_reference, y_reference)}
return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)

`predict` takes rows (n, d) and returns probabilities of the model that the client has just trained: (n,) or (n, 1) of the
event, or (n, C) of classes. Keys are the names of the package's own reports with `grandrounds.` before them, so that they
meet no key of the app's own.
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
"""Before every key of ours in a MetricRecord."""

KEEP, ROUND = f"{PREFIX}keep", f"{PREFIX}round"
"""In a message's ConfigRecord: that the node is to keep its model until it is asked for, and the round it trained in."""

SITE = f"{PREFIX}site"
"""In a ConfigRecord of a reply: what the node calls itself, for the record alone."""

UPLOAD = "grandrounds_upload"
"""The action of the message that asks for a model that was kept: `@app.train("grandrounds_upload")`."""


@dataclass(frozen=True)
class ReportColumns:
    """The columns of a report.

    Attributes:
        columns: The names of the columns.
        lists: Those that are lists.
        optional: Those that may be left out.
        helper: The function that computes them.
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
"""By the names that methods ask for; `model`, `count` and `steps` are Flower's own business."""


def metric_key(column: str) -> str:
    """Return the MetricRecord's key of a report's column."""
    return f"{PREFIX}{column}"


Predict = Callable[[Array], Array]
Report = dict[str, float | int | list[float]]

_MIN_PROBABILITY = 1e-15
"""How near to 0 and 1 a probability may be: a log loss stays finite."""


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
    """Compute SSE-AGG's report: the sketch of a model by permutation importance (eq. 2-3).

    Args:
        predict: The model's probabilities.
        x: Reference rows (n, d), the same at all nodes: sketches of other rows cannot be compared.
        y: Their classes (n,); None: importance is how far the model's own predictions move.
        columns: The clinical column of each input (d,), so that one-hot inputs are permuted together; by default each input is
            permuted for itself.
        seed: The seed of permutations, the same at all nodes.
        repeats: Permutations of each column, the same at all nodes.
        validation: The node's own rows (x, y) for the signals worst_site and calibration (eq. 6-7): validation loss and
            calibration error.

    Raises:
        BadInput: `predict` returns no probabilities.
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
    """Compute SSE-AGG's report from importances by an explainer of your own: |input x gradient|, |SHAP|, occlusion.

    Args:
        importances: Importances (n, F) of rows, or (F,), of the same reference rows at all nodes and in one unit (nats of a
            loss, log-odds): sites whose features count for much more or less than others' stand out.
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
        attributions: SHAP values (n, F), against one background that all nodes agree on, or they cannot be compared.
        accuracy: The model's accuracy on held-out rows; None for a node without any.
        against: (x, background), (n, F) and (B, F): adds the direction of attributions, for trust.signed.
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
    """Compute XFed's report: accuracy on shared scoring images, and the share of them with heat in the right place.

    Args:
        predict: The model's probabilities.
        x: Images (n, ...) that all nodes hold.
        y: Their classes (n,).
        heats: Importance of each pixel for the true class (n, H, W), by any attribution. XAI accuracy is the share of images
            with more heat inside the mask (IoU-ratio above 1; sec. 3).
        masks: The right place (n, H, W).
        scenes: Heats (m, H, W) of grid scenes, their right cells (m,) and the cells on a side, for score "grid".
        form: The form of the IoU-ratio.

    Raises:
        BadInput: Heats come without masks, there are neither heats nor scenes, or `predict` returns no probabilities.
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
        """Call `predict` once, to see how many classes it tells apart."""
        probabilities = np.asarray(predict(some))
        if probabilities.ndim not in (1, 2) or len(probabilities) != len(some):
            raise BadInput(
                f"predict gave an array of shape {probabilities.shape} for {len(some)} rows: give (n,), (n, 1) or (n, C)",
                code="bad-predictions",
            )
        return cls(predict, 1 if probabilities.ndim == 1 else probabilities.shape[1])

    def logits(self, _: Any, x: Array) -> Array:
        """Return probabilities as log-odds (n, 1), or as their logarithms (n, C)."""
        p = np.asarray(self.predict(x), float).reshape(len(x), -1)
        if not ((p >= -_MIN_PROBABILITY) & (p <= 1 + 1e-6)).all():
            raise BadInput(
                "predict gave numbers that are no probabilities: give the model's softmax or sigmoid, from 0 to 1",
                code="bad-predictions",
            )
        p = np.clip(p, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
        out: Array = np.log(p) - np.log1p(-p) if self.outputs == 1 else np.log(p)
        return out

    def target(self, y: Array) -> Array:
        """Return classes (n,) as the probabilities that training would aim at, (n, outputs)."""
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
