"""A scan as a stack of slices in real units, and its slices as images: orientation, window, resampling and size.

Axes are named by the side of the patient to which an index grows: "L" left, "P" posterior, "S" superior and their opposites.
An axial slice is shown as radiologists see it: anterior at the top, the patient's right on the left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.limits import check_scan
from grandrounds.data.scan_options import (
    ALL,
    MASKED,
    MIDDLE,
    PERCENTILES,
    RANGE,
    TAGS,
    ScanFinding,
    ScanOptions,
    slice_range,
    slice_step,
)

Axes = tuple[str, str, str]

PLANE_AXES: dict[str, Axes] = {"axial": ("S", "P", "L"), "coronal": ("P", "I", "L"), "sagittal": ("L", "I", "P")}
"""Directions of slices, rows and columns in each plane."""

WHITE = 255.0
_OPPOSITE = {"L": "R", "R": "L", "P": "A", "A": "P", "S": "I", "I": "S"}
_LOW, _HIGH = 0.5, 99.5  # percentiles
_SAMPLE = 2_000_000  # values from which percentiles are taken


@dataclass(frozen=True, eq=False)
class Volume:
    """One scan. Pixels are read when they are needed, so that a middle slice costs one file of a series."""

    source: str  # file or series, for messages
    count: int
    size: tuple[int, int]  # rows, columns
    values: Callable[[Sequence[int]], Array]  # slices (k, rows, columns) float32, or (k, rows, columns, 3) uint8
    colour: bool = False
    spacing: tuple[float | None, float | None, float | None] = (None, None, None)  # mm: slices, rows, columns
    axes: Axes | None = None  # None where the file does not say
    show: Callable[[int, Array], Array] | None = None  # window of the file itself: values of slice i to 0..255
    inverse: bool = False  # low values are bright
    modality: str = ""
    findings: tuple[ScanFinding, ...] = ()  # for the hospital's staff
    instances: tuple[str, ...] = ()  # SOPInstanceUID of each slice of a DICOM series, to which masks refer
    normal: tuple[float, ...] | None = None  # direction across the slices of a DICOM series
    depths: tuple[float, ...] = ()  # places of its slices in mm along the normal

    def read(self, indices: Sequence[int] | None = None) -> Array:
        """Read slices, all by default."""
        chosen = range(self.count) if indices is None else indices
        check_scan(len(chosen) * self.size[0] * self.size[1] * (3 if self.colour else 1), where=self.source)
        return self.values(chosen)


def parse_axes(directions: Array) -> Axes:
    """Name the axes of an array from their directions.

    Args:
        directions: One vector for each axis (3, 3), in mm to the patient's left, posterior and superior.
    """
    vectors = np.asarray(directions, np.float64)
    if not np.isfinite(vectors).all() or np.linalg.matrix_rank(vectors) < 3:
        raise ValueError("the directions are not three independent vectors")
    names: list[str] = ["", "", ""]
    taken: set[int] = set()
    strength = np.abs(vectors) / np.linalg.norm(vectors, axis=1, keepdims=True)
    for flat in np.argsort(-strength, axis=None):
        axis, world = divmod(int(flat), 3)
        if not names[axis] and world not in taken:
            names[axis] = ("LPS" if vectors[axis, world] > 0 else "RAI")[world]
            taken.add(world)
    return names[0], names[1], names[2]


def reorient(volume: Volume, axes: Axes) -> Volume:
    """Exchange and flip the axes of a volume; the values are not interpolated.

    Args:
        volume: A scan whose axes are known.
        axes: The axes it is to have.
    """
    assert volume.axes is not None, "only a volume with known axes is reoriented"
    if volume.axes == axes:
        return volume
    order = [next(i for i, a in enumerate(volume.axes) if a in (wanted, _OPPOSITE[wanted])) for wanted in axes]
    flips = tuple(slice(None, None, 1 if volume.axes[i] == wanted else -1) for i, wanted in zip(order, axes, strict=True))
    loaded: list[Array] = []

    def values(indices: Sequence[int]) -> Array:
        if not loaded:
            whole = volume.read()
            loaded.append(whole.transpose(*order, *range(3, whole.ndim))[flips])
        return np.ascontiguousarray(loaded[0][list(indices)])

    shape = (volume.count, *volume.size)
    spacing = tuple(volume.spacing[i] for i in order)
    keeps = order[0] == 0  # slices stay slices
    show = volume.show
    if show is not None and flips[0].step == -1:
        inner = show

        def show(i: int, pixels: Array) -> Array:
            return inner(volume.count - 1 - i, pixels)

    elif show is not None and not keeps:
        first = show

        def show(i: int, pixels: Array) -> Array:
            return first(0, pixels)

    return replace(
        volume,
        count=shape[order[0]],
        size=(shape[order[1]], shape[order[2]]),
        values=values,
        spacing=(spacing[0], spacing[1], spacing[2]),
        axes=axes,
        show=show,
    )


def choose_slices(choice: str, count: int, *, source: str, marked: Sequence[int] | None = None) -> list[int]:
    """Choose slices of a scan.

    Args:
        choice: "middle", "all", "every 5", "10-20" (counted from 1) or "mask".
        count: The number of slices.
        source: The scan, for messages.
        marked: The slices that a mask marks, for "mask".

    Returns:
        The indices, from 0.

    Raises:
        BadInput: The scan has none of the slices.
    """
    if choice == MIDDLE:
        return [count // 2]
    if choice == ALL:
        return list(range(count))
    if choice == MASKED:
        if marked is None:
            raise BadInput(
                f"{source}: data.scan.slices is 'mask', but the manifest names no mask for it; add a column 'mask'",
                code="missing-masks",
            )
        if not marked:
            raise BadInput(f"{source}: its mask marks no slice; leave its row out, or choose other slices", code="empty-mask")
        return list(marked)
    step = slice_step(choice)
    if step is not None:
        return list(range(0, count, step))
    span = slice_range(choice)
    assert span is not None, "options are checked when they are parsed"
    first, last = span
    if last > count:
        raise BadInput(
            f"{source} has {count} slice{'' if count == 1 else 's'}, and data.scan.slices asks for {first} to {last}; "
            "choose slices that every scan has",
            code="too-few-slices",
        )
    return list(range(first - 1, last))


def window_values(values: Array, centre: float, width: float) -> Array:
    """Map values to 0..255: `centre - width / 2` and below is black, `centre + width / 2` and above white."""
    low = centre - width / 2
    return np.asarray(np.clip((values - low) * (WHITE / width), 0.0, WHITE), np.float32)


def render(volume: Volume, indices: Sequence[int], options: ScanOptions) -> Array:
    """Show slices in the window of the options.

    Returns:
        Grey (k, rows, columns) or colour (k, rows, columns, 3) values, float32 from 0 to 255.

    Raises:
        BadInput: The window is to be that of the file, and the file states none.
    """
    values = volume.read(indices)
    if volume.colour:
        return np.asarray(values, np.float32)
    if options.window == TAGS:
        if volume.show is None:
            raise BadInput(
                f"{volume.source} states no window; set data.scan.window, such as 'soft tissue' or [40, 400] for CT, "
                "'percentiles' for MR",
                code="missing-window",
            )
        shown = np.stack([volume.show(i, one) for i, one in zip(indices, values, strict=True)])
    else:
        centre, width = options.levels or _computed_levels(volume, options.window)
        shown = window_values(values, centre, width)
    return np.asarray(WHITE - shown if volume.inverse else shown, np.float32)


def _computed_levels(volume: Volume, window: object) -> tuple[float, float]:
    """Compute centre and width from the values of the whole scan; a scan of one value gets a width of 1."""
    assert window in (PERCENTILES, RANGE), "options are checked when they are parsed"
    flat = volume.read().reshape(-1)
    flat = flat[:: max(1, len(flat) // _SAMPLE)] if window == PERCENTILES else flat
    low, high = np.percentile(flat, (_LOW, _HIGH)) if window == PERCENTILES else (flat.min(), flat.max())
    width = float(high) - float(low)
    return (float(low) + width / 2, width) if width > 0 else (float(low), 1.0)


def resampling_weights(count: int, length: int, *, step: float | None = None) -> Array:
    """Weights (length, count) of linear interpolation along one axis, with averaging where it gets smaller.

    Args:
        count: The number of samples.
        length: The number of samples afterwards.
        step: The distance of new samples in old ones, about the same centre; None: the new ones cover the old extent.
    """
    scale = count / length if step is None else step
    centres = (np.arange(length) - (length - 1) / 2) * scale + (count - 1) / 2
    support = max(scale, 1.0)
    weights = np.clip(1 - np.abs(np.arange(count)[None, :] - centres[:, None]) / support, 0.0, None)
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray(weights / np.where(total > 0, total, 1.0), np.float32)


def resample(values: Array, axis: int, weights: Array) -> Array:
    """Apply weights (length, count) along one axis."""
    moved = np.moveaxis(values, axis, -1)
    return np.moveaxis(np.asarray(moved @ weights.T, np.float32), -1, axis)


def resampled_length(count: int, spacing: float, wanted: float) -> int:
    """Count the samples of an axis that is brought to another spacing in mm."""
    return max(1, round(count * spacing / wanted))


def crop_or_pad(values: Array, size: tuple[int, int]) -> Array:
    """Crop or pad slices (k, rows, columns, ...) about their centre; new pixels are 0."""
    for axis, wanted in ((1, size[0]), (2, size[1])):
        extra = wanted - values.shape[axis]
        if extra < 0:
            start = -extra // 2
            values = np.take(values, range(start, start + wanted), axis=axis)
        elif extra > 0:
            widths = [(0, 0)] * values.ndim
            widths[axis] = (extra // 2, extra - extra // 2)
            values = np.pad(values, widths)
    return values
