"""The image sets Grand Rounds knows by name: MNIST, CIFAR-10, HAM10000, XFed's truth masks, and drawn shapes.

The files are converted from what their publishers offer: `rounds data get` fetches and converts (`image_sources.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.formats import PLAIN
from grandrounds.data.image_files import load_npz, read_npz
from grandrounds.data.images import ImageSet
from grandrounds.data.partition import partition, partition_by_column
from grandrounds.data.readers import read_table
from grandrounds.data.sets import drawn_shapes, image_sources
from grandrounds.data.sets.image_sources import first_of_each
from grandrounds.data.store import DataFile, locate_file
from grandrounds.data.table import to_text

Part = Literal["train", "test", "all"]
PARTS = ("train", "test", "all")

DIGITS = tuple("0123456789")
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MALIGNANT = ("akiec", "bcc", "mel")

MNIST_FILE = DataFile(
    "mnist/mnist.npz",
    "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",
    11_490_519,
    also=(
        DataFile("mnist/mnist_idx.npz", "0cd53e72456ac2cb982903d584a6633c213797f3156fd95123b718bf1d7a8669", 54_950_922),
    ),
    build=image_sources.MNIST,
)
CIFAR_FULL_FILE = DataFile(
    "cifar10/cifar10_60000.npz",
    "d408b8031c724d92d312a5425314114730e9465931f1227fb62d69d2b8a83581",
    184_621_380,
    build=image_sources.CIFAR10,
)
CIFAR_FILES = (
    DataFile(
        "cifar10/cifar10_a.npz",
        "730eb8bf5a429b10f86d00dd74a06b1547bee0d0e8f687bdd5ed8c83d7f151f9",
        40_712_185,
        also=(CIFAR_FULL_FILE,),
        build=image_sources.CIFAR10,
    ),
    DataFile(
        "cifar10/cifar10_b.npz",
        "ab403b50d48c00c0f170d88b9e776ac019f92823d0c01e889ff83566e6f68a1c",
        27_147_928,
        also=(CIFAR_FULL_FILE,),
        build=image_sources.CIFAR10,
    ),
)
"""The first 2,000 + 400 images of each class of CIFAR-10; the full file will do, and the same is cut from it."""
HAM_FILES = (
    DataFile(
        "ham10000/ham10000_28x28.npz",
        "64fe3a074926ac1a98dcad38aa53d937ed0dabc1504d49e5e47ac2b0b1025b73",
        21_195_707,
        also=(DataFile("ham10000/ham10000_28x28_made.npz", None, 25_300_000),),
        build=image_sources.HAM10000,
    ),
    DataFile(
        "ham10000/ham10000_metadata.csv.gz",
        "6440e2f26f7dc9ee112b5cc2de5d0d3981a0812c13c1fd9073944fab4ea0e1f3",
        86_361,
        also=(
            DataFile(
                "ham10000/ham10000_metadata.csv",
                "12b788f3d42c9a315259cc1c56df399647b491356521cbd8acb30b092fdf8a6e",
                690_218,
            ),
        ),
        build=image_sources.HAM10000,
    ),
)
HAM_LARGE_FILES = (
    DataFile(
        "ham10000/ham10000_200x150_subset.zip",
        "d67ae6f90965c9dcf13e3f7c4f68373b248120fb5322001919bad477919e4700",
        6_117_216,
        also=(DataFile("ham10000/ham10000_128x128_made.npz", None, 82_500_000),),
        build=image_sources.HAM10000_LARGE,
    ),
    replace(HAM_FILES[1], build=image_sources.HAM10000_LARGE),
)
XFED_FILE = DataFile(
    "xfed_masks/xfed_masks.npz",
    "2b3c3b174ac0dbea4084e67b34b803b16b48adabf8011a985f47b891d46bf7c7",
    118_018,
    also=(DataFile("xfed_masks/xfed_masks_made.npz", None, 310_000),),
    build=image_sources.XFED,
)

_BATCH = 10_000
_BATCH_MD5 = (
    "5dd7e06a14cb22eb9f671a540d1b7c25",
    "5ea93a67294ea407fff1d09f752e9692",
    "942cd6a4bcdd0dd3c604fbe906cb4421",
    "ae636b3ba5c66a11e91e8cb52e771fcb",
    "53f37980c15c3d472c316c40844f3f0d",
    "803d5f7f4d78ea53de84dbe85f74fb6d",
)
"""Of the publisher's data_batch_1.bin to data_batch_5.bin and test_batch.bin."""

