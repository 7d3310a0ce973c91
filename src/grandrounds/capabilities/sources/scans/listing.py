"""A folder of scans before anybody has written a manifest: its series and files, findings, a draft and a sheet of thumbnails."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from grandrounds.capabilities.sources.scans.dicom import open_series
from grandrounds.capabilities.sources.scans.nifti import SUFFIXES, open_nifti
from grandrounds.capabilities.sources.scans.series import (
    Series,
    check_tags,
    find_dicom_files,
    group_series,
    match_series,
    missing_from_dicomdir,
    read_header,
)
from grandrounds.capabilities.sources.scans.volume import Volume, render, resample, resampling_weights
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.images import pillow
from grandrounds.data.progress import report_progress
from grandrounds.data.scan_options import PERCENTILES, ScanFinding, ScanOptions

THUMBNAIL = 128
"""Pixels of a side on the sheet."""

_COLUMNS = ("file", "folder", "series", "modality", "slices", "label", "patient")
_WIDE = 8  # thumbnails in a row


@dataclass(frozen=True, eq=False)
class ListedScan:
    """One series or file as it is listed."""

    number: int  # from 1
    path: str  # relative to the folder: the file, or the folder of a series
    series: str = ""  # SeriesInstanceUID, where the folder has several
    modality: str = ""
    description: str = ""
    slices: int = 1
    size: tuple[int, int] = (0, 0)
    spacing: tuple[float | None, float | None, float | None] = (None, None, None)
    findings: tuple[ScanFinding, ...] = ()
    patient: str = ""  # pseudonym: patients are numbered as they are met
    open: Callable[[], Volume] | None = field(default=None, repr=False)  # None for a file that cannot be read

    @property
    def usable(self) -> bool:
        """True where no finding is an error."""
        return all(f.level != "error" for f in self.findings)

    @property
    def spacing_text(self) -> str:
        """Millimetres between rows, columns and slices; "-" where they are unknown."""
        slices, rows, columns = self.spacing
        known = [rows, columns, *([slices] if self.slices > 1 else [])]
        return "-" if rows is None else " x ".join("?" if v is None else f"{v:.3g}" for v in known)


@dataclass(frozen=True)
class ScanListing:
    """The scans of a folder."""

    folder: Path
    scans: tuple[ListedScan, ...]
    damaged: tuple[Path, ...] = ()
    without_pixels: int = 0  # DICOM files that are no images, such as reports
    absent: tuple[str, ...] = ()  # files that a DICOMDIR names


def list_scans(folder: str | Path, *, series: dict[str, str] | None = None) -> ScanListing:
    """List the DICOM series and NIfTI files below a folder; headers alone are read.

    Args:
        folder: The folder.
        series: Tags with patterns; other series are left out.

    Returns:
        The scans in the order of their paths.

    Raises:
        BadInput: The folder has no scan.
    """
    where = Path(folder)
    tags = tuple(series or ())
    if tags:
        check_tags(tags, where="--tag")
    files = find_dicom_files(where)
    damaged: list[Path] = []
    headers = []
    for done, path in enumerate(files, start=1):
        try:
            headers.append(read_header(path, tags=tags))
        except BadInput as e:
            if e.code == "missing-package":
                raise
            damaged.append(path)
        report_progress("files", done, len(files))
    grouped = match_series(group_series(headers), series or {})
    grouped.sort(key=lambda s: min(str(h.path) for h in s.files))
    patients: dict[str, str] = {}
    scans: list[ListedScan] = []
    for one in grouped:
        patient = patients.setdefault(one.first.patient, f"p{len(patients) + 1:03d}")
        scans.append(_list_series(one, grouped, where, number=len(scans) + 1, patient=patient))
    for path in sorted(p for p in where.rglob("*") if p.name.lower().endswith(SUFFIXES) and p.is_file()):
        scans.append(_list_nifti(path, where, number=len(scans) + 1))
    if not scans and not damaged:
        chosen = " that match" if headers and tags else ""
        raise BadInput(f"{where} has no DICOM images or NIfTI files{chosen}; check the folder", code="no-images")
    without_pixels = sum(not h.has_pixels for h in headers)
    return ScanListing(where, tuple(scans), tuple(damaged), without_pixels, tuple(missing_from_dicomdir(where)))


def _list_series(one: Series, every: list[Series], folder: Path, *, number: int, patient: str) -> ListedScan:
    first = one.first
    parents = {h.path.parent for h in one.files}
    single = len(one.files) == 1
    own = parents.pop() if len(parents) == 1 else folder
    alone = all(s is one or not any(own in h.path.parents for h in s.files) for s in every)
    rows, columns = first.pixel_spacing or (None, None)
    return ListedScan(
        number=number,
        path=(first.path if single else own).relative_to(folder).as_posix(),
        series="" if single or alone else first.series,
        modality=first.modality,
        description=first.description,
        slices=one.slices,
        size=first.size,
        spacing=(one.slice_distance(), rows, columns),
        findings=tuple(one.check()),
        patient=patient,
        open=lambda: open_series(one, refuse=False),
    )


def _list_nifti(path: Path, folder: Path, *, number: int) -> ListedScan:
    name = path.relative_to(folder).as_posix()
    try:
        volume = open_nifti(path)
    except BadInput as e:
        if e.code == "missing-package":
            raise
        return ListedScan(number, name, modality="NIfTI", findings=(ScanFinding("error", e.code, str(e)),))
    return ListedScan(
        number,
        name,
        modality="NIfTI",
        slices=volume.count,
        size=volume.size,
        spacing=volume.spacing,
        open=lambda: open_nifti(path),
    )


def draft_manifest(listing: ScanListing) -> str:
    """Write a manifest as CSV: labels are empty, patients are pseudonyms that number them; unusable scans are left out.

    A DICOM series is known by its patient's number, which is not written; patients of NIfTI files are unknown and left empty.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for scan in listing.scans:
        if scan.usable:
            is_file = (listing.folder / scan.path).is_file()
            place = (scan.path, "", "") if is_file else ("", "" if scan.series else scan.path, scan.series)
            writer.writerow([*place, scan.modality, scan.slices, "", scan.patient])
    return out.getvalue()


