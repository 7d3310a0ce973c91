"""A hospital's DICOM or NIfTI folder against the agreed schema: every fault is named, and nothing that identifies."""

from __future__ import annotations

import numpy as np
import pytest
from pydicom import dcmread

from grandrounds.core.errors import BadInput
from grandrounds.data.agreement.check import examine_data, read_rows, shareable_codes
from grandrounds.data.agreement.schema import ImageSchema
from grandrounds.data.agreement.schema_file import parse_schema
from tests.capabilities.sources.scans.make import NAME, ct_values, dicom, save, save_ct, save_nifti

AGREED = {
    "pictures": True, "size": [8, 8], "channels": 1, "label": "dx", "patient": "person", "classes": ["sick", "well"],
    "fewest_rows": 4,
    "scan": {"window": "soft tissue", "spacing": 1.5, "series": {"Modality": "CT"}},
}  # fmt: skip


@pytest.fixture
def site(tmp_path):
    """Six patients with a CT of four slices, of 12 x 10 mm, and the manifest."""
    rows = ["folder,dx,person"]
    for i in range(6):
        save_ct(tmp_path / f"p{i}", ct_values(4, seed=i), study=f"s{i}", PatientName=NAME, PatientID="4711")
        rows.append(f"p{i},{'sick' if i % 2 else 'well'},person-{i}")
    write(tmp_path, rows)
    return tmp_path, rows


def write(folder, rows, name="manifest.csv"):
    (folder / name).write_text("\n".join(rows) + "\n")


def examine(folder, **changes):
    schema = parse_schema({**AGREED, **changes})
    return examine_data(schema, str(folder)), schema


def codes(check, level=None):
    return {f.code for f in check.findings if level in (None, f.level)}


def test_a_folder_that_fits_has_no_error_and_is_read_as_agreed(site):
    folder, _ = site
    check, schema = examine(folder)
    assert codes(check, "error") == set() and check.rows == 6
    assert "identifying-tags" in codes(check)  # PatientName and PatientID, without their values
    images = read_rows(schema, str(folder))
    assert images.pixels.shape == (6, 8, 8, 1) and images.patient.tolist() == [f"person-{i}" for i in range(6)]
    assert "Muster" not in str(check.findings) and "4711" not in str(check.findings)


def test_schema_of_scans_survives_json_and_reaches_the_plan():
    schema = parse_schema(AGREED)
    assert isinstance(schema, ImageSchema) and parse_schema(schema.to_dict()) == schema
    assert schema.settings()["scan"]["window"] == "soft tissue" and schema.settings()["scan"]["slices"] == "middle"
    assert "scan" not in parse_schema({k: v for k, v in AGREED.items() if k != "scan"}).to_dict()
    with pytest.raises(BadInput, match=r"data\.scan\.window is 'lungs'"):
        parse_schema({**AGREED, "scan": {"window": "lungs"}})


def plant(folder, rows, fault):
    """Plant one fault and return the code that names it."""
    files = [p for p in sorted((folder / "p3").iterdir()) if p.is_file()]
    if fault == "burned-in-annotation":
        for path in files:
            change(path, BurnedInAnnotation="YES")
    elif fault == "no-series":  # another modality
        for path in files:
            change(path, Modality="MR")
    elif fault == "mixed-series":
        change(files[0], PixelSpacing=[3.0, 3.0])
    elif fault == "missing-slices":
        next(p for p in files if dcmread(p).InstanceNumber == 2).unlink()
    elif fault == "damaged-image":
        files[0].write_bytes(files[0].read_bytes()[:-90])
        write(folder, [*rows[:4], "p3/" + files[0].name + ",sick,person-3", *rows[5:]])
        write(folder, [f"file,{rows[0]}", *(("," if i != 4 else f"p3/{files[0].name},") + r for i, r in enumerate(rows[1:], 1))])
    elif fault == "spacing":
        for path in files:
            change(path, PixelSpacing=[4.0, 4.0])
    elif fault == "no-spacing":
        for path in files:
            change(path, PixelSpacing=None)
    elif fault == "maybe-burned-in":
        for path in files:
            change(path, ImageType=["DERIVED", "SECONDARY", "SCREEN SAVE"], BurnedInAnnotation=None)
    elif fault == "identity-not-removed":
        change(files[0], PatientIdentityRemoved="NO")
    elif fault == "repeated-image":
        write(folder, [*rows, "p3,sick,person-9"])
    elif fault == "repeated-patients":
        write(folder, [r.replace("person-4", "person-3") for r in rows])
    elif fault == "missing-images":
        write(folder, [r.replace("p3,", "p33,") for r in rows])
    elif fault == "path-outside":
        write(folder, [r.replace("p3,", "../p3,") for r in rows])
    elif fault == "no-patient":
        write(folder, [r.replace("person-3", "") for r in rows])
    elif fault == "label-values":
        write(folder, [r.replace("p3,sick", "p3,ill") for r in rows])
    elif fault == "repeated-positions":
        save(dicom(ct_values(1)[0].astype(np.int16), study="s3", number=9, position=(0.0, 0.0, 100.0)), folder / "p3" / "again")
    return fault


