"""`rounds scans list`, and a federated run of four hospitals on generated DICOM files from the draft of their manifest."""

from __future__ import annotations

import csv
import json
import os

import numpy as np
import pytest

from tests.capabilities.sources.scans.make import NAME, ct_values, dicom, save, save_ct, save_nifti, uid
from tests.command import rounds


@pytest.fixture
def export(tmp_path):
    """A folder as a PACS exports it: two series in one folder, an X-ray, a report, a NIfTI file, and one with burnt-in text."""
    folder = tmp_path / "export"
    save_ct(folder / "ST0", ct_values(4), study="a", series="axial", PatientID="77", PatientName=NAME, window=(40, 400))
    for path in (folder / "ST0").iterdir():
        path.rename(path.with_name(f"A{path.name}"))
    save_ct(folder / "ST0", ct_values(3), study="a", series="lung", PatientID="77", PatientName=NAME)
    save(dicom(ct_values(1)[0], study="b", Modality="DX", PatientID="78", PatientIdentityRemoved="NO"), folder / "x-ray")
    save(dicom(ct_values(1)[0], study="c", Modality="US", PatientID="79", BurnedInAnnotation="YES"), folder / "us")
    report = dicom(ct_values(1)[0], study="b", series="report", Modality="SR")
    for keyword in ("Rows", "Columns", "PixelData"):
        delattr(report, keyword)
    save(report, folder / "report")
    save_nifti(folder / "t1.nii.gz", np.zeros((4, 5, 6), np.int16))
    return folder


def test_a_folder_is_listed_without_anything_that_identifies(export, tmp_path):
    manifest, sheet = tmp_path / "manifest.csv", tmp_path / "sheet.png"
    done = rounds("scans", "list", export, "--json", "--manifest", manifest, "--sheet", sheet)
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    assert listed["without_pixels"] == 1 and listed["damaged"] == []
    by_path = {(s["path"], s["slices"]): s for s in listed["scans"]}
    assert set(by_path) == {("ST0", 4), ("ST0", 3), ("x-ray", 1), ("us", 1), ("t1.nii.gz", 6)}
    codes = {key: {f["code"] for f in s["findings"]} for key, s in by_path.items()}
    assert "burned-in-annotation" in codes["us", 1] and "identity-not-removed" in codes["x-ray", 1]
    assert codes["ST0", 4] == {"identifying-tags"}
    rows = list(csv.DictReader(manifest.open()))
    assert [(r["file"], r["folder"], bool(r["series"]), r["patient"]) for r in rows] == [
        ("", "", True, "p001"), ("", "", True, "p001"), ("x-ray", "", False, "p003"), ("t1.nii.gz", "", False, ""),
    ]  # fmt: skip
    assert {r["series"] for r in rows[:2]} == {uid("a", "axial"), uid("a", "lung")}
    assert sheet.read_bytes()[:4] == b"\x89PNG"
    table = rounds("scans", "list", export).stdout
    for text in (done.stdout, manifest.read_text(), table):
        assert "Muster" not in text and "77" not in text.replace(uid("a", "axial"), "").replace(uid("a", "lung"), "")


def test_faults_of_the_command_are_one_sentence(export, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "there.csv").write_text("x")
    for arguments, code in (
        ([tmp_path / "empty"], "no-images"),
        ([tmp_path / "absent"], "folder-not-found"),
        ([export, "--manifest", tmp_path / "there.csv"], "file-exists"),
        ([export, "--tag", "Modality"], "invalid-option"),
        ([export, "--tag", "PatientName=*"], "identifying-tag"),
        ([export, "--tag", "Modalty=MR"], "unknown-tag"),
    ):
        done = rounds("scans", "list", *arguments)
        assert done.returncode == 2 and f"[{code}]" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def test_four_hospitals_train_on_dicom(tmp_path):
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    rows = [["folder", "dx", "patient", "hospital", "split"]]
    for site in "ABCD":
        for i in range(12):
            values = rng.normal(0, 60, (3, 20, 20))
            values[:, 5:14, 5:14] += 300 * (i % 2)
            name = f"{site}/p{i:02d}"
            save_ct(tmp_path / "scans" / name, values.astype(np.int16), study=name, PatientName=NAME, PatientID=f"SECRET{i}")
            rows.append([name, "nodule" if i % 2 else "clear", f"{site}{i}", site, "test" if i < 4 else "train"])
    with (tmp_path / "manifest.csv").open("w", newline="") as opened:
        csv.writer(opened).writerows(rows)
    (tmp_path / "run.toml").write_text(
        """
[data]
table = "manifest.csv"
pictures = "scans"
label = "dx"
event = "nodule"
patient = "patient"
site = "hospital"
part = "split"
size = 16

[data.scan]
window = "soft tissue"
spacing = 1.25
slices = "all"
series = { Modality = "CT" }

[model]
name = "small-cnn"

[method]
rounds = 3

[train]
epochs = 2
lr = 0.1
""".strip()
    )
    done = rounds("run", tmp_path / "run.toml", "--out", tmp_path / "run", "--quiet")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["final"]["auroc"] > 0.9 and set(summary["per_site"]) == set("ABCD")
    assert {site["count"] for site in summary["per_site"].values()} == {12}  # slices of the four patients for the test
    assert 'window = "soft tissue"' in (tmp_path / "run" / "experiment.toml").read_text()
    for folder, _, files in os.walk(tmp_path / "run"):  # nothing that identifies is in the run folder
        for name in files:
            content = (tmp_path / "run" / folder / name).read_bytes()
            assert b"Muster" not in content and b"SECRET" not in content, name
