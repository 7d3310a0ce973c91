"""The population that a patient is compared with, and the baseline that contributions are measured from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.capabilities.cases.attributions import is_linear
from grandrounds.core.arrays import Array, read_json
from grandrounds.core.errors import BadInput
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Encoding
from grandrounds.explain.explainers.registry import Use, explainers_for
from grandrounds.explain.percentiles import Population
from grandrounds.runs.folder import PERCENTILES

if TYPE_CHECKING:
    from grandrounds.runs.model import TrainedModel
    from grandrounds.runs.run import Run
    from grandrounds.runs.run_rows import ComparisonRows

NOT_RELEASED = "no percentile: not released under the budget"
_SWITCH = "method.veil.percentiles = 0.02 would set 2% of it aside for them"
_HALTED = "no percentile: the counts they are made of could not be added up (notes of the last round)"
_PUBLIC = "no percentile: sites sent no summaries (data.encoding = 'public')"
_NOT_KEPT = f"no percentile: this run has no {PERCENTILES}; a new run has one"


@dataclass(frozen=True)
class ComparisonPopulation:
    """Summary of all sites' training patients; where there is none, `missing` says why."""

    summary: Population | None
    missing: str = ""

    @property
    def words(self) -> str:
        """A description of the population, or the reason why there is none."""
        if self.summary is None:
            return self.missing
        noised = f", with noise: {self.summary.noised}" if self.summary.noised else ""
        if self.summary.in_cells:
            return f"the {self.summary.rows} training patients of all sites, counted in agreed cells{noised}"
        return f"the {self.summary.rows} training patients of all sites, by their sites' summaries{noised}"


def has_budget(run: Run) -> bool:
    """Tell whether the run has a differential-privacy budget: then no exact sums over patients are used."""
    return run.plan["privacy"].get("epsilon") is not None


def load_population(run: Run, encoding: Encoding) -> ComparisonPopulation:
    """Load the run's percentiles.json. Under a budget only sums that were given noise count.

    Raises:
        BadInput: The file is damaged, or belongs to another run.
    """
    path = run.folder / PERCENTILES
    if path.is_symlink() or path.exists():
        population = _read_population(path, encoding)
        return (
            ComparisonPopulation(None, NOT_RELEASED)
            if has_budget(run) and not population.noised
            else ComparisonPopulation(population)
        )
    if has_budget(run):
        return ComparisonPopulation(None, _missing_under_budget(run))
    return ComparisonPopulation(None, _PUBLIC if run.plan["data"].get("encoding") == "public" else _NOT_KEPT)


def _missing_under_budget(run: Run) -> str:
    """Explain why a run with a budget has no percentiles; for VEIL, name the setting that adds them."""
    method = run.plan["method"]
    if method["name"] != "veil":
        return NOT_RELEASED
    return _HALTED if method["veil"].get("percentiles") else f"{NOT_RELEASED} ({_SWITCH})"


def _read_population(path: Path, encoding: Encoding) -> Population:
    population = Population.from_dict(read_json(path), where=path)
    numeric, categorical = {r.name for r in encoding.numeric}, {r.name for r in encoding.categorical}
    complete = population.in_cells or (numeric, categorical) == (set(population.numeric), set(population.categorical))
    if not complete or not (set(population.numeric) <= numeric and set(population.categorical) <= categorical):
        raise BadInput(f"{path} is of other columns than the model's: it belongs to another run", code="other-run")
    return population


INTERCEPT = "the calibrated intercept: every number at the centre of its scale, no category"
_MEAN_SUFFICES = tuple(name for name, spec in explainers_for(Use.CASE).items() if spec.mean_suffices)


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """The inputs (B, d) that a patient is compared with, and their description.

    `note`: a warning about them; "" for none.
    """

    background: Array
    words: str
    note: str = ""


def choose_start(
    model: TrainedModel,
    explainer: str,
    population: Population | None,
    comparison: Callable[[], ComparisonRows],
    *,
    site: str | None,
    budget: bool,
) -> StartingPoint:
    """Choose the starting point of an explainer.

    Args:
        model: The model to explain.
        explainer: A name in EXPLAINERS.
        population: The summary of all sites' training patients, where there is one.
        comparison: Gives rows to compare with; called only where a mean will not do.
        site: The site whose model is used.
        budget: Whether the run has a privacy budget, so that other sites' training rows are not used.
    """
    encoding = model.encoding
    assert isinstance(encoding, Encoding)
    wide: np.typing.DTypeLike = np.float64 if model.net.kernel != "torch" else model.theta.dtype
    origin = np.zeros((1, len(encoding.features)), wide)
    if explainer == "coefficients":
        return StartingPoint(origin, INTERCEPT)
    if is_linear(model.net) and explainer in _MEAN_SUFFICES:
        if population is not None and not population.in_cells:
            return start_at_mean(population, encoding, wide)
        if budget:
            return StartingPoint(origin, INTERCEPT)
    rows = comparison()
    background, words = rows.background(site=site, budget=budget)
    assert isinstance(background, Dataset)
    mean_of = "the mean row" if explainer == "integrated_gradients" else "the mean"
    return StartingPoint(encoding.encode(background, wide), f"{mean_of} of {words}", rows.note)


def start_at_mean(population: Population, encoding: Encoding, dtype: np.typing.DTypeLike) -> StartingPoint:
    """Start at the mean patient of all sites, by their summaries."""
    mean = population.mean_inputs(encoding)[None].astype(dtype)
    return StartingPoint(mean, f"the mean of the {population.rows} training patients of all sites")
