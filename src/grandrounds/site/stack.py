"""The private data of K sites, side by side, and whose rows they are. In a simulation K is all sites; at a hospital K is 1."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import draw_by_key, hash_words
from grandrounds.data.corruption.attacks import Attack
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import Holdings
from grandrounds.data.split import Rows, row_keys, unit_keys

_CHOSEN = b"grandrounds/one row of a patient/1\x00"


@dataclass(frozen=True)
class Patients:
    """The rows of each patient of one site; patients are numbered in the order of their first rows.

    A patient with several rows gives one of them to a step of DP-SGD, drawn anew each time, and one to a sum or a count, drawn
    once. So whatever a clip or a cell bounds for one row, it bounds for one patient.

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
        hashes = [_number(words[k]) for k in order]
        chosen = [rows[a + n % (b - a)] for (a, b), n in zip(pairwise(starts.tolist()), hashes, strict=True)]
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
        place = np.zeros(len(patients), np.int64)
        if (sizes > 1).any():
            place = np.minimum((rng.random(len(patients)) * sizes).astype(np.int64), sizes - 1)
        drawn: Array = self.rows[self.starts[patients] + place]
        return drawn


def _number(patient: str) -> int:
    """A number that follows from who the patient is, and from nobody else."""
    hashed = hashlib.sha256(_CHOSEN + patient.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(hashed[:8], "little")


PARTS = ("train", "val", "test")

CLEAN = "test_clean"
"""A further part, in a study of shortcuts: the test rows with the shortcut's patches gone."""


@dataclass(frozen=True)
class Part:
    """Prepared rows of one part (train, val or test); site k owns rows offsets[k]:offsets[k + 1]."""

    x: Array  # (N, d)
    y: Array  # (N,) class numbers
    target: Array  # (N, C) target probabilities
    group: Array  # (N,) subgroup numbers
    offsets: Array  # (K + 1,)
    patient: Array | None = None  # (N,) whose row each is, as text, where a promise is to patients

    @cached_property
    def patients(self) -> tuple[Patients, ...] | None:
        """The patients of each site; None where each row counts as one."""
        if self.patient is None:
            return None
        return tuple(Patients.of(self.patient[a:b]) for a, b in pairwise(self.offsets.tolist()))

    @property
    def protected(self) -> Array:
        """(K,) how many a promise is made to at each site: patients, or rows."""
        return self.counts if self.patients is None else np.array([p.count for p in self.patients], np.int64)

    def one_each(self, k: int) -> slice | Array:
        """One row of each patient of site k, by number; all of its rows where each counts as a patient."""
        if self.patients is None:
            return slice(int(self.offsets[k]), int(self.offsets[k + 1]))
        chosen: Array = self.offsets[k] + self.patients[k].chosen
        return chosen

    @property
    def counts(self) -> Array:
        return np.diff(self.offsets)

    def emptied(self) -> Part:
        """The same without any row."""
        none = np.zeros_like(self.offsets)
        return Part(self.x[:0], self.y[:0], self.target[:0], self.group[:0], none)

    def only(self, chosen: Array) -> Part:
        """The same sites with these rows (N,) of bool alone."""
        ends = np.concatenate([[0], np.cumsum(chosen)])[self.offsets]
        return Part(self.x[chosen], self.y[chosen], self.target[chosen], self.group[chosen], ends)

    def owner(self) -> Array:
        """The site number of each row."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.counts)


@dataclass(frozen=True)
class Stack:
    """K sites: their raw rows, and, once the consortium agreed on an encoding, the prepared ones."""

    names: tuple[str, ...]
    data: Holdings
    rows: tuple[Rows, ...]
    groups: Array | None = None  # (n,) the subgroup of each row, as text, where one is named
    tasks: tuple[str, ...] = ()  # each site's task; "" is the main one
    parts: Mapping[str, Part] = field(default_factory=dict)
    attacks: Mapping[str, Attack] = field(default_factory=dict)  # what some sites do, in a study of attacks
    penalty: Array | None = None  # (K, C) added to logits, where sites have different tasks
    event: int = 1  # the number of the class whose probability is the risk, where there are two
    clean: ImageSet | None = None  # the test pictures, site by site, without a shortcut's patch, where there is one
    by_patient: bool = False  # whether a promise is to patients, who may have several rows

    def number(self, sites: Sequence[str]) -> Array:
        """Site numbers of the named sites."""
        number_of = {name: k for k, name in enumerate(self.names)}
        return np.array([number_of[s] for s in sites], np.int64)

    def attacks_of(self, members: Array) -> list[Attack | None]:
        """What each member does to the others, in a study of attacks; None: it is honest."""
        return [self.attacks.get(self.names[k]) for k in members.tolist()]

    def without(self, parts: Sequence[str]) -> Stack:
        """The same sites with these parts empty."""
        hidden = {p: part.emptied() for p, part in self.parts.items() if p in parts}
        return replace(self, parts={**self.parts, **hidden}) if hidden else self

    def first_half(self, k: int) -> Array:
        """Find which training rows of a site belong to the first half of its patients, (n,) of bool; the others to the second.

        A patient's half follows from the keyed hash of the patient, or of the row where no patient is named: neither from who
        else is there nor from any number that a server can choose. So a site has two halves, and never others.
        """
        rows = self.rows[k].train
        if self.data.patient is not None:
            keys = hash_words([str(patient) for patient in self.data.patient[rows].tolist()])
        else:
            mine = self.data.take(rows)
            keys = unit_keys(np.arange(len(rows)), row_keys(mine))
        out: Array = draw_by_key(keys, seed=0, purpose="halves of a site's own patients") < 0.5
        return out

    def alone(self, k: int) -> Stack:
        """One site as a stack of its own, holding nobody else's rows."""
        rows = self.rows[k]
        mine = np.concatenate([rows.train, rows.val, rows.test])
        cuts = np.cumsum([len(rows.train), len(rows.val)])
        train, val, test = np.split(np.arange(len(mine)), cuts)
        groups = None if self.groups is None else self.groups[mine]
        tasks = self.tasks[k : k + 1]
        attacks = {s: a for s, a in self.attacks.items() if s == self.names[k]}
        alone = Stack((self.names[k],), self.data.take(mine), (Rows(train, val, test),), groups, tasks)
        first = sum(len(r.test) for r in self.rows[:k])
        clean = None if self.clean is None else self.clean.take(slice(first, first + len(rows.test)))
        return replace(alone, attacks=attacks, clean=clean, by_patient=self.by_patient)
