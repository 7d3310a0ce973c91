"""Watch the model of a run at one site: read new patients, keep the state, raise alarms."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.analysis.watch.alarm_states import ACKNOWLEDGED
from grandrounds.analysis.watch.alarms import Narrator, Window
from grandrounds.analysis.watch.baseline import Baseline, SiteRows, choose_site, read_baseline
from grandrounds.analysis.watch.hooks import Hook, notify
from grandrounds.analysis.watch.metrics import write_metrics
from grandrounds.analysis.watch.patients import Patients, main_outcome, main_score, outcome_words
from grandrounds.analysis.watch.record import ALARMS, STATUS, WatchRecord, WatchStart
from grandrounds.analysis.watch.signer import Signer, find_signer
from grandrounds.analysis.watch.sources import Keys, NewPatients, Source, id_words, read_times
from grandrounds.analysis.watch.state import Timeline, Waiting, WatchState
from grandrounds.analysis.watch.status import STATED, build_status
from grandrounds.analysis.watch.sums import Blocks, SumLayout, outcome_rows
from grandrounds.analysis.watch.words import Place
from grandrounds.core.arrays import Array, write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.data.table import Table
from grandrounds.statistics.watch import Detector, Reference, Rows, Signal, State

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

POINT = 20
"""Patients between two points of the timeline."""
SITE_FILE = "site.toml"
"""File of a hospital's own folder, by which a watch in it is known."""
_ROWS = 2000  # patients that are scored and explained at once

Progress = Callable[[int, int], None]
"""Called with patients done and patients in all of a table."""


@dataclass(frozen=True)
class PatientColumns:
    """Columns of a table of new patients.

    Attributes:
        label: The outcome; None: the run's label, where the table has it.
        id: The patient's id; None: a row is known by its values.
        time: The patient's date; None: the time of the file.
    """

    label: str | None = None
    id: str | None = None
    time: str | None = None


@dataclass(frozen=True)
class WatchReading:
    """Result of reading new patients once.

    Attributes:
        folder: The folder of the watch.
        status: The content of watch.json.
        new: Patients that were new.
        labelled: Outcomes that were new.
        alarms: New alarms, as alarms.json has them.
        notes: Sentences on what was read and left out.
    """

    folder: Path
    status: Mapping[str, Any]
    new: int
    labelled: int
    alarms: Sequence[Mapping[str, Any]]
    notes: tuple[str, ...]

    @property
    def open_alarms(self) -> list[Mapping[str, Any]]:
        """All alarms that nobody has acknowledged yet."""
        return [alarm for alarm in self.status["alarms"] if alarm["state"] != ACKNOWLEDGED]


