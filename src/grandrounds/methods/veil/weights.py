"""VEIL's votes at the server: the paper's quorum and mean sign (eq. 3 and 4), and net votes, the default.

Votes are post-processing of releases, so they cost no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array

_ROUNDING = 1e-9
"""Tolerance of a share: 7 of 100 is 0.07 in spite of rounding."""


@dataclass(frozen=True)
class Ballot:
    """The sites' proposals: (K, d + 1), the sign -1, 0 or 1 of each entry of the model (the last is the intercept)."""

    signs: Array

    @classmethod
    def from_votes(cls, votes: Array, size: int) -> Ballot:
        """Read the sites' votes (K, k): entry j is proposed with a plus as j and with a minus as j + size. Both cancel."""
        signs = np.zeros((len(votes), size))
        rows = np.repeat(np.arange(len(votes)), votes.shape[1])
        numbers = votes.astype(np.int64).ravel()
        np.add.at(signs, (rows, numbers % size), np.where(numbers < size, 1.0, -1.0))
        return cls(signs)


def quorum_votes(ballot: Ballot, *, quorum: float) -> tuple[Array, str]:
    """Compute the mean sign of entries that at least a share `quorum` of the sites proposed, 0 for others (eq. 3-4)."""
    counts = np.abs(ballot.signs).sum(axis=0)
    passed = (counts >= quorum * len(ballot.signs) - _ROUNDING) & (counts > 0)
    change = np.where(passed, ballot.signs.sum(axis=0) / np.maximum(counts, 1), 0.0)
    sentence = f"{int(passed[:-1].sum())} features of {int((counts[:-1] > 0).sum())} that were proposed passed the quorum"
    return change, f"{sentence} of {quorum:.0%}"


def net_votes(ballot: Ballot, weight: Array) -> tuple[Array, str]:
    """Sum the signs of each entry by the sites' weights, as a share of the total weight: in [-1, 1]."""
    change: Array = weight @ ballot.signs / weight.sum()
    moved = int((change[:-1] != 0).sum())
    return change, f"net votes of {len(weight)} sites for {moved} features"