def draw_sheet(listing: ScanListing) -> bytes:
    """Draw the middle slice of every scan with its number, as PNG: to see burnt-in names before training.

    Scans with an error are drawn as well if their pixels can be read.

    Raises:
        BadInput: Pillow is not installed.
    """
    image = pillow("drawing a sheet")
    from PIL import ImageDraw

    rows = -(-len(listing.scans) // _WIDE)
    sheet = image.new("RGB", (_WIDE * THUMBNAIL, max(1, rows) * THUMBNAIL), "black")
    pen = ImageDraw.Draw(sheet)
    for i, scan in enumerate(listing.scans):
        corner = (i % _WIDE) * THUMBNAIL, (i // _WIDE) * THUMBNAIL
        small = _thumbnail(scan)
        if small is not None:
            sheet.paste(image.fromarray(small), corner)
        pen.text((corner[0] + 3, corner[1] + 2), str(scan.number), fill="yellow" if scan.usable else "red")
        report_progress("thumbnails", i + 1, len(listing.scans))
    out = io.BytesIO()
    sheet.save(out, format="PNG")
    return out.getvalue()


def _thumbnail(scan: ListedScan) -> Array | None:
    """Render the middle slice (THUMBNAIL, THUMBNAIL, 3); None where it cannot be read."""
    if scan.open is None:
        return None
    try:
        volume = scan.open()
        middle = volume.read([volume.count // 2])
        one = Volume(volume.source, 1, volume.size, lambda _: middle, colour=volume.colour, inverse=volume.inverse)
        shown = render(one, [0], ScanOptions(window=PERCENTILES))
    except BadInput:
        return None
    for axis in (1, 2):
        shown = resample(shown, axis, resampling_weights(shown.shape[axis], THUMBNAIL))
    pixels = np.clip(np.rint(shown[0]), 0, 255).astype(np.uint8)
    return pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)
