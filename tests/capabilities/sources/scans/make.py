"""DICOM and NIfTI files for tests, written with pydicom and nibabel; no patient has ever been in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
NAME = "Muster^Erika"


def uid(*parts: object) -> str:
    """A UID that is the same in every run."""
    return str(generate_uid(entropy_srcs=[str(p) for p in parts]))


def dicom(
    pixels: np.ndarray,
    *,
    study: str = "study",
    series: str = "series",
    number: int = 1,
    position: tuple[float, float, float] | None = None,
    orientation: tuple[float, ...] = AXIAL,
    spacing: tuple[float, float] | None = (1.0, 1.0),
    window: tuple[float, float] | None = None,
    photometric: str = "MONOCHROME2",
    **tags: Any,
) -> FileDataset:
    """A data set with one image, or with frames (n, rows, columns); further tags by keyword, None removes one."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = uid(study, series, number)
    ds = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    ds.SOPClassUID, ds.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    ds.StudyInstanceUID, ds.SeriesInstanceUID, ds.SeriesNumber = uid(study), uid(study, series), 1
    ds.Modality, ds.InstanceNumber, ds.SeriesDescription = "CT", number, f"thorax {series}"
    ds.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
    ds.BurnedInAnnotation, ds.PatientIdentityRemoved = "NO", "YES"
    colour = photometric in ("RGB", "YBR_FULL")
    frames = pixels.ndim == (4 if colour else 3)
    ds.Rows, ds.Columns = pixels.shape[1:3] if frames else pixels.shape[:2]
    if frames:
        ds.NumberOfFrames = len(pixels)
    ds.SamplesPerPixel, ds.PhotometricInterpretation = (3 if colour else 1), photometric
    if colour:
        ds.PlanarConfiguration = 0
    bits = 8 * pixels.dtype.itemsize
    ds.BitsAllocated, ds.BitsStored, ds.HighBit = bits, bits, bits - 1
    ds.PixelRepresentation = int(pixels.dtype.kind == "i")
    if position is not None:
        ds.ImagePositionPatient, ds.ImageOrientationPatient = list(position), list(orientation)
    if spacing is not None:
        ds.PixelSpacing = list(spacing)
    if window is not None:
        ds.WindowCenter, ds.WindowWidth = window
    ds.PixelData = np.ascontiguousarray(pixels).tobytes()
    for keyword, value in tags.items():
        if value is None:
            delattr(ds, keyword)
        else:
            setattr(ds, keyword, value)
    return ds


def save(ds: FileDataset, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ds.save_as(path, enforce_file_format=True)
    return path


def ct_values(count: int, rows: int = 12, columns: int = 10, *, seed: int = 0) -> np.ndarray:
    """Hounsfield units (count, rows, columns), whole numbers from -1000 to 1000."""
    return np.random.default_rng(seed).integers(-1000, 1000, (count, rows, columns)).astype(np.int16)


def save_ct(folder: Path, values: np.ndarray, *, step: float = 2.0, **tags: Any) -> list[Path]:
    """A CT series as PACS export it: no suffix, file names in another order than the slices, slope 1 and intercept -1024."""
    order = np.random.default_rng(1).permutation(len(values))
    return [
        save(
            dicom(
                (values[i] + 1024).astype(np.uint16),
                number=int(len(values) - i),
                position=(0.0, 0.0, 100.0 + step * float(i)),
                RescaleSlope=1,
                RescaleIntercept=-1024,
                SliceThickness=step,
                **tags,
            ),
            folder / f"IM{int(place):05d}",
        )
        for i, place in enumerate(order)
    ]


def save_nifti(path: Path, values: np.ndarray, affine: np.ndarray | None = None, **header: Any) -> Path:
    import nibabel

    image = nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine)
    for key, value in header.items():
        image.header[key] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image, path)
    return path
