"""What a patient's contributions start from: the mean patient of all sites, or rows that stand for them.

A linear model's Shapley values depend on the background's mean alone, so that of the sites' summaries will do and no
other patient's row is read. Any other model needs rows (`beside`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.analysis.case.attributions import is_linear
from grandrounds.core.arrays import Array
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Encoding
from grandrounds.explain.explainers.registry import Use, explainers_for
from grandrounds.explain.percentiles import Population

if TYPE_CHECKING:
    from grandrounds.analysis.case.beside import Beside
    from grandrounds.runs.model import TrainedModel

_BY_MEAN = tuple(name for name, spec in explainers_for(Use.CASE).items() if spec.mean_suffices)
INTERCEPT = "the calibrated intercept: every number at the centre of its scale, no category"


@dataclass(frozen=True, eq=False)
class Start:
    """Inputs (B, d) that the patient is compared with, and what the model says of them on average is called.

    `note`: what a reader must know of them besides; "" for nothing.
    """

    background: Array
    words: str
    note: str = ""


def start_of(
    model: TrainedModel,
    explainer: str,
    population: Population | None,
    beside: Callable[[], Beside],
    *,
    site: str | None,
    budget: bool,
) -> Start:
    """Where explaining by this explainer starts; `beside` is asked only where a mean will not do."""
    encoding = model.encoding
    assert isinstance(encoding, Encoding)
    wide: np.typing.DTypeLike = np.float64 if model.net.kernel != "torch" else model.theta.dtype
    nobody = np.zeros((1, len(encoding.features)), wide)
    if explainer == "coefficients":
        return Start(nobody, INTERCEPT)
    if is_linear(model.net) and explainer in _BY_MEAN:
        if population is not None and not population.in_cells:
            return start_at_mean(population, encoding, wide)
        if budget:
            return Start(nobody, INTERCEPT)
    others = beside()
    found, words = others.background(site=site, budget=budget)
    assert isinstance(found, Dataset)
    mean_of = "the mean row" if explainer == "integrated_gradients" else "the mean"
    return Start(encoding.encode(found, wide), f"{mean_of} of {words}", others.note)


def start_at_mean(population: Population, encoding: Encoding, dtype: np.typing.DTypeLike) -> Start:
    """The mean patient of all sites, by their summaries."""
    mean = population.mean_inputs(encoding)[None].astype(dtype)
    return Start(mean, f"the mean of the {population.rows} training patients of all sites")
