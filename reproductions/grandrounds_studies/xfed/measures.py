"""Measures of XFed and of the methods it is compared with: scores of the final model, courses, what was not sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

EARLY = 6
"""Rounds of the paper's "early stage": its table has rounds 4 and 6 of them."""

COURSES = ("accuracy", "xai", "grid", "in_mask")
BLIND = {"noise": "noise", "blob": "centre blob", "cells": "blob per cell", "shuffled": "shuffled weights"}
"""Baselines by a short name: heat that looks at no image, and the same net with its weights shuffled."""


def course(run: Run, name: str) -> list[float]:
    """A figure of the common model by round, in %: `accuracy` on the test images, else a score on the scoring images."""
    of = "test" if name == "accuracy" else "reasons"
    return [100 * _number(entry[of].get(name)) for entry in run.rounds if of in entry]


def courses(run: Run) -> dict[str, Any]:
    """Accuracy and scores by round, for figures."""
    return {name: course(run, name) for name in COURSES}


def _number(value: Any) -> float:
    return nan if value is None else float(value)


def _percent(value: Any) -> float:
    return 100 * _number(value)


def _score(name: str, words: str) -> Measure:
    """A score of the final model on the scoring images, in %."""
    return Measure(name, f"{words} (%)", lambda run: _percent(run.summary["reasons"].get(name)), lower=False, digits=1)


_BLIND_WORDS = {"xai": "XAI accuracy", "grid": "grid accuracy", "in_mask": "in mask"}


def baseline(short: str, name: str) -> Measure:
    """The same of heat that owes nothing to what the net has learnt: "shuffled_xai" ..."""

    def read(run: Run) -> float:
        return _percent(run.summary["reasons"]["baselines"][BLIND[short]].get(name))

    words = f"{_BLIND_WORDS[name]} of {BLIND[short]} (%)"
    return Measure(f"{short}_{name}", words, read, digits=1, shown=short == "shuffled")


def baselines(name: str) -> tuple[Measure, ...]:
    """All of them."""
    return tuple(baseline(short, name) for short in BLIND)


ACCURACY = Measure(
    "accuracy", "accuracy (%)", lambda run: 100 * float(run.summary["final"]["accuracy"]), lower=False, digits=2
)
XAI = _score("xai", "XAI accuracy")
GRID = _score("grid", "grid accuracy")
IN_MASK = _score("in_mask", "in mask")
IOU = _score("iou", "IoU")
MASKED = _score("masked_accuracy", "right from the inside alone")
TESTED = Measure("tested", "test images", lambda run: float(run.summary["final"]["count"]), digits=0)


def sent(run: Run) -> list[int]:
    """Return the number of sites that sent a model, by round."""
    return [len(entry["decision"]["weights"]) for entry in run.rounds]


def _saved(run: Run) -> float:
    """The share of models that were not sent, of one a site and round."""
    every = run.plan["split"]["sites"] * len(run.rounds)
    return 100 * float(every - sum(sent(run))) / float(every)


SAVED = Measure("saved", "models not sent (%)", _saved, lower=False, digits=2)
UPLOADS = Measure("uploads", "MB uploaded", lambda run: float(run.summary["cost"]["payload_up"]) / 1e6, lower=True)


def _changed(run: Run) -> float:
    """In which share of rounds other sites were kept than accuracy alone would have kept; NaN where no site is scored."""
    told = [entry["decision"]["signals"] for entry in run.rounds]
    if not all("place" in signals for signals in told):
        return nan
    return 100 * float(np.mean([_other_choice(s, n) for s, n in zip(told, sent(run), strict=True)]))


def _other_choice(signals: Mapping[str, Mapping[str, float]], kept: int) -> bool:
    right, place = signals["accuracy"], signals["place"]
    by_accuracy = sorted(right, key=lambda site: (-right[site], site))[:kept]
    return {site for site in place if place[site] <= kept} != set(by_accuracy)


CHANGED = Measure("changed", "rounds in which explanations changed the choice (%)", _changed, digits=0)


def _early(name: str) -> Callable[[Run], float]:
    return lambda run: float(np.mean(course(run, name)[:EARLY]))


EARLY_ACCURACY = Measure(
    "early_accuracy", f"accuracy, rounds 1 to {EARLY} (%)", _early("accuracy"), lower=False, digits=2
)
EARLY_IN_MASK = Measure("early_in_mask", f"in mask, rounds 1 to {EARLY} (%)", _early("in_mask"), lower=False, digits=1)


def swing(values: Sequence[float]) -> float:
    """The mean change from round to round, up or down; NaN for one round."""
    return float(np.abs(np.diff(values)).mean()) if len(values) > 1 else nan


SWING = Measure(
    "swing",
    "accuracy's change from round to round (points)",
    lambda run: swing(course(run, "accuracy")),
    lower=True,
    digits=2,
)
XAI_SWING = Measure(
    "xai_swing",
    "XAI accuracy's change from round to round (points)",
    lambda run: swing(course(run, "xai")),
    lower=True,
    digits=1,
)
MEAN_XAI = Measure(
    "mean_xai",
    "XAI accuracy, mean over rounds (%)",
    lambda run: float(np.mean(course(run, "xai"))),
    lower=False,
    digits=1,
)

RUN = (ACCURACY, XAI, GRID, IN_MASK, IOU, MASKED, SAVED, UPLOADS, TESTED)
