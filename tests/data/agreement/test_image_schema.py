"""The consortium's agreement about pictures: what it refuses, what a site is told of its own, and what a keeper refuses."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from grandrounds.core.rng import generator
from grandrounds.core.toml import dumps
from grandrounds.data import image_files
from grandrounds.data.agreement import check as fit
from grandrounds.data.agreement.check import check_brightness, examine_data, read_rows
from grandrounds.data.agreement.draft import draft_image_schema
from grandrounds.data.agreement.images import USUAL, inspect_images
from grandrounds.data.agreement.schema import LEVELS, DataSchema, ImageSchema
from grandrounds.data.agreement.schema_file import parse_schema, read_schema
from grandrounds.data.images import ImageSet
from grandrounds.data.row_files import split_images, to_npz
from grandrounds.data.sets.catalog import find_entry
from tests.command import rounds
from tests.data.agreement.brightness_rates import rates
from tests.support import bright_squares, refused

PLAIN = {
    "pictures": True, "size": [12, 10], "channels": 1, "label": "dx", "classes": ["benign", "malignant"],
    "positive": "malignant", "patient": "lesion", "masks": True, "brightness": [95, 98, 100, 102, 105], "fewest_rows": 6,
}  # fmt: skip
SCHEMA = ImageSchema.from_dict(PLAIN)
N = 12


def arrays(**changes):
    """A site's file that fits."""
    rng = generator(0, purpose="pictures that fit")
    level = np.linspace(92, 108, N)[:, None, None] + rng.integers(-20, 21, (N, 12, 10))
    masks = np.zeros((N, 12, 10), bool)
    masks[:, 3:6, 3:6] = True
    data = {
        "images": level.astype(np.uint8), "dx": np.array(["benign", "malignant"] * 6), "masks": masks,
        "lesion": np.array([f"p{i // 2}" for i in range(N)]),
    }  # fmt: skip
    return {name: values for name, values in {**data, **changes}.items() if values is not None}


def findings(path, schema=SCHEMA, **changes):
    file = path / "own.npz"
    np.savez(file, **arrays(**changes))
    return examine_data(schema, str(file)).findings


def told(path, schema=SCHEMA, **changes):
    return [(f.level, f.code, f.column) for f in findings(path, schema, **changes)]


@pytest.mark.parametrize("plain", [PLAIN, {"pictures": True, "size": [8, 8], "channels": 3}, {**PLAIN, "missing": []}])
def test_it_travels_through_json_and_toml_unchanged(tmp_path, plain):
    schema = parse_schema(plain)
    assert isinstance(schema, ImageSchema)
    (tmp_path / "schema.json").write_text(json.dumps(schema.to_dict()))
    (tmp_path / "consortium.toml").write_text(dumps({"name": "x", "data": plain}))
    assert read_schema(tmp_path / "schema.json") == read_schema(tmp_path / "consortium.toml") == schema


def test_a_table_is_still_a_table():
    assert isinstance(parse_schema({"label": "y", "columns": {"a": {"kind": "number"}}}), DataSchema)


@pytest.mark.parametrize(
    ("change", "code", "value"),
    [
        ({"pictures": False}, "wrong-type", None),
        ({"size": None}, "invalid-image-shape", None),
        ({"size": [28]}, "invalid-image-shape", None),
        ({"size": [28, 3]}, "invalid-image-shape", "4 or"),
        ({"channels": 2}, "invalid-image-shape", "2.*channels = 1"),
        ({"channels": True}, "invalid-image-shape", None),
        ({"classes": ["benign"]}, "invalid-classes", "'dx'"),
        ({"positive": "melanoma"}, "unknown-class", "'melanoma'"),
        ({"patient": "dx"}, "conflicting-roles", "'dx'"),
        ({"masks": "drawn"}, "wrong-type", "'drawn'"),
        ({"brightness": [5, 4, 3, 2, 1]}, "unordered-range", None),
        ({"brightness": [0, 1, 2, 3, 256]}, "unordered-range", "0"),
        ({"columns": {"age": {"kind": "number"}}}, "conflicting-settings", None),
        ({"chanels": 1}, "unknown-key", "'channels'"),
        ({"schema": 9}, "schema-version", None),
    ],
)
def test_what_it_cannot_mean_is_refused_in_words(change, code, value):
    plain = {name: value for name, value in {**PLAIN, **change}.items() if value is not None}
    with refused(code, match=value):
        parse_schema(plain)


