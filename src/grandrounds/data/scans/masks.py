"""Truth masks of scans: NIfTI files and DICOM segmentations (SEG) on the grid of their scan."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.images import size_text
from grandrounds.data.scans.nifti import is_nifti, open_nifti
from grandrounds.data.scans.volume import Volume, reorient

_FAR = 0.02  # relative difference of spacings from which a mask is on another grid


def read_scan_mask(path: Path, volume: Volume, *, where: str) -> Array:
    """Read the mask of a scan; every value above 0 is inside.

    Args:
        path: A NIfTI file with the grid of the scan, whatever the order of its axes.
        volume: The scan.
        where: The row of the manifest, for messages.

    Returns:
        True inside, (slices, rows, columns) in the order of the scan.

    Raises:
        BadInput: The file is no mask, or its grid is not that of the scan.
    """
    if not is_nifti(path):
        raise BadInput(f"{where}: mask {path.name} is no NIfTI file; save the mask as .nii.gz", code="invalid-masks")
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
