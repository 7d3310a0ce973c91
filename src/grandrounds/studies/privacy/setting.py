"""The worlds and the ways of privacy's studies: FedAvg and SSE-AGG, each without a promise and under DP-SGD.

SSE-AGG's signals are worked out by the server, from models that left the sites under the promise, on rows of its own. So
nothing more is charged than for FedAvg, and all that its default form changes at a site are steps on rows that it was sent.
"""

from __future__ import annotations

from typing import Any

from grandrounds.studies.study import Arm, Point, Settings, merged

EPSILONS = (1.0, 3.0, 8.0)
DELTA = 1e-5
ROUNDS = 30

BASE: dict[str, Any] = {
    "method": {"rounds": ROUNDS},
    "train": {"epochs": 1, "batch": 64},
    "explain": {"sketch": "permutation", "every": 1, "reference": "rows", "at": "server"},
    "evaluation": {"every": 1000},
}
QUICK: dict[str, Any] = {
    "data": {"name": "breast-cancer", "encoding": "fitted"},
    "split": {"partition": "equal", "sites": 4, "scheme": "within"},
    "reference": {"rows": {"rows": 40}, "anchor": {"rows": 40}},
    "method": {"rounds": 12},
}
"""A small set that is always at hand; twelve rounds, so that anchors come to their strength."""

FEDAVG = Arm("FedAvg", {"method": {"name": "fedavg"}})
SSE_AGG = Arm("SSE-AGG", {"method": {"name": "sse-agg"}})


def private(arm: Arm, epsilon: float) -> Arm:
    """The same under a promise to patients; clip and learning rate are the point's."""
    promise = {"privacy": {"mechanism": "dp-sgd", "epsilon": epsilon, "delta": DELTA}}
    return Arm(f"{arm.label}, epsilon {epsilon:g}", merged(arm.settings, promise))


PRIVATE = {e: (private(FEDAVG, e), private(SSE_AGG, e)) for e in EPSILONS}
"""Epsilon -> FedAvg and SSE-AGG that promise it."""

ARMS = (FEDAVG, SSE_AGG, *(arm for pair in PRIVATE.values() for arm in pair))


def world(label: str, data: Settings, *, rows: int, lr: float, clip: float, private_lr: float, **more: Any) -> Point:
    """A data set: so many rows to compare models on and as many to anchor sites to, and how to train there."""
    reference = {"rows": {"rows": rows}, "anchor": {"rows": rows, "sent": True, "labelled": False}}
    settings = {"data": data, "reference": reference, "train": {"lr": lr}, **more}
    own = {"privacy": {"clip": clip}, "train": {"lr": private_lr}}
    return Point(label, settings, of={arm.label: own for pair in PRIVATE.values() for arm in pair})


DIABETES = world(
    "diabetes-130",
    {"name": "diabetes-130"},
    rows=200,
    lr=0.05,
    clip=8.0,
    private_lr=0.1,
    split={"partition": "dirichlet", "sites": 10, "alpha": 0.5},
)
ICU = world(
    "icu-cohort",
    {"name": "icu-cohort", "encoding": "public"},
    rows=200,
    lr=0.1,
    clip=8.0,
    private_lr=0.03,
    split={"scheme": "group-kfold"},
)
HEART = world("heart", {"name": "heart", "encoding": "public"}, rows=60, lr=0.05, clip=1.0, private_lr=0.1)
POINTS = (DIABETES, ICU, HEART)
LABELS = tuple(p.label for p in POINTS)
