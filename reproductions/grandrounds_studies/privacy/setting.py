"""The worlds and the ways of privacy's studies: FedAvg and SSE-AGG, each without a guarantee and under DP-SGD.

SSE-AGG's signals are worked out by the server, from models that left the sites with the guarantee, on rows of its own. So
nothing more is charged than for FedAvg, and all that its default form changes at a site are steps on rows that it was sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from grandrounds_studies.study import Arm, Point, Settings, merged

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
SSE_AGG = Arm("SSE-AGG", {"method": {"name": "sse-agg", "preset": "drift"}})


def private(arm: Arm, epsilon: float) -> Arm:
    """The same with a guarantee for patients; clip and learning rate are the point's."""
    promise = {"privacy": {"mechanism": "dp-sgd", "epsilon": epsilon, "delta": DELTA, "unit": "row"}}
    return Arm(f"{arm.label}, epsilon {epsilon:g}", merged(arm.settings, promise))


PRIVATE = {e: (private(FEDAVG, e), private(SSE_AGG, e)) for e in EPSILONS}
"""Epsilon -> FedAvg and SSE-AGG that guarantee it."""

ARMS = (FEDAVG, SSE_AGG, *(arm for pair in PRIVATE.values() for arm in pair))


@dataclass(frozen=True)
class World:
    """A data set: how many of its rows are set aside, and how to train there, freely and with a guarantee."""

    label: str
    data: Settings
    rows: int
    lr: float
    clip: float
    private_lr: float
    split: Settings = field(default_factory=dict)

    def point(self, reference: Settings, bound: Iterable[Arm], *, label: str = "", **more: Any) -> Point:
        """The world with these rows set aside; `bound` are the arms that are with a guarantee."""
        settings = {"data": self.data, "reference": reference, "train": {"lr": self.lr}, **more}
        if self.split:
            settings["split"] = self.split
        own = {"privacy": {"clip": self.clip}, "train": {"lr": self.private_lr}}
        return Point(label or self.label, settings, group=self.label, of={arm.label: own for arm in bound})


TEN_SITES = World(
    "diabetes-130",
    {"name": "diabetes-130"},
    rows=200,
    lr=0.05,
    clip=8.0,
    private_lr=0.1,
    split={"partition": "dirichlet", "sites": 10, "alpha": 0.5},
)
COHORT = World(
    "icu-cohort",
    {"name": "icu-cohort", "encoding": "public"},
    rows=200,
    lr=0.1,
    clip=8.0,
    private_lr=0.03,
    split={"scheme": "group-kfold"},
)
HOSPITALS = World("heart", {"name": "heart", "encoding": "public"}, rows=60, lr=0.05, clip=1.0, private_lr=0.1)


def _anchored(world: World) -> Point:
    """With rows to compare models on, and as many to anchor sites to."""
    reference = {"rows": {"rows": world.rows}, "anchor": {"rows": world.rows, "sent": True, "labelled": False}}
    return world.point(reference, [arm for pair in PRIVATE.values() for arm in pair])


POINTS = DIABETES, ICU, HEART = _anchored(TEN_SITES), _anchored(COHORT), _anchored(HOSPITALS)
LABELS = tuple(p.label for p in POINTS)