class SiteWatch:
    """The watch of one site. Use it as a context manager: the folder is locked while it is open."""

    def __init__(self, run: Run, baseline: Baseline, folder: Path, signer: Signer | None) -> None:
        """Open the watch in a folder, or start it.

        Args:
            run: A finished run.
            baseline: The reference patients of the site.
            folder: The folder of the watch.
            signer: The site's key for the record; None keeps no record.

        Raises:
            BadInput: Another process uses the folder, or its files are damaged.
        """
        self.run, self.baseline, self.folder = run, baseline, folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _lock(folder)
        try:
            self._keys = Keys.at(folder)
            self._reference, digest = baseline.reference(folder)
            observer = baseline.observer
            columns = tuple(replace(c, middle=_median(baseline.patients.numbers.get(c.name))) for c in observer.columns)
            self._layout = SumLayout(columns, observer.features)
            self._narrator = self._make_narrator()
            self._state, self._notes = self._open_state(digest)
            self._detector = Detector(self._reference, State.from_arrays(self._state.detector, self._reference))
            self._commit(self._state)
            self._record = None if signer is None else self._open_record(signer, digest)
            self._release_acknowledged()
            self._published: Mapping[str, Any] = self._publish(0)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Release the folder."""
        if self._record is not None:
            self._record.close()
        os.close(self._lock)

    def __enter__(self) -> SiteWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def status(self) -> Mapping[str, Any]:
        """The content of watch.json."""
        return self._published

    def read(
        self,
        source: Source,
        columns: PatientColumns = PatientColumns(),  # noqa: B008 (a frozen value)
        *,
        labels: Source | None = None,
        progress: Progress | None = None,
    ) -> WatchReading:
        """Read what is new in a source, and then outcomes of patients who were read earlier.

        Args:
            source: Table, folder or query of new patients.
            columns: Their columns.
            labels: A table with the columns `columns.id` and the label, of patients who were read earlier.
            progress: Called while a table is read.

        Returns:
            New patients, outcomes and alarms.

        Raises:
            BadInput: The rows cannot be read or do not fit the model; what was read before stays.
        """
        before, notes = (self._state.patients, len(self._state.labelled), len(self._state.alarms)), list(self._notes)
        self._notes = ()
        self._release_acknowledged()
        for batch in source.read(self.run, self.baseline.site, self._state.files):
            notes += self._read_batch(batch, columns, progress)
        if labels is not None:
            notes += self._read_labels(labels, columns)
        self._published = self._publish(self._state.patients - before[0])
        listed = self._published["alarms"]
        count = len(self._state.alarms) - before[2]
        return WatchReading(
            self.folder,
            self._published,
            self._state.patients - before[0],
            len(self._state.labelled) - before[1],
            listed[len(listed) - count :] if count else [],
            tuple(notes),
        )

    def notify(self, hooks: Sequence[Hook]) -> list[str]:
        """Call commands for open alarms that they have not taken, and return a sentence for each failure."""
        return [] if self._record is None or not hooks else notify(self._record, hooks)

    def _make_narrator(self) -> Narrator:
        baseline, observer = self.baseline, self.baseline.observer
        place = Place(
            str(self.run.folder),
            baseline.site,
            observer.score_name,
            observer.event_name,
            "log-odds" if observer.is_classification and observer.model.net.kernel != "forest" else "",
            str(self.folder.parent) if (self.folder.parent / SITE_FILE).exists() else "",
            observer.classes if observer.is_classification and not observer.is_binary else (),
        )
        known = ~np.isnan(baseline.patients.label)
        labelled = observer.has_outcomes and bool(known.any())
        rows = self._layout.rows(baseline.patients)
        outcomes = self._outcome_rows(baseline.patients.risks[known], baseline.patients.label[known])
        before = Window(rows.sum(axis=0), len(rows), outcomes.sum(axis=0))
        return Narrator(place, self._layout, before, baseline.threshold, labelled)

    def _outcome_rows(self, risks: Array, label: Array) -> Array:
        threshold = self.baseline.threshold
        return outcome_rows(main_score(risks), main_outcome(risks, label), 1.0 if threshold is None else threshold)

    def _open_state(self, digest: str) -> tuple[WatchState, tuple[str, ...]]:
        """Read the state, or begin anew; patients who were read before stay known."""
        found = WatchState.read(self.folder)
        if found is not None and (found.model, found.baseline) == (self.baseline.model, digest):
            return found, ()
        width = self._layout.width + self._narrator.before.outcomes.shape[0]
        fresh = WatchState(
            self.baseline.model,
            digest,
            Blocks.empty(width),
            Timeline.empty(len(self._reference.checks)),
            State.start(self._reference).to_arrays(),
            Waiting.empty(self.baseline.patients.risks.shape[1]),
        )
        if found is None:
            return fresh, ()
        what = "model" if found.model != self.baseline.model else "baseline"
        listed = [*found.earlier, *_read_alarms(self.folder)[len(found.earlier) :]]
        note = f"the {what} is another than before: the checks start afresh, and patients who were read before are not read again"
        return replace(fresh, seen=found.seen, files=found.files, earlier=listed), (note,)

    def _open_record(self, signer: Signer, digest: str) -> WatchRecord:
        record = WatchRecord.open(self.folder, signer=signer)
        limit = self._reference.limit
        facts = WatchStart.of_run(
            self.run,
            self.baseline.site,
            model=self.baseline.model,
            baseline=digest,
            rates={check.name: check.share / limit for check in self._reference.checks},
            alarms_per_5000=STATED,
        )
        try:
            record.start(facts)
        except BaseException:
            record.close()
            raise
        return record

    def _release_acknowledged(self) -> None:
        """Let the checks of alarms that a person acknowledged start afresh."""
        if self._record is None:
            return
        done = {
            f"{a.content['patient']} {a.content['check']}"
            for a in self._record.alarms(patients=self._state.patients)
            if a.state == ACKNOWLEDGED
        }
        mine = {f"{alarm['patient']} {alarm['check']}": alarm for alarm in self._state.alarms}
        due = sorted((done & set(mine)) - set(self._state.released))
        for key in due:
            self._detector.release(_held_with(self._reference, mine[key]))
        if due:
            arrays = self._detector.state.to_arrays()
            self._commit(replace(self._state, detector=arrays, released=[*self._state.released, *due]))

    def _read_batch(self, batch: NewPatients, columns: PatientColumns, progress: Progress | None) -> list[str]:
        """Read one table; every part of it is committed with its patients."""
        observer, rows = self.baseline.observer, batch.rows
        label = self._label_column(rows, columns.label)
        words = outcome_words(rows, label) if observer.has_outcomes else None
        ids = id_words(rows, columns.id)
        keys = self._keys.of_rows(observer.hash_rows(rows), batch.source) if ids is None else self._keys.of_ids(ids)
        times = read_times(rows, columns.time, batch.time)
        if words is not None:
            observer.number_labels(words)
        new = self._state.find_new(keys)
        new = new if columns.time is None else new[np.argsort(times[new], kind="stable")]
        notes = [f"{batch.source}: {batch.others} rows of other sites are left out"] if batch.others else []
        for start in range(0, len(new), _ROWS):
            part = new[start : start + _ROWS]
            patients = observer.observe(rows.take(part), None if words is None else words[part])
            self._add(patients, keys[part], times[part], _absent(rows, observer.columns), words is not None)
            if progress is not None:
                progress(min(start + _ROWS, len(new)), len(new))
        old = np.setdiff1d(np.arange(len(rows)), new)
        if words is not None and len(old):
            self._add_labels(keys[old], words[old], float(np.nanmax(times)) if np.isfinite(times).any() else math.nan)
        if not batch.in_memory:
            notes += self._compare_rows(batch, len(rows), len(new)) if ids is None else []
            files = {**self._state.files, batch.source: batch.sha256} if batch.sha256 else self._state.files
            self._commit(replace(self._state, files=files, tables={**self._state.tables, batch.source: len(rows)}))
        return notes

    def _compare_rows(self, batch: NewPatients, rows: int, new: int) -> list[str]:
        """Say that rows of a table that were read before have changed."""
        before = self._state.tables.get(batch.source, 0)
        gone = before - (rows - new)
        if gone <= 0:
            return []
        return [
            f"{batch.source}: {gone} of the {before} rows that were read before are not in it any more; a row whose values "
            "changed counts as a new patient (name the patients with --id to avoid this)"
        ]

    def _label_column(self, rows: Any, given: str | None) -> str | None:
        schema = self.baseline.observer.model.schema
        if given is not None and isinstance(rows, Table):
            rows.column(given, flag="--label")
        return given if given is not None else "label" if schema is None else schema.label

    def _add(self, patients: Patients, keys: Array, times: Array, absent: frozenset[str], wait: bool) -> None:
        """Count new patients, in parts that end where a point of the timeline is due."""
        observer = self.baseline.observer
        rows = patients.to_rows(observer.columns, observer.features)
        sums, known = self._layout.rows(patients), ~np.isnan(patients.label)
        width = self._narrator.before.outcomes.shape[0]
        outcomes = np.zeros((len(patients), width))
        outcomes[known] = self._outcome_rows(patients.risks[known], patients.label[known])
        state, first = self._state, self._state.patients
        begin = 0
        while begin < len(patients):
            end = min(len(patients), begin + POINT - (first + begin) % POINT)
            signals = self._detector.watch(rows.take(np.arange(begin, end)))
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
                evidence = np.maximum(self._detector.levels(), -30.0)
                state = replace(state, timeline=state.timeline.add(first + end, float(times[end - 1]), evidence))
            begin = end
        unknown = ~known & self._narrator.labelled
        numbers = first + 1 + np.flatnonzero(unknown)
        waiting = Waiting(keys[unknown], numbers, patients.risks[unknown]) if wait or self._narrator.labelled else None
        self._commit(
            replace(
                state,
                seen=np.union1d(state.seen, keys),
                waiting=state.waiting if waiting is None else state.waiting.join(waiting),
                detector=self._detector.state.to_arrays(),
            )
        )

    def _window(self, state: WatchState, signal: Signal, sums: Array, first: int) -> Window:
        """Return the sums since a change: exact where its patients are in memory, else by blocks.

        Args:
            state: The state with these patients.
            signal: The signal.
            sums: (n, width) contributions of the patients in memory up to the alarm.
            first: Patients before them.
        """
        width = self._layout.width
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
        alarm = self._narrator.write(
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
                keys = {word: f"{int(key):016x}" for word, key in zip(counts, self._keys.of_ids(list(counts)), strict=True)}
                state = state.add_codes(column, counts, keys)
        return state

    def _read_labels(self, source: Source, columns: PatientColumns) -> list[str]:
        """Read outcomes of patients who were read earlier, by their id."""
        if columns.id is None:
            raise BadInput(
                "--labels needs the column that names the patients in both tables: add --id COLUMN", code="missing-option"
            )
        table = read_label_table(self.run, source)
        schema = self.baseline.observer.model.schema
        label = columns.label or ("label" if schema is None else schema.label)
        table.column(label, flag="--label")
        ids = id_words(table, columns.id)
        assert ids is not None
        words = outcome_words(table, label)
        assert words is not None
        keys = self._keys.of_ids(ids)
        unknown = int((~np.isin(keys, self._state.seen)).sum())
        self._add_labels(keys, words, math.nan)
        return [f"{source.name}: {unknown} ids are of no patient who was read"] if unknown else []

    def _add_labels(self, keys: Array, words: Array, time: float) -> None:
        """Add outcomes of patients who were waiting for theirs; others are left out."""
        state, observer = self._state, self.baseline.observer
        label = observer.number_labels(words)
        usable = ~np.isnan(label)
        label_by_key = dict(zip(keys[usable].tolist(), label[usable].tolist(), strict=True))
        here = np.array([key in label_by_key for key in state.waiting.key.tolist()], bool)
        if not here.any():
            return
        known = state.waiting.take(np.flatnonzero(here))
        labels = np.array([label_by_key[key] for key in known.key.tolist()])
        risks = known.risks[:, 0] if known.risks.shape[1] == 1 else known.risks
        signals = self._detector.watch(Rows(score=risks, label=labels))
        state = replace(
            state,
            waiting=state.waiting.take(np.flatnonzero(~here)),
            labelled=np.concatenate([state.labelled, known.number]),
            blocks=state.blocks.add_at(known.number, self._outcome_rows(known.risks, labels)),
        )
        for signal in signals:
            state = self._raise(state, signal, self._window(state, signal, np.empty((0, 0)), state.patients), time, frozenset())
        self._commit(replace(state, detector=self._detector.state.to_arrays()))

    def _commit(self, state: WatchState) -> None:
        """Write the state in one rename; from then on its patients are counted."""
        self._state = state
        self._data = state.write(self.folder)

    def _publish(self, new: int) -> Mapping[str, Any]:
        """Record the reading, then write watch.json and alarms.json; repeat what a crash interrupted."""
        state = self._state
        status = build_status(self.run, self.baseline, self._reference, self._narrator, state, self._detector.levels())
        alarms = self._name_alarms(status, new)
        content = {**status, "alarms": alarms}
        write_atomic(self.folder / ALARMS, _json({"schema": 1, "alarms": alarms}))
        write_atomic(self.folder / STATUS, _json(content))
        if self._record is not None:
            write_metrics(self.folder, self._record, content)
        return content

    def _name_alarms(self, status: Mapping[str, Any], new: int) -> list[dict[str, Any]]:
        """Give alarms their ids and states, from the record where there is one."""
        state = self._state
        if self._record is None:
            numbered = enumerate(state.alarms, start=len(state.earlier) + 1)
            return [dict(a) for a in state.earlier] + [{**a, "id": f"A{n}", "state": "open"} for n, a in numbered]
        ids = self._record.add_reading(status, state.alarms, new=new, state=self._data)
        states = {a.id: a.state for a in self._record.alarms(patients=state.patients)}
        listed = [*state.earlier, *({**alarm, "id": name} for alarm, name in zip(state.alarms, ids, strict=True))]
        return [{**alarm, "state": states.get(alarm["id"], "open")} for alarm in listed]


def open_watch(
    run: Run,
    site: str | None = None,
    *,
    folder: Path | None = None,
    baseline: Source | None = None,
    data: Any = None,
    own: SiteRows | None = None,
    key: Path | None = None,
    record: bool = True,
    say: Callable[[str], None] | None = None,
) -> SiteWatch:
    """Open the watch of a site, or start it.

    Args:
        run: A finished run.
        site: The site; None: the only one.
        folder: The folder of the watch; None: RUN/at_sites/SITE/watch.
        baseline: Labelled rows of the site, where the run's own are elsewhere.
        data: The run's rows, where they came from memory.
        own: The site's rows of a run at hospitals, as the site reads them.
        key: The site's private key, which signs the record; None: the site's folder or the simulation has it.
        record: Keep a signed record of readings and alarms.
        say: Called with a sentence before work that takes long.

    Returns:
        The watch.

    Raises:
        BadInput: The run is not finished or withdrawn, there is no such site, its baseline is too small, or there is no key.
    """
    name = choose_site(run, site)
    place = run.folder / "at_sites" / name / "watch" if folder is None else folder
    table = None if baseline is None else baseline.table
    query, reading = (None, None) if baseline is None else (baseline.query, baseline.reading)
    reference = read_baseline(run, name, table=table, query=query, reading=reading, data=data, own=own)
    if say is not None and not reference.is_stored(place):
        say(f"setting the alarm levels of {name} by resampling {reference.count} reference patients ...")
    signer = find_signer(place, site=name, run=run.folder, key=key) if record else None
    return SiteWatch(run, reference, place, signer)


def read_label_table(run: Run, source: Source) -> Table:
    """Read a table of outcomes in the format of the run's own data.

    Raises:
        BadInput: It cannot be read.
    """
    from grandrounds.analysis.case.rows import read_patients

    rows = read_patients(run, source.table, query=source.query, reading=source.reading)
    if not isinstance(rows, Table):
        raise BadInput(f"{source.name} has images, not outcomes: give a table with ids and labels", code="wrong-data-kind")
    return rows


def _median(values: Array | None) -> float:
    known = np.empty(0) if values is None else values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else math.nan


def _held_with(reference: Reference, alarm: Mapping[str, Any]) -> list[str]:
    """List the checks that are quiet since an alarm: those of its column, or of its kind."""
    column, kind = alarm["column"], alarm["kind"]
    return [c.name for c in reference.checks if c.column == column and (column or c.kind == kind)]


def _absent(rows: Any, columns: Sequence[Any]) -> frozenset[str]:
    """List the watched columns that a table lacks."""
    return frozenset(c.name for c in columns if c.name not in rows.columns) if isinstance(rows, Table) else frozenset()


def _read_alarms(folder: Path) -> list[dict[str, Any]]:
    path = folder / ALARMS
    return list(json.loads(path.read_bytes())["alarms"]) if path.exists() else []


def _lock(folder: Path) -> int:
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise BadInput(
            f"{folder} is in use by another `rounds watch`: stop it, or wait until it has read its patients", code="folder-in-use"
        ) from None
    return handle


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=1, allow_nan=False) + "\n").encode()
