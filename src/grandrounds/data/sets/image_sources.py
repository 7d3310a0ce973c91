"""Published image sets: their addresses and checksums, and their conversion to the arrays that the catalog reads.

A `Build` joins the published files with the code that converts them. Checksums: MNIST's are those of torchvision,
CIFAR-10's is on its authors' page, HAM10000's are Dataverse's. XFed publishes none: its masks are known by their content.

Archives are read member by member, never unpacked to disk, and nothing is unpickled. Arrays are stored uncompressed, because
how a file is compressed differs between machines: MNIST and CIFAR-10 come out the same bytes everywhere. HAM10000 and XFed's
images are decoded from JPEG and may differ in the last bit.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.data.download import Progress, Source
from grandrounds.data.images import pillow
from grandrounds.data.store import Build

Files = Mapping[str, Path]
"""Downloads by the names of their sources."""

MNIST_STEMS = {"train": "train", "test": "t10k"}
CIFAR_BATCHES = {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)}
CIFAR_RECORD = 1 + 3 * 32 * 32  # the label, then 1,024 red, green and blue values

HAM_CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
HAM_SITES = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")
HAM_SIDE = 28
HAM_LARGE_SIDE, HAM_LARGE_EACH = 128, 200
"""Side of the larger images, and how many of each class there are at most: the first by `image_id`."""

XFED_MNIST = (*range(100), -1, 1198)
"""Place of XFed's 102 digits in MNIST's test set, found by comparison; -1 where a digit is in neither set."""
XFED_MNIST_RIGHT = {7: 9, 22: 6, 24: 4}
"""Labels of MNIST, by position, where XFed's own list differs."""
XFED_CIFAR = (17, 18, 21, 25, 27, 33, 36, 50, 70, 72, 74, 75, 79, 84, 85, 92, 98, 99, *[-1] * 12)
XFED_CIFAR_LABELS = (7, 8, 0, 2, 0, 5, 4, 9, 2, 8, 0, 2, 8, 2, 5, 8, 0, 7, *[-1] * 12)
XFED_MASKS = "ae3d9d139ad6e3891435313f8f0a6bb96340ecaa275179e27addabb50b810a1c"
"""SHA-256 of the 102 + 30 masks, packed to bits: the check that the repository holds what it held."""


