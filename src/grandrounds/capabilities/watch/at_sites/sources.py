"""Sources of new patients: a table that grows, a folder that fills up, or a SQL query.

A patient is counted once. With an id column a patient is known by the id; else a row is known by its values and, where several
rows are alike, by their number in the table. Both are kept as salted hashes, which stay in the folder of the watch.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array, read_file
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.core.redact import hide
from grandrounds.core.rng import mix_bits
from grandrounds.data.agreement.schema import parse_image_shape
from grandrounds.data.formats import AUTO, read_dates
from grandrounds.data.images import ImageSet
from grandrounds.data.readers import table_endings
from grandrounds.data.spreadsheets import EXCEL
from grandrounds.data.table import Table
from grandrounds.runs.run_rows import base_name, column_text, read_patients, row_source

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

SALT = "salt"
_IMAGES = (".npz",)


@dataclass(frozen=True, eq=False)
class NewPatients:
    """Rows of one table or file.

    Attributes:
        source: Its name without the folders of this machine.
        rows: The rows of the watched site.
        time: Time of the file's last change in seconds since 1970; NaN where it is not known.
        sha256: Of the file's bytes; "" where it is no file of a folder.
        others: Rows of other sites, which are left out.
        in_memory: The rows came from no file or database.
    """

    source: str
    rows: Table | ImageSet
    time: float
    sha256: str = ""
    others: int = 0
    in_memory: bool = False


@dataclass(frozen=True, eq=False)
class Source:
    """The place that new patients come from.

    Attributes:
        table: A file, a folder, a database URL, or rows in memory.
        query: The SQL query.
        reading: Settings of [data] that differ from the run's.
    """

    table: Any
    query: str | None = None
    reading: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The source without passwords."""
        if isinstance(self.table, str | Path):
            return hide(str(self.table))
        return "rows in memory"

    def reading_of(self, table: Any) -> dict[str, object]:
        """Return the settings for one of several tables: a sheet is that of the workbooks among them."""
        is_workbook = str(table).lower().endswith(EXCEL)
        return {name: value for name, value in self.reading.items() if name != "sheet" or is_workbook}

    def read(self, run: Run, site: str, files: Mapping[str, str]) -> Iterator[NewPatients]:
        """Read what is there now, file by file; files of a folder that were read in the same state are left out.

        Args:
            run: The run whose model reads the rows.
            site: The watched site: rows that name another hospital are left out.
            files: File of a folder -> SHA-256 of the bytes that were read.

        Raises:
            BadInput: A table cannot be read.
        """
        if not isinstance(self.table, str | Path):
            given = read_patients(run, self.table, allow_missing=True)
            yield replace(_keep_site(run, site, given, float("nan"), ""), in_memory=True)
            return
        where = str(self.table)
        single = "://" in where or not Path(where).expanduser().is_dir() or _has_records(run, where)
        if single or _is_image_folder(run, Path(where).expanduser()):
            rows = self._read_rows(run, where, self.query)
            if rows is not None:
                yield _keep_site(run, site, rows, _changed_at(where), "")
            return
        folder = Path(where).expanduser()
        for path in list_tables(folder):
            digest = hashlib.sha256(read_file(path, links=True)).hexdigest()
            if files.get(path.name) != digest:
                rows = self._read_rows(run, path, None)
                if rows is not None:
                    yield _keep_site(run, site, rows, path.stat().st_mtime, digest)

    def _read_rows(self, run: Run, where: str | Path, query: str | None) -> Table | ImageSet | None:
        """Read a table; None where it has no rows yet."""
        try:
            reading = self.reading_of(where)
            return read_patients(run, where, query=query, reading=reading, pending=True, allow_missing=True)  # it raises an alarm
        except BadInput as e:
            if e.code in ("empty-table", "empty-cohort"):
                return None
            raise


def _has_records(run: Run, where: str) -> bool:
    """Tell whether a folder has clinical records for the run's cohort, and not tables."""
    if run.plan["data"].get("cohort") is None:
        return False
    from grandrounds.capabilities.sources.cohort.hospitals import has_records

    return has_records(where)


def _is_image_folder(run: Run, folder: Path) -> bool:
    """Tell whether a folder has the images of patients, with labels.csv, and not tables."""
    return parse_image_shape(Plan(run.plan).data) is not None and not any(folder.glob("*.npz"))


def list_tables(folder: Path) -> list[Path]:
    """List the tables of a folder by name; hidden files, and those of Excel beside an open workbook, are left out.

    Raises:
        BadInput: The folder cannot be read.
    """
    endings = (*table_endings(), *_IMAGES)
    try:
        return sorted(p for p in folder.iterdir() if p.name.lower().endswith(endings) and not p.name.startswith((".", "~$")))
    except OSError as e:
        raise BadInput(f"{folder} cannot be read: {e.strerror or e}; check the path", code="unreadable-file") from None


