"""Risk card: a few terms with whole-number points, and the printed risk of every total.

The model is the card. A patient's risk is the printed risk of the sum of points, so adding up by hand and the program give the
same number for every patient. A card has no other parameters, so a calibration would break that and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from grandrounds.capabilities.statistics.models.column_model import ColumnModel
from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.models.risk_card import ABOVE, AT_MOST, KINDS, LEVEL, Card

MOST_TERMS = 15
"""Most terms of a card: Shapley values go through all sets of their columns."""

_MOST_POINTS = 100
_TERMS = ("column", "kind", "value", "points")


def card_arrays(card: Card, columns: Sequence[Column]) -> dict[str, Array]:
    """Return the arrays of the model of a card.

    Args:
        card: The card.
        columns: The columns of the model.
    """
    place = {c.name: (j, c) for j, c in enumerate(columns)}
    found = [(*place[t.column], t) for t in card.terms]
    values = [c.words.index(str(t.value)) if t.kind == LEVEL else float(t.value or 0) for _, c, t in found]
    return {
        "column": np.array([j for j, _, _ in found], float),
        "kind": np.array([KINDS.index(t.kind) for t in card.terms], float),
        "value": np.array(values, float),
        "points": np.array([t.points for t in card.terms], float),
        "first": np.array([r.first for r in card.totals], float),
        "risk": np.array([r.risk for r in card.totals], float),
    }


def meet_terms(values: Array, column: Array, kind: Array, value: Array) -> Array:
    """Tell which rows meet which terms.

    Args:
        values: Rows, (n, C), as `read_columns` returns them.
        column: Column of each term, (T,).
        kind: Number of its kind in `KINDS`, (T,).
        value: Its value, or the number of its level, (T,).

    Returns:
        (n, T) bool. A row without a value meets "missing" only.
    """
    out = np.empty((len(values), len(column)), bool)
    for t, (c, k, v) in enumerate(
        zip(column.astype(int).tolist(), kind.astype(int).tolist(), value.tolist(), strict=True)
    ):
        x = values[:, c]  # comparisons with NaN are False
        name = KINDS[k]
        out[:, t] = x <= v if name == AT_MOST else x > v if name == ABOVE else x == v if name == LEVEL else np.isnan(x)
    return out


@dataclass(frozen=True)
class CardModel(ColumnModel):
    """A risk card behind the `Model` protocol: its logits are those of the printed risks."""

    kernel: ClassVar[str] = "card"
    arrays: ClassVar[tuple[tuple[str, int], ...]] = (*((name, 1) for name in _TERMS), ("first", 1), ("risk", 1))

    def start(self) -> dict[str, Array]:
        """Return a card without terms and with a risk of one half."""
        none = np.zeros(0)
        return {**dict.fromkeys(_TERMS, none), "first": np.zeros(1), "risk": np.array([0.5])}

    def constant(self, risk: float) -> Array:
        """Return a card without terms, which prints this risk."""
        return self.pack({**self.start(), "risk": np.array([risk])})

    def check(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        column, kind, value, points = (arrays[name] for name in _TERMS)
        first, risk = arrays["first"], arrays["risk"]
        whole = all(bool((np.rint(a) == a).all()) for a in (column, kind, points, first))
        sound = (
            whole
            and len({len(column), len(kind), len(value), len(points)}) == 1
            and len(column) <= MOST_TERMS
            and bool(((column >= 0) & (column < len(self.columns))).all())
            and bool(((kind >= 0) & (kind < len(KINDS))).all())
            and bool((np.abs(points) <= _MOST_POINTS).all())
            and len(first) == len(risk) > 0
            and bool((np.diff(first) > 0).all() and ((risk > 0) & (risk < 1)).all() and (np.diff(risk) >= 0).all())
            and np.abs(arrays["line"]).tolist() == [1.0, 0.0]  # -1: the event is the first class
        )
        if not sound:
            raise BadInput(
                "these parameters are not a risk card: a term, a total or a risk is out of range", code="damaged-model"
            )
        return arrays

    def points(self, arrays: Mapping[str, Array], values: Array) -> Array:
        """Return the points of each row in each column, (n, C), whole numbers as int64.

        Args:
            arrays: The model's arrays.
            values: The rows, (n, C).
        """
        met = meet_terms(values, *(arrays[name] for name in _TERMS[:3]))
        out = np.zeros((len(values), len(self.columns)), np.int64)
        for t, c in enumerate(arrays["column"].astype(int).tolist()):
            out[:, c] += met[:, t] * int(arrays["points"][t])
        return out

    def scores(self, arrays: Mapping[str, Array], values: Array) -> Array:
        total = self.points(arrays, values).sum(axis=1)
        return _score_of_total(arrays, total)[:, None]

    def column_shapley(self, arrays: Mapping[str, Array], values: Array, background: Array) -> Array:
        """Compute exact Shapley values through all sets of the columns that have terms, at most 2^15.

        The score depends on the sum of points alone. So the expected score of a set of columns needs only how often each sum
        of points occurs in the other columns of the background rows.
        """
        used = np.unique(arrays["column"]).astype(int)
        mine, others = self.points(arrays, values)[:, used], self.points(arrays, background)[:, used]
        out = np.zeros((len(values), 1, len(self.columns)))
        if not len(used) or not len(others):
            return out
        distinct, place = np.unique(mine, axis=0, return_inverse=True)
        out[:, 0, used] = _shapley_of_sums(distinct, others, lambda total: _score_of_total(arrays, total))[
            place.ravel()
        ]
        return out

    def with_platt(self, theta: Array, *, slope: float, intercept: float) -> Array:
        raise BadInput(
            "a risk card prints its risks, and a calibration would change them: set evaluation.calibrate = 'none'",
            code="card-is-calibrated",
        )


def _score_of_total(arrays: Mapping[str, Array], total: Array) -> Array:
    """Return the log-odds of the printed risk of totals."""
    place = np.searchsorted(arrays["first"], total, side="right") - 1
    risk = arrays["risk"][np.maximum(place, 0)]
    out: Array = np.log(risk) - np.log1p(-risk)
    return out


def _shapley_of_sums(mine: Array, others: Array, score: Any) -> Array:
    """Compute Shapley values (n, U) of score(sum over columns) of rows (n, U) against background rows (m, U), whole numbers."""
    n, u = mine.shape
    sets = np.arange(2**u)
    inside = (sets[:, None] >> np.arange(u)) & 1  # (S, U)
    absent = others @ (1 - inside).T  # (m, S): points of the background in the columns that are not in the set
    present = mine @ inside.T  # (n, S)
    low, high = int(absent.min()), int(absent.max())
    width = high - low + 1
    shares = np.zeros((len(sets), width))
    for row in absent:
        shares[sets, row - low] += 1.0 / len(others)
    bottom, top = int(present.min()), int(present.max())
    table = score(np.arange(bottom, top + 1)[:, None] + np.arange(low, high + 1)[None, :])  # (A, width)
    expected = shares @ table.T  # (S, A): mean score of a set whose own columns sum to a
    size = inside.sum(axis=1)
    factorial = np.cumprod([1.0, *range(1, u + 1)])
    weight = factorial[size] * factorial[np.maximum(u - size - 1, 0)] / factorial[u]
    out = np.empty((n, u))
    for r in range(n):
        worth = expected[sets, present[r] - bottom]
        for j in range(u):
            without = sets[inside[:, j] == 0]
            out[r, j] = weight[without] @ (worth[without | (1 << j)] - worth[without])
    return out