def change(path, **tags):
    ds = dcmread(path)
    for keyword, value in tags.items():
        delattr(ds, keyword) if value is None else setattr(ds, keyword, value)
    ds.save_as(path)


ERRORS = ("burned-in-annotation", "no-series", "mixed-series", "damaged-image", "no-spacing", "repeated-image", "missing-images",
          "path-outside", "no-patient", "label-values")  # fmt: skip
WARNINGS = ("missing-slices", "spacing", "maybe-burned-in", "identity-not-removed", "repeated-patients")


@pytest.mark.parametrize("fault", [*ERRORS, *WARNINGS])
def test_a_planted_fault_is_named(site, fault):
    folder, rows = site
    before = codes(examine(folder)[0])
    assert fault not in before
    plant(folder, rows, fault)
    check, schema = examine(folder)
    assert fault in codes(check, "error" if fault in ERRORS else "warning")
    assert codes(check) - before - {"repeated-rows"} == {fault}
    text = str([str(f) for f in check.findings])
    assert "Muster" not in text and "4711" not in text
    assert {c["code"] for c in shareable_codes(check.findings, schema)} == codes(check)
    if fault in ("burned-in-annotation", "no-series", "missing-images"):  # the first does not hide the others
        assert "row 5" in text
        with pytest.raises(BadInput, match="row 5"):
            read_rows(schema, str(folder))


def test_windows_of_the_files_and_several_spacings_are_named_where_nothing_is_agreed(site):
    folder, _ = site
    for path in (folder / "p3").iterdir():
        change(path, PixelSpacing=[4.0, 4.0], Modality="MR")
    check, _ = examine(folder, scan={})
    assert {"missing-window"} <= codes(check, "error")
    assert {"window-not-agreed", "spacing", "several-modalities"} <= codes(check, "warning")


def test_channels_and_masks_of_scans_are_checked_as_of_other_images(site):
    folder, rows = site
    assert "channels" in codes(examine(folder, channels=3)[0], "error")
    assert "no-masks" in codes(examine(folder, masks=True)[0], "error")
    inside = np.zeros((4, 12, 10), np.uint8)
    inside[:, 3:9, 3:9] = 1
    for i in range(6):
        save_nifti(folder / f"m{i}.nii.gz", inside.transpose(2, 1, 0), np.diag([-1.0, -1.0, 2.0, 1.0]))
    write(folder, [rows[0] + ",mask", *(f"{r},m{i}.nii.gz" for i, r in enumerate(rows[1:]))])
    check, schema = examine(folder, masks=True)
    assert codes(check, "error") == set()
    assert read_rows(schema, str(folder)).masks.shape == (6, 8, 8)


def test_two_tables_in_a_folder_are_refused(site):
    folder, rows = site
    write(folder, rows, "labels.csv")
    with pytest.raises(BadInput, match=r"labels\.csv and manifest\.csv"):
        examine(folder)
