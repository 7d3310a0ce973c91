"""From proposals to a step: the paper's quorum and mean sign (eq. 3-4), or net votes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array

_ROUNDING = 1e-9
"""7 of 100 are a share of .07, whatever floats say."""


@dataclass(frozen=True)
class Ballot:
    """Who proposed which entry of the model with which sign: (K, d + 1), -1, 0 or 1 each (the last is the intercept)."""

    signs: Array

    @classmethod
    def of(cls, votes: Array, size: int) -> Ballot:
        """`votes` (K, k): entry j is proposed with a plus as j and with a minus as j + size. Both at once cancel."""
        signs = np.zeros((len(votes), size))
        rows = np.repeat(np.arange(len(votes)), votes.shape[1])
        numbers = votes.astype(np.int64).ravel()
        np.add.at(signs, (rows, numbers % size), np.where(numbers < size, 1.0, -1.0))
        return cls(signs)


def net_votes(ballot: Ballot, weight: Array) -> tuple[Array, str]:
    """For each entry the sum of signs by the sites' weights, as a share of all weight: in [-1, 1]."""
    change: Array = weight @ ballot.signs / weight.sum()
    moved = int((change[:-1] != 0).sum())
    return change, f"net votes of {len(weight)} sites for {moved} features"


def quorum_votes(ballot: Ballot, *, quorum: float) -> tuple[Array, str]:
    """Eq. 3-4: the mean sign of entries that at least a share `quorum` of the sites proposed; nothing for others."""
    counts = np.abs(ballot.signs).sum(axis=0)
    passed = (counts >= quorum * len(ballot.signs) - _ROUNDING) & (counts > 0)
    change = np.where(passed, ballot.signs.sum(axis=0) / np.maximum(counts, 1), 0.0)
    said = f"{int(passed[:-1].sum())} features of {int((counts[:-1] > 0).sum())} that were proposed passed the quorum"
    return change, f"{said} of {quorum:.0%}"
