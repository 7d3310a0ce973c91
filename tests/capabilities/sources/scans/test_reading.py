"""Scans as images: slices, spacing, size, masks, and manifests that are refused with file and row."""

from __future__ import annotations

import re

import numpy as np
import pytest

from grandrounds.capabilities.sources.scans.deidentify import IDENTIFYING
from grandrounds.capabilities.sources.scans.reading import read_scans
from grandrounds.capabilities.sources.scans.volume import crop_or_pad, resample, resampling_weights
from grandrounds.core.errors import BadInput, install_extra
from grandrounds.data.scan_options import ScanOptions, parse_options
from grandrounds.data.table import Table
from tests.capabilities.sources.scans.make import NAME, ct_values, dicom, save, save_ct, save_nifti, uid

WINDOW = (0.0, 2000.0)


def grey(values):
    """Values from -1000 to 1000 in the window above."""
    return np.rint((values + 1000.0) * 255 / 2000).clip(0, 255).astype(np.uint8)


def read(folder, columns, size=None, **options):
    rows = len(next(iter(columns.values())))
    given = {"label": ["a", "b"] * 9, "patient": [f"p{i}" for i in range(18)]}
    table = Table.from_mapping({**{k: v[:rows] for k, v in given.items()}, **columns}, source="manifest.csv")
    options = parse_options({"window": list(WINDOW), **options})
    return read_scans(folder, table, label="label", patient="patient", options=options, size=size)


@pytest.fixture
def scans(tmp_path):
    """Two patients: a DICOM series of 5 slices each."""
    values = [ct_values(5, seed=i) for i in range(2)]
    for i, one in enumerate(values):
        save_ct(tmp_path / f"p{i}", one, study=f"s{i}", PatientName=NAME, PatientBirthDate="19500101")
    return tmp_path, values


@pytest.mark.parametrize(
    ("slices", "numbers"),
    [("middle", [2]), ("all", [0, 1, 2, 3, 4]), ("every 2", [0, 2, 4]), ("2-3", [1, 2]), ("4 to 5", [3, 4])],
)
def test_chosen_slices_become_images(scans, slices, numbers):
    folder, values = scans
    images = read(folder, {"folder": ["p0", "p1"]}, slices=slices)
    assert np.array_equal(images.pixels[..., 0], np.concatenate([grey(v[numbers]) for v in values]))
    assert images.label.tolist() == ["a"] * len(numbers) + ["b"] * len(numbers)
    assert images.patient.tolist() == ["p0"] * len(numbers) + ["p1"] * len(numbers)
    assert images.columns["slice"].tolist() == [str(n + 1) for n in numbers] * 2


def test_scans_are_named_by_file_folder_series_or_study(scans):
    folder, values = scans
    expected = read(folder, {"folder": ["p0", "p1"]}, slices="all").pixels
    by_series = read(folder, {"series": [uid(f"s{i}", "series") for i in range(2)]}, slices="all")
    by_study = read(folder, {"study": [uid(f"s{i}") for i in range(2)]}, slices="all")
    assert np.array_equal(by_series.pixels, expected) and np.array_equal(by_study.pixels, expected)
    assert not {"series", "study"} & set(by_study.columns)
    single = save(dicom(values[0][0]), folder / "one.dcm")
    nifti = save_nifti(folder / "two.nii.gz", values[0].transpose(2, 1, 0)[::-1, ::-1])
    by_file = read(folder, {"file": [single.name, nifti.name]})
    assert np.array_equal(by_file.pixels[..., 0], grey(np.stack([values[0][0], values[0][2]])))


def test_a_row_may_name_one_slice(scans):
    folder, values = scans
    images = read(folder, {"folder": ["p0", "p0", "p1"], "slice": [1, 4, 5]})
    assert np.array_equal(images.pixels[..., 0], grey(np.stack([values[0][0], values[0][3], values[1][4]])))