def test_a_file_that_fits_says_nothing_and_is_read_as_agreed(tmp_path):
    assert told(tmp_path) == []
    read = read_rows(SCHEMA, str(tmp_path / "own.npz"))
    assert isinstance(read, ImageSet)
    assert (read.shape, len(read), read.masks.sum()) == (SCHEMA.shape, N, 9 * N)
    assert read.label.tolist() == ["benign", "malignant"] * 6
    assert read.patient.tolist() == [f"p{i // 2}" for i in range(N)]


FITS = arrays()
IMAGES = FITS["images"]


def words(first, other):
    return np.array([first, *[other] * (N - 1)])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"images": IMAGES[:, :8]}, [("error", "size", "")]),
        ({"images": np.repeat(IMAGES[..., None], 3, axis=3)}, [("error", "channels", "")]),
        ({"images": IMAGES[:, None]}, [("error", "size", "")]),
        ({"images": IMAGES.astype(np.int16) * 16 - 1024}, [("error", "pixel-values", "")]),
        ({"images": IMAGES.astype(float)}, [("error", "pixel-values", "")]),
        ({"images": np.where(np.arange(10) == 3, np.nan, IMAGES / 255)}, [("error", "pixel-values", "")]),
        ({"images": IMAGES / 255}, []),
        ({"images": None}, [("error", "no-pictures", "")]),
        ({"images": 255 - IMAGES}, [("error", "brightness", "")]),
        ({"images": IMAGES // 3}, [("error", "brightness", "")]),
        ({"images": np.minimum(IMAGES.astype(int) + 6, 255).astype(np.uint8)}, [("warning", "brightness", "")]),
        ({"images": IMAGES * (np.arange(N) > 0).astype(np.uint8)[:, None, None]}, [("warning", "black", "")]),
        ({"images": np.where(np.arange(N)[:, None, None] == 1, IMAGES[:1], IMAGES)}, [("warning", "repeated-rows", "")]),
        ({"dx": words("melanoma", "benign")}, [("error", "label-values", "dx")]),
        ({"dx": words("", "benign")}, [("error", "no-label", "dx"), ("error", "one-class", "dx")]),
        ({"dx": words("benign", "benign")}, [("error", "one-class", "dx")]),
        ({"dx": None}, [("error", "missing-column", "dx")]),
        ({"dx": None, "labels": FITS["dx"]}, []),
        ({"dx": np.arange(N) % 2, "class_names": np.array(["benign", "malignant"])}, []),
        ({"lesion": None}, [("error", "missing-column", "lesion")]),
        ({"lesion": words("", "p")}, [("error", "no-patient", "lesion")]),
        ({"masks": None}, [("error", "no-masks", "")]),
        ({"masks": np.zeros((N, 12, 10), bool)}, [("warning", "masks", "")]),
        ({"masks": FITS["masks"][:, :5]}, [("error", "unreadable", "")]),
        ({name: values[:4] for name, values in FITS.items()}, [("error", "too-few-rows", "")]),
    ],
)  # fmt: skip
def test_each_fault_is_told_once(tmp_path, changes, expected):
    assert sorted(told(tmp_path, **changes)) == sorted(expected)


