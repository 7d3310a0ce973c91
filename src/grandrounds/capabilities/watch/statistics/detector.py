"""Shiryaev-Roberts e-detectors of all checks of a site, patient by patient, with a state that can be stored.

Each tilt has SR_t = (1 + SR_{t-1}) e_t; the statistic of a check is the mean over its tilts. The check alarms when that reaches
A / w. While patients are like the reference rows, SR_t - t is a supermartingale, so a check with share w has in the mean at most
w / A alarms a patient (Shin, Ramdas, Rinaldo 2023, "E-detectors: a nonparametric framework for sequential change detection").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from grandrounds.capabilities.watch.statistics.checks import EXPLANATION, INPUT_KINDS, SCORE, SHIFT, Check
from grandrounds.capabilities.watch.statistics.reference import Evidence, Reference
from grandrounds.capabilities.watch.statistics.rows import Rows
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

LARGEST = 1e280
NEAR = 3.0
"""An input is named instead of a score or an explanation if its statistic is at least the limit divided by exp(NEAR)."""
BLOCK = 500
"""Rows that `watch` reads at a time."""


@dataclass(frozen=True)
class Signal:
    """An alarm of a check.

    Attributes:
        check: The check to name.
        patient: Number of the patient at which it came, from 1; labelled patients are counted apart.
        since: Number of the patient with which the change began, by the largest cumulative log-likelihood ratio.
        patients: Patients since then that say something about the check.
        reference: Mean of the shown number in the reference patients: a share, a mean value, a mean risk, a prevalence, observed
            less predicted risk (calibration), difference in risk between patients with and without the event (discrimination),
            net benefit.
        current: The same since the change.
        evidence: Logarithm of the statistic less that of its limit.
        others: Names of other checks that had reached their limits, strongest first.
    """

    check: Check
    patient: int
    since: int
    patients: int
    reference: float
    current: float
    evidence: float
    others: tuple[str, ...] = ()


@dataclass(eq=False)
class State:
    """State of a detector: arrays only, to store and to resume.

    Attributes:
        statistic: SR (tilts,) of each tilt.
        ratio: Cumulative log-likelihood ratio (tilts,) since `since`.
        since: Number (tilts,) of the patient with which the ratio began.
        counts: Patients (tilts,) since then that say something.
        sums: Sum (tilts,) of the shown number since then.
        quiet: Checks (checks,) that raise no alarm until released.
        clocks: Patients and labelled patients so far (2,).
    """

    statistic: Array
    ratio: Array
    since: Array
    counts: Array
    sums: Array
    quiet: Array
    clocks: Array

    @classmethod
    def start(cls, reference: Reference) -> State:
        """Return the state before the first patient."""
        n = reference.tilts
        return cls(
            statistic=np.zeros(n),
            ratio=np.zeros(n),
            since=np.ones(n, np.int64),
            counts=np.zeros(n, np.int64),
            sums=np.zeros(n),
            quiet=np.zeros(len(reference.checks), bool),
            clocks=np.zeros(2, np.int64),
        )

    def to_arrays(self) -> dict[str, Array]:
        """Return copies of the arrays by name."""
        return {name: np.array(value) for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], reference: Reference) -> State:
        """Read what `to_arrays` returned.

        Raises:
            BadInput: The state belongs to another reference.
        """
        fresh = cls.start(reference)
        for name, value in vars(fresh).items():
            if name not in arrays or arrays[name].shape != value.shape:
                raise BadInput(
                    "the state of this watch belongs to another baseline: start the watch again", code="watch-state"
                )
        return cls(**{name: np.array(arrays[name], value.dtype) for name, value in vars(fresh).items()})


class Detector:
    """Watch patients with the checks of a reference.

    Args:
        reference: Checks and limit.
        state: A stored state; None begins anew.
        hold: After an alarm, the checks of the named column (of the named kind, for scores and labels) are quiet until `release`.
            Without it every check goes on, and a lasting change alarms again and again.
    """

    def __init__(self, reference: Reference, state: State | None = None, *, hold: bool = True) -> None:
        self.reference = reference
        self.state = State.start(reference) if state is None else state
        self.hold = hold
        owner, checks = reference.owner, reference.checks
        self._starts = np.searchsorted(owner, np.arange(len(checks)))
        sizes = np.bincount(owner, minlength=len(checks))
        shares = np.array([check.share for check in checks])
        self._scale = np.repeat(shares / np.maximum(sizes, 1) / reference.limit, sizes)
        self._parts = ((0, reference.labels_from), (reference.labels_from, len(checks)))

    def watch(self, rows: Rows) -> list[Signal]:
        """Read rows in order and return the alarms. Rows of one patient in one call count as one patient."""
        groups = rows.group_patients()
        if groups is not None:
            rows, groups = rows.take(np.argsort(groups, kind="stable")), np.sort(groups)
        out: list[Signal] = []
        begin = 0
        while begin < len(rows):
            end = min(begin + BLOCK, len(rows))
            while groups is not None and end < len(rows) and groups[end] == groups[end - 1]:
                end += 1
            out += self.update(self.reference.evidence(rows.take(np.arange(begin, end))))
            begin = end
        return out

    def update(self, evidence: Evidence) -> list[Signal]:
        """Read a block of patients in order and return the alarms. Blocks of any size give the same bits."""
        known = ~np.isnan(evidence.log_e)
        gain = np.where(known, evidence.log_e, 0.0)
        times, adds = np.exp(gain), known.astype(np.float64)
        shown = np.nan_to_num(evidence.shown)[:, self.reference.owner] * known
        out: list[Signal] = []
        for i in range(len(evidence)):
            for clock, (read, (first, last)) in enumerate(
                zip((evidence.seen, evidence.labelled), self._parts, strict=True)
            ):
                if read[i]:
                    self.state.clocks[clock] += 1
                    if first < last:
                        tilts = self._tilts(first, last)
                        self._advance(tilts, clock, adds[i, tilts], times[i, tilts], gain[i, tilts], shown[i, tilts])
                        out += self._alarm(clock, first, last)
        return out

    def levels(self) -> Array:
        """Return log(SR w / A) of each check (checks,): zero is an alarm, minus infinity the start."""
        with np.errstate(divide="ignore"):
            return np.log(self._totals(0, len(self.reference.checks)))

    def release(self, names: Iterable[str] | None = None) -> None:
        """Let checks raise alarms again, from a fresh start; all of them by default."""
        chosen = None if names is None else set(names)
        for c, check in enumerate(self.reference.checks):
            if self.state.quiet[c] and (chosen is None or check.name in chosen):
                self.state.quiet[c] = False
                self._restart(c, c + 1, int(check.labelled))

    def silence(self, names: Iterable[str]) -> None:
        """Let checks raise no alarms until they are released."""
        chosen = set(names)
        for c, check in enumerate(self.reference.checks):
            if check.name in chosen:
                self.state.quiet[c] = True

    def _tilts(self, first: int, last: int) -> slice:
        stop = self._starts[last] if last < len(self._starts) else self.reference.tilts
        return slice(int(self._starts[first]), int(stop))

    def _advance(self, tilts: slice, clock: int, adds: Array, times: Array, gain: Array, shown: Array) -> None:
        state = self.state
        state.statistic[tilts] = np.minimum((state.statistic[tilts] + adds) * times, LARGEST)
        ratio = state.ratio[tilts] + gain
        state.counts[tilts] += adds.astype(np.int64)
        state.sums[tilts] += shown
        over = ratio <= 0
        state.ratio[tilts] = np.where(over, 0.0, ratio)
        state.since[tilts][over] = state.clocks[clock] + 1
        state.counts[tilts][over] = 0
        state.sums[tilts][over] = 0.0

    def _totals(self, first: int, last: int) -> Array:
        tilts = self._tilts(first, last)
        return np.add.reduceat(self.state.statistic[tilts] * self._scale[tilts], self._starts[first:last] - tilts.start)

    def _alarm(self, clock: int, first: int, last: int) -> list[Signal]:
        totals = np.where(self.state.quiet[first:last], 0.0, self._totals(first, last))
        if not totals.max() >= 1.0:
            return []
        with np.errstate(divide="ignore"):
            levels = np.log(totals)
        named = first + choose(self.reference.checks[first:last], levels)
        signal = self._describe(named, clock, float(levels[named - first]), first, levels)
        if self.hold:
            check = self.reference.checks[named]
            for c, other in enumerate(self.reference.checks):
                same = other.column == check.column and (bool(check.column) or other.kind == check.kind)
                self.state.quiet[c] |= same
        self._restart(first, last, clock)
        return [signal]

    def _restart(self, first: int, last: int, clock: int) -> None:
        tilts = self._tilts(first, last)
        state = self.state
        state.statistic[tilts], state.ratio[tilts], state.counts[tilts], state.sums[tilts] = 0.0, 0.0, 0, 0.0
        state.since[tilts] = state.clocks[clock] + 1

    def _describe(self, named: int, clock: int, level: float, first: int, levels: Array) -> Signal:
        state, tilts = self.state, self._tilts(named, named + 1)
        best = tilts.start + int(np.argmax(state.ratio[tilts]))
        count = int(state.counts[best])
        order = [int(c) for c in np.argsort(-levels, kind="stable") if levels[c] >= 0 and first + c != named]
        return Signal(
            check=self.reference.checks[named],
            patient=int(state.clocks[clock]),
            since=int(state.since[best]),
            patients=count,
            reference=float(self.reference.usual[named]),
            current=float(state.sums[best] / count) if count else float("nan"),
            evidence=level,
            others=tuple(self.reference.checks[first + c].name for c in order),
        )


def choose(checks: tuple[Check, ...] | list[Check], levels: Array) -> int:
    """Choose the check to name: the strongest, but an input before a score or an explanation that follows from it.

    A column that is missing, unseen or out of range is named so, rather than as shifted.
    """
    best = int(np.argmax(levels))
    if checks[best].kind in (SCORE, EXPLANATION):
        near = [c for c, check in enumerate(checks) if check.kind in INPUT_KINDS and levels[c] >= -NEAR]
        best = max(near, key=lambda c: levels[c], default=best)
    if checks[best].kind in (SHIFT, EXPLANATION):
        same = [
            c
            for c, check in enumerate(checks)
            if check.column == checks[best].column
            and check.kind in INPUT_KINDS
            and check.kind != SHIFT
            and levels[c] >= -NEAR
        ]
        best = max(same, key=lambda c: levels[c], default=best)
    return best
