"""Count patients and outcomes, and raise alarms: from one state of a watch to the next, without files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from grandrounds.capabilities.watch.at_sites.alarms import Narrator, Window
from grandrounds.capabilities.watch.at_sites.baseline import Baseline
from grandrounds.capabilities.watch.at_sites.patients import Patients, main_outcome, main_score
from grandrounds.capabilities.watch.at_sites.sources import Keys
from grandrounds.capabilities.watch.at_sites.state import Timeline, Waiting, WatchState
from grandrounds.capabilities.watch.at_sites.sums import Blocks, SumLayout, outcome_rows
from grandrounds.capabilities.watch.at_sites.words import Place
from grandrounds.capabilities.watch.statistics import Detector, Reference, Rows, Signal, State
from grandrounds.core.arrays import Array

POINT = 20
"""Patients between two points of the timeline."""


@dataclass(frozen=True, eq=False)
class Tracker:
    """Counts patients by the checks of a site.

    Attributes:
        baseline: The reference patients.
        reference: The checks.
        narrator: Writes alarms.
        keys: Salted hashes.
    """

    baseline: Baseline
    reference: Reference
    narrator: Narrator
    keys: Keys

    @classmethod
    def build(cls, baseline: Baseline, reference: Reference, keys: Keys, *, run: str, folder: str) -> Tracker:
        """Make the tracker of a site.

        Args:
            baseline: The reference patients.
            reference: The checks.
            keys: Salted hashes of the watch's folder.
            run: The run folder, for commands in sentences.
            folder: The site's own folder at a hospital; "" in a simulation.
        """
        observer, patients = baseline.observer, baseline.patients
        columns = tuple(replace(c, middle=_median(patients.numbers.get(c.name))) for c in observer.columns)
        layout = SumLayout(columns, observer.features)
        place = Place(
            run,
            baseline.site,
            observer.score_name,
            observer.event_name,
            "log-odds" if observer.is_classification and observer.model.net.kernel != "forest" else "",
            folder,
            observer.classes if observer.is_classification and not observer.is_binary else (),
        )
        known, rows = ~np.isnan(patients.label), layout.rows(patients)
        outcomes = _outcome_rows(baseline, patients.risks[known], patients.label[known])
        before = Window(rows.sum(axis=0), len(rows), outcomes.sum(axis=0))
        labelled = observer.has_outcomes and bool(known.any())
        return cls(baseline, reference, Narrator(place, layout, before, baseline.threshold, labelled), keys)

    def start(self, digest: str) -> WatchState:
        """Return the state before the first patient.

        Args:
            digest: SHA-256 of baseline.safetensors.
        """
        return WatchState(
            self.baseline.model,
            digest,
            Blocks.empty(self.narrator.layout.width + len(self.narrator.before.outcomes)),
            Timeline.empty(len(self.reference.checks)),
            State.start(self.reference).to_arrays(),
            Waiting.empty(self.baseline.patients.risks.shape[1]),
        )

    def levels(self, state: WatchState) -> Array:
        """Return the log evidence (checks,) of each check against its threshold."""
        return self._detector(state).levels()

    def release(self, state: WatchState, alarms: Iterable[str]) -> WatchState:
        """Let the checks of alarms start afresh.

        Args:
            state: The state.
            alarms: Alarms as "patient check"; those that were released before are left out.
        """
        mine = {f"{alarm['patient']} {alarm['check']}": alarm for alarm in state.alarms}
        due = sorted((set(alarms) & set(mine)) - set(state.released))
        if not due:
            return state
        detector = self._detector(state)
        for key in due:
            column, kind = mine[key]["column"], mine[key]["kind"]
            detector.release(c.name for c in self.reference.checks if c.column == column and (column or c.kind == kind))
        return replace(state, detector=detector.state.to_arrays(), released=[*state.released, *due])

    def add(self, state: WatchState, patients: Patients, keys: Array, times: Array, absent: frozenset[str]) -> WatchState:
        """Count new patients, in parts that end where a point of the timeline is due.

        Args:
            state: The state before them.
            patients: The patients, in their order.
            keys: (n,) uint64 that they are known by.
            times: (n,) seconds since 1970, NaN where not known.
            absent: Watched columns that their table lacks.

        Returns:
            The state with these patients and their alarms.
        """
        observer, detector = self.baseline.observer, self._detector(state)
        rows = patients.to_rows(observer.columns, observer.features)
        sums, known = self.narrator.layout.rows(patients), ~np.isnan(patients.label)
        width = self.narrator.before.outcomes.shape[0]
        outcomes = np.zeros((len(patients), width))
        outcomes[known] = self.outcome_rows(patients.risks[known], patients.label[known])
        first = state.patients
        begin = 0
        while begin < len(patients):
            end = min(len(patients), begin + POINT - (first + begin) % POINT)
            signals = detector.watch(rows.take(np.arange(begin, end)))
            part = slice(begin, end)
            numbers = first + 1 + np.arange(begin, end)
            state = self._count_codes(state, patients, begin, end)
            state = replace(
                state,
                patients=first + end,
                blocks=state.blocks.add(np.concatenate([sums[part], outcomes[part]], axis=1), times[part]),
                labelled=np.concatenate([state.labelled, numbers[known[part]]]),
            )
            for signal in signals:
                at = min(max(signal.patient - first, 1), end) if not signal.check.labelled else end
                window = self._window(state, signal, sums[:at], first)
                exact = signal.since > first and not signal.check.labelled
                began = float(times[signal.since - 1 - first]) if exact else None
                state = self._raise(state, signal, window, float(times[end - 1]), absent, began=began)
            if (first + end) % POINT == 0:
                evidence = np.maximum(detector.levels(), -30.0)
                state = replace(state, timeline=state.timeline.add(first + end, float(times[end - 1]), evidence))
            begin = end
        unknown = ~known & self.narrator.labelled
        waiting = Waiting(keys[unknown], first + 1 + np.flatnonzero(unknown), patients.risks[unknown])
        return replace(
            state,
            seen=np.union1d(state.seen, keys),
            waiting=state.waiting.join(waiting),
            detector=detector.state.to_arrays(),
        )

    def add_labels(self, state: WatchState, keys: Array, words: Array, time: float) -> WatchState:
        """Add outcomes of patients who were waiting for theirs; others are left out.

        Args:
            state: The state before them.
            keys: (n,) keys of patients.
            words: (n,) their labels as text, None where not known.
            time: Time at which the outcomes came.

        Raises:
            BadInput: A label is not one of the classes.
        """
        label, detector = self.baseline.observer.number_labels(words), self._detector(state)
        usable = ~np.isnan(label)
        label_by_key = dict(zip(keys[usable].tolist(), label[usable].tolist(), strict=True))
        here = np.array([key in label_by_key for key in state.waiting.key.tolist()], bool)
        if not here.any():
            return state
        known = state.waiting.take(np.flatnonzero(here))
        labels = np.array([label_by_key[key] for key in known.key.tolist()])
        risks = known.risks[:, 0] if known.risks.shape[1] == 1 else known.risks
        signals = detector.watch(Rows(score=risks, label=labels))
        state = replace(
            state,
            waiting=state.waiting.take(np.flatnonzero(~here)),
            labelled=np.concatenate([state.labelled, known.number]),
            blocks=state.blocks.add_at(known.number, self.outcome_rows(known.risks, labels)),
        )
        for signal in signals:
            state = self._raise(state, signal, self._window(state, signal, np.empty((0, 0)), state.patients), time, frozenset())
        return replace(state, detector=detector.state.to_arrays())

    def outcome_rows(self, risks: Array, label: Array) -> Array:
        """Return the contributions (n, width) of labelled patients to the sums of outcomes."""
        return _outcome_rows(self.baseline, risks, label)

    def _detector(self, state: WatchState) -> Detector:
        return Detector(self.reference, State.from_arrays(state.detector, self.reference))

    def _window(self, state: WatchState, signal: Signal, sums: Array, first: int) -> Window:
        """Return the sums since a change: exact where its patients are in memory, else by blocks.

        Args:
            state: The state with these patients.
            signal: The signal.
            sums: (n, width) contributions of the patients in memory up to the alarm.
            first: Patients before them.
        """
        width = self.narrator.layout.width
        since = signal.since
        if signal.check.labelled:
            since = int(state.labelled[min(signal.since, len(state.labelled)) - 1])
        total, rows, _ = state.blocks.since(since)
        inputs = total[:width]
        if since > first and not signal.check.labelled:
            part = sums[since - 1 - first :]
            inputs, rows = part.sum(axis=0), len(part)
        return Window(inputs, rows, total[width:])

    def _raise(
        self,
        state: WatchState,
        signal: Signal,
        window: Window,
        time: float,
        absent: frozenset[str],
        *,
        began: float | None = None,
    ) -> WatchState:
        """Add an alarm to the state; `began` is the time of the change, where its patient is in memory."""
        number = signal.since
        if signal.check.labelled:
            number = int(state.labelled[min(signal.since, len(state.labelled)) - 1])
        alarm = self.narrator.write(
            signal,
            window,
            time=time,
            since_time=state.blocks.time_of(number) if began is None else began,
            codes=state.shown_codes(signal.check.column),
            absent=signal.check.column in absent,
        )
        return replace(state, alarms=[*state.alarms, alarm])

    def _count_codes(self, state: WatchState, patients: Patients, begin: int, end: int) -> WatchState:
        """Count codes that training did not have; a code is kept by its salted key until enough patients have it."""
        for column, places in patients.unseen.items():
            counts: dict[str, int] = {}
            for place, word in places.items():
                if begin <= place < end:
                    counts[word] = counts.get(word, 0) + 1
            if counts:
                keys = {word: f"{int(key):016x}" for word, key in zip(counts, self.keys.of_ids(list(counts)), strict=True)}
                state = state.add_codes(column, counts, keys)
        return state


def _outcome_rows(baseline: Baseline, risks: Array, label: Array) -> Array:
    threshold = 1.0 if baseline.threshold is None else baseline.threshold
    return outcome_rows(main_score(risks), main_outcome(risks, label), threshold)


def _median(values: Array | None) -> float:
    known = np.empty(0) if values is None else values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else math.nan
