"""Inspection of all scans of a manifest, faults and all: the first fault does not hide the others.

Findings of the same kind are counted and the first row is named, so that a folder of a thousand scans gives a page of text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from grandrounds.capabilities.sources.scans.manifest import ManifestRow, ScanFolder, check_twice, parse_manifest
from grandrounds.capabilities.sources.scans.reading import read_slices, stack_images
from grandrounds.capabilities.sources.scans.series import NO_SPACING, NO_WINDOW, missing_from_dicomdir
from grandrounds.capabilities.sources.scans.volume import Volume
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.agreement.images import SiteImages
from grandrounds.data.agreement.schema import ImageSchema
from grandrounds.data.progress import report_progress
from grandrounds.data.scan_options import TAGS, Level, ScanFinding, ScanOptions
from grandrounds.data.table import Table

SPACING, WINDOW, UNLISTED, DICOMDIR_FILES = "spacing", "window-not-agreed", "unlisted-series", "dicomdir"
SEVERAL_MODALITIES = "several-modalities"

_FAR = 2.0  # factor between the spacing of a scan and the agreed one, from which details are missing
_ORDER = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, eq=False)
class ScanInspection:
    """The scans of a manifest as they are read, and findings about them."""

    findings: tuple[ScanFinding, ...]
    scans: int
    pixels: Array | None = None  # (n, H, W, C) uint8 of the slices that can be read
    masks: Array | None = None


@dataclass(frozen=True)
class _Facts:
    """Facts of one scan that are compared with those of others; its pixels are not kept."""

    where: str
    modality: str
    colour: bool
    spacing: float | None  # mm between rows


@dataclass
class _Tally:
    """Findings counted by kind."""

    total: int
    seen: dict[tuple[Level, str], list[tuple[str, str]]] = field(default_factory=dict)
    facts: list[_Facts] = field(default_factory=list)

    def add(self, level: Level, code: str, text: str, where: str) -> None:
        self.seen.setdefault((level, code), []).append((text, where))

    def summarize(self) -> list[ScanFinding]:
        out = []
        for (level, code), found in self.seen.items():
            text, where = found[0]
            text = text.removeprefix(f"{where}: ")
            scans = f"in {len(found)} of {self.total} scans, first {where}" if len(found) > 1 else where
            out.append(ScanFinding(level, code, f"{text} ({scans})" if scans else text))
        return sorted(out, key=lambda f: _ORDER[f.level])


def inspect_site_scans(path: Path, table: Table, columns: Table, agreed: ImageSchema) -> SiteImages:
    """Look at the scans that a manifest lists; one that cannot be read does not hide the others."""
    try:
        seen = inspect_scans(path, table, options=agreed.scan or ScanOptions(), file=agreed.file, size=agreed.size)
    except BadInput as e:
        return SiteImages(str(path), len(table), columns, fault=str(e), scans=())
    return SiteImages(str(path), seen.scans, columns, seen.pixels, seen.masks, scans=seen.findings)


def inspect_scans(
    folder: str | Path,
    table: Table,
    *,
    options: ScanOptions,
    file: str = "file",
    size: tuple[int, int] | None = None,
) -> ScanInspection:
    """Read every scan of a manifest and list what differs from what is expected.

    Args:
        folder: The folder that paths of the manifest start at.
        table: The manifest; labels and patients are checked elsewhere.
        options: Window, spacing, slices, plane and series.
        file: The column of file names.
        size: (height, width) of the images.

    Returns:
        The findings, errors first, and the images of scans without an error.

    Raises:
        BadInput: The manifest or the options cannot be read at all.
    """
    rows = parse_manifest(table, file=file)
    scans = ScanFolder(Path(folder), options)
    tally = _Tally(len(rows))
    images, keys = [], {}
    for done, row in enumerate(rows, start=1):
        try:
            key, open_scan = scans.find(row)
            keys[row] = key
            images.append(read_slices(_collect(open_scan, row, tally), row, options, folder=Path(folder), size=size))
        except BadInput as e:
            if e.code == "missing-package":
                raise
            tally.add("error", e.code, str(e), row.where)
        report_progress("scans", done, len(rows))
    _check_together(tally, rows, keys, options)
    _check_folder(tally, Path(folder), scans, keys.values())
    sizes = {one.pixels.shape[1:3] for one in images}
    if len(sizes) != 1:
        return ScanInspection(tuple(tally.summarize()), len(rows))
    masks = [one.masks for one in images if one.masks is not None]
    whole = np.concatenate(masks) if len(masks) == len(images) else None
    return ScanInspection(tuple(tally.summarize()), len(rows), stack_images([one.pixels for one in images]), whole)


def _collect(open_scan: Callable[[], Volume], row: ManifestRow, tally: _Tally) -> Callable[[], Volume]:
    """Open a scan once, and note its findings."""
    volume = open_scan()
    tally.facts.append(_Facts(row.where, volume.modality, volume.colour, volume.spacing[1]))
    for finding in volume.findings:
        if finding.code in (NO_SPACING, NO_WINDOW):  # an error where it is needed, which reading names
            continue
        tally.add(finding.level, finding.code, finding.text, row.where)
    return lambda: volume


def _check_together(
    tally: _Tally, rows: Sequence[ManifestRow], keys: dict[ManifestRow, str], options: ScanOptions
) -> None:
    """Check what concerns several scans: listed twice, spacings, modalities, windows of their own."""
    present = [row for row in rows if row in keys]
    try:
        check_twice([keys[row] for row in present], present)
    except BadInput as e:
        tally.add("error", e.code, str(e), "")
    _check_spacing(tally, options)
    modalities = sorted({v.modality for v in tally.facts if v.modality})
    if len(modalities) > 1:
        text = f"scans of {len(modalities)} modalities, {', '.join(modalities)}: choose one with data.scan.series"
        tally.seen["warning", SEVERAL_MODALITIES] = [(text, "all rows")]
    if options.window == TAGS and any(not v.colour for v in tally.facts):
        text = "each file is shown in the window that it states, which differs between scanners: agree on data.scan.window"
        tally.seen["warning", WINDOW] = [(text, "all rows")]


def _check_spacing(tally: _Tally, options: ScanOptions) -> None:
    """Find scans whose pixels are far from the agreed spacing, or spacings that differ where none is agreed."""
    stated = [(v.where, v.spacing) for v in tally.facts if v.spacing]
    if options.spacing:
        wanted = options.spacing[0]
        for where, mm in stated:
            if mm > _FAR * wanted:
                text = f"pixels of {mm:.3g} mm where {wanted:g} mm is agreed: details are missing"
                tally.add("warning", SPACING, text, where)
        return
    values = [mm for _, mm in stated]
    if values and max(values) > _FAR * min(values):
        text = f"pixel spacings from {min(values):.3g} to {max(values):.3g} mm: agree on data.scan.spacing"
        tally.seen["warning", SPACING] = [(text, "all rows")]


def _check_folder(tally: _Tally, folder: Path, scans: ScanFolder, used: Iterable[str]) -> None:
    """Find series that no row lists, as far as headers were read, and files that a DICOMDIR names in vain."""
    lost = missing_from_dicomdir(folder)
    if lost:
        text = f"DICOMDIR names {len(lost)} file{'' if len(lost) == 1 else 's'} that {'is' if len(lost) == 1 else 'are'} absent"
        tally.seen["warning", DICOMDIR_FILES] = [(f"{text}, first '{lost[0]}'", str(folder))]
    if folder in scans.listed:
        known = set(used)
        extra = [s for s in scans.listed[folder] if str(s.first.path) not in known]
        if extra:
            text = f"{len(extra)} series in the folder that no row of the manifest uses"
            tally.seen["note", UNLISTED] = [(text, str(folder))]