def _keep_site(run: Run, site: str, rows: Table | ImageSet, time: float, digest: str) -> NewPatients:
    """Leave out rows that name another hospital."""
    schema = run.model.schema
    if isinstance(rows, ImageSet):
        names: Any = rows.site
    else:
        column = None if schema is None else schema.site
        names = None if column is None or column not in rows.columns else np.array(column_text(rows, column), object)
    source = base_name(row_source(rows))
    if names is None:
        return NewPatients(source, rows, time, digest)
    here = np.array([word is None or word == site for word in names.tolist()], bool)
    if not here.any() and len(rows):
        known = sorted({str(word) for word in names.tolist()})[:6]
        raise BadInput(
            f"{source} has no row of {site}; its rows are of {', '.join(known)}: name the site with --site, or leave the column "
            "of the hospital out",
            code="no-rows-of-site",
        )
    return NewPatients(source, rows.take(np.flatnonzero(here)), time, digest, int((~here).sum()))


def _changed_at(where: str) -> float:
    path = Path(where).expanduser()
    return path.stat().st_mtime if "://" not in where and path.exists() else float("nan")


def read_times(rows: Table | ImageSet, column: str | None, fallback: float) -> Array:
    """Read the time (n,) of each patient in seconds since 1970.

    Args:
        rows: The patients.
        column: The column with the date; None: the fallback is used.
        fallback: Time of the file.

    Raises:
        BadInput: There is no such column, or its dates cannot be read.
    """
    if column is None or isinstance(rows, ImageSet):
        return np.full(len(rows), fallback)
    values = rows.column(column, flag="--time")
    if values.dtype != np.object_:
        raise BadInput(
            f"column '{column}' of {rows.source} has numbers, not dates: write dates such as 2026-05-31, or leave --time out",
            code="unreadable-dates",
        )
    seconds = read_dates(values.tolist(), AUTO)
    if seconds is None:
        raise BadInput(
            f"column '{column}' of {rows.source} has dates that can be read in two ways: write them as 2026-05-31",
            code="ambiguous-dates",
        )
    return np.where(np.isnan(seconds), fallback, seconds)


@dataclass(frozen=True)
class Keys:
    """Salted hashes that patients are known by.

    Attributes:
        salt: Random bytes of the folder of the watch.
    """

    salt: bytes

    @classmethod
    def at(cls, folder: Path) -> Keys:
        """Read the salt of a folder, or create it, readable by its owner alone."""
        path = folder / SALT
        if not path.exists():
            part = folder / f".{SALT}.{secrets.token_hex(8)}.part"
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "wb") as f:
                f.write(secrets.token_bytes(16))
                f.flush()
                os.fsync(f.fileno())
            part.rename(path)
        return cls(read_file(path, largest=64))

    def of_ids(self, words: list[str | None]) -> Array:
        """Return the key (n,) of each id; equal ids have equal keys."""
        digests = b"".join(
            hashlib.blake2b(("" if w is None else w).encode("utf-8", "surrogatepass"), digest_size=8, key=self.salt).digest()
            for w in words
        )
        return np.frombuffer(digests, "<u8").astype(np.uint64)

    def of_rows(self, values: Array, source: str) -> Array:
        """Return the key (n,) of each row: its values, the table, and its number among rows that are alike.

        Args:
            values: (n,) uint64, hashes of the model's inputs.
            source: The name of the table.
        """
        first = np.frombuffer(hashlib.blake2b(source.encode(), digest_size=8, key=self.salt).digest(), "<u8")[0]
        mixed = mix_bits(values ^ np.uint64(first))
        order = np.argsort(mixed, kind="stable")
        ordered = mixed[order]
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(ordered) else np.empty(0, np.int64)
        number = np.empty(len(mixed), np.uint64)
        counts = np.diff(np.append(starts, len(ordered)))
        number[order] = (np.arange(len(ordered)) - np.repeat(starts, counts)).astype(np.uint64)
        with np.errstate(over="ignore"):
            return mix_bits(mixed + number * np.uint64(0x9E3779B97F4A7C15))


def id_words(rows: Table | ImageSet, column: str | None) -> list[str | None] | None:
    """Return the patients' ids as text; None where no column is named.

    Raises:
        BadInput: There is no such column, or an id is missing.
    """
    if column is None:
        return None
    if isinstance(rows, ImageSet):
        if rows.patient is None:
            raise BadInput(f"{rows.name} names no patients: leave --id out", code="unknown-column")
        return [str(word) for word in rows.patient.tolist()]
    rows.column(column, flag="--id")
    words = column_text(rows, column)
    if None in words:
        raise BadInput(
            f"column '{column}' of {rows.source} has no id in {rows.where(words.index(None))}: fill it in, or leave --id out",
            code="missing-values",
        )
    return words
