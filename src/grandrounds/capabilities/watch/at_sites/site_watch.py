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

from grandrounds.capabilities.watch.at_sites.alarm_states import ACKNOWLEDGED
from grandrounds.capabilities.watch.at_sites.baseline import Baseline, SiteRows, choose_site, read_baseline
from grandrounds.capabilities.watch.at_sites.hooks import Hook, notify
from grandrounds.capabilities.watch.at_sites.metrics import write_metrics
from grandrounds.capabilities.watch.at_sites.patients import outcome_words
from grandrounds.capabilities.watch.at_sites.record import ALARMS, STATUS, WatchRecord, WatchStart
from grandrounds.capabilities.watch.at_sites.signer import Signer, find_signer
from grandrounds.capabilities.watch.at_sites.sources import Keys, NewPatients, Source, id_words, read_times
from grandrounds.capabilities.watch.at_sites.state import WatchState
from grandrounds.capabilities.watch.at_sites.status import STATED, build_status
from grandrounds.capabilities.watch.at_sites.tracker import Tracker
from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.data.table import Table

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

SITE_FILE = "site.toml"
"""File of a hospital's own folder, by which a watch in it is known."""
_ROWS = 2000  # patients that are scored and explained at once
_FEW = 100  # with fewer reference patients, a note warns of chance differences

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
            own = str(folder.parent) if (folder.parent / SITE_FILE).exists() else ""
            self._tracker = Tracker.build(baseline, self._reference, self._keys, run=str(run.folder), folder=own)
            state, self._notes = self._open_state(digest)
            self._commit(state)
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

    def _open_state(self, digest: str) -> tuple[WatchState, tuple[str, ...]]:
        """Read the state, or begin anew; patients who were read before stay known."""
        found = WatchState.read(self.folder)
        if found is not None and (found.model, found.baseline) == (self.baseline.model, digest):
            return found, ()
        fresh = self._tracker.start(digest)
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
        alarms = self._record.alarms(patients=self._state.patients)
        done = [f"{a.content['patient']} {a.content['check']}" for a in alarms if a.state == ACKNOWLEDGED]
        released = self._tracker.release(self._state, done)
        if released is not self._state:
            self._commit(released)

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
            absent = _absent(rows, observer.columns)
            self._commit(self._tracker.add(self._state, patients, keys[part], times[part], absent))
            if progress is not None:
                progress(min(start + _ROWS, len(new)), len(new))
        old = np.setdiff1d(np.arange(len(rows)), new)
        if words is not None and len(old):
            newest = float(np.nanmax(times)) if np.isfinite(times).any() else math.nan
            self._commit(self._tracker.add_labels(self._state, keys[old], words[old], newest))
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
        self._commit(self._tracker.add_labels(self._state, keys, words, math.nan))
        return [f"{source.name}: {unknown} ids are of no patient who was read"] if unknown else []

    def _commit(self, state: WatchState) -> None:
        """Write the state in one rename; from then on its patients are counted."""
        self._data = state.write(self.folder)
        self._state = state

    def _publish(self, new: int) -> Mapping[str, Any]:
        """Record the reading, then write watch.json and alarms.json; repeat what a crash interrupted."""
        state = self._state
        status = build_status(
            self.run, self.baseline, self._reference, self._tracker.narrator, state, self._tracker.levels(state)
        )
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
    query, reading = (None, None) if baseline is None else (baseline.query, baseline.reading_of(table))
    reference = read_baseline(run, name, table=table, query=query, reading=reading, data=data, own=own)
    if say is not None and not reference.is_stored(place):
        say(f"setting the alarm levels of {name} by resampling {reference.count} reference patients ...")
        if reference.count < _FEW:
            say(
                f"note: {reference.count} reference patients are few: chance differences from the hospital's other patients can "
                "raise alarms (--baseline-table takes more labelled rows that the model was not trained on)"
            )
    signer = find_signer(place, site=name, run=run.folder, key=key) if record else None
    return SiteWatch(run, reference, place, signer)


def read_label_table(run: Run, source: Source) -> Table:
    """Read a table of outcomes in the format of the run's own data.

    Raises:
        BadInput: It cannot be read.
    """
    from grandrounds.runs.run_rows import read_patients

    reading = source.reading_of(source.table)
    rows = read_patients(run, source.table, query=source.query, reading=reading, allow_missing=True)  # ids and labels alone
    if not isinstance(rows, Table):
        raise BadInput(f"{source.name} has images, not outcomes: give a table with ids and labels", code="wrong-data-kind")
    return rows


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