_WEB_BY_EYE = ("dog", "dog", "automobile", "automobile", "cat", "cat", "deer", "deer", "frog", "frog", "truck", "cat")


def mnist(split: Part = "all") -> ImageSet:
    """MNIST: 60,000 digits to train on, then 10,000 to test on; `part` and `index` say where each is from."""
    arrays = load_npz(locate_file(MNIST_FILE, name="mnist"))
    numbers = {part: np.arange(len(arrays[f"y_{part}"])) for part in ("train", "test")}
    return _official_parts("mnist", [arrays], classes=DIGITS, index=[numbers], split=split)


def cifar10(split: Part = "all") -> ImageSet:
    """CIFAR-10, two fifths of it: 20,000 images to train on, 4,000 to test on, balanced.

    They are the first 2,000 + 400 of each class. `index` is the position in the full 50,000 or 10,000.
    """
    paths = [locate_file(file, name="cifar-10") for file in CIFAR_FILES]
    full = [path for path in paths if path.name == Path(CIFAR_FULL_FILE.path).name]
    if not full:
        return _cifar([load_npz(path) for path in paths], split=split)
    arrays = load_npz(full[0])
    ends = ({"train": (0, 1200), "test": (0, 240)}, {"train": (1200, 2000), "test": (240, 400)})
    return _cifar([_cut(arrays, part) for part in ends], split=split)


def cifar10_full(path: str | Path | None = None, *, split: Part = "all") -> ImageSet:
    """Load all 50,000 + 10,000 images: those of `rounds data get cifar-10-full`, or of a file of your own.

    How a file is compressed differs between machines, so the content of your own is checked: the
    images, laid out as the publisher's batches, must have the published MD5 sums.
    """
    if path is None:
        return _cifar([load_npz(locate_file(CIFAR_FULL_FILE, name="cifar-10-full"))], split=split, name="cifar-10-full")
    arrays = load_npz(Path(path))
    if not _is_published(arrays):
        raise BadInput(
            f"{path} is not the full CIFAR-10; `rounds data get cifar-10-full` fetches and converts it",
            code="unexpected-file",
        )
    return _cifar([arrays], split=split)


def ham10000() -> ImageSet:
    """HAM10000 at 28 x 28: 10,015 skin lesions, seven diagnoses, four sources as sites, lesion masks.

    `patient` is the lesion (7,470 of them). Nine lesions have images in two of the sources
    (vidir_modern and vidir_molemax).
    """
    npz, meta = (locate_file(file, name="ham10000") for file in HAM_FILES)
    table = read_table(meta, form=PLAIN)
    images = read_npz(npz, patient="lesion", name="ham10000")
    if images.columns["image_id"].tolist() != table.column("image_id").tolist():
        raise BadInput(
            f"{npz} and {meta} list different images; put both publisher's files in place", code="unexpected-file"
        )
    columns = {name: to_text(values) for name, values in table.columns.items()}
    columns["sex"] = np.where(columns["sex"] == "unknown", "sex unknown", columns["sex"])  # groups have no column's name
    return replace(images, patient=columns["lesion_id"], columns=columns)


def ham10000_malignant() -> ImageSet:
    """HAM10000 as two classes: malignant (akiec, bcc, mel: 1,954) against benign (8,061)."""
    return _by_malignancy(ham10000(), name="ham10000-malignant")


def _by_malignancy(images: ImageSet, *, name: str) -> ImageSet:
    malignant = np.isin(images.label.astype(str), MALIGNANT)
    label = np.array(["benign", "malignant"], object)[malignant.astype(int)]
    columns = {**images.columns, "malignancy": label}
    return replace(images, name=name, label=label, columns=columns)


def ham10000_six() -> ImageSet:
    """HAM10000 as two classes at six sites: the two largest of its four sources in two halves, by whole lesions."""
    return replace(halve_largest(ham10000_malignant()), name="ham10000-six")


