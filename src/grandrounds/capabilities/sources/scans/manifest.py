"""Manifest of scans: a table with a row for each scan (or each slice) that links files to labels, patients and masks.

Columns: `file` (a DICOM or NIfTI file), or `folder`, `series` or `study` (a folder, a SeriesInstanceUID, a StudyInstanceUID);
the label and the patient; optionally `slice` (counted from 1), `mask` (a NIfTI or DICOM SEG file), a site, and others.
Paths start at the folder of images.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grandrounds.capabilities.sources.scans.dicom import open_series
from grandrounds.capabilities.sources.scans.nifti import is_nifti, open_nifti
from grandrounds.capabilities.sources.scans.series import (
    Series,
    check_tags,
    choose_series,
    group_series,
    is_dicom,
    list_series,
    read_header,
)
from grandrounds.capabilities.sources.scans.volume import Volume
from grandrounds.core.errors import BadInput
from grandrounds.data.scan_options import ScanOptions
from grandrounds.data.table import Table, is_number, missing_mask, to_text

FOLDER, SERIES, STUDY, SLICE, MASK = "folder", "series", "study", "slice", "mask"
PLACES = (FOLDER, SERIES, STUDY)
"""Columns that name a scan, beside that of files."""


@dataclass(frozen=True)
class ManifestRow:
    """One row: the scan it names, and what it says about it."""

    where: str  # the manifest and its row, for messages
    file: str = ""
    folder: str = ""
    series: str = ""
    study: str = ""
    slice: int | None = None  # from 0
    mask: str = ""


def is_scan_manifest(table: Table, folder: str | Path, *, file: str) -> bool:
    """Tell whether a table names scans rather than PNG or JPEG files: by its columns, or its first file that is there."""
    if file not in table.columns:
        return any(name in table.columns for name in PLACES)
    names = [name for name in to_text(table.columns[file]).tolist() if name]
    if any(is_nifti(Path(name)) or name.lower().endswith(".dcm") for name in names[:1]):
        return True
    there = next((path for name in names if (path := Path(folder) / name).is_file()), None)
    return (there is not None and is_dicom(there)) or (not names and any(n in table.columns for n in PLACES))


def parse_manifest(table: Table, *, file: str) -> list[ManifestRow]:
    """Read the rows of a manifest.

    Args:
        table: The manifest.
        file: The column of file names.

    Raises:
        BadInput: A row names no scan, or its slice is no number from 1 on.
    """
    names = {"file": file, **{name: name for name in (*PLACES, SLICE, MASK)}}
    columns = {key: _cells(table, name) for key, name in names.items()}
    rows = []
    for i in range(len(table)):
        cells = {key: values[i].strip() for key, values in columns.items()}
        where = f"{table.source}, {table.where(i)}"
        if not any(cells[key] for key in ("file", *PLACES)):
            listed = ", ".join(f"'{n}'" for n in (file, *PLACES) if n in table.columns) or f"'{file}'"
            raise BadInput(f"{where}: no scan is named in {listed}; fill it in, or leave the row out", code="missing-values")
        number = cells.pop(SLICE)
        if number and not (is_number(number) and float(number).is_integer() and float(number) >= 1):
            raise BadInput(f"{where}: slice is '{number}'; write a whole number from 1 on", code="out-of-range")
        rows.append(ManifestRow(where, slice=int(float(number)) - 1 if number else None, **cells))
    return rows


def check_patients(table: Table, patient: str | None) -> str:
    """Return the column of patients, which a manifest needs: slices of one patient stay on one side of a split.

    Raises:
        BadInput: No column is set, it is absent, or a row has no patient.
    """
    if patient is None:
        near = "; it has a column 'patient'" if "patient" in table.columns else ""
        raise BadInput(
            f"{table.source}: data.patient is not set{near}: name the column of patients (--patient COLUMN), so that images of "
            "one patient stay on one side of a split",
            code="patient-not-set",
        )
    gaps = missing_mask(table.column(patient, flag="--patient"))
    if gaps.any():
        raise BadInput(
            f"{table.source}, {table.where(int(gaps.argmax()))}: no patient in column '{patient}' ({int(gaps.sum())} such rows); "
            "fill it in with a pseudonym",
            code="missing-values",
        )
    return patient


def resolve_path(folder: Path, name: str, *, where: str) -> Path:
    """Find a file or folder below the folder of images.

    Raises:
        BadInput: The path leaves the folder, or nothing is there.
    """
    plain = name.replace("\\", "/")
    relative = Path(os.path.normpath(plain))
    outside = relative.is_absolute() or relative.parts[:1] == ("..",) or plain[1:2] == ":"
    if outside or "\0" in plain:
        raise BadInput(
            f"{where}: '{name}' leaves the folder of images; write a path that starts at {folder}", code="path-outside"
        )
    path = folder / relative
    if not path.exists():
        raise BadInput(f"{where}: '{name}' is not in {folder}; check the path", code="missing-images")
    return path


@dataclass
class ScanFolder:
    """The folder of scans; headers are read once for each folder that rows search in."""

    folder: Path
    options: ScanOptions
    listed: dict[Path, list[Series]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the tags before any file is read."""
        if self.options.series:
            check_tags(self.options.series)

    def find(self, row: ManifestRow) -> tuple[str, Callable[[], Volume]]:
        """Find the scan of a row.

        Returns:
            A key that is the same for rows with the same scan, and a function that opens it.

        Raises:
            BadInput: There is no such scan, or several.
        """
        if row.file:
            path = resolve_path(self.folder, row.file, where=row.where)
            if path.is_file():
                return str(path), lambda: self._open_file(path, row.where)
            series = self._choose(path, row)
        else:
            root = resolve_path(self.folder, row.folder, where=row.where) if row.folder else self.folder
            series = self._choose(root, row)
        return str(series.first.path), lambda: open_series(series, where=row.where)

    def _open_file(self, path: Path, where: str) -> Volume:
        if is_nifti(path):
            return open_nifti(path, volume=self.options.volume, where=where)
        if not is_dicom(path):
            raise BadInput(f"{where}: {path.name} is neither DICOM nor NIfTI; check the file", code="not-a-scan")
        series = group_series([read_header(path, tags=tuple(self.options.series))])
        return open_series(choose_series(series, self.options.series, where=where), where=where)

    def _choose(self, root: Path, row: ManifestRow) -> Series:
        series = self.list(root)
        if row.study:
            series = [s for s in series if s.first.study == row.study]
        if row.series:
            series = [s for s in series if s.first.series == row.series]
        if not series and (row.study or row.series):
            kind = SERIES if row.series else STUDY
            raise BadInput(f"{row.where}: {root} has no DICOM image of this {kind}; check the manifest", code="no-series")
        return choose_series(series, self.options.series, where=f"{row.where}: {root}")

    def list(self, root: Path) -> list[Series]:
        """List the series below a folder, once."""
        if root not in self.listed:
            self.listed[root] = list_series(root, tags=tuple(self.options.series))
        return self.listed[root]


def check_twice(keys: Sequence[str], rows: Sequence[ManifestRow]) -> None:
    """Refuse a scan that is listed twice; rows for different slices of one scan are fine.

    Raises:
        BadInput: Two rows name the same scan without different slices.
    """
    seen: dict[tuple[str, int | None], ManifestRow] = {}
    whole: dict[str, ManifestRow] = {}
    for key, row in zip(keys, rows, strict=True):
        other = seen.get((key, row.slice)) or whole.get(key)
        if other is None and row.slice is None:
            other = next((r for (k, _), r in seen.items() if k == key), None)
        if other is not None:
            raise BadInput(
                f"{row.where}: its scan is also in {other.where.rpartition(', ')[2]}; list each once, or different slices of it",
                code="repeated-image",
            )
        seen[key, row.slice] = row
        if row.slice is None:
            whole[key] = row


def _cells(table: Table, name: str) -> list[str]:
    if name not in table.columns:
        return [""] * len(table)
    return [value or "" for value in to_text(table.columns[name]).tolist()]

