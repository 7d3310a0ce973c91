"""Population that a patient is compared with, and the baseline that contributions are measured from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.analysis.case.attributions import is_linear
from grandrounds.core.arrays import Array, read_json
from grandrounds.core.errors import BadInput
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Encoding
from grandrounds.explain.explainers.registry import Use, explainers_for
from grandrounds.explain.percentiles import Population
from grandrounds.runs.folder import PERCENTILES

if TYPE_CHECKING:
    from grandrounds.analysis.case.rows import ComparisonRows
    from grandrounds.runs.model import TrainedModel
    from grandrounds.runs.run import Run

NOT_RELEASED = "no percentile: not released under the budget"
_SWITCH = "method.veil.percentiles = 0.02 would set 2% of it aside for them"
_HALTED = "no percentile: the counts they are made of could not be added up (notes of the last round)"
_PUBLIC = "no percentile: sites sent no summaries (data.encoding = 'public')"
_NOT_KEPT = f"no percentile: this run has no {PERCENTILES}; one that is made now has"


@dataclass(frozen=True)
class KnownPopulation:
    """All sites' training patients, where they are known; else `missing` says why not."""

    population: Population | None
    missing: str = ""

    @property
    def words(self) -> str:
        """Who the others are, or why there are none."""
        if self.population is None:
            return self.missing
        noised = f", with noise: {self.population.noised}" if self.population.noised else ""
        if self.population.in_cells:
            return f"the {self.population.rows} training patients of all sites, counted in agreed cells{noised}"
        return f"the {self.population.rows} training patients of all sites, by their sites' summaries{noised}"


def has_budget(run: Run) -> bool:
    """Whether the run promised differential privacy within a budget: then no exact sums over patients are used."""
    return run.plan["privacy"].get("epsilon") is not None


def load_population(run: Run, encoding: Encoding) -> KnownPopulation:
    """The run's own percentiles.json. Under a budget only sums that were given noise count."""
    path = run.folder / PERCENTILES
    if path.is_symlink() or path.exists():
        population = _read(path, encoding)
        return (
            KnownPopulation(None, NOT_RELEASED)
            if has_budget(run) and not population.noised
            else KnownPopulation(population)
        )
    if has_budget(run):
        return KnownPopulation(None, _not_released(run))
    return KnownPopulation(None, _PUBLIC if run.plan["data"].get("encoding") == "public" else _NOT_KEPT)


def _not_released(run: Run) -> str:
    """Why a run with a budget has no percentiles; of VEIL, what would give it some."""
    method = run.plan["method"]
    if method["name"] != "veil":
        return NOT_RELEASED
    return _HALTED if method["veil"].get("percentiles") else f"{NOT_RELEASED} ({_SWITCH})"


def _read(path: Path, encoding: Encoding) -> Population:
    found = Population.from_dict(read_json(path), where=path)
    numeric, categorical = {r.name for r in encoding.numeric}, {r.name for r in encoding.categorical}
    whole = found.in_cells or (numeric, categorical) == (set(found.numeric), set(found.categorical))
    if not whole or not (set(found.numeric) <= numeric and set(found.categorical) <= categorical):
        raise BadInput(f"{path} is of other columns than the model's: it belongs to another run", code="other-run")
    return found


INTERCEPT = "the calibrated intercept: every number at the centre of its scale, no category"
_BY_MEAN = tuple(name for name, spec in explainers_for(Use.CASE).items() if spec.mean_suffices)


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """Inputs (B, d) that the patient is compared with, and what the model says of them on average is called.

    `note`: what a reader must know of them besides; "" for nothing.
    """

    background: Array
    words: str
    note: str = ""


def choose_start(
    model: TrainedModel,
    explainer: str,
    population: Population | None,
    beside: Callable[[], ComparisonRows],
    *,
    site: str | None,
    budget: bool,
) -> StartingPoint:
    """Where explaining by this explainer starts; `beside` is asked only where a mean will not do."""
    encoding = model.encoding
    assert isinstance(encoding, Encoding)
    wide: np.typing.DTypeLike = np.float64 if model.net.kernel != "torch" else model.theta.dtype
    nobody = np.zeros((1, len(encoding.features)), wide)
    if explainer == "coefficients":
        return StartingPoint(nobody, INTERCEPT)
    if is_linear(model.net) and explainer in _BY_MEAN:
        if population is not None and not population.in_cells:
            return start_at_mean(population, encoding, wide)
        if budget:
            return StartingPoint(nobody, INTERCEPT)
    others = beside()
    found, words = others.background(site=site, budget=budget)
    assert isinstance(found, Dataset)
    mean_of = "the mean row" if explainer == "integrated_gradients" else "the mean"
    return StartingPoint(encoding.encode(found, wide), f"{mean_of} of {words}", others.note)


def start_at_mean(population: Population, encoding: Encoding, dtype: np.typing.DTypeLike) -> StartingPoint:
    """The mean patient of all sites, by their summaries."""
    mean = population.mean_inputs(encoding)[None].astype(dtype)
    return StartingPoint(mean, f"the mean of the {population.rows} training patients of all sites")
