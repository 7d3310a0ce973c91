"""Rows of one site by patient, so that a promise to patients bounds what all rows of one of them do together.

A patient with several rows gives one of them to a step of DP-SGD, drawn anew each time, and one to a sum or a count, drawn once.
So whatever a clip or a cell bounds for one row, it bounds for one patient.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from grandrounds.core.arrays import Array

_CHOSEN = b"grandrounds/one row of a patient/1\x00"


@dataclass(frozen=True)
class Patients:
    """The rows of each patient of one site; patients are numbered in the order of their first rows.

    `rows`: (n,) row numbers, patient after patient. `starts`: (p + 1,) where each patient's begin.
    """

    rows: Array
    starts: Array
    chosen: Array  # (p,) the row of each patient that sums and counts are made of

    @classmethod
    def of(cls, names: Array) -> Patients:
        """Group rows by the patient of each, (n,) of text."""
        words, first, place = np.unique(names.astype(str), return_index=True, return_inverse=True)
        order = np.argsort(first)
        number = np.argsort(order)[place.ravel()]
        rows = np.argsort(number, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(number, minlength=len(words)))]).astype(np.int64)
        at = [_number(words[k]) for k in order]
        chosen = [rows[a + n % (b - a)] for (a, b), n in zip(pairwise(starts.tolist()), at, strict=True)]
        return cls(rows, starts, np.array(chosen, np.int64))

    @property
    def count(self) -> int:
        return len(self.starts) - 1

    def draw_rows(self, patients: Array, rng: np.random.Generator) -> Array:
        """Draw one row of each of these patients; a patient may be named several times.

        Args:
            patients: (m,) patient numbers.
            rng: what the draw comes from; it is not used where every patient has one row.

        Returns:
            (m,) row numbers.
        """
        sizes = np.diff(self.starts)[patients]
        at = np.zeros(len(patients), np.int64)
        if (sizes > 1).any():
            at = np.minimum((rng.random(len(patients)) * sizes).astype(np.int64), sizes - 1)
        drawn: Array = self.rows[self.starts[patients] + at]
        return drawn


def _number(patient: str) -> int:
    """A number that follows from who the patient is, and from nobody else."""
    hashed = hashlib.sha256(_CHOSEN + patient.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(hashed[:8], "little")