def npz_bytes(arrays: Mapping[str, Array]) -> bytes:
    """Write an uncompressed .npz file, the same bytes on every machine."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, values in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            member.create_system, member.external_attr = 3, 0o600 << 16
            with archive.open(member, "w") as file:
                np.lib.format.write_array(file, np.ascontiguousarray(values), version=(1, 0), allow_pickle=False)
    return out.getvalue()


# --- MNIST ------------------------------------------------------------------------------------------


def convert_mnist(files: Files, progress: Progress) -> dict[str, bytes]:
    """Convert the four idx files to `x_train`, `y_train`, `x_test`, `y_test`."""
    arrays = {}
    for part, stem in MNIST_STEMS.items():
        arrays[f"x_{part}"] = read_idx(files[f"mnist/{stem}-images-idx3-ubyte.gz"])
        arrays[f"y_{part}"] = read_idx(files[f"mnist/{stem}-labels-idx1-ubyte.gz"])
    return {"mnist/mnist_idx.npz": npz_bytes(arrays)}


def read_idx(path: Path) -> Array:
    """Read an array of bytes in the idx format: two zeros, the type (8), the number of axes, their lengths, the values."""
    with _unreadable_as_errors(path), gzip.open(path) as file:
        raw = file.read()
    axes = raw[3] if len(raw) > 3 else 0
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    if raw[:3] != b"\0\0\x08" or len(raw) != 4 + 4 * axes + int(np.prod(shape)):
        raise BadInput(f"{path} is not an idx file of bytes; remove it and run the command again", code="damaged-file")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


# --- CIFAR-10 ---------------------------------------------------------------------------------------


def convert_cifar10(files: Files, progress: Progress) -> dict[str, bytes]:
    """Convert the six batches of the binary version to x, y and idx (the position in the set) of `train` and `test`."""
    (path,) = files.values()
    batches: dict[str, bytes] = {}
    every = [name for names in CIFAR_BATCHES.values() for name in names]
    with _unreadable_as_errors(path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            name = Path(member.name).name
            file = archive.extractfile(member) if name in every and member.isfile() else None
            if file is not None:
                batches[name] = file.read()
                progress("batches", len(batches), len(every))
    absent = [name for name in every if name not in batches]
    if absent:
        raise BadInput(
            f"{path} holds no {absent[0]}; the binary version of CIFAR-10 is wanted", code="incomplete-archive"
        )
    arrays: dict[str, Array] = {}
    for part, names in CIFAR_BATCHES.items():
        records = np.concatenate([_cifar_records(batches[name], name, path) for name in names])
        arrays[f"x_{part}"] = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays[f"y_{part}"] = records[:, 0]
        arrays[f"idx_{part}"] = np.arange(len(records), dtype=np.int32)
    return {"cifar10/cifar10_60000.npz": npz_bytes(arrays)}


def _cifar_records(batch: bytes, name: str, path: Path) -> Array:
    if len(batch) % CIFAR_RECORD or not batch:
        raise BadInput(
            f"{name} in {path} has {len(batch):,} bytes, not a multiple of {CIFAR_RECORD:,}", code="damaged-file"
        )
    return np.frombuffer(batch, np.uint8).reshape(-1, CIFAR_RECORD)


def first_of_each(labels: Array, start: int, stop: int) -> Array:
    """Positions of the images number `start` to `stop` of each class, in their order."""
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[start:stop] for c in np.unique(labels)]))


# --- HAM10000 ---------------------------------------------------------------------------------------


def convert_ham10000(files: Files, progress: Progress) -> dict[str, bytes]:
    """Convert images and lesion masks to 28 x 28, in the order of `image_id`, and the table in that order.

    Images (600 x 450) are reduced in one step by Pillow's bicubic filter, which takes in the whole area that becomes
    a pixel. A mask's pixel is inside where more than half of its area is.
    """
    parts, segmentations, table = (
        [files[name] for name in sorted(files) if word in name] for word in ("images", "segmentations", "metadata")
    )
    header, rows = _ham_table(table[0])
    x, masks = _ham_arrays(parts, segmentations, [row["image_id"] for row in rows], HAM_SIDE, progress)
    numbers: dict[str, int] = {}
    arrays: dict[str, Array] = {
        "x": x,
        "y": np.array([HAM_CLASSES.index(row["dx"]) for row in rows], np.uint8),
        "mask": np.packbits(masks, axis=2),
        "site": np.array([HAM_SITES.index(row["dataset"]) for row in rows], np.uint8),
        "lesion": np.array([numbers.setdefault(row["lesion_id"], len(numbers)) for row in rows], np.int32),
        "image_id": np.array([row["image_id"] for row in rows]),
        "class_names": np.array(HAM_CLASSES),
        "site_names": np.array(HAM_SITES),
    }
    return {
        "ham10000/ham10000_28x28_made.npz": npz_bytes(arrays),
        "ham10000/ham10000_metadata.csv": _ham_text(header, rows),
    }


def convert_ham10000_large(files: Files, progress: Progress) -> dict[str, bytes]:
    """Convert the first 200 images of each class, and their masks, to 128 x 128; and the whole table."""
    parts, segmentations, table = (
        [files[name] for name in sorted(files) if word in name] for word in ("images", "segmentations", "metadata")
    )
    header, rows = _ham_table(table[0])
    chosen = first_of_each(np.array([row["dx"] for row in rows]), 0, HAM_LARGE_EACH)
    names = [rows[i]["image_id"] for i in chosen]
    x, masks = _ham_arrays(parts, segmentations, names, HAM_LARGE_SIDE, progress)
    arrays = {"x": x, "mask": masks, "image_id": np.array(names)}
    return {
        "ham10000/ham10000_128x128_made.npz": npz_bytes(arrays),
        "ham10000/ham10000_metadata.csv": _ham_text(header, rows),
    }


def read_ham10000_zip(path: Path) -> dict[str, Array]:
    """Read the same images and masks from an archive of 200 x 150 copies: images/ID.jpg and masks/ID.png."""
    with _Members([path], ".jpg") as images:
        names = sorted(images.at)
    x, masks = _ham_arrays([path], [path], names, HAM_LARGE_SIDE, lambda *told: None, mask_ending="")
    return {"x": x, "mask": masks, "image_id": np.array(names)}


def _ham_arrays(
    parts: Sequence[Path],
    drawings: Sequence[Path],
    names: Sequence[str],
    side: int,
    progress: Progress,
    mask_ending: str = "_segmentation",
) -> tuple[Array, Array]:
    """Read images (n, side, side, 3) and masks (n, side, side) of these names from archives."""
    image = pillow("converting HAM10000")
    x = np.empty((len(names), side, side, 3), np.uint8)
    masks = np.empty((len(names), side, side), bool)
    with _Members(parts, ".jpg") as images, _Members(drawings, ".png") as drawn:
        for i, name in enumerate(names):
            x[i] = _reduce(image, images.open(image, name), side)
            masks[i] = _reduce_mask(image, drawn.open(image, f"{name}{mask_ending}"), side)
            if i % 50 == 49 or i == len(names) - 1:
                progress(f"images at {side} x {side}", i + 1, len(names))
    return x, masks


def _ham_text(header: Sequence[str], rows: Sequence[Mapping[str, str]]) -> bytes:
    return "\n".join([",".join(header), *(",".join(row.values()) for row in rows), ""]).encode()


def _ham_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Read columns and rows of the publisher's table; no cell of it holds a comma."""
    with _unreadable_as_errors(path):
        header, *lines = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines() if line]
    wanted = {"image_id", "lesion_id", "dx", "dataset"}
    if not wanted <= set(header) or any(len(line) != len(header) for line in lines):
        raise BadInput(
            f"{path} is not HAM10000's table with the columns {', '.join(sorted(wanted))}", code="unexpected-file"
        )
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    strange = [row for row in rows if row["dx"] not in HAM_CLASSES or row["dataset"] not in HAM_SITES]
    if strange:
        raise BadInput(
            f"{path}: image {strange[0]['image_id']} has a diagnosis or source that is not HAM10000's",
            code="unexpected-file",
        )
    return header, sorted(rows, key=lambda row: row["image_id"])


