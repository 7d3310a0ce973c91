"""Published files to arrays: small made-up archives in the publishers' formats, and the real ones where they are at hand."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from grandrounds.data.download import file_digest, no_progress
from grandrounds.data.image_files import load_npz
from grandrounds.data.sets import eicu, image_sources
from grandrounds.data.sets.eicu import EICU_DEMO
from grandrounds.data.sets.image_sources import (
    convert_cifar10,
    convert_ham10000,
    convert_ham10000_large,
    convert_mnist,
    convert_xfed,
    npz_bytes,
    read_ham10000_zip,
)
from grandrounds.data.sets.images import HAM_FILES, MNIST_FILE
from tests.support import refused

RNG = np.random.default_rng(0)


def arrays_of(made, path):
    return dict(np.load(io.BytesIO(made[path])))


def test_npz_is_the_same_bytes_at_any_time():
    data = npz_bytes({"x": np.arange(6, dtype=np.int32).reshape(2, 3).T, "names": np.array(["a", "bc"])})
    assert hashlib.sha256(data).hexdigest() == "1d9bc45babc46c8bbc95e7e1f30579cdaca2c30947a69372ef897f9accd046f9"
    images = np.load(io.BytesIO(data))
    assert images["x"].tolist() == [[0, 3], [1, 4], [2, 5]] and images["names"].tolist() == ["a", "bc"]


# --- MNIST ------------------------------------------------------------------------------------------


def idx(values):
    head = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    return head + values.tobytes()


def mnist_files(folder):
    """Four idx files with 5 + 2 digits, and the arrays in them."""
    arrays = {}
    for part, stem, n in (("train", "train", 5), ("test", "t10k", 2)):
        arrays[f"x_{part}"] = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        arrays[f"y_{part}"] = RNG.integers(0, 10, n, dtype=np.uint8)
        for kind, key in (("images-idx3", "x"), ("labels-idx1", "y")):
            packed = gzip.compress(idx(arrays[f"{key}_{part}"]))
            (folder / f"{stem}-{kind}-ubyte.gz").write_bytes(packed)
    return {f"mnist/{path.name}": path for path in folder.iterdir()}, arrays


def test_mnist_is_read_as_published(tmp_path):
    files, arrays = mnist_files(tmp_path)
    result = arrays_of(convert_mnist(files, no_progress), "mnist/mnist_idx.npz")
    assert list(result) == ["x_train", "y_train", "x_test", "y_test"]
    assert all((result[key] == arrays[key]).all() for key in arrays)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: b"\1" + raw[1:], lambda raw: b""])
def test_a_damaged_idx_file_is_refused(tmp_path, damage):
    files, _ = mnist_files(tmp_path)
    path = files["mnist/t10k-labels-idx1-ubyte.gz"]
    path.write_bytes(gzip.compress(damage(gzip.decompress(path.read_bytes()))))
    with refused("damaged-file", match="t10k-labels-idx1-ubyte.gz"):
        convert_mnist(files, no_progress)
    path.write_bytes(b"<html>moved</html>")
    with refused("damaged-file", match="t10k-labels-idx1-ubyte.gz"):
        convert_mnist(files, no_progress)


# --- CIFAR-10 ---------------------------------------------------------------------------------------


def cifar_archive(path, *, leave=(), extra=b""):
    """The six batches of the binary version with three images each, and the arrays in them."""
    x = RNG.integers(0, 256, (18, 32, 32, 3), dtype=np.uint8)
    y = np.arange(18, dtype=np.uint8) % 10
    with tarfile.open(path, "w:gz") as archive:
        for i, name in enumerate(
            [*image_sources.CIFAR_BATCHES["train"], *image_sources.CIFAR_BATCHES["test"], "readme.html"]
        ):
            index = slice(3 * i, 3 * i + 3)
            planes = x[index].transpose(0, 3, 1, 2).reshape(-1, 3072)
            raw = (
                np.concatenate([y[index, None], planes], axis=1).tobytes() + extra if name[-3:] == "bin" else b"<html>"
            )
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(raw)
            if name not in leave:
                archive.addfile(member, io.BytesIO(raw))
    return x, y


def test_cifar10_is_read_from_the_binary_version(tmp_path):
    path, steps = tmp_path / "cifar-10-binary.tar.gz", []
    x, y = cifar_archive(path)
    built = convert_cifar10({"cifar10/cifar-10-binary.tar.gz": path}, lambda *step: steps.append(step))
    result = arrays_of(built, "cifar10/cifar10_60000.npz")
    assert (result["x_train"] == x[:15]).all() and (result["x_test"] == x[15:]).all()
    assert (result["y_train"] == y[:15]).all() and (result["y_test"] == y[15:]).all()
    assert result["idx_train"].tolist() == list(range(15)) and result["idx_test"].tolist() == [0, 1, 2]
    assert steps[-1] == ("batches", 6, 6)


def test_another_archive_is_not_taken_for_cifar10(tmp_path):
    path = tmp_path / "a.tar.gz"
    cifar_archive(path, leave=("data_batch_4.bin",))
    with refused("incomplete-archive", match="data_batch_4.bin"):
        convert_cifar10({"a": path}, no_progress)
    cifar_archive(path, extra=b"x")
    with refused("damaged-file", match="data_batch_1.bin.*9,220 bytes.*3,073"):
        convert_cifar10({"a": path}, no_progress)
    path.write_bytes(path.read_bytes()[:2000])
    with refused("damaged-file"):
        convert_cifar10({"a": path}, no_progress)


def test_the_first_images_of_each_class_keep_their_order():
    labels = np.array([1, 0, 1, 1, 0, 0, 1])
    assert image_sources.first_of_each(labels, 0, 2).tolist() == [0, 1, 2, 4]
    assert image_sources.first_of_each(labels, 2, 3).tolist() == [3, 5]


# --- HAM10000 ---------------------------------------------------------------------------------------

TABLE = """lesion_id,image_id,dx,dx_type,age,sex,localization,dataset
HAM_3,ISIC_0003,nv,histo,45.0,male,back,vidir_modern
HAM_1,ISIC_0001,mel,histo,,female,face,rosendahl
HAM_3,ISIC_0002,nv,histo,45.0,male,back,vienna_dias
"""


def png(values):
    out = io.BytesIO()
    Image.fromarray(values).save(out, "PNG")
    return out.getvalue()


def ham_files(folder, *, table=TABLE, leave=()):
    """Three images of 60 x 45, one grey level each, with a mask of the left half; as Dataverse has them."""
    drawn = np.zeros((45, 60), np.uint8)
    drawn[:, :30] = 255
    images = {f"ISIC_000{k}.jpg": png(np.full((45, 60, 3), 40 * k, np.uint8)) for k in (1, 2, 3)}  # PNG: no loss
    masks = {f"masks/ISIC_000{k}_segmentation.png": png(drawn) for k in (1, 2, 3)}
    masks["__MACOSX/masks/._ISIC_0001_segmentation.png"] = b"junk"
    archives = {
        "HAM10000_images_part_1.zip": {name: images[name] for name in ("ISIC_0001.jpg", "ISIC_0003.jpg")},
        "HAM10000_images_part_2.zip": {"ISIC_0002.jpg": images["ISIC_0002.jpg"]},
        "HAM10000_segmentations_lesion_tschandl.zip": masks,
    }
    for name, members in archives.items():
        with zipfile.ZipFile(folder / name, "w") as archive:
            for member, data in members.items():
                if member not in leave:
                    archive.writestr(member, data)
    (folder / "HAM10000_metadata.csv").write_text(table)
    return {f"ham10000/{path.name}": path for path in folder.iterdir()}


def test_ham10000_is_reduced_and_put_in_order(tmp_path):
    built = convert_ham10000(ham_files(tmp_path), no_progress)
    result = arrays_of(built, "ham10000/ham10000_28x28_made.npz")
    assert result["image_id"].tolist() == ["ISIC_0001", "ISIC_0002", "ISIC_0003"]
    assert result["x"].shape == (3, 28, 28, 3) and result["x"][:, 5, 9, 1].tolist() == [40, 80, 120]
    masks = np.unpackbits(result["mask"], axis=2, count=28)
    assert masks[:, :, :14].all() and not masks[:, :, 14:].any()
    assert result["class_names"][result["y"]].tolist() == ["mel", "nv", "nv"] and result["lesion"].tolist() == [0, 1, 1]
    assert result["site_names"][result["site"]].tolist() == ["rosendahl", "vienna_dias", "vidir_modern"]
    header, *lines = TABLE.splitlines(keepends=True)
    assert built["ham10000/ham10000_metadata.csv"].decode() == "".join([header, *sorted(lines, key=lambda t: t[6:15])])


def test_the_larger_ham10000_has_the_same_images_at_another_size_from_the_publisher_and_from_an_archive(tmp_path):
    files = ham_files(tmp_path)
    built = convert_ham10000_large(files, no_progress)
    made = arrays_of(built, "ham10000/ham10000_128x128_made.npz")
    assert made["x"].shape == (3, 128, 128, 3) and made["x"][:, 20, 40, 1].tolist() == [40, 80, 120]
    assert made["mask"][:, :, :64].all() and not made["mask"][:, :, 64:].any()
    assert (
        built["ham10000/ham10000_metadata.csv"]
        == convert_ham10000(files, no_progress)["ham10000/ham10000_metadata.csv"]
    )
    with zipfile.ZipFile(tmp_path / "copies.zip", "w") as copies:
        for path in files.values():
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as archive:
                    for member in archive.namelist():
                        copies.writestr(member.replace("_segmentation", ""), archive.read(member))
    copied = read_ham10000_zip(tmp_path / "copies.zip")
    assert all((copied[key] == made[key]).all() for key in made)


def test_an_image_that_is_damaged_is_refused(tmp_path):
    files = ham_files(tmp_path)
    with zipfile.ZipFile(files["ham10000/HAM10000_images_part_2.zip"], "w") as archive:
        archive.writestr("ISIC_0002.jpg", b"<html>")
    with refused("damaged-file", match="images_part_2.zip"):
        convert_ham10000(files, no_progress)


@pytest.mark.parametrize(
    ("more", "code", "value"),
    [
        ({"leave": ("ISIC_0002.jpg",)}, "incomplete-archive", "images_part_1.zip.*images_part_2.zip.*'ISIC_0002.jpg'"),
        (
            {"leave": ("masks/ISIC_0003_segmentation.png",)},
            "incomplete-archive",
            "tschandl.zip.*'ISIC_0003_segmentation.png'",
        ),
        ({"table": TABLE.replace("dataset", "source")}, "unexpected-file", "metadata.csv"),
        ({"table": TABLE.replace("mel,", "melanoma,")}, "unexpected-file", None),
    ],
)
def test_ham10000_that_is_not_whole_is_refused(tmp_path, more, code, value):
    with refused(code, match=value):
        convert_ham10000(ham_files(tmp_path, **more), no_progress)


# --- XFed -------------------------------------------------------------------------------------------


def xfed_archive(path):
    masks = {"mnist": RNG.integers(0, 2, (102, 28, 28)), "cifar": RNG.integers(0, 2, (30, 32, 32))}
    with zipfile.ZipFile(path, "w") as archive:
        for kind, drawn in masks.items():
            for k, mask in enumerate(drawn, start=1):
                index = f"XFed-main/assets/{kind}_asset/{k}"
                grey = np.full(mask.shape, k, np.uint8)
                archive.writestr(f"{index}.jpg", png(grey))
                archive.writestr(f"{index}_mask.png", png((mask * 255).astype(np.uint8)))
        archive.writestr("XFed-main/assets/mnist_asset/labels.txt", "\n".join("1" for _ in range(102)))
    packed = b"".join(np.packbits(drawn.astype(bool)).tobytes() for drawn in masks.values())
    return masks, hashlib.sha256(packed).hexdigest()


def test_xfed_masks_are_read_and_known_by_their_content(tmp_path, monkeypatch):
    path = tmp_path / "XFed.zip"
    masks, digest = xfed_archive(path)
    with refused("unexpected-file"):
        convert_xfed({"xfed_masks/XFed.zip": path}, no_progress)
    monkeypatch.setattr(image_sources, "XFED_MASKS", digest)
    result = arrays_of(convert_xfed({"xfed_masks/XFed.zip": path}, no_progress), "xfed_masks/xfed_masks_made.npz")
    for kind, shape in (("mnist", (28, 28)), ("cifar", (32, 32, 3))):
        assert (result[f"{kind}_masks"] == masks[kind]).all() and result[f"{kind}_masks"].dtype == bool
        assert result[f"{kind}_images"].shape[1:] == shape and result[f"{kind}_images"][4].max() == 5
    assert np.flatnonzero(result["mnist_label"] != result["mnist_label_as_published"]).tolist() == [7, 22, 24]
    assert result["mnist_test_index"][[0, 99, 100, 101]].tolist() == [0, 99, -1, 1198]


# --- eICU demo --------------------------------------------------------------------------------------


def eicu_files(folder):
    """Three stays at two hospitals: one of two days, one of ten hours, one without hourly values."""
    stays = [1, 2, 3]
    patient = {name: ["a", "b", "c"] for name in eicu.PERSON} | {
        eicu.KEY: stays, "uniquepid": ["p", "q", "r"], "hospitalid": [7, 8, 7], "age": ["> 89", "40", ""],
        "unitdischargeoffset": [2880, 600, 2880], "unitdischargestatus": ["Alive"] * 3,
        "hospitaldischargestatus": ["Expired", "Alive", "Alive"],
    }  # fmt: skip
    tables = {
        "patient": patient,
        "hospital": {"hospitalid": [7, 8], "numbedscategory": "x", "teachingstatus": ["t", "f"], "region": ["West", ""]},
        "apacheApsVar": {eicu.KEY: stays, **{name: [-1.0, 2.0, 3.0] for name in eicu.APACHE}},
        "apachePatientResult": {
            eicu.KEY: [1, 1], "apacheversion": ["IV", "IVa"], "apachescore": [50, 60],
            "predictedhospitalmortality": [0.5, -1.0],
        },
    }  # fmt: skip
    for name, columns in tables.items():
        pd.DataFrame(columns).to_csv(folder / f"{name}.csv.gz", index=False)
    hours = pd.DataFrame({"stay_id": [1, 1, 1, 2], "time": pd.to_timedelta([0, 23, 24, 1], unit="h")})
    for name in (*eicu.VITALS, "lact", "urine"):
        hours[name] = [80.0, 100.0, 900.0, None]
    hours.to_parquet(folder / "hourly.parquet")
    return {f"eicu_demo/{path.name}": path for path in folder.iterdir()}


def test_eicu_demo_counts_the_first_24_hours(tmp_path):
    built = eicu.convert_eicu_demo(eicu_files(tmp_path), no_progress)
    assert list(built) == [eicu.OTHER]
    table = pd.read_csv(io.BytesIO(built[eicu.OTHER])).set_index(eicu.KEY)
    first = table.loc[1]
    assert (first["hr_mean"], first["hr_min"], first["hr_max"], first["hr_std"]) == (90, 80, 100, 14.1421)
    assert (first["lact_mean"], first["urine_sum"], first["hours_observed"]) == (90, 180, 2)
    assert (first["age"], first["teachingstatus"], first["region"]) == (90, 1, "West")
    assert table["cohort24"].tolist() == [1, 0, 0] and table["in_hourly"].tolist() == [1, 1, 0]
    assert np.isnan(first["aps_ph"]) and table.loc[2, "aps_ph"] == 2 and np.isnan(table.loc[2, "urine_sum"])
    assert first["apache_iva_score"] == 60 and np.isnan(first["apache_iva_predicted_mortality"])
    assert table["died_in_hospital"].tolist() == [1, 0, 0] and table["died_in_unit"].tolist() == [0, 0, 0]


def test_eicu_tables_that_are_damaged_are_refused(tmp_path):
    files = eicu_files(tmp_path)
    pd.DataFrame({"hospitalid": [7]}).to_csv(files["eicu_demo/hospital.csv.gz"], index=False)
    with refused("missing-columns", match="hospital.csv.gz.*'numbedscategory'"):
        eicu.convert_eicu_demo(files, no_progress)
    files["eicu_demo/hospital.csv.gz"].write_bytes(b"<html>")
    with refused("damaged-file", match="hospital.csv.gz"):
        eicu.convert_eicu_demo(files, no_progress)
    eicu_files(tmp_path)
    files["eicu_demo/hourly.parquet"].write_bytes(b"PAR1")
    with refused("damaged-file", match="hourly.parquet"):
        eicu.convert_eicu_demo(files, no_progress)


# --- the real files, where they are at hand -----------------------------------------------------------


@pytest.mark.data("mnist")
def test_real_mnist_has_the_digest_that_is_expected_of_the_conversion(data_folder):
    data = npz_bytes(load_npz(data_folder / MNIST_FILE.path))
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (MNIST_FILE.also[0].sha256, MNIST_FILE.also[0].bytes)


@pytest.mark.data("ham10000")
def test_real_lesions_are_those_of_the_known_file(tmp_path, data_folder):
    """Sixty images at 200 x 150, from which the known file was made."""
    with zipfile.ZipFile(data_folder / "ham10000/ham10000_200x150_subset.zip") as subset:
        lines = subset.read("subset.csv").decode().splitlines()[:61]
        names = [line.split(",")[1] for line in lines[1:]]
        with (
            zipfile.ZipFile(tmp_path / "images_part_1.zip", "w") as images,
            zipfile.ZipFile(tmp_path / "segmentations.zip", "w") as masks,
        ):
            for name in names:
                images.writestr(f"{name}.jpg", subset.read(f"images/{name}.jpg"))
                masks.writestr(f"{name}_segmentation.png", subset.read(f"masks/{name}.png"))
    (tmp_path / "metadata.csv").write_text("\n".join(lines[:1] + lines[:0:-1]))
    built = convert_ham10000({path.name: path for path in tmp_path.iterdir()}, no_progress)
    result, expected = arrays_of(built, "ham10000/ham10000_28x28_made.npz"), load_npz(data_folder / HAM_FILES[0].path)
    index = np.flatnonzero(np.isin(expected["image_id"], names))
    assert all((result[key] == expected[key][index]).all() for key in ("y", "site", "image_id"))
    assert np.abs(result["x"].astype(int) - expected["x"][index]).max() <= 2  # another Pillow may round otherwise
    assert (result["mask"] == expected["mask"][index]).mean() > 0.999


@pytest.mark.data("ham10000")
def test_the_table_of_ham10000_is_known_by_its_content(data_folder):
    text = gzip.decompress((data_folder / HAM_FILES[1].path).read_bytes())
    assert (hashlib.sha256(text).hexdigest(), len(text)) == (HAM_FILES[1].also[0].sha256, HAM_FILES[1].also[0].bytes)
    assert len(text) == next(s.bytes for s in HAM_FILES[1].build.sources if "metadata" in s.name)


@pytest.mark.data("eicu_demo")
def test_the_real_eicu_demo_becomes_the_known_table(data_folder):
    sources = EICU_DEMO.sources
    index = {s.name: data_folder / s.name.replace("hourly", "eicu_hourly") for s in sources}
    assert all(
        s.checksum == f"sha256:{file_digest(index[s.name])}" and s.bytes == index[s.name].stat().st_size
        for s in sources
    )
    ((path, built),) = eicu.convert_eicu_demo(index, no_progress).items()
    assert path in (eicu.KNOWN, eicu.OTHER)
    expected = pd.read_csv(data_folder / "eicu_demo/eicu_24h.csv.gz")
    pd.testing.assert_frame_equal(
        pd.read_csv(io.BytesIO(built)), expected, rtol=0, atol=1.01e-4
    )  # another pandas may round
