"""A secret from shares of which some may be false: subsets are tried until one proves right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from grandrounds.privacy.secagg.shamir import combine, fits

TRIES = 500
"""Subsets at most. With a third of 100 shares to spare, five false ones are found in some 250."""


@dataclass(frozen=True)
class Recovered:
    """A secret that proved right, and the holders (by point) whose shares do not fit it."""

    secret: bytes
    false: frozenset[int] = frozenset()

    def __repr__(self) -> str:
        return f"Recovered(false={sorted(self.false)})"


def recover(
    shares: Mapping[int, bytes],
    *,
    threshold: int,
    proves: Callable[[bytes], bool],
    suspects: frozenset[int] = frozenset(),
) -> Recovered | None:
    """The secret, from shares by point; None where no subset within `TRIES` gives one that `proves` accepts.

    Suspects are used last. Where the first subset is right the others are not looked at: nobody was harmed.
    """
    points = sorted(shares, key=lambda p: (p in suspects, p))
    if len(points) < threshold:
        return None
    for tried, subset in enumerate(_subsets(points, threshold)):
        chosen = {p: shares[p] for p in subset}
        secret = combine(chosen)
        if secret is not None and proves(secret):
            others = () if not tried else (p for p in points if p not in chosen)
            return Recovered(secret, frozenset(p for p in others if not fits(chosen, p, shares[p])))
    return None


def _subsets(points: list[int], size: int) -> Iterator[tuple[int, ...]]:
    """Subsets to try, the first ones first: all of them where they are few, else drawn."""
    yield tuple(points[:size])
    if math.comb(len(points), size) <= TRIES:
        yield from combinations(points, size)
        return
    rng = np.random.Generator(np.random.Philox(key=0))
    for _ in range(TRIES):
        yield tuple(points[k] for k in sorted(rng.choice(len(points), size, replace=False)))