def test_resampling_by_hand():
    # 4 samples of 1 mm to 2 of 2 mm: each covers two, with a half of the weight of the next ones
    weights = resampling_weights(4, 2, step=2.0)
    assert weights == pytest.approx(np.array([[3, 3, 1, 0], [0, 1, 3, 3]]) / 7)
    # twice as many samples: linear in between, and the border stays
    doubled = resample(np.array([[0.0, 4.0]], np.float32), 1, resampling_weights(2, 4))
    assert doubled == pytest.approx(np.array([[0, 1, 3, 4]]))
    assert np.array_equal(resampling_weights(5, 5), np.eye(5, dtype=np.float32))


def test_resizing_is_that_of_pillow():
    image = pytest.importorskip("PIL.Image")
    values = np.random.default_rng(0).uniform(0, 255, (17, 23)).astype(np.float32)
    for size in ((8, 9), (30, 40), (5, 23)):
        ours = resample(resample(values, 0, resampling_weights(17, size[0])), 1, resampling_weights(23, size[1]))
        theirs = np.asarray(image.fromarray(values).resize(size[::-1], image.Resampling.BILINEAR))
        assert ours == pytest.approx(theirs, abs=0.01)


def test_spacing_brings_scans_of_two_pixel_sizes_to_one_scale(tmp_path):
    """A square of 8 x 8 mm has the same pixels at 1 mm, whether it was scanned at 1 or at 0.5 mm."""
    for name, spacing in (("a", 1.0), ("b", 0.5)):
        side = round(24 / spacing)
        values = np.full((3, side, side), -1000, np.int16)
        square = slice(round(8 / spacing), round(16 / spacing))
        values[:, square, square] = 1000
        save_ct(tmp_path / name, values, study=name, spacing=(spacing, spacing))
    images = read(tmp_path, {"folder": ["a", "b"]}, size=20, spacing=1.0).pixels[..., 0]
    inside = slice(7, 13)
    assert (images[:, inside, inside] > 250).all() and (images[:, :5] < 5).all()
    assert np.abs(images[0].astype(int) - images[1]).mean() < 6
    assert np.array_equal(images[0], crop_or_pad(images[:1], (20, 20))[0])


def test_spacing_between_slices(tmp_path):
    values = np.repeat(np.array([-1000, -500, 0, 500, 1000], np.int16), 16).reshape(5, 4, 4)
    for name in ("a", "b"):
        save_ct(tmp_path / name, values, step=4.0, study=name)
    images = read(tmp_path, {"folder": ["a", "b"]}, slices="all", spacing=[1, 1, 2.0])
    # 20 mm in slices of 2 mm; linear between 0, 64, 128, 191, 255
    assert images.pixels[:10, 0, 0, 0].tolist() == [0, 16, 48, 80, 112, 143, 175, 207, 239, 255]


def test_crop_and_pad_about_the_centre():
    values = np.arange(16, dtype=np.float32).reshape(1, 4, 4) + 1
    assert crop_or_pad(values, (2, 2))[0].tolist() == [[6, 7], [10, 11]]
    padded = crop_or_pad(values, (6, 2))[0]
    assert padded.shape == (6, 2) and padded[0].tolist() == [0, 0] and padded[1].tolist() == [2, 3]


def test_masks_choose_slices_and_follow_their_images(scans):
    folder, values = scans
    inside = np.zeros((5, 12, 10), np.uint8)
    inside[3, 2:6, 3:9] = 1
    for i in range(2):
        affine = np.diag([-1.0, -1.0, 2.0, 1.0])  # columns to the left, rows to the back
        save_nifti(folder / "masks" / f"p{i}.nii.gz", inside.transpose(2, 1, 0), affine)
    columns = {"folder": ["p0", "p1"], "mask": ["masks/p0.nii.gz", "masks/p1.nii.gz"]}
    images = read(folder, columns, slices="mask")
    assert np.array_equal(images.pixels[..., 0], grey(np.stack([v[3] for v in values])))
    assert np.array_equal(images.masks, np.stack([inside[3] == 1] * 2))
    small = read(folder, columns, slices="mask", size=6)
    assert small.masks.shape == (2, 6, 6) and 0.1 < small.masks.mean() < 0.35
    with pytest.raises(BadInput, match=r"row 3 .*no mask"):
        read(folder, {**columns, "mask": ["masks/p0.nii.gz", None]})
    with pytest.raises(BadInput, match="names no mask"):
        read(folder, {"folder": ["p0", "p1"]}, slices="mask")


