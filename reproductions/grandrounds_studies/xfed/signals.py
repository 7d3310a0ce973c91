"""Suspected sites: the signals that sites are ranked by, as detectors of bad sites, and who was left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds_studies.detection import area, sides
from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

Signal = Callable[["Run", Mapping[str, Any]], Mapping[str, float]]
"""A number of every site, of a run and one round's record; low where little is thought of the site."""

_OWN = {"score": 1.0, "krum_score": -1.0, "in_line": 1.0, "loss": 1.0}
"""Signals of XFed, Krum, SSE-AGG and Oort', and their direction: Krum's score is low where updates are close, and Oort' keeps the
highest loss. SSE-AGG's weights have rows in them, and how far a site is in line has not."""


def reported(name: str, sign: float = 1.0) -> Signal:
    """A signal of the round's Decision."""

    def of(run: Run, entry: Mapping[str, Any]) -> dict[str, float]:
        told = entry["decision"]["signals"].get(name, {})
        return {site: sign * float(value) for site, value in told.items() if value is not None}

    return of


def own(run: Run, entry: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the method's own signal; nothing where it thinks alike of all sites, as FedAvg does."""
    found = (reported(name, sign)(run, entry) for name, sign in _OWN.items())
    return next((signal for signal in found if signal), {})


def areas(run: Run, signal: Signal) -> list[float]:
    """The area under the signal's ROC curve, round by round; NaN where it is not told."""
    return [area(*sides(run, signal(run, entry))) for entry in run.rounds]


def detector(name: str, words: str, signal: Signal) -> tuple[Measure, Measure]:
    """A signal as a detector of bad sites: as the mean over rounds, and in the last round (not shown)."""
    mean = Measure(name, f"ROC area of {words}", lambda run: float(np.mean(areas(run, signal))), lower=False, digits=2)
    last = Measure(
        f"last_{name}",
        f"ROC area of {words}, last round",
        lambda run: areas(run, signal)[-1],
        lower=False,
        digits=2,
        shown=False,
    )
    return mean, last


def left_out(run: Run) -> list[set[str]]:
    """The sites that had no part in the average, by round."""
    train = [site for site, rows in run.summary["rows"].items() if rows["train"]]
    return [{site for site in train if not entry["decision"]["weights"].get(site)} for entry in run.rounds]


def _bad_share(run: Run) -> float:
    """The share of bad sites among those that were left out, over all rounds; NaN where nobody was."""
    bad, out = run.summary["attacks"].get("sites", {}), left_out(run)
    count = sum(map(len, out))
    return sum(site in bad for left in out for site in left) / count if count else nan


def gap(name: str, words: str, signal: Signal) -> Measure:
    """Return the gap between the models of bad and honest sites on the scoring images, in points, as the mean over rounds."""

    def read(run: Run) -> float:
        told = [sides(run, signal(run, entry)) for entry in run.rounds]
        apart = [float(np.mean(honest) - np.mean(bad)) for bad, honest in told if bad and honest]
        return 100 * float(np.mean(apart)) if apart else nan

    return Measure(name, f"{words} bad sites lack, points", read, digits=1)


def left_out_share(site: str) -> Measure:
    """In which share of rounds a site was left out."""

    def read(run: Run) -> float:
        out = left_out(run)
        return 100 * sum(site in left for left in out) / len(out)

    return Measure(f"without_{site}", f"rounds without {site}, %", read, digits=0)


def of_last_round(run: Run) -> dict[str, Any]:
    """Return the method's scores of bad and of honest sites in the last round, for the ROC curves."""
    bad, honest = sides(run, own(run, run.rounds[-1]))
    return {"bad": bad, "honest": honest}


OWN, LAST_OWN = detector("roc", "what sites are ranked by", own)
BY_ACCURACY, LAST_ACCURACY = detector("roc_accuracy", "accuracy", reported("accuracy"))
BY_LOSS, LAST_LOSS = detector("roc_cross_entropy", "cross-entropy", reported("cross_entropy", -1.0))
BY_MASKS, LAST_MASKS = detector("roc_xai", "XAI accuracy", reported("xai"))
BY_GRID, LAST_GRID = detector("roc_grid", "grid accuracy", reported("grid"))
CAUGHT = Measure("caught", "bad among those left out", _bad_share, lower=False, digits=2)
GAP = gap("gap", "accuracy", reported("accuracy"))
MASKS_GAP = gap("gap_xai", "XAI accuracy", reported("xai"))
GRID_GAP = gap("gap_grid", "grid accuracy", reported("grid"))
