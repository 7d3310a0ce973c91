"""What a client adds to the MetricRecord of its reply, from plain callables and NumPy arrays: any framework will do.

metrics = {"num-examples": len(x), **sse_report(predict, x_reference, y_reference)}
return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)

`predict` takes rows (n, d) and gives probabilities: (n,) or (n, 1) of the event, or (n, C) of classes. It is asked for the
model that the client has just trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.agreement import grid_accuracy, xai_accuracy
from grandrounds.explain.direction import pointing, unit
from grandrounds.explain.explainer import Importances
from grandrounds.explain.features import Features
from grandrounds.explain.rationale import truth
from grandrounds.explain.rule import SketchRule
from grandrounds.explain.sketch import Sketches
from grandrounds.explain.trust import distribution
from grandrounds.integrations.flower.reports import key_of
from grandrounds.metrics import Scored, scores
from grandrounds.site.explain import sketched

Predict = Callable[[Array], Array]
Report = dict[str, float | int | list[float]]

_SURE = 1e-15
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
    """SSE-AGG's report: the sketch of a model by permutation importance (eq. 2-3), and on request how it does on own rows.

    x (n, d), y (n,): reference rows, the same at all nodes, as are `seed` and `repeats`: sketches of other rows or other
    permutations cannot be compared. y None: how far the model's own predictions move. `columns` (d,): the clinical column of
    each input, so that one-hot inputs are permuted together; not given: each input for itself. `validation`: rows of the
    node's own for the signals worst_site and calibration (eq. 6-7): validation loss and calibration error.
    """
    model = _Called.of(predict, x[:1])
    rows = np.asarray(x, float)
    names = tuple(columns) or tuple(str(j) for j in range(rows.shape[1]))
    rule = SketchRule("permutation", seed, score="log_loss" if y is not None else "self", repeats=repeats)
    target = model.target(np.zeros(len(rows), np.int64) if y is None else y)
    explainer = rule.explainer(Features.of_columns(names), None)
    said = sketched(rule, explainer, model, np.zeros((1, 0)), rows, target, names=("node",), round=0)
    own = _own(said["sketch"][0], float(said["sketch.total"][0]), bool(said["sketch.flat"][0]))
    return own if validation is None else own | _figures(model, *validation)


def sse_report_of(importances: Array) -> Report:
    """The same from importances (n, F) of rows, or (F,), by an explainer of your own: |input x gradient|, |SHAP|, occlusion.

    They are of the same reference rows at all nodes, and in one unit (nats of a loss, log-odds): sites whose features count
    for much more or less than others' stand out.
    """
    rows = np.atleast_2d(np.asarray(importances, float))
    mean = rows.mean(axis=0, keepdims=True)
    names = tuple(str(f) for f in range(mean.shape[1]))
    made = Sketches.of_importances(("node",), names, Importances(mean, np.zeros_like(mean)))
    total = 0.0 if made.flat[0] else float(np.maximum(mean, 0).sum())
    return _own(made.values[0], total, bool(made.flat[0]))


def fedxchain_report(
    attributions: Array, *, accuracy: float | None, against: tuple[Array, Array] | None = None
) -> Report:
    """FedXChain's report: SHAP values (n, F) of a node's own rows as shares (eq. 3), and the model's accuracy on held-out rows.

    All nodes take SHAP values against one agreed background, or they cannot be compared. `accuracy` None: the node has no
    rows to tell it by. `against` (x, background), (n, F) and (B, F): which way reasons point is told too, for trust.signed.
    """
    values = np.atleast_2d(np.asarray(attributions, float))
    out: Report = {
        key_of("shap.shares"): distribution(np.abs(values).mean(axis=0)).tolist(),
        key_of("trust.accuracy"): float("nan") if accuracy is None else float(accuracy),
    }
    if against is not None:
        out[key_of("shap.direction")] = unit(pointing(values, *against)).tolist()
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
    """XFed's report: how right a model is on shared scoring pictures, and the share of them that it is right about for a reason.

    x (n, ...), y (n,): pictures and classes that all nodes hold. `heats` (n, H, W): how much each pixel counts for the true
    class, by any attribution; `masks` (n, H, W): where it should. XAI accuracy is the share with more heat inside (IoU-ratio
    above 1; sec. 3). `scenes`: heats (m, H, W) of grid scenes, their right cells (m,) and the cells on a side, for score "grid".
    """
    if (heats is None) != (masks is None) or (heats is None and scenes is None):
        raise BadInput("xfed_report needs heats with their masks, or scenes with their cells", code="missing-argument")
    model = _Called.of(predict, x[:1])
    said = truth(model.logits(None, x), np.asarray(y, np.int64))
    out: Report = {
        key_of("rationale.accuracy"): float(said.right.mean()),
        key_of("rationale.loss"): float(said.loss.mean()),
    }
    if heats is not None and masks is not None:
        share = xai_accuracy(heats, masks, form=form)
        out[key_of("rationale.xai")] = float(share) if share.count else float("nan")
    if scenes is not None:
        warm, cells, side = scenes
        out[key_of("rationale.grid")] = float(grid_accuracy(warm, cells, side))
    return out


@dataclass(frozen=True)
class _Called:
    """A client's `predict` as the model that the package's explainers ask."""

    predict: Predict
    outputs: int
    kernel: ClassVar[str] = "called"

    @classmethod
    def of(cls, predict: Predict, some: Array) -> _Called:
        """Asked once, to see how many classes it tells apart."""
        found = np.asarray(predict(some))
        if found.ndim not in (1, 2) or len(found) != len(some):
            raise BadInput(
                f"predict gave an array of shape {found.shape} for {len(some)} rows: give (n,), (n, 1) or (n, C)",
                code="bad-predictions",
            )
        return cls(predict, 1 if found.ndim == 1 else found.shape[1])

    def logits(self, _: Any, x: Array) -> Array:
        """Probabilities as log-odds (n, 1), or as their logarithms (n, C)."""
        p = np.asarray(self.predict(x), float).reshape(len(x), -1)
        if not ((p >= -_SURE) & (p <= 1 + 1e-6)).all():
            raise BadInput(
                "predict gave numbers that are no probabilities: give the model's softmax or sigmoid, from 0 to 1",
                code="bad-predictions",
            )
        p = np.clip(p, _SURE, 1 - _SURE)
        out: Array = np.log(p) - np.log1p(-p) if self.outputs == 1 else np.log(p)
        return out

    def target(self, y: Array) -> Array:
        """Classes (n,) as the probabilities that training would aim at, (n, outputs)."""
        classes = np.asarray(y).astype(np.int64)
        if self.outputs == 1:
            return classes[:, None].astype(float)
        out: Array = np.eye(self.outputs)[classes]
        return out


def _own(sketch: Array, total: float, flat: bool) -> Report:
    said: Mapping[str, Any] = {"sketch": sketch.tolist(), "sketch.total": total, "sketch.flat": int(flat)}
    return {key_of(name): value for name, value in said.items()}


def _figures(model: _Called, x: Array, y: Array) -> Report:
    """Log loss and expected calibration error of a node's own rows; not a number without any."""
    if not len(x):
        return {key_of("val_loss"): float("nan"), key_of("ece"): float("nan")}
    classes = max(2, model.outputs)
    scored = Scored.of(model.logits(None, x), np.asarray(y).astype(np.int64), classes=classes)
    found = scores(scored.apart(np.zeros(len(x), np.int64), (1,)), only=("log_loss", "ece"))
    return {key_of("val_loss"): float(found["log_loss"][0]), key_of("ece"): float(found["ece"][0])}
