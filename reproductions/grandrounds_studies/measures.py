"""Figures that studies read off a run. Explanations are read as the mean over the last ten rounds, models at the end."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.metrics.names import lower_is_better, metric_label
from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from grandrounds.report.explanations import Block
    from grandrounds.runs.run import Run

LAST = 10
"""Rounds at the end over which figures of local models are averaged: one round alone is a draw of its batches."""


def of_model(name: str, *, called: str = "", digits: int = 3) -> Measure:
    """A figure of the final model that `rounds compare` knows: "accuracy", "ood_auroc", "spurious_gap" ..."""
    return Measure(name, called or metric_label(name), lambda run: _final(run, name), lower_is_better(name), digits)


def _final(run: Run, name: str) -> float:
    from grandrounds.analysis.compare import Arm

    return Arm(name, {(0, 0): run}).values(name)[0]


def of_rounds(name: str, key: str, called: str, *, lower: bool, digits: int = 3) -> Measure:
    """A number of the local models' explanations, as the mean over the last ten rounds."""
    return Measure(name, called, lambda run: _tail(run, key), lower, digits)


def _tail(run: Run, key: str) -> float:
    late = [r.get("explanation", {}).get("training", {}) for r in run.rounds[-LAST:]]
    values = [float(block[key]) for block in late if block.get(key) is not None]
    return sum(values) / len(values) if values else nan


ACCURACY = of_model("accuracy")
MAJORITY = Measure("majority", "majority class", lambda run: _final(run, "majority"))
"""Every accuracy is printed beside it."""
MACRO_F1 = of_model("macro_f1")
AUROC = of_model("auroc")
AUPRC = of_model("auprc")
BRIER = of_model("brier", called="Brier score")
ECE = of_model("ece")
DRIFT = of_rounds("training_drift", "drift", "training drift", lower=True)
LOG_LOSS = of_model("log_loss")
WORST_SITE = of_model("worst_site_accuracy")
DEPLOYED = of_model("deployed_divergence")
CONSENSUS_DRIFT = of_rounds("consensus_drift", "consensus_drift", "round-to-round drift", lower=True)
JACCARD = of_rounds("training_jaccard", "jaccard", "Jaccard@5", lower=False)
SAM = of_rounds("spurious_mass", "spurious_mass", "SAM", lower=True)
DEPLOYED_SAM = of_model("deployed_spurious_mass")


def _entries(run: Run) -> float:
    """Mean number of entries of a sketch that are not zero, C of SSE-AGG's sec. V."""
    counts = [np.count_nonzero(s) for block in _last_blocks(run) for s in block["sketches"].values()]
    return float(np.mean(counts)) if counts else nan


def _last_blocks(run: Run) -> Iterator[Block]:
    told = [r for r in run.explanations["rounds"] if "training" in r]
    yield from (r["training"] for r in told if r["round"] > told[-1]["round"] - LAST)


def _megabytes(run: Run) -> float:
    cost = run.summary["cost"]
    return float(cost["bytes_down"] + cost["bytes_up"] - cost["evaluation_bytes"]) / 1e6


ENTRIES = Measure("sketch_entries", "non-zero entries of a sketch", _entries, lower=True, digits=1)
FEATURES = Measure("features", "features", lambda run: float(len(run.explanations["features"])), digits=0, shown=False)
PARAMETERS = Measure(
    "parameters", "numbers in the model", lambda run: float(run.summary["parameters"]), digits=0, shown=False
)
MEGABYTES = Measure("megabytes", "MB sent in all", _megabytes, lower=True, digits=2)
"""Both ways and by all sites, without evaluation."""


def last_pairs(run: Run) -> dict[str, Any]:
    """The distance of every two sites' sketches in the last round: a heat map."""
    told = [r for r in run.explanations["rounds"] if "training" in r]
    pairs = told[-1]["training"]["pairs"] if told else None
    return {"round": told[-1]["round"], "pairs": pairs} if pairs else {}
