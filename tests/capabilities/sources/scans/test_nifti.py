"""NIfTI: the same slices whatever the order of axes on disk, slope, volumes in 4D, and masks on the grid of a scan."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel
import numpy as np
import pytest
from nibabel.testing import data_path

from grandrounds.capabilities.sources.scans.masks import read_scan_mask
from grandrounds.capabilities.sources.scans.nifti import open_nifti
from grandrounds.capabilities.sources.scans.volume import PLANE_AXES, render, reorient
from grandrounds.core.errors import BadInput
from grandrounds.data.scan_options import ScanOptions
from tests.capabilities.sources.scans.make import save_nifti
from tests.support import refused

RAS = np.random.default_rng(0).normal(size=(5, 6, 7)).astype(np.float32)
"""Values by (x to the right, y to the front, z upwards)."""


def rotated(angle: float) -> np.ndarray:
    """An affine of voxels of 1 x 2 x 3 mm, turned by a few degrees about z."""
    c, s = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    affine = np.eye(4)
    affine[:3, :3] = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ np.diag([1.0, 2.0, 3.0])
    affine[:3, 3] = (-30, 20, 5)
    return affine


@pytest.mark.parametrize("code", ["RAS", "LPS", "LAS", "PSR", "SAL", "IRP"])
@pytest.mark.parametrize("angle", [0, 12])
def test_axial_slices_are_the_same_whatever_the_order_on_disk(tmp_path, code, angle):
    image = nibabel.Nifti1Image(RAS, rotated(angle))
    turn = nibabel.orientations.ornt_transform(
        nibabel.orientations.axcodes2ornt("RAS"), nibabel.orientations.axcodes2ornt(code)
    )
    path = tmp_path / "a.nii.gz"
    nibabel.save(image.as_reoriented(turn), path)
    volume = open_nifti(path)
    # slices upwards, anterior on top (y falls), the patient's right on the left (x falls)
    assert np.array_equal(volume.read(), RAS.transpose(2, 1, 0)[:, ::-1, ::-1])
    assert np.allclose(volume.spacing, (3, 2, 1))


@pytest.mark.parametrize("name", ["anatomical.nii", "standard.nii.gz", "example_nifti2.nii.gz"])
def test_shipped_files_have_the_values_of_nibabel(name):
    path = Path(data_path) / name
    image = nibabel.as_closest_canonical(nibabel.load(path))
    array = np.asarray(image.dataobj, np.float32)
    array = array[..., 0] if array.ndim > 3 else array
    assert np.array_equal(open_nifti(path).read(), array.transpose(2, 1, 0)[:, ::-1, ::-1])


def test_a_volume_of_4d_is_chosen_and_scaled():
    path = Path(data_path) / "example4d.nii.gz"
    image = nibabel.as_closest_canonical(nibabel.load(path))
    second = np.asarray(image.dataobj, np.float32)[..., 1]
    assert np.array_equal(open_nifti(path, volume=2).read(), second.transpose(2, 1, 0)[:, ::-1, ::-1])
    with pytest.raises(BadInput, match=r"has 2 volumes, and data\.scan\.volume is 3"):
        open_nifti(path, volume=3)


def test_slope_and_intercept_are_applied(tmp_path):
    image = nibabel.Nifti1Image(np.arange(8, dtype=np.int16).reshape(2, 2, 2), np.eye(4))
    image.header.set_slope_inter(2.0, -10.0)
    nibabel.save(image, tmp_path / "a.nii")
    stored = np.asarray(nibabel.load(tmp_path / "a.nii").dataobj)
    assert np.array_equal(open_nifti(tmp_path / "a.nii").read(), stored.transpose(2, 1, 0)[:, ::-1, ::-1].astype(np.float32))


def test_coronal_and_sagittal_slices_are_upright(tmp_path):
    volume = open_nifti(save_nifti(tmp_path / "a.nii", RAS))
    coronal, sagittal = (reorient(volume, PLANE_AXES[p]) for p in ("coronal", "sagittal"))
    # the first coronal slice is the most anterior, superior on top, right on the left
    assert np.array_equal(coronal.read([0])[0], RAS[::-1, -1, ::-1].T)
    # the first sagittal slice is the rightmost, superior on top, anterior on the left
    assert np.array_equal(sagittal.read([0])[0], RAS[-1, ::-1, ::-1].T)
    assert (coronal.count, *coronal.size) == (6, 7, 5) and (sagittal.count, *sagittal.size) == (5, 7, 6)


def test_windows_of_a_nifti_file(tmp_path):
    values = np.array([[[-4.0, 0.0, 5.0, 10.0, 30.0]]], np.float32).T
    stated = open_nifti(save_nifti(tmp_path / "a.nii", values, cal_min=0.0, cal_max=10.0))
    assert render(stated, [0], ScanOptions())[0].ravel()[::-1].tolist() == [0, 0, 127.5, 255, 255]
    none = open_nifti(save_nifti(tmp_path / "b.nii", values))
    with pytest.raises(BadInput, match="states no window") as e:
        render(none, [0], ScanOptions())
    assert e.value.code == "missing-window"
    full = render(none, [0], ScanOptions(window="range"))[0].ravel()[::-1]
    assert full == pytest.approx(255 * (values.ravel() + 4) / 34, abs=1e-3)


def test_faults_are_one_sentence(tmp_path):
    path = save_nifti(tmp_path / "a.nii", np.full((3, 3, 3), np.nan, np.float32))
    with pytest.raises(BadInput, match="27 NaN"):
        open_nifti(path).read()
    whole = save_nifti(tmp_path / "b.nii.gz", RAS).read_bytes()
    (tmp_path / "b.nii.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match="damaged or cut off"):
        open_nifti(tmp_path / "b.nii.gz").read()
    (tmp_path / "c.nii").write_text("no scan")
    with pytest.raises(BadInput, match="damaged or cut off"):
        open_nifti(tmp_path / "c.nii")


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
@pytest.mark.parametrize(
    "change",
    [{"dim": [3, 2000, 2000, 2000, 1, 1, 1, 1]}, {"vox_offset": 1e15}, {"dim": [4, 3, 3, 3, 30000, 1, 1, 1], "bitpix": 30000}],
)
def test_a_header_that_states_too_much_is_refused_before_anything_is_unpacked(tmp_path, ending, change):
    header = nibabel.Nifti1Image(np.zeros((3, 3, 3), np.int16), np.eye(4)).header
    for key, value in change.items():
        header[key] = value
    with (gzip.open if ending.endswith(".gz") else open)(tmp_path / f"a{ending}", "wb") as f:
        f.write(header.binaryblock + bytes(100))
    with refused("unpacks-too-large"):
        open_nifti(tmp_path / f"a{ending}")


def test_values_with_a_slope_count_as_float64(tmp_path, monkeypatch):
    plain = save_nifti(tmp_path / "a.nii.gz", np.ones((10, 10, 10), np.int16))
    scaled = save_nifti(tmp_path / "b.nii.gz", np.ones((10, 10, 10), np.int16))
    with_slope = bytearray(gzip.decompress(scaled.read_bytes()))
    with_slope[112:120] = np.array([0.5, 1.0], "<f4").tobytes()
    scaled.write_bytes(gzip.compress(bytes(with_slope)))
    monkeypatch.setenv("GRANDROUNDS_LARGEST", "7000")
    assert open_nifti(plain).read().shape == (10, 10, 10)
    with refused("unpacks-too-large"):
        open_nifti(scaled)


def test_a_mask_is_turned_to_its_scan_and_refused_on_another_grid(tmp_path):
    scan = open_nifti(save_nifti(tmp_path / "scan.nii", RAS, rotated(0)))
    inside = (RAS > 1).astype(np.uint8)
    image = nibabel.Nifti1Image(inside, rotated(0))
    turn = nibabel.orientations.ornt_transform(
        nibabel.orientations.axcodes2ornt("RAS"), nibabel.orientations.axcodes2ornt("PIL")
    )
    nibabel.save(image.as_reoriented(turn), tmp_path / "mask.nii.gz")
    assert np.array_equal(read_scan_mask(tmp_path / "mask.nii.gz", scan, where="row 2"), scan.read() > 1)
    save_nifti(tmp_path / "small.nii.gz", inside[1:], rotated(0))
    with pytest.raises(BadInput, match=r"7x6x4 and its scan 7x6x5"):
        read_scan_mask(tmp_path / "small.nii.gz", scan, where="row 2")
    save_nifti(tmp_path / "spaced.nii.gz", inside, np.eye(4))
    with pytest.raises(BadInput, match="1x1x1 mm and its scan 3x2x1"):
        read_scan_mask(tmp_path / "spaced.nii.gz", scan, where="row 2")
