"""Scans as images: the slices of DICOM and NIfTI files that a manifest lists become an `ImageSet`.

One scan is in memory at a time; only its chosen slices are kept, as 8-bit images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grandrounds.capabilities.sources.scans.manifest import (
    MASK,
    SERIES,
    SLICE,
    STUDY,
    ManifestRow,
    ScanFolder,
    check_patients,
    check_twice,
    parse_manifest,
    resolve_path,
)
from grandrounds.capabilities.sources.scans.masks import read_scan_mask
from grandrounds.capabilities.sources.scans.volume import (
    PLANE_AXES,
    Volume,
    choose_slices,
    crop_or_pad,
    render,
    reorient,
    resample,
    resampled_length,
    resampling_weights,
)
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.dataset import build_dataset
from grandrounds.data.images import ImageSet, find_dark_images, size_text
from grandrounds.data.progress import report_progress
from grandrounds.data.scan_options import ScanOptions
from grandrounds.data.schema import Schema
from grandrounds.data.table import Table, to_text


@dataclass(frozen=True, eq=False)
class SliceImages:
    """Chosen slices of one scan as images."""

    pixels: Array  # (k, H, W, C) uint8
    numbers: tuple[int, ...]  # of the slices, from 0
    masks: Array | None = None  # (k, H, W) bool


def read_scans(
    folder: str | Path,
    table: Table,
    *,
    label: str,
    options: ScanOptions,
    file: str = "file",
    site: str | None = None,
    patient: str | None = None,
    size: int | tuple[int, int] | None = None,
    name: str | None = None,
    drop_unlabelled: bool = False,
) -> ImageSet:
    """Read the scans that a manifest lists.

    Args:
        folder: The folder that paths of the manifest start at.
        table: The manifest.
        label: The column of labels.
        options: Window, spacing, slices, plane and series.
        file: The column of file names.
        site: The column of sites.
        patient: The column of patients.
        size: A side or (height, width) of all images; without it they must agree.
        name: The name of the set (default: the folder's).
        drop_unlabelled: Leave out rows without a label.

    Returns:
        One image for each chosen slice; the other columns of the manifest are repeated for them.

    Raises:
        BadInput: A scan is absent, damaged or not to be used, or sizes differ; the sentence names file and row.
    """
    where = Path(folder)
    schema = Schema(columns=(), label=label, site=site, patient=check_patients(table, patient), time=None)
    facts = build_dataset(table, schema, name=name or where.name, drop_unlabelled=drop_unlabelled)
    rows = parse_manifest(facts.table, file=file)
    scans = ScanFolder(where, options)
    opened = [scans.find(row) for row in rows]
    check_twice([key for key, _ in opened], rows)
    _check_masks(rows)
    target = (size, size) if isinstance(size, int) else size
    images: list[SliceImages] = []
    for done, (row, (_, open_scan)) in enumerate(zip(rows, opened, strict=True), start=1):
        images.append(read_slices(open_scan, row, options, folder=where, size=target))
        _check_size(images, row)
        report_progress("scans", done, len(rows))
    origin = np.repeat(np.arange(len(rows)), [len(one.numbers) for one in images])
    masks = [one.masks for one in images if one.masks is not None]
    leave = (SERIES, STUDY, MASK, SLICE)
    columns = {n: to_text(v)[origin] for n, v in facts.table.columns.items() if n not in leave}
    columns[SLICE] = np.array([str(n + 1) for one in images for n in one.numbers], object)
    out = ImageSet(
        name=facts.name,
        pixels=stack_images([one.pixels for one in images]),
        label=facts.label[origin],
        site=None if facts.site is None else facts.site[origin],
        patient=None if facts.patient is None else facts.patient[origin],
        masks=np.concatenate(masks) if masks else None,
        columns=columns,
    )
    if len(find_dark_images(out)) == len(out):
        raise BadInput(
            f"all {len(out)} images of {folder} are black in the window '{options.window}'; choose another data.scan.window",
            code="black-images",
        )
    return out


def read_slices(
    open_scan: Callable[[], Volume],
    row: ManifestRow,
    options: ScanOptions,
    *,
    folder: Path,
    size: tuple[int, int] | None = None,
) -> SliceImages:
    """Read the chosen slices of one scan: plane, window, spacing, then size.

    Args:
        open_scan: Opens the scan.
        row: Its row of the manifest.
        options: Window, spacing, slices and plane.
        folder: The folder that the mask's path starts at.
        size: (height, width) of the images; None leaves that of the scan.

    Raises:
        BadInput: The scan has no such slices, or its files do not state what is needed.
    """
    volume = open_scan()
    mask: Array | None = None
    if row.mask:
        mask = read_scan_mask(resolve_path(folder, row.mask, where=row.where), volume, where=row.where).astype(np.float32)
    if options.plane != "acquired":
        volume, mask = _turn(volume, mask, options.plane)
    steps = _steps(volume, options)
    if len(steps) == 3:  # between slices too: all of them are needed
        weights = _weights(volume.count, None, steps[2], crops=True)
        shown = resample(render(volume, range(volume.count), options), 0, weights)
        mask = None if mask is None else resample(mask, 0, weights)
        numbers = _choose(len(shown), row, options, mask)
        shown = shown[numbers]
    else:
        numbers = _choose(volume.count, row, options, mask)
        shown = render(volume, numbers, options)
    cut = None if mask is None else mask[numbers]
    for axis, step, wanted in zip((1, 2), steps[:2], size or (None, None), strict=True):
        weights = _weights(shown.shape[axis], wanted, step, crops=options.crops)
        shown = resample(shown, axis, weights)
        cut = None if cut is None else resample(cut, axis, weights)
    if size is not None and options.crops:
        shown, cut = crop_or_pad(shown, size), None if cut is None else crop_or_pad(cut, size)
    pixels = np.clip(np.rint(shown), 0, 255).astype(np.uint8)
    return SliceImages(pixels if pixels.ndim == 4 else pixels[..., None], tuple(numbers), None if cut is None else cut >= 0.5)


def _turn(volume: Volume, mask: Array | None, plane: str) -> tuple[Volume, Array | None]:
    """Bring a scan and its mask to a plane."""
    if volume.axes is None or volume.count == 1:
        raise BadInput(
            f"{volume.source}: data.scan.plane is '{plane}', and the scan is {'one slice' if volume.count == 1 else 'without '}"
            f"{'' if volume.count == 1 else 'orientation'}; leave data.scan.plane out",
            code="no-orientation",
        )
    axes = PLANE_AXES[plane]
    if mask is not None:
        as_volume = Volume(volume.source, volume.count, volume.size, lambda i: mask[list(i)], axes=volume.axes)
        return reorient(volume, axes), reorient(as_volume, axes).read()
    return reorient(volume, axes), None


def _steps(volume: Volume, options: ScanOptions) -> tuple[float | None, ...]:
    """Distances of new pixels in old ones along rows, columns and (if there are three) slices."""
    if not options.spacing:
        return None, None
    slices, rows, columns = volume.spacing
    out = []
    for wanted, stated, axis in zip(options.spacing, (rows, columns, slices), ("rows", "columns", "slices"), strict=False):
        if stated is None:
            raise BadInput(
                f"{volume.source} does not state the distance of its {axis} in mm; leave data.scan.spacing out, or the scan",
                code="no-spacing",
            )
        out.append(wanted / stated)
    return tuple(out)


def _weights(count: int, length: int | None, step: float | None, *, crops: bool) -> Array:
    """Weights that bring an axis to a spacing, or to a length where images are resized."""
    if step is None:
        return resampling_weights(count, count if crops or length is None else length)
    if length is None or crops:
        return resampling_weights(count, resampled_length(count, 1.0, step), step=step)
    return resampling_weights(count, length)


def _choose(count: int, row: ManifestRow, options: ScanOptions, mask: Array | None) -> list[int]:
    if row.slice is not None:
        if row.slice >= count:
            raise BadInput(
                f"{row.where}: slice {row.slice + 1} of a scan with {count} slice{'' if count == 1 else 's'}", code="out-of-range"
            )
        return [row.slice]
    marked = None if mask is None else [int(i) for i in np.flatnonzero((mask >= 0.5).any(axis=(1, 2)))]
    return choose_slices(options.slices, count, source=row.where, marked=marked)


def _check_masks(rows: list[ManifestRow]) -> None:
    without = next((row for row in rows if not row.mask), None)
    if without is not None and any(row.mask for row in rows):
        raise BadInput(f"{without.where}: no mask, and other rows have one; give all rows a mask, or none", code="missing-masks")


def _check_size(images: list[SliceImages], row: ManifestRow) -> None:
    first, last = images[0].pixels.shape[1:3], images[-1].pixels.shape[1:3]
    if first != last:
        raise BadInput(
            f"{row.where}: its images are {size_text(last)} (height x width) and those before {size_text(first)}; bring all to "
            "one size with data.size, such as --set data.size=128",
            code="image-size-mismatch",
        )


def stack_images(parts: list[Array]) -> Array:
    """Stack images; grey ones become RGB where others are in colour."""
    channels = max(part.shape[3] for part in parts)
    return np.concatenate([np.repeat(p, channels, axis=3) if p.shape[3] < channels else p for p in parts])