def _reduce(image: Any, opened: Any, side: int) -> Array:
    return np.asarray(opened.convert("RGB").resize((side, side), image.Resampling.BICUBIC))


def _reduce_mask(image: Any, opened: Any, side: int) -> Array:
    inside = opened.convert("L").point(lambda v: 255 if v > 127 else 0)
    return np.asarray(inside.resize((side, side), image.Resampling.BOX)) > 127


# --- XFed -------------------------------------------------------------------------------------------


def convert_xfed(files: Files, progress: Progress) -> dict[str, bytes]:
    """XFed's images with their hand-drawn masks, labels, and places in the test sets of MNIST and CIFAR-10."""
    (path,) = files.values()
    image = pillow("converting XFed's masks")
    arrays: dict[str, Array] = {}
    with _Members([path], "") as members:
        for kind, mode, count in (("mnist", "L", len(XFED_MNIST)), ("cifar", "RGB", len(XFED_CIFAR))):
            folders = [f"{kind}_asset/{k}" for k in range(1, count + 1)]
            shown = [members.open(image, f"{name}.jpg").convert(mode) for name in folders]
            arrays[f"{kind}_images"] = np.stack([np.asarray(one) for one in shown])
            arrays[f"{kind}_masks"] = np.stack(
                [_read_drawing(members.open(image, f"{name}_mask.png")) for name in folders]
            )
            progress(f"{kind} images", count, count)
        with _unreadable_as_errors(path):
            published = np.array([int(word) for word in members.read("mnist_asset/labels.txt").split()], np.int8)
    packed = b"".join(np.packbits(arrays[f"{kind}_masks"]).tobytes() for kind in ("mnist", "cifar"))
    if hashlib.sha256(packed).hexdigest() != XFED_MASKS or len(published) != len(XFED_MNIST):
        raise BadInput(
            f"{path} does not hold the masks that XFed published in 2023; ask its authors what has changed",
            code="unexpected-file",
        )
    label = published.copy()
    label[list(XFED_MNIST_RIGHT)] = list(XFED_MNIST_RIGHT.values())
    arrays |= {
        "mnist_test_index": np.array(XFED_MNIST, np.int32),
        "mnist_label": label,
        "mnist_label_as_published": published,
        "cifar_test_index": np.array(XFED_CIFAR, np.int32),
        "cifar_label": np.array(XFED_CIFAR_LABELS, np.int8),
    }
    return {"xfed_masks/xfed_masks_made.npz": npz_bytes(arrays)}


def _read_drawing(opened: Any) -> Array:
    """Read inside or outside: colour 1 of a palette, or white on black."""
    if opened.mode == "P":
        return np.asarray(np.asarray(opened) > 0)
    return np.asarray(np.asarray(opened.convert("RGB")).max(axis=2) > 127)


# --- archives ---------------------------------------------------------------------------------------


