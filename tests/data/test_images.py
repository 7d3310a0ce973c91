"""Sets of pictures, and every fault in an .npz file or a folder of pictures as one sentence with a way out."""

from __future__ import annotations

import csv
import subprocess
import sys
import zipfile
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from grandrounds.core.errors import install_extra
from grandrounds.core.rng import generator
from grandrounds.data.image_files import read_folder, read_npz
from grandrounds.data.images import ImageSet, find_dark_images, read_masks
from grandrounds.data.sets.images import HAM_FILES
from grandrounds.data.table import Table
from tests.support import refused

NOISE = generator(0, purpose="pictures").integers(1, 256, (6, 5, 9, 3), dtype=np.uint8)
LABELS = np.array(["mole", "naevus"] * 3)


def words(*values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


def small(**parts) -> ImageSet:
    return ImageSet(**{"name": "small", "pixels": NOISE, "label": LABELS.astype(object), **parts})


def fault(code, call, *expected):
    """The message of an error of a code: one line with all the words, without a cause to confuse it."""
    with refused(code) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    for word in expected:
        assert word in message, message


# --- ImageSet ---------------------------------------------------------------------------------------


def test_take_keeps_every_part_in_step():
    masks = NOISE[..., 0] > 128
    images = small(site=words(*"aabbcc"), patient=words(*"112233"), masks=masks, columns={"sex": words(*"fmfmfm")})
    part = images.take([4, 1])
    assert len(part) == 2 and part.shape == (3, 5, 9)
    assert part.label.tolist() == ["mole", "naevus"] and part.site.tolist() == ["c", "a"]
    assert part.patient.tolist() == ["3", "1"] and part.columns["sex"].tolist() == ["f", "m"]
    np.testing.assert_array_equal(part.masks, masks[[4, 1]])
    assert len(images.take(images.label == "mole")) == 3 and len(images.take(slice(2))) == 2


def test_arrays_cannot_be_changed_through_a_set():
    images = small(columns={"sex": words(*"fmfmfm")})
    for values in (images.pixels, images.label, images.columns["sex"]):
        with pytest.raises(ValueError):
            values[0] = values[1]
    assert NOISE.flags.writeable


def test_groups_are_words_and_many_numbers_become_quartiles():
    images = small(site=words(*"aabbcc"), columns={"sex": words("f", None, "f", "m", "m", "m")})
    assert images.groups("sex").tolist() == ["f", "missing", "f", "m", "m", "m"]
    assert images.columns["sex"][1] is None
    assert images.groups("site").tolist() == list("aabbcc")
    ages = words(None, *(str(i) for i in range(1, 40)))
    many = ImageSet("ages", np.zeros((40, 1, 1, 1), np.uint8), words(*"ab" * 20), columns={"age": ages})
    assert set(many.groups("age")) == {"missing", "up to 10.5", "10.5-20", "20-29.5", "over 29.5"}
    fault("unknown-column", lambda: images.groups("sexx"), "'sexx'", "'sex'")
    fault("unknown-column", lambda: small().groups("site"), "'site'")


def test_hash_follows_content_and_not_the_name():
    base = small()
    assert base.sha256() == small(name="other").sha256()
    changed = NOISE.copy()
    changed[5, 4, 8, 2] ^= 1
    parts = [
        {"pixels": changed},
        {"label": base.label[::-1]},
        {"site": words(*"aabbcc")},
        {"patient": words(*"aabbcc")},
        {"masks": np.zeros((6, 5, 9), bool)},
        {"columns": {"site": words(*"aabbcc")}},
        {"pixels": NOISE.reshape(6, 9, 5, 3)},
    ]
    assert len({base.sha256(), *(small(**p).sha256() for p in parts)}) == 1 + len(parts)


def test_parts_of_other_lengths_sizes_or_types_are_refused():
    fault("length-mismatch", lambda: small(label=words("a", "b")), "6 images", "2")
    fault("length-mismatch", lambda: small(columns={"age": words("1")}), "6 images", "'age'", "1")
    fault("mask-size-mismatch", lambda: small(masks=np.zeros((6, 9, 5), bool)), "9x5", "5x9")
    for wrong in ({"pixels": NOISE[0]}, {"pixels": NOISE.astype(float)}, {"label": LABELS}, {"masks": NOISE[..., 0]}):
        with pytest.raises(TypeError):
            small(**wrong)


def test_dark_pictures_are_listed():
    pixels = NOISE.copy()
    pixels[[1, 4]] = 3
    assert find_dark_images(small(pixels=pixels)) == [1, 4]
    assert find_dark_images(small()) == []


def test_modules_need_numpy_alone():
    code = (
        "import sys, numpy as np; from grandrounds.data import image_files, image_encoding;"
        "from grandrounds.data.sets import images; from grandrounds.data.corruption import protocol_shift, shortcut;"
        "protocol_shift.apply_shift(np.zeros((1, 2, 2, 1), np.uint8), protocol_shift.Shift(gamma=2.0));"
        "print([m for m in ('PIL', 'scipy', 'pandas', 'torch', 'sklearn') if m in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_without_pillow_arrays_still_work_and_files_say_what_to_install():
    code = (
        "import sys; sys.modules['PIL'] = None; import numpy as np;"
        "from grandrounds.data.corruption.protocol_shift import Shift, apply_shift; x = np.ones((1, 8, 8, 3), np.uint8);"
        "print(apply_shift(x, Shift(brightness=0.1)).max()); apply_shift(x, Shift(jpeg=50))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout.strip() == "26"
    assert "BadInput: a protocol shift needs Pillow" in process.stderr and install_extra("imaging") in process.stderr


# --- npz --------------------------------------------------------------------------------------------


@pytest.fixture
def npz(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "set.npz", **arrays)
        return tmp_path / "set.npz"

    return write


def test_npz_with_everything(npz):
    masks = NOISE[..., 0] > 128
    path = npz(
        images=NOISE,
        labels=np.array([0, 1, 0, 1, 0, 1]),
        class_names=np.array(["mole", "naevus"]),
        site=np.array([b"north", b"south"] * 3),
        groups=np.arange(6) // 2,
        masks=np.packbits(masks, axis=2),
        age=np.array([40.0, np.nan, 50, 60, 70, 80]),
        sex=np.array(["f", "", "m", "f", "m", "f"]),
    )
    images = read_npz(path)
    assert images.name == "set" and images.label.tolist() == LABELS.tolist()
    assert images.site.tolist() == ["north", "south"] * 3 and images.patient.tolist() == list("001122")
    assert images.columns["age"].tolist() == ["40", None, "50", "60", "70", "80"]
    assert images.columns["sex"].tolist() == ["f", None, "m", "f", "m", "f"]
    assert set(images.columns) == {"age", "sex"}
    np.testing.assert_array_equal(images.pixels, NOISE)
    np.testing.assert_array_equal(images.masks, masks)


@pytest.mark.parametrize("change", ["float32", "float64", "int16", "grey", "rgba"])
def test_npz_pictures_of_other_forms_read_the_same(npz, change):
    images, expected = NOISE, NOISE
    if change.startswith("float"):
        images = NOISE.astype(change) / np.dtype(change).type(255)
    elif change == "int16":
        images = NOISE.astype(np.int16)
    elif change == "grey":
        images, expected = NOISE[..., 0], NOISE[..., :1]
    else:
        images = np.concatenate([NOISE, NOISE[..., :1]], axis=3)
    np.testing.assert_array_equal(read_npz(npz(x=images, y=LABELS)).pixels, expected)


def test_npz_masks_of_other_forms_read_the_same(npz):
    masks = NOISE[..., 0] > 128
    for form in (masks, masks.astype(np.int64), masks.astype(np.uint8) * 255, masks.astype(float)):
        np.testing.assert_array_equal(read_npz(npz(x=NOISE, y=LABELS, mask=form)).masks, masks)


def test_npz_arrays_by_other_names(npz):
    images = read_npz(npz(x_train=NOISE, y_train=LABELS, hospital=np.arange(6) % 2), images="x_train", label="y_train")
    assert images.site is None and images.columns["hospital"].tolist() == list("010101")


@pytest.mark.parametrize(
    ("arrays", "code", "expected"),
    [
        ({"x_train": NOISE, "y": LABELS}, "missing-array", ["images="]),
        ({"x": NOISE, "lables": LABELS}, "missing-array", ["'lables'", "label="]),
        ({"x": NOISE, "y": LABELS[:4]}, "length-mismatch", ["'y'", "(4,)"]),
        ({"x": NOISE, "y": LABELS, "site": LABELS[:4]}, "length-mismatch", ["'site'", "(4,)"]),
        ({"x": NOISE, "y": np.zeros(6)}, "one-class-only", ["'0'"]),
        ({"x": NOISE, "y": np.linspace(0, 1, 6)}, "label-not-classes", []),
        ({"x": NOISE, "y": np.array([0, 1, np.nan, 1, 0, np.nan])}, "missing-values", ["2 of 6", "image 2"]),
        ({"x": NOISE, "y": np.array(["a", "", "b", "a", "b", "a"])}, "missing-values", ["1 of 6", "image 1"]),
        ({"x": NOISE, "y": np.arange(6), "class_names": np.array(["a", "b"])}, "out-of-range", ["0 to 5"]),
        ({"x": NOISE[..., :2], "y": LABELS}, "invalid-image-shape", ["2 channels"]),
        ({"x": np.repeat(NOISE, 2, axis=3), "y": LABELS}, "invalid-image-shape", ["6 channels"]),
        ({"x": NOISE.transpose(0, 3, 1, 2), "y": LABELS}, "invalid-image-shape", ["9 channels"]),
        ({"x": NOISE.reshape(6, -1), "y": LABELS}, "invalid-image-shape", ["(6, 135)"]),
        ({"x": NOISE[:0], "y": LABELS[:0]}, "invalid-image-shape", ["(0, 5, 9, 3)"]),
        ({"x": NOISE.astype(np.uint16) * 200, "y": LABELS}, "invalid-pixels", ["0..255"]),
        ({"x": NOISE.astype(float), "y": LABELS}, "invalid-pixels", ["0..1"]),
        ({"x": NOISE > 3, "y": LABELS}, "invalid-pixels", ["bool"]),
        ({"x": np.where(NOISE[3, 0, 0, 0] == NOISE, np.nan, 0.5), "y": LABELS}, "invalid-pixels", []),
        ({"x": np.zeros_like(NOISE), "y": LABELS}, "black-images", []),
        ({"x": NOISE, "y": LABELS, "masks": np.zeros((6, 5, 5), bool)}, "invalid-masks", ["(6, 5, 5)"]),
        ({"x": NOISE, "y": LABELS, "masks": NOISE[..., 0]}, "invalid-masks", []),
    ],
)
def test_npz_faults(npz, arrays, code, expected):
    fault(code, lambda: read_npz(npz(**arrays)), *expected)


def test_npz_files_that_are_none(tmp_path, npz):
    path = npz(x=NOISE, y=LABELS)
    fault("unknown-array", lambda: read_npz(path, label="z"), "'z'")
    fault("file-not-found", lambda: read_npz(tmp_path / "sets.npz"), "sets.npz", "'set.npz'")
    fault("file-not-found", lambda: read_npz(tmp_path / "no" / "set.npz"))
    (tmp_path / "cut.npz").write_bytes(path.read_bytes()[:400])
    fault("damaged-file", lambda: read_npz(tmp_path / "cut.npz"))
    damaged = bytearray(path.read_bytes())
    damaged[300] ^= 255
    (tmp_path / "damaged.npz").write_bytes(damaged)
    fault("damaged-file", lambda: read_npz(tmp_path / "damaged.npz"))
    (tmp_path / "empty.npz").write_bytes(b"")
    fault("damaged-file", lambda: read_npz(tmp_path / "empty.npz"))
    (tmp_path / "text.npz").write_text("no pictures here")
    fault("not-an-npz", lambda: read_npz(tmp_path / "text.npz"))
    np.save(tmp_path / "one.npy", NOISE)
    fault("not-an-npz", lambda: read_npz(tmp_path / "one.npy"))


def test_npz_objects_are_never_unpickled(npz):
    path = npz(x=NOISE, y=words(*LABELS.tolist()))
    fault("pickled-objects", lambda: read_npz(path), "'y'")


# --- folders ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Six pictures and their masks as PNG, and a table that lists them."""
    (tmp_path / "pictures").mkdir()
    (tmp_path / "masks").mkdir()
    for i, pixels in enumerate(NOISE):
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"p{i}.png")
        Image.fromarray(pixels[..., 0] > 128).save(tmp_path / "masks" / f"p{i}_mask.png")
    write_table(tmp_path)
    return tmp_path


def write_table(folder, **columns):
    base = {"file": [f"p{i}.png" for i in range(6)], "kind": LABELS, "clinic": list("aabbcc"), "age": range(30, 36)}
    base |= columns
    with (folder / "table.csv").open("w", newline="") as f:
        out = csv.writer(f)
        out.writerow(base)
        out.writerows(zip(*base.values(), strict=True))


def read(folder, **settings):
    settings = {"label": "kind", "site": "clinic", **settings}
    return read_folder(folder / "pictures", folder / "table.csv", **settings)


def test_folder_with_everything(folder):
    images = read(folder, masks=folder / "masks", patient="age")
    np.testing.assert_array_equal(images.pixels, NOISE)
    np.testing.assert_array_equal(images.masks, NOISE[..., 0] > 128)
    assert images.name == "pictures" and images.label.tolist() == LABELS.tolist()
    assert images.site.tolist() == list("aabbcc") and images.patient.tolist() == [str(a) for a in range(30, 36)]
    assert images.groups("clinic").tolist() == list("aabbcc") and images.columns["file"][5] == "p5.png"


def test_folder_takes_a_table_in_memory_and_names_without_ending(folder):
    table = Table.from_mapping({"id": ["p3", "p1"], "kind": ["a", "b"]})
    images = read_folder(folder / "pictures", table, file="id", label="kind")
    np.testing.assert_array_equal(images.pixels, NOISE[[3, 1]])


def test_grey_stays_grey_until_one_picture_has_colour(folder):
    for i in range(6):
        Image.fromarray(NOISE[i, ..., 0]).save(folder / "pictures" / f"p{i}.png")
    np.testing.assert_array_equal(read(folder).pixels, NOISE[..., :1])
    Image.fromarray(np.concatenate([NOISE[0], NOISE[0, ..., :1]], axis=2), "RGBA").save(folder / "pictures" / "p0.png")
    pixels = read(folder).pixels
    np.testing.assert_array_equal(pixels[0], NOISE[0])
    np.testing.assert_array_equal(pixels[1:], np.repeat(NOISE[1:, ..., :1], 3, axis=3))


def test_a_camera_held_sideways_is_turned(folder):
    for i in range(6):
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(np.rot90(NOISE[i])).save(folder / "pictures" / f"p{i}.png", exif=exif)
    np.testing.assert_array_equal(read(folder).pixels, NOISE)


def test_pictures_and_masks_are_brought_to_the_size_asked_for(folder):
    Image.fromarray(NOISE[2].repeat(2, axis=0)).save(folder / "pictures" / "p2.png")
    fault("image-size-mismatch", lambda: read(folder), "2 sizes", "5x9", "5 of 6", "'p2.png'", "10x9", "5", "9")
    images = read(folder, size=(5, 9))
    np.testing.assert_array_equal(images.pixels[[0, 1, 3, 4, 5]], NOISE[[0, 1, 3, 4, 5]])
    assert read(folder, size=4).shape == (3, 4, 4)
    fault("out-of-range", lambda: read(folder, size=0), "size = 0")
    fault(
        "mask-size-mismatch", lambda: read(folder, size=4, masks=folder / "masks"), "p2_mask.png", "5x9", "'p2'", "10x9"
    )
    Image.fromarray(NOISE[2, ..., 0].repeat(2, axis=0) > 128).save(folder / "masks" / "p2_mask.png")
    assert read(folder, size=4, masks=folder / "masks").masks.shape == (6, 4, 4)


def test_files_that_are_missing(folder):
    for i in (1, 4):
        (folder / "pictures" / f"p{i}.png").unlink()
    fault("missing-images", lambda: read(folder), "2 of 6", "'file'", "'p1.png'")
    fault("folder-not-found", lambda: read_folder(folder / "nowhere", folder / "table.csv", label="kind"))
    fault("unknown-column", lambda: read(folder, file="path"), "'path'")
    (folder / "bare").mkdir()
    fault("missing-images", lambda: read_folder(folder / "bare", folder / "table.csv", label="kind"), "6 of 6")
    write_table(folder, file=["p0.png", "", "p2.png", "p3.png", "", "p5.png"])
    fault("missing-values", lambda: read(folder), "2 of 6", "row 3")


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + bytes(20)])
def test_files_that_are_no_pictures(folder, content):
    (folder / "pictures" / "p3.png").write_bytes(content)
    fault("damaged-image", lambda: read(folder), "p3.png")


