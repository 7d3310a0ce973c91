"""Measures of VEIL and of the methods it is compared with: traffic, sparsity, the guarantee, the distance from uniform."""

from __future__ import annotations

from math import exp, nan, tanh
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import Plan
from grandrounds_studies.measures import AUPRC, AUROC, ECE, MEGABYTES, of_model
from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

RECALL = of_model("recall_at_90_specificity", called="recall at 90%")


def _payload(*ways: str) -> Any:
    return lambda run: sum(float(run.summary["cost"][f"payload_{way}"]) for way in ways) / 1e3


UP = Measure("payload_up", "kB up", _payload("up"), lower=True, digits=1)
DOWN = Measure("payload_down", "kB down", _payload("down"), lower=True, digits=1)
PAYLOAD = Measure("payload", "payload, kB", _payload("down", "up"), lower=True, digits=1, shown=False)


def _nonzero(run: Run) -> float:
    """Inputs of a linear model whose weight is not zero; NaN for other models."""
    model = run.model
    return float(np.count_nonzero(model.parameters["layer0.weight"])) if model.spec["name"] == "logistic" else nan


INPUTS = Measure("inputs", "inputs", lambda run: float(np.prod(run.summary["inputs"])), digits=0, shown=False)
NONZERO = Measure("nonzero", "non-zero", _nonzero, lower=None, digits=0)


def promise(run: Run) -> dict[str, Any]:
    """The run's guarantee as text, the epsilon that holds by the accountant (None: none does), and what was sent as it is."""
    told = run.summary["privacy"]
    raw = [str(event["what"]) for event in told.get("events", ()) if event["kind"] == "raw"]
    epsilon = None if raw or told.get("epsilon") is None else float(told["epsilon"])
    return {"statement": str(told.get("statement", "")), "epsilon": epsilon, "raw": raw}


def _from_uniform(run: Run) -> float:
    """The largest total variation, over sites, between the printed draw of a feature and a uniform one."""
    method = Plan(run.plan).method
    claimed = method.veil.claimed_epsilon
    if method.name != "veil" or method.veil.selection != "paper" or claimed is None:
        return nan
    draw = claimed / (method.rounds * method.veil.k)
    return max(from_uniform(weights, draw) for weights in _fitted(run))


def _fitted(run: Run) -> list[Array]:
    """Return the weights of each site's small model, in units of the printed sensitivity."""
    from grandrounds.data.encoding import class_numbers
    from grandrounds.methods.veil.extractor import Extractor, printed_weights
    from grandrounds.runs.run_rows import RunRows

    train, held = run.plan["train"], RunRows.read(run).consortium
    rule = Extractor(train["epochs"], train["batch"], train["lr"], 1.0, 0.0)
    encoding: Any = run.model.encoding
    out = []
    for rows in held.stack.rows:
        if not len(rows.train):
            continue
        data: Any = held.data.take(rows.train)
        x = np.asarray(encoding.encode(data), float)
        y = class_numbers(data.label, encoding.classes, where=data.name).astype(float)
        out.append(printed_weights(rule, x, y, np.random.default_rng(run.plan["seed"])))
    return out


def from_uniform(weights: Array, draw: float) -> float:
    """Total variation between P(j) ~ exp(draw |w_j| / 2) (eq. 2, weights in units of its sensitivity) and uniform."""
    p = np.exp(draw / 2 * np.abs(weights))
    return float(np.abs(p / p.sum() - 1 / len(p)).sum() / 2)


def most_from_uniform(draw: float) -> float:
    """The same for any data: |w_j| is never above half of eq. 1's sensitivity, so exponents spread by draw / 4 at most.

    Of a spread s the worst case is a share 1 / (1 + e^(s/2)) of the features at the top: tanh(s / 4).
    """
    return tanh(draw / 16)


def most_odds(draw: float) -> float:
    """Return the largest ratio of the probabilities of two features."""
    return exp(draw / 4)


FROM_UNIFORM = Measure("from_uniform", "distance from uniform", _from_uniform, digits=5, shown=False)

JUDGED = (AUROC, AUPRC, RECALL, ECE)
SENT = (UP, DOWN, MEGABYTES, PAYLOAD)
ALL = (*JUDGED, *SENT, NONZERO, INPUTS, FROM_UNIFORM)