def ham10000_large() -> ImageSet:
    """HAM10000 at 128 x 128: the first 200 images of each diagnosis, as two classes at six sites as `ham10000-six`."""
    path, meta = (locate_file(file, name="ham10000-large") for file in HAM_LARGE_FILES)
    arrays = image_sources.read_ham10000_zip(path) if path.suffix == ".zip" else load_npz(path)
    table = read_table(meta, form=PLAIN)
    ids = table.column("image_id")
    row_of = {name: row for row, name in enumerate(ids.tolist())}
    rows = np.array([row_of[name] for name in arrays["image_id"].tolist()])
    columns = {name: to_text(values[rows]) for name, values in table.columns.items()}
    columns["sex"] = np.where(columns["sex"] == "unknown", "sex unknown", columns["sex"])
    images = ImageSet(
        name="ham10000-large",
        pixels=arrays["x"],
        label=columns["dx"],
        site=columns["dataset"],
        patient=columns["lesion_id"],
        masks=arrays["mask"],
        columns=columns,
    )
    return halve_largest(_by_malignancy(images, name="ham10000-large"))


def halve_largest(images: ImageSet, *, count: int = 2, seed: int = 0) -> ImageSet:
    """Cut the `count` largest sites in two ("name 1", "name 2") by whole patients: six sites of HAM10000's four.

    The column `clinic` says the same of each image.
    """
    if images.site is None:
        raise BadInput(f"{images.name} has no sites to halve; partition it instead", code="no-site-column")
    site = images.site.copy()
    rows_by_site = partition_by_column(images.site)
    largest = sorted(rows_by_site, key=lambda name: (-len(rows_by_site[name]), name))[:count]
    for name in largest:
        rows = rows_by_site[name]
        groups = None if images.patient is None else images.patient[rows]
        halves = partition("equal", images.label[rows], sites=2, seed=seed, groups=groups, min_rows=1)
        for k, half in enumerate(halves.values(), start=1):
            site[rows[half]] = f"{name} {k}"
    return replace(images, site=site, columns={**images.columns, "clinic": site})


def xfed_masks(kind: str = "mnist", *, web: bool = False) -> ImageSet:
    """Load XFed's images with hand-drawn truth masks, to score explanations by: 102 digits, or 18 of its 30 CIFAR images.

    Labels are the right ones (three published digits are wrong; `published` has those). Twelve
    "CIFAR" images are web photographs without a label: `web` includes them, with labels given by
    eye, so that the paper's 30 can be scored. `number` is XFed's own, from 1; `index` is the place
    in the official test set, None where there is none; `note` warns of a poor mask.
    The images are XFed's JPEG copies; take the originals from the test set by `index`.
    """
    if kind not in ("mnist", "cifar"):
        raise BadInput(
            f"kind '{kind}' of XFed masks is unknown; {nearest(kind, ('mnist', 'cifar'))}", code="unknown-kind"
        )
    arrays = load_npz(locate_file(XFED_FILE, name=f"xfed-{kind}"))
    pixels, index = arrays[f"{kind}_images"], arrays[f"{kind}_test_index"]
    numbers = arrays[f"{kind}_label"].tolist()
    if kind == "mnist":
        pixels = pixels[..., None]
        label = [DIGITS[y] for y in numbers]
        further = {"published": [DIGITS[y] for y in arrays["mnist_label_as_published"].tolist()]}
        origin = ["mnist test" if i >= 0 else "neither mnist set" for i in index]
    else:
        by_eye = iter(_WEB_BY_EYE)
        label = [CIFAR_CLASSES[y] if y >= 0 else next(by_eye) for y in numbers]
        further = {"note": ["poor mask" if k == 29 else None for k in range(1, len(label) + 1)]}
        origin = ["cifar-10 test" if i >= 0 else "web" for i in index]
    columns = {
        "number": [str(k) for k in range(1, len(label) + 1)],
        "index": [str(i) if i >= 0 else None for i in index.tolist()],
        "origin": origin,
        **further,
    }
    images = ImageSet(
        name=f"xfed-{kind}-{len(label)}" if web and kind == "cifar" else f"xfed-{kind}",
        pixels=pixels,
        label=np.array(label, object),
        masks=arrays[f"{kind}_masks"],
        columns={name: np.array(values, object) for name, values in columns.items()},
    )
    return images if web or kind == "mnist" else images.take(index >= 0)


def scoring_rows(images: ImageSet, scoring: ImageSet) -> Array:
    """Mark (n,) official test images that are also XFed's scoring images: leave them out of the final test."""
    used = set(scoring.columns["index"].tolist()) - {None}
    pairs = zip(images.columns["part"].tolist(), images.columns["index"].tolist(), strict=True)
    return np.array([part == "test" and index in used for part, index in pairs], bool)


