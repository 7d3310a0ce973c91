"""Figures of runs in which a site attacks: the weight it gets, and how the others fare. Means over the last ten rounds."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.explain.stability import cross_site_drift
from grandrounds_studies.measures import LAST
from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


def _bad_weight(run: Run) -> float:
    """Return the share of the weight of attacking sites; 0 where none takes part."""
    bad = run.summary["attacks"].get("sites", {})
    rounds = [r["decision"]["weights"] for r in run.rounds[-LAST:]]
    return float(np.mean([sum(weights.get(site, 0.0) for site in bad) for weights in rounds]))


def _clean_drift(run: Run) -> float:
    """Training drift between the sites that do not attack."""
    bad = run.summary["attacks"].get("sites", {})
    told = [r for r in run.explanations["rounds"] if "training" in r]
    kept = []
    for block in (r["training"] for r in told if r["round"] > told[-1]["round"] - LAST):
        sketches = np.array([s for site, s in block["sketches"].items() if site not in bad])
        if len(sketches) > 1:
            kept.append(cross_site_drift(sketches))
    return float(np.mean(kept)) if kept else nan


BAD_WEIGHT = Measure("bad_weight", "weight of the bad site", _bad_weight, lower=True, digits=4)
CLEAN_DRIFT = Measure("clean_drift", "drift of the others", _clean_drift, lower=True)