@pytest.mark.parametrize(
    ("columns", "sentence", "code"),
    [
        ({"folder": ["p0", "../p1"]}, r"manifest.csv, row 3 .*'../p1' leaves the folder", "path-outside"),
        ({"folder": ["p0", "/etc"]}, r"row 3 .*'/etc' leaves the folder", "path-outside"),
        ({"folder": ["p0", "C:\\scans"]}, r"row 3 .* leaves the folder", "path-outside"),
        ({"folder": ["p0", "p9"]}, r"row 3 .*'p9' is not in", "missing-images"),
        ({"folder": ["p0", "p0"]}, r"row 3 .*also in row 2", "repeated-image"),
        ({"folder": ["p0", None]}, r"row 3 .*no scan is named in 'folder'", "missing-values"),
        ({"folder": ["p0", "p1"], "label": ["a", None]}, "label column 'label' of manifest.csv has 1 row", "missing-labels"),
        ({"folder": ["p0", "p1"], "patient": ["x", None]}, r"manifest.csv, row 3 .*no patient", "missing-values"),
        ({"folder": ["p0", "p1"], "slice": [1, 6]}, r"row 3 .*slice 6 of a scan with 5", "out-of-range"),
        ({"folder": ["p0", "p1"], "slice": [1, 0]}, r"row 3 .*slice is '0'", "out-of-range"),
        ({"series": [uid("s0", "series"), "1.2.3"]}, r"row 3 .*no DICOM image of this series", "no-series"),
        ({"folder": ["p0", "."]}, r"row 3 .*2 series .*2 match", "several-series"),
    ],
)
def test_faults_of_a_manifest_name_the_row(scans, columns, sentence, code):
    with pytest.raises(BadInput, match=sentence) as e:
        read(scans[0], columns)
    assert e.value.code == code and "Muster" not in str(e.value) and "\n" not in str(e.value)


def test_images_of_several_sizes_need_a_size(scans):
    folder, _ = scans
    save_ct(folder / "p2", ct_values(3, 8, 8), study="other")
    with pytest.raises(BadInput, match=r"row 3 .*8x8 .*12x10"):
        read(folder, {"folder": ["p0", "p2"]})
    assert read(folder, {"folder": ["p0", "p2"]}, size=9).pixels.shape == (2, 9, 9, 1)


def test_patients_are_required(scans):
    table = Table.from_mapping({"folder": ["p0"], "label": ["a"], "patient": ["x"]}, source="manifest.csv")
    with pytest.raises(BadInput, match=r"data\.patient is not set; it has a column 'patient'"):
        read_scans(scans[0], table, label="label", options=ScanOptions())


