"""The patients that one patient is placed among: what a run kept of its sites' summaries, or why it kept nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.core.arrays import read_json
from grandrounds.core.errors import BadInput
from grandrounds.data.encoding import Encoding
from grandrounds.explain.percentiles import Population
from grandrounds.runs.folder import PERCENTILES

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

NOT_RELEASED = "no percentile: not released under the budget"
_SWITCH = "method.veil.percentiles = 0.02 would set 2% of it aside for them"
_HALTED = "no percentile: the counts they are made of could not be added up (notes of the last round)"
_PUBLIC = "no percentile: sites sent no summaries (data.encoding = 'public')"
_NOT_KEPT = f"no percentile: this run has no {PERCENTILES}; one that is made now has"


@dataclass(frozen=True)
class Among:
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


def among(run: Run, encoding: Encoding) -> Among:
    """The run's own percentiles.json. Under a budget only sums that were given noise count."""
    path = run.folder / PERCENTILES
    if path.is_symlink() or path.exists():
        population = _read(path, encoding)
        return Among(None, NOT_RELEASED) if has_budget(run) and not population.noised else Among(population)
    if has_budget(run):
        return Among(None, _not_released(run))
    return Among(None, _PUBLIC if run.plan["data"].get("encoding") == "public" else _NOT_KEPT)


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
        raise BadInput(f"{path} is of other columns than the model's: it belongs to another run")
    return found
