"""The weights of a weighted sum: public, the same list at every site, and part of what sites agree on.

Were each site told its own weight only, a server could tell all but one that theirs is zero, and the sum would be that
one's values. So the whole table is on the roster, and sites look at it before they share and again when they sign.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.privacy.secagg.threshold import FEWEST_SITES

_ROUNDING = 2.0**-21
"""By how much weights that add up to one may be off; `Scale` has room for twice as much."""

LEAST_SHARE = 1e-3
"""Of a sum's weights: a site with less hides nobody."""


def table_of(weights: Mapping[str, Sequence[float]] | None, names: Sequence[str]) -> Array:
    """Weights (n, S) in the roster's order: S of them a site, one for each part of its vector; none for a plain sum."""
    if weights is None:
        return np.empty((len(names), 0), "<f8")
    rows = [list(weights[name]) for name in names]
    if len({len(row) for row in rows}) > 1:
        raise BadInput("every site of a weighted sum needs as many weights as every other")
    return np.array(rows, "<f8")


def are_shares(table: Array) -> bool:
    """Whether all are between zero and one and each part's add up to one at most."""
    inside = np.isfinite(table) & (table >= 0) & (table <= 1)
    return bool(inside.all() and (table.sum(axis=0) <= 1 + _ROUNDING).all())


def hide(table: Array, sites: Collection[int], *, largest: float) -> bool:
    """Whether a sum over these sites hides each: three count for something in every part, none for more than `largest`.

    A site counts for something with a thousandth of the whole: what weighs less is lost in the values of the others.
    """
    left = table[sorted(sites)]
    total = left.sum(axis=0)
    counted = ((left > 0) & (left >= LEAST_SHARE * total)).sum(axis=0) >= FEWEST_SITES
    return bool(counted.all() and (left.max(axis=0, initial=0) <= largest * total).all())
