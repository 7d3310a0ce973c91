"""The result of an additive model: arrays of the model, and shapes with bands and the number of patients behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.gam_counts import ColumnCounts, left_ends
from grandrounds.capabilities.statistics.models.column_basis import Basis, Span, contrasts, evaluate_splines
from grandrounds.capabilities.statistics.small_cells import hide_cells
from grandrounds.core.arrays import Array

UNUSED = 0.05
"""Columns with fewer effective degrees of freedom are not used: the data give no reason to."""

GRID = 40
"""Most values at which a curve is shown."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """Coefficients of an additive model and the sums of its last exchange.

    Attributes:
        basis: The basis.
        family: The family.
        beta: (q,) coefficients, the intercept first.
        inverse: V = (H + P)^-1.
        information: H.
        phi: Residual variance of linear regression, else 1.
        penalties: Weights of the penalties.
        exchanges: Number of exchanges.
        centre: Subtracted from the outcome before the fit.
        unit: Unit of the outcome.
        notes: Sentences about the fit.
    """

    basis: Basis
    family: str
    beta: Array
    inverse: Array
    information: Array
    phi: float
    penalties: tuple[float, ...] = ()
    exchanges: int = 0
    centre: float = 0.0
    unit: float = 1.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class GAMResult:
    """The result of an additive model.

    Attributes:
        arrays: The model's arrays, as `AdditiveModel.pack` takes them.
        shapes: Family, intercept, and for each column its shape, in the units of the outcome (log-odds of an event).
        exchanges: Exchanges of the fit.
        penalties: Weights of the penalties.
        notes: Sentences about the fit.
    """

    arrays: Mapping[str, Array]
    shapes: Mapping[str, Any]
    exchanges: int = 0
    penalties: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "arrays": {name: [list(a.shape), a.ravel().tolist()] for name, a in self.arrays.items()},
            "shapes": dict(self.shapes),
            "exchanges": self.exchanges,
            "penalties": list(self.penalties),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GAMResult:
        """Read what `to_dict` wrote."""
        arrays = {name: np.array(flat, float).reshape(shape) for name, (shape, flat) in values["arrays"].items()}
        return cls(
            arrays, values["shapes"], int(values["exchanges"]), tuple(values["penalties"]), tuple(values["notes"])
        )


@dataclass
class _Shape:
    """One column while its shape is built; effects are those of the fit, before they are centred."""

    curve: Array
    levels: Array
    gap: float = 0.0
    edf: float = 0.0
    spans: list[Span] = field(default_factory=list)


def conclude(
    fitted: Fitted, counts: ColumnCounts, *, monotone: Mapping[str, str], least: int, left_out: Mapping[int, str]
) -> GAMResult:
    """Make the model and its shapes from coefficients.

    Every column's effect is centred at its mean over the training rows (of a number, those with a value). A column that is not
    used has no effect. Monotone curves are projected: the isotonic regression of their spline coefficients, weighted by the
    diagonal of H.

    Args:
        fitted: The coefficients.
        counts: Counts of rows over all sites.
        monotone: "up" or "down" by name of the column.
        least: Fewest patients of a cell that is shown.
        left_out: Reasons for columns that are left out, by place.

    Returns:
        The result.
    """
    basis, notes = fitted.basis, list(fitted.notes)
    edf = np.einsum("ij,ji->i", fitted.inverse, fitted.information)
    columns, shapes, intercept = basis.columns, [], float(fitted.beta[0])
    most = max((len(c.levels) for c in columns), default=0)
    arrays = {
        "knots": basis.knots,
        "ranks": basis.ranks,
        "sizes": basis.sizes.astype(float),
        "curve": np.zeros((len(columns), basis.splines)),
        "levels": np.zeros((len(columns), most)),
        "gaps": np.zeros(len(columns)),
    }
    for c, column in enumerate(columns):
        shape = _read_shape(fitted, c, most)
        shape.edf = float(sum(edf[1 + s.first : 1 + s.first + s.size].sum() for s in shape.spans))
        wanted = monotone.get(column.name)
        if wanted is not None and basis.sizes[c] and _project(fitted, shape, wanted):
            notes.append(f"the curve of '{column.name}' was made {_WAYS[wanted]} after the fit")
        used = shape.edf >= UNUSED
        mean = _mean_effect(basis, c, counts, shape)
        intercept += mean
        if used:
            arrays["curve"][c], arrays["levels"][c] = shape.curve - mean, shape.levels - mean
            arrays["gaps"][c] = shape.gap - mean
            arrays["levels"][c, len(column.levels) :] = 0.0
        shapes.append(_describe(fitted, c, counts, shape, used=used, mean=mean, monotone=wanted, least=least))
        if c in left_out:
            shapes[-1]["reason"] = left_out[c]
    arrays["intercept"] = np.array([intercept])
    unused = [s["name"] for s in shapes if not s["used"] and "reason" not in s]
    if unused:
        notes.append(f"{len(unused)} of {len(shapes)} columns are not used: their shapes shrank to nothing")
    told = intercept * fitted.unit + fitted.centre
    if fitted.family != "linear":
        told = intercept + (float(np.log(fitted.unit)) if fitted.family == "poisson" else 0.0)
    found = {"intercept": told, "family": fitted.family, "columns": shapes}
    return GAMResult(arrays, found, fitted.exchanges, fitted.penalties, tuple(notes))


_WAYS = {"up": "to rise only", "down": "to fall only"}


def _read_shape(fitted: Fitted, c: int, most: int) -> _Shape:
    """Read the coefficients of one column."""
    basis, beta = fitted.basis, fitted.beta[1:]
    shape = _Shape(np.zeros(basis.splines), np.zeros(most), spans=[s for s in basis.spans if s.column == c])
    for span in shape.spans:
        own = beta[span.places]
        if span.part == "curve":
            shape.curve = contrasts(basis.splines) @ own
        elif span.part == "step":
            shape.curve[:2] = -0.5 * own[0], 0.5 * own[0]
        elif span.part == "missing":
            shape.gap = float(own[0])
        else:
            shape.levels[list(basis.levels[c])] = own[: len(basis.levels[c])]
            shape.gap = float(own[-1]) if basis.gaps[c] else 0.0
    return shape


def _mean_effect(basis: Basis, c: int, counts: ColumnCounts, shape: _Shape) -> float:
    """Return a column's mean effect over training rows; of a number, over those with a value."""
    rows, effect = _effects(basis, c, counts, shape)
    return float(rows @ effect / rows.sum()) if rows.sum() else 0.0


