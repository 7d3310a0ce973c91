"""Heat maps of a run's final global model, computed from the finished run: for runs that may tell no maps of their sites.

A run with several tasks, or under a privacy budget, makes no maps (`maps_limits`). A study has all images and the model, so
it looks for itself; that is no part of what the run told anybody.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds_studies.fl_xai.maps import CALLED, WORDS
from grandrounds_studies.fl_xai.setting import MAPS
from grandrounds_studies.study import Measure

if TYPE_CHECKING:
    from grandrounds.explain.map_metrics import ModelMaps
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import RunRows

PICTURES = 80
"""Test images of the main task that the final model is looked at with."""

KEPT = 16
CELLS = 8
"""Of each map of so many images the mean heat in 8 x 8 cells is kept, to be compared with another arm's of the same seed."""


def of_final(map: str, figure: str, *, without: tuple[str, ...] = ()) -> Measure:
    """A number of one kind of map of the final common model; of images of all sites but these."""
    from grandrounds.explain.map_metrics import MAP_NUMBERS

    words, lower = WORDS[figure]

    def read(run: Run) -> float:
        return float(_looked(run, without).numbers[map][0, MAP_NUMBERS.index(figure)])

    return Measure(f"{map}_{figure}", f"{CALLED[map]}: {words}", read, lower)


def final_numbers(*figures: str, without: tuple[str, ...] = ()) -> tuple[Measure, ...]:
    return tuple(of_final(m, f, without=without) for m in MAPS for f in figures)


def coarse(run: Run) -> dict[str, Any]:
    """The maps of some images, as shares of the heat in cells, in millionths."""
    held = {m: _cells(_looked(run).heat[m][0, :KEPT]) for m in MAPS}
    return {"cells": {m: np.rint(1e6 * found).astype(int).tolist() for m, found in held.items()}}


def _cells(heat: Array) -> Array:
    """Maps (n, H, W) as shares of their heat in CELLS x CELLS cells, (n, cells); a dark map is even."""
    n, height, width = heat.shape
    edges = [np.linspace(0, side, CELLS + 1).astype(int)[:-1] for side in (height, width)]
    sums = np.add.reduceat(np.add.reduceat(heat, edges[0], axis=1), edges[1], axis=2).reshape(n, -1)
    total = sums.sum(axis=1, keepdims=True)
    even = np.full_like(sums, 1 / sums.shape[1])
    out: Array = np.where(total > 0, sums / np.where(total > 0, total, 1.0), even)
    return out


def _looked(run: Run, without: tuple[str, ...] = ()) -> ModelMaps:
    return _of_folder(run.folder, without)


@lru_cache(maxsize=2)
def _of_folder(folder: Path, without: tuple[str, ...]) -> ModelMaps:
    """Several measures read the same maps of a finished run."""
    from grandrounds.data.encoding import class_numbers
    from grandrounds.explain.map_metrics import MapRule, measure_maps
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import RunRows

    run = Run(folder)
    held, model = RunRows.read(run), run.model
    rows = _pictures(held, without)
    data: Any = held.consortium.data.take(rows)
    x = model.encoding.encode(data, model.theta.dtype)
    y = class_numbers(data.label, list(model.encoding.classes), where=data.name)
    rule = MapRule(MAPS, len(rows), held.plan.seed)
    return measure_maps(rule, model.net, model.theta[None], x, y, data.masks)


def _pictures(held: RunRows, without: tuple[str, ...]) -> Array:
    """The rows that are looked at: test images of the main task, in an order of their own; the same for every arm of a seed."""
    from grandrounds.core.rng import generator

    main = [site for site in held.sites if not held.task(site) and site not in without]
    names = list(held.consortium.stack.names)
    tested = np.concatenate([held.consortium.stack.rows[names.index(site)].test for site in main])
    rng = generator(held.plan.seed, purpose="looked at")
    return rng.permutation(np.sort(rng.choice(tested, min(PICTURES, len(tested)), replace=False)))
