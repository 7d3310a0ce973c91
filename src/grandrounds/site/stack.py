"""The private data of K sites, and the site of each row. In a simulation K is all sites; at a hospital K is 1."""

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
from grandrounds.data.dataset import Dataset
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import Holdings
from grandrounds.data.new_patients import Alarms
from grandrounds.data.outcome import Outcome
from grandrounds.data.split import Rows, row_keys, unit_keys

_CHOSEN = b"grandrounds/one row of a patient/1\x00"


@dataclass(frozen=True)
class Patients:
    """The rows of each patient of one site; patients are numbered in the order of their first rows.

    A patient with several rows contributes one of them to a step of DP-SGD, drawn each time, and one to a sum or a count, drawn
    once. So bounds for one row also hold for one patient.

    `rows`: (n,) row numbers, patient after patient. `starts`: (p + 1,) first position of each patient.
    """

    rows: Array
    starts: Array
    chosen: Array  # (p,) the row of each patient for sums and counts

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
            patients: Patient numbers, (m,).
            rng: Random numbers; not used if every patient has one row.

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
    """Compute a number that depends on the patient alone."""
    hashed = hashlib.sha256(_CHOSEN + patient.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(hashed[:8], "little")


PARTS = ("train", "val", "test")

CLEAN = "test_clean"
"""Name of a further part, for studies of shortcuts: the test rows without the shortcut's patches."""


@dataclass(frozen=True)
class Part:
    """Prepared rows of one part (train, val or test); site k owns rows offsets[k]:offsets[k + 1]."""

    x: Array  # (N, d)
    y: Array  # (N,) class numbers; float64 numbers or counts as recorded; for survival 1 where the event was observed
    target: Array  # (N, C) target probabilities; (N, 1) the outcome in units of training; for survival (N, 2) event, rank of time
    group: Array  # (N,) subgroup numbers
    offsets: Array  # (K + 1,)
    patient: Array | None = None  # (N,) patient of each row, as text, if the privacy unit is a patient
    time: Array | None = None  # (N,) float64 follow-up time, for survival
    subgroups: Array | None = None  # (N, J) group numbers by column of evaluation.subgroups

    @cached_property
    def patients(self) -> tuple[Patients, ...] | None:
        """Return the patients of each site; None if each row is a patient."""
        if self.patient is None:
            return None
        return tuple(Patients.of(self.patient[a:b]) for a, b in pairwise(self.offsets.tolist()))

    @property
    def protected(self) -> Array:
        """Count the privacy units of each site, (K,): patients, or rows."""
        return self.counts if self.patients is None else np.array([p.count for p in self.patients], np.int64)

    def one_each(self, k: int) -> slice | Array:
        """Return the numbers of one row of each patient of site k; all of its rows if each is a patient."""
        if self.patients is None:
            return slice(int(self.offsets[k]), int(self.offsets[k + 1]))
        chosen: Array = self.offsets[k] + self.patients[k].chosen
        return chosen

    @property
    def counts(self) -> Array:
        return np.diff(self.offsets)

    def emptied(self) -> Part:
        """Return an empty part."""
        none = np.zeros_like(self.offsets)
        time = None if self.time is None else self.time[:0]
        subgroups = None if self.subgroups is None else self.subgroups[:0]
        return Part(self.x[:0], self.y[:0], self.target[:0], self.group[:0], none, time=time, subgroups=subgroups)

    def only(self, chosen: Array) -> Part:
        """Return the part with these rows (N,) of bool only."""
        ends = np.concatenate([[0], np.cumsum(chosen)])[self.offsets]
        time = None if self.time is None else self.time[chosen]
        return Part(self.x[chosen], self.y[chosen], self.target[chosen], self.group[chosen], ends, time=time)

    def owner(self) -> Array:
        """Return the site number of each row."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.counts)


@dataclass(frozen=True)
class Stack:
    """K sites: their raw rows and, after the agreement on an encoding, the prepared ones."""

    names: tuple[str, ...]
    data: Holdings
    rows: tuple[Rows, ...]
    groups: Array | None = None  # (n,) the subgroup of each row, as text, if there is one
    tasks: tuple[str, ...] = ()  # each site's task; "" is the main one
    parts: Mapping[str, Part] = field(default_factory=dict)
    attacks: Mapping[str, Attack] = field(default_factory=dict)  # simulated attacks by site
    penalty: Array | None = None  # (K, C) added to logits, if sites have different tasks
    event: int = 1  # number of the event's class, if there are two classes
    outcome: Outcome | None = None  # of tasks other than classification
    clean: ImageSet | None = None  # test images by site without a shortcut's patch, if there is one
    by_patient: bool = False  # the privacy unit is a patient, who may have several rows
    subgroups: tuple[str, ...] = ()  # columns whose groups are compared (evaluation.subgroups)
    bands: Mapping[str, Sequence[float]] = field(default_factory=dict)  # cuts of those that are numbers
    new: tuple[Dataset, ...] = ()  # new patients of each site, for method 'watch'; none: the test rows
    alarms: tuple[Alarms | None, ...] = ()  # alarms of each site's own watch; None: it has none

    def number(self, sites: Sequence[str]) -> Array:
        """Return the site numbers of the named sites."""
        number_of = {name: k for k, name in enumerate(self.names)}
        return np.array([number_of[s] for s in sites], np.int64)

    def attacks_of(self, members: Array) -> list[Attack | None]:
        """Return the simulated attack of each member; None for an honest site."""
        return [self.attacks.get(self.names[k]) for k in members.tolist()]

    def new_patients(self, k: int) -> Dataset:
        """Return the new patients of site k: those that were read for a watch, or its test rows."""
        if self.new:
            return self.new[k]
        assert isinstance(self.data, Dataset), "images are refused before"
        return self.data.take(self.rows[k].test)

    def without(self, parts: Sequence[str]) -> Stack:
        """Return the same sites with these parts empty."""
        hidden = {p: part.emptied() for p, part in self.parts.items() if p in parts}
        return replace(self, parts={**self.parts, **hidden}) if hidden else self

    def first_half(self, k: int) -> Array:
        """Find the training rows in the first half of a site's patients, (n,) of bool.

        A patient's half follows from a keyed hash of the patient, or of the row without a patient column. It does not depend on
        other patients or on the server, so a site always has the same two halves.
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
        """Return one site as its own stack, without other sites' rows."""
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
        return replace(
            alone,
            attacks=attacks,
            clean=clean,
            by_patient=self.by_patient,
            subgroups=self.subgroups,
            bands=self.bands,
            new=self.new[k : k + 1],
            alarms=self.alarms[k : k + 1],
        )
