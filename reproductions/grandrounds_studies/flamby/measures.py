"""C-index of a run on FLamby's test rows, as FLamby computes it: `lifelines.concordance_index` of each centre and of all rows."""

from __future__ import annotations

from functools import cache
from math import nan
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.capabilities.statistics.concordance import count_pairs
from grandrounds.core.arrays import Array, load
from grandrounds.data.sets import tcga
from grandrounds.data.sets.tcga import FEATURES, REGIONS
from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

OWN_MODELS = "local"
"""Method whose sites have models of their own, each scored on its own test rows only, as in FLamby's "Local k on own test"."""


@cache
def _test_rows() -> dict[str, tuple[Array, Array, Array]]:
    """Return inputs (n, 39), events and days of each region's test rows."""
    table = tcga.load()
    x = np.stack([table.column(name) for name in FEATURES], axis=1)
    tested = table.column("part") == "test"
    rows = {region: np.flatnonzero(tested & (table.column("region") == region)) for region in REGIONS}
    return {r: (x[i], table.column("event")[i], table.column("days")[i]) for r, i in rows.items()}


def coefficients(run: Run, region: str) -> Array:
    """Return the log hazard ratios (39,) of the model that a region uses, for one unit of each input.

    Args:
        run: A run of this study: its model is one linear layer on inputs as recorded, or a Cox regression.
        region: The region.
    """
    estimates = run.summary.get("estimates")
    if estimates is not None:
        values = {c["name"]: c["estimate"] or 0.0 for c in estimates["original"]["coefficients"]}
        return np.array([values[name] for name in FEATURES])
    name = run.summary["models"].get(region, "model.safetensors")
    parameters, _ = load(run.model_file(name))
    return np.asarray(next(p for p in parameters.values() if p.ndim == 2), float).ravel()


def concordance(run: Run) -> dict[str, float]:
    """Return the C-index of each centre, their mean, and that of all test rows together (NaN for local models)."""
    rows = _test_rows()
    scored = {r: (days, event, x @ coefficients(run, r)) for r, (x, event, days) in rows.items()}
    each = [count_pairs(*scored[r]).index for r in REGIONS]
    values = [nan if c is None else c for c in each]
    found = {f"centre_{k}": c for k, c in enumerate(values)} | {"client_mean": float(np.mean(values)), "pooled": nan}
    if run.plan["method"]["name"] != OWN_MODELS:
        together = (np.concatenate(arrays) for arrays in zip(*scored.values(), strict=True))
        found["pooled"] = nan if (c := count_pairs(*together).index) is None else c
    return found


def _exchanges(run: Run) -> float:
    """Return the number of messages that a site answered for the model."""
    estimates = run.summary.get("estimates")
    return float(run.plan["method"]["rounds"] if estimates is None else estimates["exchanges"]["count"])


def _measure(name: str, words: str, *, shown: bool = True) -> Measure:
    return Measure(name, words, lambda run: concordance(run)[name], lower=False, shown=shown)


CLIENT_MEAN = _measure("client_mean", "C-index, mean of six centres")
POOLED = _measure("pooled", "C-index, all test rows")
CENTRES = tuple(_measure(f"centre_{k}", f"{region} ({k})", shown=False) for k, region in enumerate(REGIONS))
EXCHANGES = Measure("exchanges", "exchanges", _exchanges, lower=True, digits=0)
MEASURES = (CLIENT_MEAN, POOLED, EXCHANGES, *CENTRES)
