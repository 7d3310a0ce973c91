"""DICOM: files without a suffix, slice order, Hounsfield units, windows as pydicom computes them, colour, frames, compression."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.data import get_testdata_file
from pydicom.pixels import apply_modality_lut, apply_voi_lut
from pydicom.uid import MPEG2MPML, DeflatedExplicitVRLittleEndian, RLELossless

from grandrounds.capabilities.sources.scans.dicom import open_series
from grandrounds.capabilities.sources.scans.series import (
    choose_series,
    find_dicom_files,
    group_series,
    list_series,
    missing_from_dicomdir,
    read_header,
)
from grandrounds.capabilities.sources.scans.volume import render
from grandrounds.core.errors import BadInput
from grandrounds.data.scan_options import ScanOptions
from tests.capabilities.sources.scans.make import NAME, ct_values, dicom, save, save_ct
from tests.support import refused


def shipped(name):
    """A file of pydicom's own tests that comes with its wheel."""
    return get_testdata_file(name, download=False)


def open_file(path):
    return open_series(group_series([read_header(path)])[0])


def shown(path, **options):
    volume = open_file(path)
    return render(volume, range(volume.count), ScanOptions(**options))


def test_slices_are_found_without_suffix_and_ordered_by_place(tmp_path):
    values = ct_values(7)
    save_ct(tmp_path, values)
    (tmp_path / "notes.txt").write_text("no image" * 50)
    (series,) = list_series(tmp_path)
    assert series.slices == 7 and series.slice_distance() == 2.0
    volume = open_series(series)
    assert np.array_equal(volume.read(), values)
    assert volume.axes == ("S", "P", "L") and volume.spacing == (2.0, 1.0, 1.0)


def test_slices_without_a_place_are_ordered_by_their_number(tmp_path):
    values = np.arange(4, dtype=np.uint16)[:, None, None] * np.ones((4, 4, 4), np.uint16)
    for i, place in enumerate((2, 0, 3, 1)):
        save(dicom(values[i], number=i + 1), tmp_path / f"f{place}")
    assert open_series(list_series(tmp_path)[0]).read()[:, 0, 0].tolist() == [0, 1, 2, 3]


def test_window_by_hand(tmp_path):
    path = save(dicom(np.array([[0, 824, 1064, 1264, 3000]], np.uint16), RescaleSlope=1, RescaleIntercept=-1024), tmp_path / "a")
    # centre 40 and width 400: -160 is black, 240 white; -1024, -200, 40, 240, 1976
    assert shown(path, window=(40.0, 400.0))[0].tolist() == [[0, 0, 127.5, 255, 255]]
    assert np.array_equal(shown(path, window="soft tissue"), shown(path, window=(40.0, 400.0)))


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_windows_of_tags_are_those_of_pydicom(tmp_path, function):
    values = (ct_values(1)[0] + 1024).astype(np.uint16)
    ds = dicom(values, window=(35, 380), VOILUTFunction=function, RescaleSlope=1, RescaleIntercept=-1024)
    expected = apply_voi_lut(apply_modality_lut(ds.pixel_array, ds), ds).astype(float)
    low, high = -1024.0, 65535.0 - 1024
    assert np.allclose(shown(save(ds, tmp_path / "a"))[0], (expected - low) / (high - low) * 255, atol=1e-3)


def test_lookup_table_of_a_file_is_that_of_pydicom():
    ds = dcmread(shipped("MR_small.dcm"))
    ours = shown(shipped("MR_small.dcm"))[0]
    expected = apply_voi_lut(apply_modality_lut(ds.pixel_array, ds), ds).astype(float)
    low, high = -(2.0 ** (ds.BitsStored - 1)), 2.0 ** (ds.BitsStored - 1) - 1
    assert np.allclose(ours, (expected - low) / (high - low) * 255, atol=1e-2)


@pytest.mark.parametrize(
    "name", ["CT_small.dcm", "MR_small.dcm", "MR_small_RLE.dcm", "MR_small_bigendian.dcm", "rtdose_1frame.dcm"]
)
def test_values_of_shipped_files_are_those_of_pydicom(name):
    ds = dcmread(shipped(name))
    expected = apply_modality_lut(ds.pixel_array, ds)
    assert np.array_equal(open_file(shipped(name)).read()[0], np.asarray(expected, np.float32))


