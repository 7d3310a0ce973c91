"""Predictions and heat maps of a run's final net on each scoring image, as plain values: figures need no run folder.

Images, masks and heat maps are bytes in base64; heat is in 255 steps of its own maximum.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.capabilities.cases.rationale import ScoredImage, score_run_images
from grandrounds.core.arrays import Array
from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

STEPS = 255
_TOLD = ("number", "truth", "predicted", "probability", "right", "reason", "ratio")


def pictures(run: Run) -> dict[str, Any]:
    """Every scoring image: its numbers, its pixels, its mask and where the net looks."""
    return {"pictures": [packed(p) for p in _looked(run)]}


def packed(p: ScoredImage) -> dict[str, Any]:
    """One image as plain values."""
    heat = np.rint(STEPS * p.heat / (p.heat.max() or 1.0)).astype(np.uint8)
    arrays = {"pixels": p.pixels, "mask": STEPS * p.mask.astype(np.uint8), "heat": heat}
    told = {name: getattr(p, name) for name in _TOLD}
    return {**told, "shape": list(p.pixels.shape), **{name: _text(a) for name, a in arrays.items()}}


def unpacked(kept: Mapping[str, Any]) -> dict[str, Array]:
    """Pixels (H, W, C) or (H, W), mask (H, W) and heat (H, W) of a kept image, in bytes."""
    height, width, channels = kept["shape"]
    shapes = {"pixels": (height, width, channels), "mask": (height, width), "heat": (height, width)}
    out = {name: _bytes(kept[name]).reshape(shape) for name, shape in shapes.items()}
    return {**out, "pixels": out["pixels"][..., 0] if channels == 1 else out["pixels"]}


def _text(array: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(array, np.uint8).tobytes()).decode()


def _bytes(text: str) -> Array:
    return np.frombuffer(base64.b64decode(text), np.uint8)


def _looked(run: Run) -> Sequence[ScoredImage]:
    return _of_folder(run.folder)


@lru_cache(maxsize=2)
def _of_folder(folder: Path) -> tuple[ScoredImage, ...]:
    """Several measures read the same images of a finished run."""
    from grandrounds.runs.run import Run

    return tuple(score_run_images(Run(folder)))


def _share(name: str, words: str, *, right: bool, reason: bool, lower: bool | None) -> Measure:
    def read(run: Run) -> float:
        told = [p for p in _looked(run) if p.reason is not None]
        return 100 * sum(p.right is right and p.reason is reason for p in told) / len(told)

    return Measure(name, f"{words} (%)", read, lower, digits=1)


SOUND = _share("sound", "right answer, right reason", right=True, reason=True, lower=False)
LUCKY = _share("lucky", "right answer, wrong reason", right=True, reason=False, lower=True)
MISREAD = _share("misread", "wrong answer, right reason", right=False, reason=True, lower=None)
LOST = _share("lost", "wrong answer, wrong reason", right=False, reason=False, lower=None)
QUARTERS = (SOUND, LUCKY, MISREAD, LOST)


def lift(told: Sequence[tuple[bool, bool]]) -> float:
    """Return how much more often a net is right where it looks at the object, in points; NaN where it always does, or never.

    `told` has for each image whether the answer is right, and whether the reason is.
    """
    sides = [[right for right, reason in told if reason is side] for side in (True, False)]
    return 100 * float(np.mean(sides[0]) - np.mean(sides[1])) if all(sides) else nan


def _lift(run: Run) -> float:
    return lift([(p.right, p.reason) for p in _looked(run) if p.reason is not None])


LIFT = Measure("lift", "more often right where it looks at the object (points)", _lift, lower=False, digits=1)
