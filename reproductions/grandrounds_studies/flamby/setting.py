"""Settings of FLamby's strategies on Fed-TCGA-BRCA, and of our Cox regression beside them.

From flamby/config_tcga_brca.json, flamby/datasets/fed_tcga_brca/common.py and flamby/strategies/*.py.
"""

from __future__ import annotations

from typing import Any

from grandrounds_studies.flamby.published import SEEDS
from grandrounds_studies.study import Arm, Point, Repeats

ROUNDS, UPDATES, BATCH, EPOCHS = 5, 100, 8, 30
POINT = "Fed-TCGA-BRCA"

BASE: dict[str, Any] = {
    "data": {"name": "tcga-brca", "task": "survival", "scale": "none", "clip": 0.0},
    "split": {"val": 0.0},
    "model": {"name": "grandrounds_studies.flamby.net:Baseline"},
    "method": {"rounds": ROUNDS},
    "train": {"steps": UPDATES, "batch": BATCH, "continue_epoch": True},
    "explain": {"sketch": "none"},
    "evaluation": {"every": 1000},
}

_SERVER = {"beta1": 0.9, "beta2": 0.999, "tau": 1e-8, "v0": 0.0}
_ALONE = {"steps": 0, "continue_epoch": False, "epochs": EPOCHS, "optimizer": "adam", "lr": 0.1}

FEDAVG = Arm("FedAvg", {"method": {"name": "fedavg"}, "train": {"lr": 0.1}})
STRATEGIES = (
    FEDAVG,
    Arm("FedProx", {"method": {"name": "fedprox", "mu": 0.1}, "train": {"lr": 0.1}}),
    Arm("Scaffold", {"method": {"name": "scaffold"}, "train": {"lr": 0.01}}),
    Arm("FedAdam", {"method": {"name": "fedadam", "server": {**_SERVER, "lr": 0.1}}, "train": {"lr": 0.01}}),
    Arm("FedYogi", {"method": {"name": "fedyogi", "server": {**_SERVER, "lr": 0.1}}, "train": {"lr": 0.01}}),
    Arm("FedAdagrad", {"method": {"name": "fedadagrad", "server": {**_SERVER, "lr": 1.0}}, "train": {"lr": 0.01}}),
    Arm("pooled training", {"method": {"name": "pooled", "rounds": 1}, "train": _ALONE}),
    Arm("local training", {"method": {"name": "local", "rounds": 1}, "train": _ALONE}),
)
POINTS = (Point(POINT, {}),)


def _seeded(i: int) -> dict[str, Any]:
    """Return the settings of the i-th of FLamby's seeds: the initial weights and the order of rows follow from it."""
    seed = SEEDS[0] + i
    return {"seed": seed, "model": {"options": {"seed": seed}}}


REPEATS = Repeats("seed", _seeded, first=SEEDS[0])

_COX = {"model": {"name": "linear"}, "data": {"scale": "standard"}}
MOST_EXCHANGES = {"Cox, stratified": 15, "Cox, common baseline": 25}
STRATA, COMMON = EXACT = tuple(
    Arm(label, {**_COX, "method": {"name": "cox", "rounds": 60, "exact": {"ridge": "cv", "baseline": baseline}}})
    for label, baseline in zip(MOST_EXCHANGES, ("strata", "grid"), strict=True)
)
