"""Settings of FLamby's strategies on Fed-Heart-Disease, and of our logistic regressions beside them.

From flamby/datasets/fed_heart_disease/common.py, flamby/strategies/*.py, and the learning rates that the published result files
state. Initial weights are those that FLamby draws: `start/seed42.safetensors` holds a torch linear layer drawn with seed 42.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.errors import BadInput
from grandrounds.data.sets.fed_heart import NAME, SCALED
from grandrounds_studies.flamby.published import SEEDS
from grandrounds_studies.study import Arm, Point, Repeats

ROUNDS, UPDATES, BATCH, EPOCHS = 15, 100, 4, 50
POINT = "Fed-Heart-Disease"
CENTRES = 4
START = Path(__file__).with_name("start")

BASE: dict[str, Any] = {
    "data": {"name": SCALED, "scale": "none", "clip": 0.0},
    "split": {"val": 0.0},
    "model": {"name": "logistic"},
    "method": {"rounds": ROUNDS},
    "train": {"steps": UPDATES, "batch": BATCH, "continue_epoch": True},
    "explain": {"sketch": "none"},
    "evaluation": {"every": 1000},
}
POINTS = (Point(POINT, {}),)

_SERVER = {"beta1": 0.9, "beta2": 0.999, "tau": 1e-8, "v0": 0.0}
_ALONE = {"steps": 0, "continue_epoch": False, "epochs": EPOCHS, "optimizer": "adam", "lr": 0.001}
_AS_RECORDED = {"name": NAME, "scale": "standard"}


def _count_turns(i: int) -> int:
    """Count the turns of centre 0 in 15 rounds of FLamby's Cyclic, whose order of centres is drawn anew for each cycle."""
    rng = np.random.default_rng(SEEDS[0] + i)
    order = [int(k) for _ in range(-(-ROUNDS // CENTRES)) for k in rng.permutation(CENTRES)]
    return order[:ROUNDS].count(0)


def _method(name: str, **settings: Any) -> dict[str, Any]:
    return {"method": {"name": name, **settings}}


FEDAVG = Arm("FedAvg", {**_method("fedavg"), "train": {"lr": 0.001}})
CYCLIC = Arm(
    "Cyclic",
    {**_method("local"), "train": {"lr": 0.01}},
    repeated=lambda i: {"method": {"rounds": _count_turns(i)}},
)
POOLED = Arm("pooled training", {"data": _AS_RECORDED, **_method("pooled", rounds=1), "train": _ALONE})
LOCAL = Arm("local training", {**_method("local", rounds=1), "train": _ALONE})
FEDERATED = (
    FEDAVG,
    Arm("FedProx", {**_method("fedprox", mu=0.01), "train": {"lr": 0.001}}),
    Arm("Scaffold", {**_method("scaffold"), "train": {"lr": 0.001}}),
    CYCLIC,
    Arm("FedAdam", {**_method("fedadam", server={**_SERVER, "lr": 0.01}), "train": {"lr": 0.01}}),
    Arm("FedYogi", {**_method("fedyogi", server={**_SERVER, "lr": 0.01}), "train": {"lr": 0.003162}}),
    Arm("FedAdagrad", {**_method("fedadagrad", server={**_SERVER, "lr": 0.316228}), "train": {"lr": 0.003162}}),
)
STRATEGIES = (*FEDERATED, POOLED, LOCAL)
TRANSFER = Arm("cyclic weight transfer", {**_method("cyclic"), "train": {"lr": 0.01}})


def _regression(label: str, *, data: dict[str, Any] | None = None, guard: bool = False, **exact: Any) -> Arm:
    settings = {"data": data or {}, **_method("glm", rounds=60, exact={"ridge": 1.0, **exact})}
    return Arm(label, {**settings, "personal": {"guard": guard}})


MAJORITY = _regression("majority class", intercept="random", ridge=1e9)
COMMON = _regression("logistic, one intercept", intercept="common")
OURS = _regression("shrunk intercepts, guard", intercept="random", guard=True)
ONE_SCALE = _regression("one scale: shrunk, guard", intercept="random", guard=True, data=_AS_RECORDED)
ONE_SCALE_COMMON = _regression("one scale: one intercept", intercept="common", data=_AS_RECORDED)
GUARDED = tuple(
    Arm(f"{arm.label} with the guard", {**arm.settings, "personal": {"guard": True}})
    for arm in FEDERATED
    if arm.label in ("FedAvg", "FedYogi")
)
OTHERS = (TRANSFER, MAJORITY, *GUARDED, COMMON, OURS, ONE_SCALE_COMMON, ONE_SCALE)


def _seeded(i: int) -> dict[str, Any]:
    """Return the settings of the i-th of FLamby's seeds: the initial weights and the order of rows follow from it."""
    if i >= len(SEEDS):
        raise BadInput(f"flamby/heart has FLamby's {len(SEEDS)} seeds, 42 to 46: give --seeds {len(SEEDS)} or fewer")
    seed = SEEDS[i]
    return {"seed": seed, "model": {"weights": str(START / f"seed{seed}.safetensors")}}


REPEATS = Repeats("seed", _seeded, first=SEEDS[0])
