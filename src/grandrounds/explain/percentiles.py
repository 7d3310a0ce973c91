"""Percentiles of a patient among all sites' patients, from the sum of the sites' summaries: no row is needed.

Sites report once the number of values in each cell of a fixed grid (`data.quantiles`), and the counts are summed. A run keeps at
most `STEPS` quantiles of each column, each of at least `FEWEST` patients, and the share of each category with at least `FEWEST`
patients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.design import multiply
from grandrounds.data.encoding import Encoding, Numeric
from grandrounds.data.summary import Cells, Summary, grid_index

STEPS = 200
"""Quantiles kept of a column: half a percentile apart."""

FEWEST = 5
"""Fewest patients of a quantile or a category."""

MAX_MARGIN = 10.0
"""Margin in points above which a percentile or share is too noisy to be shown."""

_TOO_FEW = 4  # fewer quantiles give no percentile
_DIGITS = 6  # digits of a stored quantile: far finer than a cell


@dataclass(frozen=True)
class Spread:
    """Distribution of one numeric column over the patients that have a value."""

    quantiles: tuple[float, ...]  # at (i + 1/2) / len, low to high; empty if too few patients have a value
    mean: float  # of the values as model inputs, clipped to the outermost quantiles
    missing: float  # share of all patients

    @cached_property
    def _cells(self) -> Array:
        return grid_index(np.array(self.quantiles))

    @property
    def tolerance(self) -> float:
        """Largest error of a percentile, in points, apart from patients with values within 0.2 % of this one's."""
        return 100 / len(self.quantiles) if self.quantiles else 100.0

    def percentile(self, value: float) -> float | None:
        """Return the percentile of a value, 0 to 100: patients below it and half of those alike."""
        if not self.quantiles:
            return None
        cell = grid_index(np.array([value]))[0]
        return float(100 * ((self._cells < cell).mean() + (self._cells == cell).mean() / 2))

    def share(self, value: float) -> float:
        """Return the share of patients with a value, 0 to 1; for columns of few values."""
        return float((self._cells == grid_index(np.array([value]))[0]).mean()) if self.quantiles else 0.0


@dataclass(frozen=True)
class NoisedSpread:
    """One numeric column under a budget: shares of patients below agreed edges, from noised counts.

    Cells lie below the first edge, between edges, and from the last one on; `margins` has one for each cell, in points.
    """

    edges: tuple[float, ...]
    below: tuple[float, ...]
    margins: tuple[float, ...]
    missing: float  # share of all patients
    missing_margin: float

    def percentile(self, value: float) -> float | None:
        """Return the percentile: patients in lower cells and half of those in the value's own; None if it is too noisy."""
        cell = self._cell(value)
        ends = (0.0, *self.below, 1.0)
        return None if self.margins[cell] > MAX_MARGIN else 50 * (ends[cell] + ends[cell + 1])

    def margin(self, value: float) -> float:
        """Return the margin of this value's percentile by noise, in points."""
        return self.margins[self._cell(value)]

    def _cell(self, value: float) -> int:
        return int(np.searchsorted(self.edges, value, side="right"))


@dataclass(frozen=True)
class Shares:
    """Distribution of one categorical column: level -> share of all patients; rare levels are left out.

    `margin`: margin of a share by noise, in points; 0 without noise.
    """

    levels: Mapping[str, float]
    missing: float
    margin: float = 0.0