def test_burnt_in_annotation_is_refused(scans):
    folder, values = scans
    save_ct(folder / "p2", values[0], study="x", BurnedInAnnotation="YES", PatientName=NAME)
    with pytest.raises(BadInput, match=r"row 3 .*BurnedInAnnotation is YES in 5 of 5 files") as e:
        read(folder, {"folder": ["p0", "p2"]})
    assert e.value.code == "burned-in-annotation" and "Muster" not in str(e.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"window": "lungs"}, "did you mean 'lung'"),
        ({"window": [40, 0]}, "width above 0"),
        ({"spacing": [1, -1]}, "mm above 0"),
        ({"slices": "every"}, "'every 5'"),
        ({"slices": "5-3"}, "'10-20'"),
        ({"plane": "axail"}, "did you mean 'axial'"),
        ({"volume": 0}, "from 1 on"),
        ({"windw": "lung"}, "did you mean 'window'"),
        ({"series": {"Modality": True}}, "pattern"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(settings, sentence):
    with pytest.raises(BadInput, match=sentence):
        parse_options(settings)


@pytest.mark.parametrize("tag", ["PatientName", "Modlity"])
def test_series_are_not_chosen_by_unknown_or_identifying_tags(scans, tag):
    assert (tag in IDENTIFYING) == (tag == "PatientName")
    with pytest.raises(BadInput, match=tag):
        read(scans[0], {"folder": ["p0", "p1"]}, series={tag: "*"})


def test_options_survive_their_plain_form():
    options = parse_options({"window": "bone", "spacing": 2, "slices": "every 3", "series": {"Modality": "CT"}})
    assert parse_options(options.to_dict()) == options and ScanOptions().to_dict() == {}


@pytest.mark.parametrize("by", ["reference", "place"])
def test_masks_of_a_dicom_segmentation(scans, by):
    from pydicom.dataset import Dataset

    folder, values = scans
    inside = np.zeros((5, 12, 10), bool)
    inside[1, 2:5, 3:6], inside[3, 4:8, 1:9] = True, True
    for name, study in (("p0", "s0"), ("p1", "s1")):
        ds = dicom(np.stack([inside[3], inside[1]]).astype(np.uint8), study=study, series="seg", Modality="SEG")
        ds.BitsAllocated = ds.BitsStored = 1
        ds.HighBit = 0
        ds.PixelData = np.packbits(np.stack([inside[3], inside[1]]).ravel(), bitorder="little").tobytes()
        ds.PerFrameFunctionalGroupsSequence = []
        for i in (3, 1):
            source, derivation, plane, group = (Dataset() for _ in range(4))
            if by == "reference":
                source.ReferencedSOPInstanceUID = uid(study, "series", 5 - i)
                derivation.SourceImageSequence = [source]
                group.DerivationImageSequence = [derivation]
            else:
                plane.ImagePositionPatient = [0.0, 0.0, 100.0 + 2.0 * i]
                group.PlanePositionSequence = [plane]
            ds.PerFrameFunctionalGroupsSequence.append(group)
        save(ds, folder / f"{name}.seg")
    images = read(folder, {"folder": ["p0", "p1"], "mask": ["p0.seg", "p1.seg"]}, slices="mask")
    assert np.array_equal(images.masks, np.concatenate([inside[[1, 3]]] * 2))
    assert np.array_equal(images.pixels[..., 0], grey(np.concatenate([v[[1, 3]] for v in values])))
    if by == "reference":
        with pytest.raises(BadInput, match="refer to no slice"):
            read(folder, {"folder": ["p0", "p1"], "mask": ["p1.seg", "p0.seg"]}, slices="mask")


def test_a_missing_package_is_named(scans, monkeypatch):
    import sys

    for module in ("pydicom", "nibabel"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadInput, match=re.escape(install_extra("scans"))) as e:
        read(scans[0], {"folder": ["p0", "p1"]})
    assert e.value.code == "missing-package"
    (scans[0] / "a.nii").write_bytes(b"x")
    with pytest.raises(BadInput, match="needs nibabel"):
        read(scans[0], {"file": ["a.nii", "a.nii"], "slice": [1, 2]})


@pytest.mark.data("ham10000")
def test_skin_lesions_written_as_dicom_have_the_same_pixels(tmp_path):
    """240 dermatoscopic images of HAM10000 as colour DICOM files, as they are and RLE compressed, and read back."""
    from pydicom.uid import RLELossless

    from grandrounds.data.sets.catalog import find_entry

    held = find_entry("ham10000").load()
    images = held.take(np.linspace(0, len(held) - 1, 240).astype(int))
    for i, pixels in enumerate(images.pixels):
        ds = dicom(pixels, study=f"lesion {i}", photometric="RGB", Modality="XC", spacing=None)
        if i % 2:
            ds.compress(RLELossless)
        save(ds, tmp_path / f"{i:03d}")
    table = Table.from_mapping(
        {"file": [f"{i:03d}" for i in range(240)], "dx": images.label.tolist(), "lesion": images.patient.tolist(),
         "source": images.site.tolist()}, source="manifest.csv",
    )  # fmt: skip
    again = read_scans(tmp_path, table, label="dx", patient="lesion", site="source", options=ScanOptions())
    assert np.array_equal(again.pixels, images.pixels) and again.label.tolist() == images.label.tolist()
    assert again.site.tolist() == images.site.tolist() and again.patient.tolist() == images.patient.tolist()
