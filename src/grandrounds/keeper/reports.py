"""Every task that a site can be asked for, every report that it may be answered with, and what that tells about patients.

The policy goes by this table: what is not in it is refused. A test holds it against the tasks that a host has.
"""

from __future__ import annotations

from collections.abc import Mapping

from grandrounds.site.stack import CLEAN, PARTS

NOTHING = "nothing of patients: keys, masks, signatures, yes or no"
COUNT = "how many rows the site has"
MODEL = "what this site alone learnt, from which facts about its patients can be guessed"
SUM = "sums over the site's patients"
CELLS = "patients counted in cells: of few patients they show each"
FIGURE = "one figure over the site's rows"
REASONS = "how much features count, as shares"
SUMMARY = "means, spreads, quantiles and category counts of every column"
WORDS = "sentences that may name a rare category"
VOTES = "which features the site proposes"

KINDS = (NOTHING, COUNT, MODEL, SUM, CELLS, FIGURE, REASONS, SUMMARY, WORDS, VOTES)

SUMMED = (MODEL, SUM, CELLS, VOTES)
"""Kinds that leave under masks only, where a site allows secure sums alone."""

HELLO, OPEN, CLOSE = "hello", "open", "close"

_TRAINED = {
    "model": MODEL,
    "update": MODEL,
    "variate": MODEL,
    "count": COUNT,
    "steps": COUNT,
    "val_loss": FIGURE,
    "ece": FIGURE,
    "local": FIGURE,
    "trust": FIGURE,
    "rationale": FIGURE,
    "reasons": REASONS,
    "sketch": REASONS,
    "shap": REASONS,
    "error": NOTHING,
}

TASKS: Mapping[str, Mapping[str, str]] = {
    HELLO: {},
    OPEN: {},
    CLOSE: {},
    "summarise": {"summary": SUMMARY},
    "prepare": {
        "train_rows": COUNT,
        "val_rows": COUNT,
        "test_rows": COUNT,
        "notes": WORDS,
        "centre": SUMMARY,
    },
    "lend": {"held": NOTHING},
    "train": _TRAINED,
    "finetune": {"model": MODEL},
    "upload": {"model": MODEL},
    "evaluate": {**dict.fromkeys((*PARTS, CLEAN), CELLS), "figures": FIGURE},
    "score": {"loss": FIGURE, "losses": FIGURE, "accuracy": FIGURE, "accuracies": FIGURE, "lent": FIGURE},
    "calibrate": {"losses": SUM},
    "platt": {"sums": SUM, "counts": CELLS},
    "explain": {"sketch": REASONS},
    "maps": {"maps": FIGURE},
    "witness": {"signature": NOTHING, "have": NOTHING, "refused": NOTHING},
    "trust.diverge": {"trust": FIGURE},
    "trust.weights": {"agreed": NOTHING, "error": NOTHING},
    "trust.contribute": {"trust": FIGURE},
    "veil.census": {"census": SUM},
    "veil.propose": {"votes": VOTES},
    "veil.scores": {"scores": SUM},
    "veil.moments": {"moments": SUM},
    "veil.percentiles": {"cells": CELLS},
    "secagg.introduce": {"identity": NOTHING},
    "secagg.meet": {"met": NOTHING},
    "secagg.keys": {"keys": NOTHING, "error": NOTHING},
    "secagg.shares": {"sealed": NOTHING, "error": NOTHING},
    "secagg.masked": {"masked": NOTHING, "unreadable": NOTHING, "error": NOTHING},
    "secagg.sign": {"signature": NOTHING, "error": NOTHING},
    "secagg.unmask": {"owners": NOTHING, "shares": NOTHING, "error": NOTHING},
}


def told_by(task: str, report: str) -> str | None:
    """What a report of a task tells; None where it is not known."""
    return TASKS.get(task, {}).get(report)