@dataclass(frozen=True)
class Population:
    """Distribution of the training patients of all sites, by column. It has no rows."""

    rows: int
    numeric: Mapping[str, Spread | NoisedSpread] = field(default_factory=dict)
    categorical: Mapping[str, Shares] = field(default_factory=dict)
    noised: str = ""  # description of the noise in its sums; "" for none

    @classmethod
    def from_summaries(cls, parts: Iterable[Summary], encoding: Encoding, *, mean: Array) -> Population:
        """Merge the sites' summaries; columns are named in the encoding's order, which is the summaries' own.

        `mean` (p,) is that of each numeric column within its agreed range.
        """
        total = Summary.merge(list(parts))
        numeric = {rule.name: _spread(total, j, rule, float(mean[j])) for j, rule in enumerate(encoding.numeric)}
        columns = zip(encoding.categorical, total.levels, strict=True)
        return cls(total.rows, numeric, {rule.name: _shares(counts, total.rows) for rule, counts in columns})

    @property
    def in_cells(self) -> bool:
        """True where patients were counted in agreed cells under a budget: columns may be missing, and no mean is known."""
        return any(isinstance(s, NoisedSpread) for s in self.numeric.values()) or any(
            s.margin for s in self.categorical.values()
        )

    def mean_inputs(self, encoding: Encoding) -> Array:
        """Return the mean patient as model inputs, (d,): numbers at their mean, categories by their shares."""
        counted = [self.numeric[rule.name] for rule in encoding.numeric]
        spreads = [s for s in counted if isinstance(s, Spread)]
        assert len(spreads) == len(counted), "counts in cells have no mean"
        out = [_mean_input(s, rule) for s, rule in zip(spreads, encoding.numeric, strict=True)]
        out += [s.missing for s, rule in zip(spreads, encoding.numeric, strict=True) if rule.indicator]
        for rule in encoding.categorical:
            column = self.categorical[rule.name]
            shares = [column.levels.get(level, 0.0) for level in rule.levels]
            out += shares
            shares += [column.levels.get(rule.baseline, 0.0)] if rule.baseline else []
            out += [max(0.0, 1 - column.missing - sum(shares))] if rule.other else []
        mean = np.array(out)
        return np.append(mean, multiply(mean[None, :], encoding.product_places)) if encoding.products else mean

    def to_dict(self) -> dict[str, object]:
        """Convert to plain values for JSON; `from_dict` restores them. (`asdict` would copy thousands of numbers one by one.)"""
        return {
            "rows": self.rows,
            "numeric": {
                name: dict(vars(s)) if isinstance(s, NoisedSpread) else _spread_to_dict(s)
                for name, s in self.numeric.items()
            },
            "categorical": {
                name: {"levels": dict(s.levels), "missing": s.missing, **({"margin": s.margin} if s.margin else {})}
                for name, s in self.categorical.items()
            },
            "noised": self.noised,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: Any = "percentiles.json") -> Population:
        """Read what `to_dict` wrote; refuse anything else."""
        try:
            return cls(
                rows=int(values["rows"]),
                numeric={str(n): _read_spread(s) for n, s in values["numeric"].items()},
                categorical={
                    str(n): Shares(
                        {str(w): float(v) for w, v in s["levels"].items()},
                        float(s["missing"]),
                        float(s.get("margin", 0)),
                    )
                    for n, s in values["categorical"].items()
                },
                noised=str(values.get("noised", "")),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise BadInput(
                f"{where} is damaged: no run writes such a file; delete it to go on without percentiles",
                code="damaged-file",
            ) from None


def select_quantiles(cells: Cells, column: int) -> tuple[float, ...]:
    """Return the quantiles of one column to keep: as many as `FEWEST` patients each allow, at most `STEPS`."""
    mine = slice(*np.searchsorted(cells.column, [column, column + 1]))
    steps = min(STEPS, int(cells.count[mine].sum()) // FEWEST)
    if steps < _TOO_FEW:
        return ()
    only = Cells(np.zeros_like(cells.column[mine]), cells.cell[mine], cells.count[mine])
    values = only.quantiles((np.arange(steps) + 0.5) / steps, columns=1)[:, 0]
    return _round_digits(values)


def _spread(total: Summary, j: int, rule: Numeric, mean: float) -> Spread:
    count = int(total.count[j])
    missing = 1 - count / total.rows if total.rows else 0.0
    if not count:
        return Spread((), rule.fill, missing)
    return Spread(select_quantiles(total.cells, j), mean, missing)


def _shares(counts: Mapping[str, int], rows: int) -> Shares:
    count = sum(counts.values())
    common = {level: n / rows for level, n in counts.items() if n >= FEWEST}
    return Shares(common, 1 - count / rows if rows else 0.0)


def _mean_input(spread: Spread, rule: Numeric) -> float:
    fill = float(np.clip(rule.fill, rule.low, rule.high))
    value = (1 - spread.missing) * spread.mean + spread.missing * fill
    return (value - rule.centre) / rule.scale


def _round_digits(values: Array) -> tuple[float, ...]:
    return tuple(float(f"{v:.{_DIGITS}g}") for v in values)


def _spread_to_dict(spread: Spread) -> dict[str, object]:
    return {"quantiles": spread.quantiles, "mean": spread.mean, "missing": spread.missing}


def _read_spread(values: Mapping[str, Any]) -> Spread | NoisedSpread:
    if "edges" in values:
        edges, below, margins = (tuple(map(float, values[n])) for n in ("edges", "below", "margins"))
        if list(edges) != sorted(edges) or len(below) != len(edges) or len(margins) != len(edges) + 1:
            raise ValueError("edges must rise, with a share below each and a margin for each cell")
        return NoisedSpread(edges, below, margins, float(values["missing"]), float(values["missing_margin"]))
    quantiles: Sequence[Any] = values["quantiles"]
    numbers = tuple(float(v) for v in quantiles)
    if list(numbers) != sorted(numbers):
        raise ValueError("quantiles must rise")
    return Spread(numbers, float(values["mean"]), float(values["missing"]))