def _cifar(files: Sequence[dict[str, Array]], *, split: Part, name: str = "cifar-10") -> ImageSet:
    index = [{part: arrays[f"idx_{part}"] for part in ("train", "test")} for arrays in files]
    return _official_parts(name, files, classes=CIFAR_CLASSES, index=index, split=split)


def _cut(arrays: dict[str, Array], ends: dict[str, tuple[int, int]]) -> dict[str, Array]:
    """Select the images number `start` to `stop` of each class, of both parts, in their order."""
    chosen = {part: first_of_each(arrays[f"y_{part}"], *ends[part]) for part in ends}
    return {
        f"{key}_{part}": arrays[f"{key}_{part}"][rows] for part, rows in chosen.items() for key in ("x", "y", "idx")
    }


def _official_parts(
    name: str,
    files: Sequence[dict[str, Array]],
    *,
    classes: Sequence[str],
    index: Sequence[dict[str, Array]],
    split: str,
) -> ImageSet:
    """Join x_train, y_train, x_test, y_test of one or more files, the training images first."""
    if split not in PARTS:
        raise BadInput(f"split '{split}' of {name} is unknown; {nearest(split, PARTS)}", code="unknown-split")
    parts = ("train", "test") if split == "all" else (split,)
    pixels = np.concatenate([arrays[f"x_{part}"] for part in parts for arrays in files])
    y = np.concatenate([arrays[f"y_{part}"] for part in parts for arrays in files])
    where = np.concatenate([numbers[part] for part in parts for numbers in index])
    sizes = [sum(len(arrays[f"y_{part}"]) for arrays in files) for part in parts]
    return ImageSet(
        name=name,
        pixels=pixels if pixels.ndim == 4 else pixels[..., None],
        label=np.array(classes, object)[y],
        columns={
            "part": np.repeat(np.array(parts, object), sizes),
            "index": where.astype(str).astype(object),
        },
    )


def _is_published(arrays: dict[str, Array]) -> bool:
    """Tell whether these are the publisher's six batches, byte for byte: a label, then 3 x 1024 values, for each image."""
    wanted = {"train": 5 * _BATCH, "test": _BATCH}
    for part, n in wanted.items():
        for key, shape in (("x", (n, 32, 32, 3)), ("y", (n,)), ("idx", (n,))):
            if f"{key}_{part}" not in arrays or arrays[f"{key}_{part}"].shape != shape:
                return False
    published = iter(_BATCH_MD5)
    for part, n in wanted.items():
        for start in range(0, n, _BATCH):
            planes = arrays[f"x_{part}"][start : start + _BATCH].transpose(0, 3, 1, 2).reshape(_BATCH, -1)
            batch = np.concatenate([arrays[f"y_{part}"][start : start + _BATCH, None], planes], axis=1)
            digest = hashlib.md5(batch.astype(np.uint8).data, usedforsecurity=False).hexdigest()
            if digest != next(published):
                return False
    return True


_HAM = {
    "rows": 10_015,
    "licence": "CC BY-NC 4.0 (not for commercial use)",
    "source_url": "https://doi.org/10.7910/DVN/DBW86T",
    "files": HAM_FILES,
    "site": "dataset",
    "patient": "lesion_id",
    "subgroup": "sex",
}
_XFED = {
    "licence": "none stated: for tests only, do not pass it on",
    "source_url": "https://github.com/XFed2023/XFed",
    "files": (XFED_FILE,),
}
_SKEWED = {"partition": "dirichlet", "sites": 10, "alpha": 0.5}
_DRAWN = {
    "licence": "Apache-2.0 (generated by this package)",
    "source_url": "https://grandrounds.readthedocs.io",
    "label": "shape",
    "files": (),
}