def test_faults_are_told_together_and_in_words(tmp_path):
    result = findings(tmp_path, images=IMAGES[:, :8], masks=None, dx=words("melanoma", "benign"), lesion=words("", "p"))
    assert [str(f) for f in result] == [
        "error: dx: 1 cell ('melanoma' 1) is not among the agreed classes 'benign', 'malignant'",
        "error: lesion: 1 image without a patient, first number 0 (from 0): fill it in",
        "error: images are 8x10 (height x width) where 12x10 is agreed: bring them to that size",
        "error: no truth masks, and every image is to have one: add an array or a folder 'masks'",
    ]
    leaves = fit.shareable_codes(result, SCHEMA)
    assert {"level": "error", "code": "label-values", "column": "dx"} in leaves
    assert "melanoma" not in json.dumps(leaves)


def test_patients_that_nobody_agreed_on_are_told(tmp_path):
    schema = replace(SCHEMA, patient=None)
    assert told(tmp_path, schema, groups=FITS["lesion"]) == [("warning", "extra-column", "")]


def test_arrays_are_found_under_the_names_that_the_reader_knows():
    assert {part: image_files._KEYS[part] for part in USUAL} == USUAL


@pytest.fixture
def folder(tmp_path):
    """The same pictures as files of mixed sizes, with a table and masks."""
    image = pytest.importorskip("PIL.Image")
    local = tmp_path / "scans"
    (local / "masks").mkdir(parents=True)
    lines = ["file,dx,lesion,age"]
    for i in range(N):
        size = (20, 24) if i % 2 else (10, 12)
        image.fromarray(FITS["images"][i]).resize(size).save(local / f"p{i}.png")
        image.fromarray(FITS["masks"][i]).resize(size).save(local / "masks" / f"p{i}_mask.png")
        lines.append(f"p{i}.png,{FITS['dx'][i]},{FITS['lesion'][i]},{40 + i}")
    (local / "labels.csv").write_text("\n".join(lines) + "\n")
    return local


def test_a_folder_of_pictures_is_brought_to_the_agreed_size(folder):
    assert examine_data(SCHEMA, str(folder)).findings == []
    read = read_rows(SCHEMA, str(folder))
    assert isinstance(read, ImageSet)
    assert (read.shape, len(read)) == (SCHEMA.shape, N)
    np.testing.assert_array_equal(read.pixels[0, ..., 0], FITS["images"][0])
    assert read.masks[0].sum() == 9
    assert read.columns["age"][0] == "40"


def test_what_a_folder_lacks_is_told(folder):
    for mask in (folder / "masks").iterdir():
        mask.unlink()
    (folder / "masks").rmdir()
    text = (folder / "labels.csv").read_text()
    (folder / "labels.csv").write_text(text.replace("p3.png,malignant,p1", "p3.png,melanoma,"))
    codes = [(f.level, f.code, f.column) for f in examine_data(SCHEMA, str(folder)).findings]
    assert codes == [("error", "label-values", "dx"), ("error", "no-patient", "lesion")]
    (folder / "labels.csv").write_text(text)
    assert [f.code for f in examine_data(SCHEMA, str(folder)).findings] == ["no-masks"]
    (folder / "p5.png").unlink()
    (fault,) = examine_data(SCHEMA, str(folder)).findings
    assert (fault.code, "'p5.png'" in fault.text) == ("unreadable", True)
    (folder / "labels.csv").unlink()
    with refused("file-not-found", match="labels.csv"):
        examine_data(SCHEMA, str(folder))


def test_a_table_where_pictures_are_agreed_and_the_other_way_round(tmp_path):
    (tmp_path / "own.csv").write_text("dx\nbenign\n")
    with refused("no-images"):
        examine_data(SCHEMA, str(tmp_path / "own.csv"))
    findings(tmp_path)
    columns = parse_schema({"label": "y", "columns": {"a": {"kind": "number"}}})
    with refused("expected-table"):
        read_rows(columns, str(tmp_path / "own.npz"))