def _effects(basis: Basis, c: int, counts: ColumnCounts, shape: _Shape) -> tuple[Array, Array]:
    """Return rows and effects of a column's cells, or of its levels and missing values."""
    if basis.columns[c].is_category:
        rows = np.append(counts.levels[c].sum(axis=0), counts.missing[:, c].sum())
        return rows, np.append(shape.levels[: len(rows) - 1], shape.gap)
    rows = counts.cells[c].sum(axis=0)
    return rows, _curve_at(basis, c, left_ends(counts.cuts[c]), shape.curve)


def _curve_at(basis: Basis, c: int, v: Array, curve: Array) -> Array:
    size = int(basis.sizes[c])
    if size > 1:
        return evaluate_splines(basis.rank(c, v), curve)
    return np.where(v >= basis.knots[c, 0], curve[1], curve[0]) if size else np.zeros(len(v))


def _project(fitted: Fitted, shape: _Shape, way: str) -> bool:
    """Make a curve monotone; return False if it is already."""
    basis = fitted.basis
    own = next(s for s in shape.spans if s.part in ("curve", "step"))
    sign = 1.0 if way == "up" else -1.0
    if own.part == "step":
        wrong = sign * (shape.curve[1] - shape.curve[0]) < 0
        shape.curve[:2] = 0.0 if wrong else shape.curve[:2]
        return bool(wrong)
    turn = np.zeros(
        (len(fitted.beta), basis.splines)
    )  # B-splines as combinations of the inputs: they add to 1 - missing
    turn[0] = 1 / basis.splines
    turn[1 + own.first : 1 + own.first + own.size] = contrasts(basis.splines).T
    for gap in (s for s in shape.spans if s.part == "missing"):
        turn[1 + gap.first] = -1 / basis.splines
    weights = np.maximum(np.sum(turn * (fitted.information @ turn), axis=0), 1e-12)
    projected = sign * project_isotonic(sign * shape.curve, weights)
    is_new = not np.array_equal(projected, shape.curve)
    shape.curve = projected
    return is_new


def project_isotonic(values: Array, weights: Array) -> Array:
    """Return the rising sequence closest to values in weighted squares (pool adjacent violators).

    Args:
        values: (n,).
        weights: (n,) above 0.

    Returns:
        (n,).
    """
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, v, m), (b, w, n) = blocks[-2:]
            blocks[-2:] = [((a * v + b * w) / (v + w), v + w, m + n)]
    return np.concatenate([np.full(n, value) for value, _, n in blocks]) if blocks else np.zeros(0)