class _Members:
    """Members of one or more zip archives, by the end of their path."""

    def __init__(self, paths: Sequence[Path], ending: str) -> None:
        self.paths, self.ending = paths, ending
        self.archives: list[zipfile.ZipFile] = []
        self.at: dict[str, tuple[zipfile.ZipFile, str]] = {}

    def __enter__(self) -> _Members:
        for path in self.paths:
            with _unreadable_as_errors(path):
                archive = zipfile.ZipFile(path)
            self.archives.append(archive)
            for name in archive.namelist():
                if name.endswith(self.ending) and not name.endswith("/") and "__MACOSX" not in name:
                    short = name.removesuffix(self.ending).split("/")
                    self.at["/".join(short[-2:]) if not self.ending else short[-1]] = archive, name
        return self

    def __exit__(self, *exc: object) -> None:
        for archive in self.archives:
            archive.close()

    def read(self, name: str) -> bytes:
        if name not in self.at:
            raise BadInput(
                f"{' and '.join(str(p) for p in self.paths)} hold no '{name}{self.ending}'", code="incomplete-archive"
            )
        archive, member = self.at[name]
        with _unreadable_as_errors(Path(str(archive.filename))):
            return archive.read(member)

    def open(self, image: Any, name: str) -> Any:
        """Open a member as a Pillow image."""
        data = self.read(name)
        with _unreadable_as_errors(Path(str(self.at[name][0].filename))):
            opened = image.open(io.BytesIO(data))
            opened.load()
            return opened


@contextmanager
def _unreadable_as_errors(path: Path) -> Iterator[None]:
    """Turn what a damaged archive brings up into one sentence."""
    try:
        yield
    except (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, NotImplementedError, ValueError) as e:
        raise BadInput(
            f"{path} cannot be read: {e}; remove it and run the command again", code="damaged-file"
        ) from None


_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_MNIST_FILES = {
    "train-images-idx3-ubyte.gz": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    "train-labels-idx1-ubyte.gz": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
    "t10k-images-idx3-ubyte.gz": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
    "t10k-labels-idx1-ubyte.gz": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
}
MNIST = Build(
    tuple(
        Source(f"mnist/{name}", tuple(f"{mirror}{name}" for mirror in _MNIST_MIRRORS), size, f"md5:{md5}")
        for name, (size, md5) in _MNIST_FILES.items()
    ),
    convert_mnist,
    notes=("converted from the four idx files to arrays; every value is as published",),
)

CIFAR10 = Build(
    (
        Source(
            "cifar10/cifar-10-binary.tar.gz",
            (
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "https://cave.cs.toronto.edu/kriz/cifar-10-binary.tar.gz",
            ),
            170_052_171,
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    convert_cifar10,
    notes=(
        "converted from the binary version (50,000 + 10,000 images) to arrays; nothing is unpickled",
        "`cifar-10` is the first 2,000 + 400 images of each class; `cifar-10-full` is all 60,000",
    ),
)

_DATAVERSE = "https://dataverse.harvard.edu/api/access/datafile"
HAM10000 = Build(
    (
        Source(
            "ham10000/HAM10000_metadata.csv",
            (f"{_DATAVERSE}/4338392?format=original",),
            690_218,
            "md5:8f85fb1aa29d80a2797247e434deb79d",
        ),
        Source(
            "ham10000/HAM10000_segmentations_lesion_tschandl.zip",
            (f"{_DATAVERSE}/3838943",),
            10_808_743,
            "md5:6e8d252e09cfdb0189199f15985a5b84",
        ),
        Source(
            "ham10000/HAM10000_images_part_1.zip",
            (f"{_DATAVERSE}/3172585",),
            1_366_522_108,
            "md5:4639bfa73ab251610530a97c898e6e46",
        ),
        Source(
            "ham10000/HAM10000_images_part_2.zip",
            (f"{_DATAVERSE}/3172584",),
            1_403_566_547,
            "md5:da43d6cc50f6613013be07e8986b384b",
        ),
    ),
    convert_ham10000,
    ready=lambda: pillow("converting HAM10000"),
    notes=(
        "images are reduced from 600 x 450 to 28 x 28 in one step (bicubic), masks by area",
    ),
)

HAM10000_LARGE = Build(
    HAM10000.sources,
    convert_ham10000_large,
    ready=HAM10000.ready,
    notes=(
        "the first 200 images of each class are reduced from 600 x 450 to 128 x 128 in one step (bicubic), masks by area",
    ),
)

XFED = Build(
    (
        Source(
            "xfed_masks/XFed.zip",
            (
                "https://codeload.github.com/XFed2023/XFed/zip/refs/heads/main",
                "https://codeload.github.com/XFed2023/XFed/zip/59280705449de323fc800267e1b026f388fc125f",
            ),
        ),
    ),
    convert_xfed,
    ready=lambda: pillow("converting XFed's masks"),
    notes=(
        "the authors publish images and masks in their repository and state no licence: do not pass them on",
        "places in the test sets of MNIST and CIFAR-10 and three corrected digits are ours, found by comparison",
    ),
)