def test_a_first_schema_from_a_file_fits_that_file(tmp_path):
    np.savez(tmp_path / "own.npz", **arrays())
    process = rounds("site", "schema", "own.npz", "--label", "dx", "--patient", "lesion", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    (tmp_path / "data.toml").write_text(process.stdout)
    schema = parse_schema(tomllib.loads(process.stdout)["data"])
    assert schema == replace(SCHEMA, positive=None, brightness=(), fewest_rows=8)
    process = rounds("site", "check", "--data", "own.npz", "--schema", "data.toml", cwd=tmp_path)
    assert (process.returncode, process.stdout) == (0, "12 images, agreed as 12x10, 1 channel: fits\n")
    np.savez(tmp_path / "own.npz", **arrays(masks=None))
    process = rounds("site", "check", "--data", "own.npz", "--schema", "data.toml", cwd=tmp_path)
    assert process.returncode == 1
    assert process.stdout.endswith("does not fit (1 to fix)\n")
    assert rounds("site", "check", "--data", "no.npz", "--schema", "data.toml", cwd=tmp_path).returncode == 2


@pytest.fixture(scope="module")
def skin():
    """HAM10000 by its four sources."""
    return split_images(find_entry("ham10000-malignant").load(), None)


@pytest.mark.data("ham10000")
def test_brightness_of_real_sources_is_not_suspected_and_that_of_their_negatives_is(skin):
    """Each of HAM10000's sources against the other three."""
    light = {name: fit.mean_brightness(local.pixels)[0] for name, local in skin.items()}
    result = rates(light)
    assert (result["as they are"], result["negatives"], result["a quarter as bright"]) == ((0, 0), (4, 4), (4, 4))
    mine = light.pop("vienna_dias")
    quantiles = tuple(np.quantile(np.concatenate(list(light.values())), LEVELS))
    for changed, words in ((255 - mine, "darker than agreed"), (255 - mine, "their negatives would fit")):
        (reported,) = check_brightness(changed, quantiles)
        assert words in reported.text
    (reported,) = check_brightness(mine / 2 + 127, quantiles)
    assert (reported.level, "brighter than agreed" in reported.text, "exported" in reported.text) == (
        "warning",
        True,
        True,
    )


@pytest.mark.data("ham10000")
def test_files_of_sources_are_the_pictures_that_they_were(skin, tmp_path):
    local = skin["vienna_dias"]
    (tmp_path / "own.npz").write_bytes(to_npz(local))
    schema = draft_image_schema(local, quantiles=True)
    assert (schema.size, schema.channels, schema.patient, schema.masks) == ((28, 28), 3, "patient", True)
    read = read_rows(schema, str(tmp_path / "own.npz"))
    assert isinstance(read, ImageSet)
    np.testing.assert_array_equal(read.pixels, local.pixels)
    np.testing.assert_array_equal(read.masks, local.masks)
    assert read.label.tolist() == local.label.tolist()
    assert read.patient.tolist() == local.patient.tolist()
    assert inspect_images(str(tmp_path / "own.npz"), schema).count == len(local) == 439


def test_a_file_is_split_into_one_for_each_hospital(tmp_path):
    bright_squares(tmp_path / "all.npz", 30, ["north", "St Mary"], purpose="split")
    process = rounds("data", "split", "all.npz", "--out", "own", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert [line.split()[-2] for line in process.stdout.splitlines()[1:]] == ["15", "15"]
    full, local = image_files.read_npz(tmp_path / "all.npz"), image_files.read_npz(tmp_path / "own" / "north.npz")
    mine = full.site == "north"
    np.testing.assert_array_equal(local.pixels, full.pixels[mine])
    assert (local.label.tolist(), local.site) == (full.label[mine].tolist(), None)
    process = rounds("data", "split", "all.npz", "--by", "ward", "--out", "more", cwd=tmp_path)
    assert (process.returncode, "names the site of each image" in process.stderr) == (2, True)
    assert not (tmp_path / "more").exists()
