"""NIfTI files (.nii, .nii.gz) as volumes: canonical orientation, slope and intercept, and the choice of a volume in 4D."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.capabilities.sources.scans.volume import WHITE, Axes, Volume, window_values
from grandrounds.core.arrays import Array, refuse_bomb
from grandrounds.core.errors import BadInput, install_extra
from grandrounds.data.limits import VOXEL, check_scan

SUFFIXES = (".nii", ".nii.gz")

AXIAL: Axes = ("S", "P", "L")


def is_nifti(path: Path) -> bool:
    """Tell whether a file is NIfTI by its name."""
    return path.name.lower().endswith(SUFFIXES)


def open_nifti(path: Path, *, volume: int = 1, where: str = "") -> Volume:
    """Open a NIfTI file as an axial volume: anterior at the top, the patient's right on the left, from the feet upwards.

    Args:
        path: The file.
        volume: The volume of a file in 4D, counted from 1.
        where: The row of the manifest, for messages.

    Returns:
        The volume; its values are those of the file with its slope and intercept.

    Raises:
        BadInput: The file is damaged or too large, has no such volume, or its header gives no orientation.
    """
    where = where or str(path)
    image = _load(path, where)
    shape = tuple(int(n) for n in image.shape)
    if len(shape) < 2 or min(shape, default=0) < 1:
        raise BadInput(f"{where}: {path.name} has the shape {shape}, which is no image", code="invalid-image-shape")
    frames = prod(shape[3:]) if len(shape) > 3 else 1
    if volume > frames:
        raise BadInput(
            f"{where}: {path.name} has {frames} volume{'' if frames == 1 else 's'}, and data.scan.volume is {volume}",
            code="out-of-range",
        )
    shape = (*shape, 1)[:3] if len(shape) == 2 else shape[:3]
    check_scan(prod(shape), where=where, value=VOXEL + _stored_bytes(image))
    colour = image.get_data_dtype().fields is not None
    order, flips = _canonical(image, path, where)
    zooms = [float(z) for z in image.header.get_zooms()[:3]] + [1.0] * 3
    spacing = [abs(zooms[i]) or None for i in order]
    loaded: list[Array] = []

    def values(indices: Sequence[int]) -> Array:
        if not loaded:
            array = _read(image, path, where, frames=frames, volume=volume, colour=colour)
            loaded.append(array.transpose(*order, *range(3, array.ndim))[flips])
        return np.ascontiguousarray(loaded[0][list(indices)])

    return Volume(
        source=where,
        count=shape[order[0]],
        size=(shape[order[1]], shape[order[2]]),
        values=values,
        colour=colour,
        spacing=(spacing[0], spacing[1], spacing[2]),
        axes=AXIAL,
        show=_file_window(image),
    )


def _stored_bytes(image: Any) -> int:
    """Return the bytes of a value as nibabel reads it: those of the file, or of a float64 with slope and intercept."""
    slope, intercept = image.dataobj.slope, image.dataobj.inter
    return max(int(image.get_data_dtype().itemsize), 1 if (slope, intercept) == (1, 0) else 8)


def _check_header(path: Path, where: str) -> None:
    """Refuse a file whose header states more bytes than the budget, before anything else is read."""
    import nibabel

    kinds: tuple[Any, ...] = (nibabel.Nifti1Header, nibabel.Nifti2Header)
    opened: Any = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rb") as f:
        start = f.read(max(kind.template_dtype.itemsize for kind in kinds))
    for kind in kinds:
        if kind.may_contain_header(start):
            header = kind(start[: kind.template_dtype.itemsize], check=False)
            shape = [int(n) for n in header["dim"][1 : 1 + int(header["dim"][0])]]
            size = abs(prod(shape)) * int(header["bitpix"]) // 8 + max(0, float(header["vox_offset"]))
            refuse_bomb(int(min(size, 2.0**62)), where=f"{where}: {path.name}")


def _load(path: Path, where: str) -> Any:
    try:
        import nibabel
    except ImportError:
        raise BadInput(f"reading NIfTI needs nibabel; {install_extra('scans')}", code="missing-package") from None
    if not path.is_file():
        raise BadInput(f"{where}: file {path} not found; check the manifest", code="file-not-found")
    try:
        _check_header(path, where)
        return nibabel.load(path)
    except BadInput:
        raise
    except Exception:  # nibabel raises many kinds on damaged files
        raise _damaged(path, where) from None


def _canonical(image: Any, path: Path, where: str) -> tuple[list[int], tuple[slice, slice, slice]]:
    """Find how the axes of the array become slices, rows and columns of axial images."""
    from nibabel import orientations

    functions: Any = orientations
    try:
        codes = functions.io_orientation(image.affine)  # for each axis of the array: the world axis (R, A, S) and its sign
    except Exception:  # a singular affine raises several kinds
        codes = np.full((3, 2), np.nan)
    if not np.isfinite(codes).all():
        raise BadInput(
            f"{where}: the orientation in the header of {path.name} cannot be used; convert the scan again",
            code="no-orientation",
        )
    world = {int(axis): (i, int(sign)) for i, (axis, sign) in enumerate(codes)}
    (x, right), (y, front), (z, up) = world[0], world[1], world[2]
    flips = (slice(None, None, up), slice(None, None, -front), slice(None, None, -right))  # to S, P and L
    return [z, y, x], flips


def _read(image: Any, path: Path, where: str, *, frames: int, volume: int, colour: bool) -> Array:
    """Read one volume as (x, y, z) float32, or (x, y, z, 3) uint8."""
    try:
        proxy = image.dataobj
        if frames > 1:
            chosen = np.unravel_index(volume - 1, image.shape[3:], order="F")
            array = np.asarray(proxy[(..., *(int(i) for i in chosen))])
        else:
            array = np.asarray(proxy)
            array = array.reshape(*array.shape[:3]) if array.ndim > 3 else array
    except Exception:  # as in _load
        raise _damaged(path, where) from None
    if colour:
        array = np.stack([array[name] for name in ("R", "G", "B")], axis=-1).astype(np.uint8)
        return array if array.ndim == 4 else array[:, :, None]
    if np.iscomplexobj(array):
        raise BadInput(f"{where}: {path.name} has complex values; save the magnitude", code="invalid-pixels")
    array = array[:, :, None] if array.ndim == 2 else array
    out = np.asarray(array, np.float32)
    if not np.isfinite(out).all():
        count = int((~np.isfinite(out)).sum())
        raise BadInput(
            f"{where}: {path.name} has {count} NaN or infinite values; set them to the value of air", code="invalid-pixels"
        )
    return out


def _file_window(image: Any) -> Any:
    """Return the window of the header (cal_min, cal_max), or the identity for 8 bits; None where there is none."""
    try:
        low, high = float(image.header["cal_min"]), float(image.header["cal_max"])
        slope, intercept = image.header.get_slope_inter()
    except (KeyError, ValueError, AttributeError):
        return None
    if high > low:
        return lambda i, values: window_values(values, (low + high) / 2, high - low)
    plain = (slope is None or slope == 1) and not intercept
    if image.get_data_dtype() == np.uint8 and plain:
        return lambda i, values: np.clip(values, 0, WHITE).astype(np.float32)
    return None


def _damaged(path: Path, where: str) -> BadInput:
    return BadInput(
        f"{where}: {path.name} cannot be read as NIfTI: it is damaged or cut off; convert the scan again", code="damaged-image"
    )