def _describe(
    fitted: Fitted,
    c: int,
    counts: ColumnCounts,
    shape: _Shape,
    *,
    used: bool,
    mean: float,
    monotone: str | None,
    least: int,
) -> dict[str, Any]:
    """Describe one column for summary.json."""
    basis, column = fitted.basis, fitted.basis.columns[c]
    scale = fitted.unit if fitted.family == "linear" else 1.0
    missing = int(counts.missing[:, c].sum())
    if column.is_category:
        rows, names, values = (
            counts.levels[c].sum(axis=0),
            list(column.words),
            np.arange(len(column.words), dtype=float),
        )
        effect = shape.levels[: len(names)]
        shown: list[Any] = names
    else:
        values, rows = merge_cells(counts.cuts[c], counts.cells[c].sum(axis=0), least=least)
        effect, shown = _curve_at(basis, c, values, shape.curve), values.tolist()
    errors, gap_error = _errors(fitted, c, values, counts)
    counted = _hide(rows, missing, least) if column.is_category else (rows.astype(int).tolist(), _shown(missing, least))
    return {
        "name": column.name,
        "kind": "category" if column.is_category else "number",
        "values": shown,
        "effect": ((effect - mean) * scale * used).tolist(),
        "se": (errors * scale).tolist() if used else None,
        "rows": counted[0],
        "missing": {
            "effect": (shape.gap - mean) * scale * used,
            "se": gap_error * scale if used and basis.gaps[c] else None,
            "rows": counted[1],
        }
        if missing
        else None,
        "edf": shape.edf,
        "used": bool(used),
        "monotone": monotone,
    }


def _hide(rows: Array, missing: int, least: int) -> tuple[list[int | None], int | None]:
    """Hide small counts of levels, and others that would give them away."""
    counts = np.append(rows, missing)
    hidden = hide_cells(counts, [np.arange(len(counts))], least=least)
    shown = [None if h else int(n) for n, h in zip(counts.tolist(), hidden.tolist(), strict=True)]
    return shown[:-1], shown[-1]


def _shown(count: int, least: int) -> int | None:
    return None if 0 < count < least else count


def merge_cells(cuts: Array, cells: Array, *, least: int) -> tuple[Array, Array]:
    """Merge neighbouring cells of a number until each holds enough rows, and about one fortieth of all at least.

    Args:
        cuts: The cuts of the column.
        cells: (cuts + 1,) rows between them.
        least: Fewest rows of a merged cell.

    Returns:
        A value of each merged cell (a short one in the cell with its middle row), and its rows.
    """
    held = np.flatnonzero(cells)
    lows = left_ends(cuts)
    highs = np.append(lows[1:], np.inf)
    rows = cells[held]
    ends = np.array([shorten(low, high) for low, high in zip(lows[held].tolist(), highs[held].tolist(), strict=True)])
    wanted = max(float(least), rows.sum() / GRID)
    groups: list[list[int]] = [[]]
    for k in range(len(rows)):
        groups[-1].append(k)
        if rows[groups[-1]].sum() >= wanted:
            groups.append([])
    if len(groups) > 1 and rows[groups[-1]].sum() < least:
        last = groups.pop()
        groups[-1] += last
    values = [ends[g][np.searchsorted(np.cumsum(rows[g]), rows[g].sum() / 2)] for g in groups if g]
    return np.array(values), np.array([rows[g].sum() for g in groups if g])


def shorten(low: float, high: float) -> float:
    """Return the number with the fewest digits from `low` up to, not including, `high`; `low` if that is not finite."""
    if not np.isfinite(high):
        return low
    first = int(np.floor(-np.log10(high - low)))
    for digits in range(first, first + 3):
        value = round(float(np.ceil(round(low * 10.0**digits, 6))) / 10.0**digits, digits)
        if low <= value < high:
            return value + 0.0
    return low


def _errors(fitted: Fitted, c: int, values: Array, counts: ColumnCounts) -> tuple[Array, float]:
    """Return standard errors of centred effects at values, and of missing values, from the Bayesian covariance phi V."""
    basis = fitted.basis
    places: Sequence[int] = [j for s in basis.spans if s.column == c for j in range(s.first, s.first + s.size)]
    if not places:
        return np.zeros(len(values)), 0.0
    if basis.columns[c].is_category:
        at = np.append(np.arange(len(counts.levels[c][0]), dtype=float), np.nan)
        rows = np.append(counts.levels[c].sum(axis=0), counts.missing[:, c].sum())
    else:
        at, rows = left_ends(counts.cuts[c]), counts.cells[c].sum(axis=0)
    x = np.full((len(values) + 1 + len(at), len(basis.columns)), np.nan)
    x[:, c] = np.concatenate([values, [np.nan], at])
    design = basis.design(x)[:, places]
    design = design[: len(values) + 1] - rows @ design[len(values) + 1 :] / max(rows.sum(), 1)
    covariance = fitted.phi * fitted.inverse[np.ix_([1 + j for j in places], [1 + j for j in places])]
    errors = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", design, covariance, design), 0.0))
    return errors[:-1], float(errors[-1])
