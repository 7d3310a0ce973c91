"""Truth masks of scans: NIfTI files and DICOM segmentations (SEG) on the grid of their scan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.capabilities.sources.scans.nifti import is_nifti, open_nifti
from grandrounds.capabilities.sources.scans.series import is_dicom, load_pydicom, quiet_pydicom, read_header
from grandrounds.capabilities.sources.scans.volume import Volume, reorient
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.images import size_text
from grandrounds.data.limits import check_scan

_PLACE = 0.05  # mm
_FAR = 0.02  # relative difference of spacings from which a mask is on another grid


def read_scan_mask(path: Path, volume: Volume, *, where: str) -> Array:
    """Read the mask of a scan; every value above 0 is inside.

    Args:
        path: A NIfTI file with the grid of the scan, whatever the order of its axes; or a DICOM SEG whose frames refer to
            slices of the scan.
        volume: The scan.
        where: The row of the manifest, for messages.

    Returns:
        True inside, (slices, rows, columns) in the order of the scan.

    Raises:
        BadInput: The file is no mask, or its grid is not that of the scan.
    """
    if not is_nifti(path):
        return _read_segmentation(path, volume, where=where)
    mask = open_nifti(path, where=f"{where}: mask {path.name}")
    if volume.axes is not None:
        mask = reorient(mask, volume.axes)
    if mask.colour or (mask.count, *mask.size) != (volume.count, *volume.size):
        raise BadInput(
            f"{where}: mask {path.name} is {size_text((mask.count, *mask.size))} and its scan "
            f"{size_text((volume.count, *volume.size))} (slices x rows x columns); save the mask on the grid of the scan",
            code="mask-size-mismatch",
        )
    pairs = list(zip(mask.spacing, volume.spacing, strict=True))
    if any(a and b and abs(a - b) > _FAR * b for a, b in pairs) and volume.axes is not None:
        texts = ["x".join("?" if v is None else f"{v:.4g}" for v in one) for one in (mask.spacing, volume.spacing)]
        raise BadInput(
            f"{where}: mask {path.name} has a spacing of {texts[0]} mm and its scan {texts[1]}; save the mask on the grid of the "
            "scan",
            code="mask-size-mismatch",
        )
    return np.asarray(mask.read() > 0)


def _read_segmentation(path: Path, volume: Volume, *, where: str) -> Array:
    """Join all segments of a DICOM SEG: each frame marks the slice that it refers to, or that is at its place."""
    header = read_header(path) if path.is_file() and is_dicom(path) else None
    if header is None or header.modality != "SEG":
        raise BadInput(
            f"{where}: mask {path.name} is neither NIfTI nor DICOM SEG; save the mask as .nii.gz", code="invalid-masks"
        )
    if header.size != volume.size:
        raise BadInput(
            f"{where}: mask {path.name} is {size_text(header.size)} and its scan {size_text(volume.size)} (rows x columns); save "
            "the mask on the grid of the scan",
            code="mask-size-mismatch",
        )
    pydicom = load_pydicom("reading DICOM SEG")
    check_scan(max(header.frames, volume.count) * header.size[0] * header.size[1], where=str(path), value=2)
    inside = np.zeros((volume.count, *volume.size), bool)
    try:
        with quiet_pydicom():
            dataset = pydicom.dcmread(path)
            frames = pydicom.pixels.pixel_array(dataset).reshape(header.frames, *volume.size) > 0
            slices = [_referred_slice(group, volume) for group in dataset.PerFrameFunctionalGroupsSequence]
    except Exception:  # as in series.read_header
        raise BadInput(
            f"{where}: mask {path.name} cannot be read as DICOM SEG; save the mask as .nii.gz", code="invalid-masks"
        ) from None
    lost = sum(i is None for i in slices)
    if lost or len(slices) != len(frames):
        raise BadInput(
            f"{where}: {lost or 'some'} of {len(frames)} frames of mask {path.name} refer to no slice of the scan; is it the "
            "mask of another series?",
            code="mask-size-mismatch",
        )
    for i, frame in zip(slices, frames, strict=True):
        if i is not None:
            inside[i] |= frame
    return inside


def _referred_slice(group: Any, volume: Volume) -> int | None:
    """Find the slice of a frame by its reference to an image, else by its place."""
    for derivation in group.get("DerivationImageSequence") or ():
        for source in derivation.get("SourceImageSequence") or ():
            if source.get("ReferencedSOPInstanceUID") in volume.instances:
                return volume.instances.index(source.ReferencedSOPInstanceUID)
    plane = group.get("PlanePositionSequence")
    if not plane or volume.normal is None:
        return None
    depth = float(np.dot(np.array(volume.normal), np.array([float(v) for v in plane[0].ImagePositionPatient])))
    near = [i for i, place in enumerate(volume.depths) if abs(place - depth) < _PLACE]
    return near[0] if near else None