@pytest.mark.parametrize(
    "name",
    ["examples_rgb_color.dcm", "examples_ybr_color.dcm", "SC_rgb_rle.dcm", "SC_rgb_small_odd.dcm", "SC_rgb_rle_2frame.dcm"],
)
def test_colour_of_shipped_files_is_that_of_pydicom(name):
    ds = dcmread(shipped(name))
    volume = open_file(shipped(name))
    expected = ds.pixel_array.reshape(volume.count, *volume.size, 3)
    assert volume.colour and np.array_equal(volume.read(), expected)


def test_palette_becomes_colour():
    from pydicom.pixels import apply_color_lut

    ds = dcmread(shipped("examples_palette.dcm"))
    expected = apply_color_lut(ds.pixel_array, ds) >> 8
    assert np.array_equal(open_file(shipped("examples_palette.dcm")).read()[0], expected)


def test_monochrome1_is_shown_inverted(tmp_path):
    pixels = np.array([[0, 100, 255]], np.uint8)
    path = save(dicom(pixels, photometric="MONOCHROME1", Modality="DX"), tmp_path / "a")
    assert shown(path)[0].tolist() == [[255, 155, 0]]


def test_frames_of_an_enhanced_file_are_ordered_by_their_places(tmp_path):
    from pydicom.dataset import Dataset

    values = ct_values(3)
    ds = dicom((values + 1024).astype(np.uint16), position=(0.0, 0.0, 0.0))
    ds.PerFrameFunctionalGroupsSequence = []
    for place in (20.0, 0.0, 10.0):
        plane, units, group = Dataset(), Dataset(), Dataset()
        plane.ImagePositionPatient = [0.0, 0.0, place]
        units.RescaleSlope, units.RescaleIntercept = 1, -1024
        group.PlanePositionSequence, group.PixelValueTransformationSequence = [plane], [units]
        ds.PerFrameFunctionalGroupsSequence.append(group)
    volume = open_file(save(ds, tmp_path / "a"))
    assert np.array_equal(volume.read(), values[[1, 2, 0]])
    assert np.array_equal(volume.read([1]), values[[2]]) and volume.spacing[0] == 10.0


def test_rle_compression_changes_no_value(tmp_path):
    values = ct_values(4)
    paths = save_ct(tmp_path, values)
    for path in paths:
        ds = dcmread(path)
        ds.compress(RLELossless)
        ds.save_as(path)
    assert np.array_equal(open_series(list_series(tmp_path)[0]).read(), values)


@pytest.mark.skipif(find_spec("jpeg_ls") is not None, reason="a decoder of JPEG-LS is installed")
def test_a_missing_decoder_is_named():
    with pytest.raises(BadInput, match="JPEG-LS.*pip install pyjpegls") as e:
        open_file(shipped("MR_small_jpeg_ls_lossless.dcm")).read()
    assert e.value.code == "missing-package"


def test_video_is_refused(tmp_path):
    ds = dicom(np.zeros((2, 4, 4), np.uint8))
    from pydicom.encaps import encapsulate

    ds.PixelData = encapsulate([b"\0\0\1\xba"])
    ds["PixelData"].VR = "OB"
    ds["PixelData"].is_undefined_length = True
    ds.file_meta.TransferSyntaxUID = MPEG2MPML
    with pytest.raises(BadInput, match="is a video"):
        open_file(save(ds, tmp_path / "a")).read()


@pytest.mark.parametrize("cut", [140, 400, 1200])
def test_a_file_that_is_cut_off_is_refused_in_one_sentence(tmp_path, cut):
    path = save(dicom(ct_values(1, 40, 40)[0], window=(40, 400), PatientName=NAME), tmp_path / "a")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadInput) as e:
        open_series(choose_series(group_series([read_header(path)]), {}, where=str(path))).read()
    assert "Muster" not in str(e.value) and "\n" not in str(e.value)