IMAGE_SETS: dict[str, dict[str, Any]] = {
    "mnist": {
        "name": "mnist",
        "title": "MNIST handwritten digits, 28 x 28 pixels: ten classes",
        "rows": 70_000,
        "licence": "none stated by the authors (often given as CC BY-SA 3.0)",
        "source_url": "http://yann.lecun.com/exdb/mnist/",
        "label": "digit",
        "load": mnist,
        "files": (MNIST_FILE,),
        "partition": _SKEWED,
    },
    "cifar-10": {
        "name": "cifar-10",
        "title": "CIFAR-10 photographs, 32 x 32 pixels in colour: ten classes, two fifths of the set, balanced",
        "rows": 24_000,
        "licence": "none stated by its authors",
        "source_url": "https://www.cs.toronto.edu/~kriz/cifar.html",
        "label": "object",
        "load": cifar10,
        "files": CIFAR_FILES,
        "partition": _SKEWED,
    },
    "cifar-10-full": {
        "name": "cifar-10-full",
        "title": "CIFAR-10 photographs, 32 x 32 pixels in colour: ten classes, all 60,000",
        "rows": 60_000,
        "licence": "none stated by its authors",
        "source_url": "https://www.cs.toronto.edu/~kriz/cifar.html",
        "label": "object",
        "load": cifar10_full,
        "files": (CIFAR_FULL_FILE,),
        "partition": _SKEWED,
    },
    "ham10000": {
        "name": "ham10000",
        "title": "HAM10000 skin lesions, 28 x 28 pixels in colour: seven diagnoses, four sources",
        "label": "dx",
        "load": ham10000,
        **_HAM,
    },
    "ham10000-malignant": {
        "name": "ham10000-malignant",
        "title": "HAM10000 skin lesions, 28 x 28 pixels in colour: malignant or benign, four sources",
        "label": "malignancy",
        "event": "malignant",
        "load": ham10000_malignant,
        **_HAM,
    },
    "ham10000-six": {
        "name": "ham10000-six",
        "title": "HAM10000 skin lesions, 28 x 28 pixels in colour: malignant or benign, six sites (two sources halved)",
        "label": "malignancy",
        "event": "malignant",
        "load": ham10000_six,
        **(_HAM | {"site": "clinic"}),
    },
    "ham10000-large": {
        "name": "ham10000-large",
        "title": "HAM10000 skin lesions, 128 x 128 pixels in colour: malignant or benign, 200 of each diagnosis, six sites",
        "label": "malignancy",
        "event": "malignant",
        "load": ham10000_large,
        **(_HAM | {"rows": 1_257, "files": HAM_LARGE_FILES, "site": "clinic"}),
    },
    "drawn-shapes": {
        "name": "drawn-shapes",
        "title": "Drawn shapes on textured backgrounds, 28 x 28 pixels, with exact masks: four classes",
        "rows": drawn_shapes.ROWS,
        "load": drawn_shapes.drawn_shapes,
        "partition": _SKEWED,
        **_DRAWN,
    },
    "drawn-shapes-backgrounds": {
        "name": "drawn-shapes-backgrounds",
        "title": "Drawn shapes at ten sites, with exact masks: at three sites the background gives the class away",
        "rows": drawn_shapes.ROWS,
        "load": drawn_shapes.drawn_shapes_backgrounds,
        "site": "site",
        **_DRAWN,
    },
}
"""Facts of the sets to train on, in the words of `catalog.Entry`; `load` gives an `ImageSet`."""

SCORING_SETS: dict[str, dict[str, Any]] = {
    "drawn-shapes-scoring": {
        "name": "drawn-shapes-scoring",
        "title": "Drawn shapes, 48 images with exact masks, each shape on each background, to score explanations by",
        "rows": drawn_shapes.SCORING_ROWS,
        "load": drawn_shapes.drawn_shapes_scoring,
        **_DRAWN,
    },
    "xfed-mnist": {
        "name": "xfed-mnist",
        "title": "XFed truth masks: 102 digits with hand-drawn strokes, to score explanations by",
        "rows": 102,
        "label": "digit",
        "load": lambda: xfed_masks("mnist"),
        **_XFED,
    },
    "xfed-cifar": {
        "name": "xfed-cifar",
        "title": "XFed truth masks: 18 CIFAR-10 test images with hand-drawn objects, to score explanations by",
        "rows": 18,
        "label": "object",
        "load": lambda: xfed_masks("cifar"),
        **_XFED,
    },
    "xfed-cifar-30": {
        "name": "xfed-cifar-30",
        "title": "XFed truth masks as the paper scores them: those 18 and 12 web photographs, labelled by eye",
        "rows": 30,
        "label": "object",
        "load": lambda: xfed_masks("cifar", web=True),
        **_XFED,
    },
}
"""Facts of the sets that sites are scored on, never trained on."""