def test_a_picture_cut_short(folder):
    rows = generator(1, purpose="noise").integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for i in range(6):
        Image.fromarray(rows).save(folder / "pictures" / f"p{i}.png")
    full = (folder / "pictures" / "p5.png").read_bytes()
    (folder / "pictures" / "p5.png").write_bytes(full[: len(full) // 2])
    fault("damaged-image", lambda: read(folder), "p5.png")


def test_channels_and_depths_that_are_refused(folder):
    Image.fromarray(NOISE[0, ..., :2], "LA").save(folder / "pictures" / "p0.png")
    fault("invalid-image-mode", lambda: read(folder), "p0.png", "2 channels")
    Image.fromarray(NOISE[0, ..., 0].astype(np.uint16) * 200).save(folder / "pictures" / "p0.png")
    fault("invalid-image-mode", lambda: read(folder), "p0.png", "8 bits", "8")


def test_labels_that_are_missing_or_all_the_same(folder):
    write_table(folder, kind=["a", "", "b", "a", "b", ""])
    fault("missing-labels", lambda: read(folder), "2 rows", "row 3")
    assert len(read(folder, drop_unlabelled=True)) == 4
    fault("unknown-column", lambda: read(folder, label="kinds"), "'kinds'", "'kind'")
    write_table(folder, kind=["a"] * 6)
    fault("one-class-only", lambda: read(folder))


def test_black_pictures_are_allowed_until_all_are(folder):
    black = np.zeros_like(NOISE[0])
    for i in range(5):
        Image.fromarray(black).save(folder / "pictures" / f"p{i}.png")
    assert find_dark_images(read(folder)) == [0, 1, 2, 3, 4]
    Image.fromarray(black).save(folder / "pictures" / "p5.png")
    fault("black-images", lambda: read(folder), "6 images")


def test_masks_that_are_missing_or_damaged(folder):
    (folder / "masks" / "p4_mask.png").unlink()
    fault("missing-masks", lambda: read(folder, masks=folder / "masks"), "1 of 6", "'p4'")
    (folder / "masks" / "p4.png").write_bytes(b"none")
    fault("damaged-image", lambda: read(folder, masks=folder / "masks"), "p4.png")
    fault("folder-not-found", lambda: read(folder, masks=folder / "mask"))


def test_masks_read_the_same_however_they_were_saved(tmp_path):
    mask = NOISE[0, ..., 0] > 128
    grey = mask.astype(np.uint8)
    palette = Image.fromarray(grey)
    palette = palette.convert("P")
    palette.putdata(grey.ravel().tolist())
    palette.putpalette([0, 0, 0, 128, 0, 0])
    forms = {
        "bit": Image.fromarray(mask),
        "ones": Image.fromarray(grey),
        "grey": Image.fromarray(grey * 255),
        "red": Image.fromarray(np.stack([grey * 255, grey * 0, grey * 0], axis=2)),
        "palette": palette,
    }
    for name, image in forms.items():
        image.save(tmp_path / f"{name}.png")
    read_back = read_masks(tmp_path, list(forms), sizes=[(5, 9)] * len(forms))
    for result in read_back:
        np.testing.assert_array_equal(result, mask)


# --- real pictures ----------------------------------------------------------------------------------


@pytest.mark.data("ham10000")
def test_real_lesions_from_a_folder_are_those_of_the_small_file(tmp_path, data_folder):
    archive, small_file = data_folder / "ham10000" / "ham10000_200x150_subset.zip", data_folder / HAM_FILES[0].path
    if not archive.is_file():
        pytest.skip("there is no ham10000/ham10000_200x150_subset.zip in GRANDROUNDS_DATA")
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(tmp_path)
    data = read_folder(
        tmp_path / "images",
        tmp_path / "subset.csv",
        file="image_id",
        label="dx",
        site="dataset",
        patient="lesion_id",
        size=28,
        masks=tmp_path / "masks",
    )
    assert len(data) == 1257 and data.shape == (3, 28, 28)
    assert Counter(data.label.tolist())["vasc"] == 142 and len(set(data.site)) == 4
    every = read_npz(small_file, patient="lesion")
    index = {name: i for i, name in enumerate(every.columns["image_id"])}
    same = every.take([index[name] for name in data.columns["image_id"]])
    assert same.label.tolist() == data.label.tolist() and same.site.tolist() == data.site.tolist()
    assert np.abs(same.pixels.astype(int) - data.pixels).max() <= 2  # another Pillow may round otherwise
    assert (same.masks == data.masks).mean() > 0.9999