def test_a_header_that_states_too_much_is_refused_before_decoding(tmp_path):
    ds = dicom(np.zeros((4, 4), np.uint8))
    ds.Rows, ds.Columns, ds.NumberOfFrames = 60000, 60000, 10
    with refused("unpacks-too-large"):
        open_file(save(ds, tmp_path / "a")).read([0])


@pytest.mark.parametrize("frames", [10**9, 300_000])
def test_more_frames_than_bytes_are_refused_before_they_are_listed(tmp_path, frames):
    ds = dicom(np.zeros((1, 1), np.uint8))
    ds.NumberOfFrames = frames
    with refused("damaged-image"):
        read_header(save(ds, tmp_path / "a"))


@pytest.mark.parametrize("old, new", [(b"40.0", b"4Y.0"), (b"\x28\x00\x02\x00US", b"\x28\x00\x02\x00U\x1d")])
def test_a_wrong_byte_in_a_tag_is_one_sentence(tmp_path, old, new):
    path = save(dicom(np.zeros((4, 4), np.uint16), window=(40.0, 80.0)), tmp_path / "a")
    raw = path.read_bytes()
    assert old in raw
    path.write_bytes(raw.replace(old, new))
    with refused("damaged-image"):
        shown(path, window="tags")


def test_a_deflated_file_is_refused_where_it_may_unpack_to_too_much(tmp_path, monkeypatch):
    ds = dicom(np.zeros((64, 64), np.uint8))
    ds.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    path = save(ds, tmp_path / "a")
    assert open_file(path).read().shape == (1, 64, 64)
    monkeypatch.setenv("GRANDROUNDS_LARGEST", "100K")
    with refused("unpacks-too-large"):
        read_header(path)


def test_series_are_chosen_by_tags(tmp_path):
    save_ct(tmp_path / "a", ct_values(3), series="axial soft", window=(40, 400))
    save_ct(tmp_path / "b", ct_values(4), series="AXIAL lung")
    save(dicom(ct_values(1)[0], series="scout", Modality="CR"), tmp_path / "c")
    tags = ("Modality", "SeriesDescription")
    series = list_series(tmp_path, tags=tags)
    assert len(series) == 3
    assert choose_series(series, {"SeriesDescription": "*axial lung"}, where="x").slices == 4
    assert choose_series(series, {"Modality": "cr"}, where="x").slices == 1
    with pytest.raises(BadInput, match="3 series .* and 2 match") as e:
        choose_series(series, {"Modality": "CT"}, where="x")
    assert e.value.code == "several-series"
    with pytest.raises(BadInput, match="none matches"):
        choose_series(series, {"Modality": "MR"}, where="x")


def test_files_of_a_dicomdir_are_found_and_missing_ones_named(tmp_path):
    folder = Path(str(shipped("DICOMDIR"))).parent
    assert missing_from_dicomdir(folder) == []
    assert len(find_dicom_files(folder / "98892003")) == 17
    assert sorted(s.slices for s in list_series(folder / "98892003")) == [1, 1, 1, 1, 3, 3, 7]
    copied = tmp_path / "DICOMDIR"
    copied.write_bytes((folder / "DICOMDIR").read_bytes())
    assert "98892003/MR700/4648" in missing_from_dicomdir(tmp_path)


def test_files_of_one_series_that_do_not_belong_together_are_refused(tmp_path):
    save_ct(tmp_path, ct_values(3))
    save(dicom(ct_values(1, 6, 6)[0], number=9, position=(0.0, 0.0, 200.0)), tmp_path / "other")
    (series,) = list_series(tmp_path)
    with pytest.raises(BadInput, match="differ in size") as e:
        open_series(series)
    assert e.value.code == "mixed-series"


def test_gaps_and_repeated_places_are_found(tmp_path):
    paths = save_ct(tmp_path, ct_values(8))
    for path in paths:
        if dcmread(path).InstanceNumber == 4:
            path.unlink()
    assert [f.code for f in list_series(tmp_path)[0].check() if f.level == "warning"] == ["missing-slices"]
    save(dicom(ct_values(1)[0], number=30, position=(0.0, 0.0, 100.0)), tmp_path / "again")
    codes = {f.code for f in list_series(tmp_path)[0].check()}
    assert {"missing-slices", "repeated-positions"} <= codes


