"""Write generated CT series of four hospitals as DICOM, as a PACS exports them, to try `rounds scans list` and `rounds run`.

    python examples/hospital_scans.py scans

Nobody was scanned: the values are noise, and patients with a nodule have a bright sphere. Names and numbers in the tags are
made up. The folder gets a manifest with labels; it needs `pip install '.[scans]'`.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

SLICES, SIDE, PATIENTS = 7, 32, 24
SPACING = {"north": 1.0, "south": 0.8, "east": 1.0, "west": 1.25}
"""Pixel spacing of each hospital's scanner in mm."""


def write_series(folder: Path, values: np.ndarray, *, spacing: float, patient: str) -> None:
    """Write one CT series (slices, rows, columns) in Hounsfield units, 3 mm apart."""
    folder.mkdir(parents=True)
    study, series = generate_uid(), generate_uid()
    for i, one in enumerate(values):
        meta = FileMetaDataset()
        meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, CTImageStorage
        meta.MediaStorageSOPInstanceUID = generate_uid()
        ds = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
        ds.SOPClassUID, ds.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        ds.StudyInstanceUID, ds.SeriesInstanceUID, ds.SeriesNumber, ds.InstanceNumber = study, series, 2, i + 1
        ds.Modality, ds.SeriesDescription, ds.ImageType = "CT", "thorax axial", ["ORIGINAL", "PRIMARY", "AXIAL"]
        ds.PatientName, ds.PatientID, ds.BurnedInAnnotation = "Made^Up", patient, "NO"
        ds.ImagePositionPatient, ds.ImageOrientationPatient = [0, 0, 3 * i], [1, 0, 0, 0, 1, 0]
        ds.PixelSpacing, ds.SliceThickness = [spacing, spacing], 3
        ds.RescaleSlope, ds.RescaleIntercept, ds.WindowCenter, ds.WindowWidth = 1, -1024, 40, 400
        ds.Rows, ds.Columns = one.shape
        ds.SamplesPerPixel, ds.PhotometricInterpretation, ds.PixelRepresentation = 1, "MONOCHROME2", 0
        ds.BitsAllocated, ds.BitsStored, ds.HighBit = 16, 12, 11
        ds.PixelData = np.clip(np.rint(one + 1024), 0, 4095).astype(np.uint16).tobytes()
        ds.save_as(folder / f"IM{i:04d}", enforce_file_format=True)


def main(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for hospital, spacing in SPACING.items():
        for k in range(PATIENTS):
            z, y, x = np.mgrid[:SLICES, :SIDE, :SIDE].astype(float)
            centre = rng.uniform(-5, 5, 2) / spacing + (SIDE - 1) / 2
            inside = ((z - SLICES // 2) * 3) ** 2 + ((y - centre[0]) ** 2 + (x - centre[1]) ** 2) * spacing**2 < 8**2
            values = rng.normal(-40, 50, z.shape) + 120 * inside * (k % 2)
            name = f"{hospital}/S{k:03d}"
            write_series(folder / name, values, spacing=spacing, patient=f"{hospital}-{k}")
            rows.append([name, "nodule" if k % 2 else "clear", f"{hospital}-p{k:02d}", hospital])
    with (folder / "manifest.csv").open("w", newline="") as opened:
        csv.writer(opened, lineterminator="\n").writerows([["folder", "finding", "patient", "hospital"], *rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
