"""Readers of images: an .npz file, or a folder of images with a table of labels, becomes an `ImageSet`."""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array, check_npz
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.dataset import Dataset, build_dataset
from grandrounds.data.formats import PLAIN
from grandrounds.data.images import ImageSet, find_dark_images, pillow, read_masks, size_text
from grandrounds.data.readers import read_table
from grandrounds.data.schema import Schema
from grandrounds.data.table import Table, missing_mask, to_column, to_text

_KEYS = {
    "images": ("images", "x"),
    "label": ("labels", "label", "y"),
    "site": ("site", "sites"),
    "patient": ("patient", "groups"),
    "masks": ("masks", "mask"),
}
_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif")
_GREY = ("1", "L")
_COLOUR = ("RGB", "RGBA", "RGBa", "RGBX", "P", "CMYK", "YCbCr", "LAB", "HSV")
_TWO_CHANNELS = ("LA", "La", "PA")
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap height and width
_ORIENTATION = 0x0112
_MASK_WAY = "give bool (n, H, W), or bits packed along the last axis"


def read_npz(
    path: str | Path,
    *,
    images: str | None = None,
    label: str | None = None,
    site: str | None = None,
    patient: str | None = None,
    masks: str | None = None,
    name: str | None = None,
) -> ImageSet:
    """Read images and labels from the arrays of an .npz file.

    Arrays are found under their usual names (images or x; labels, label or y; site; patient or groups; masks or mask) or the
    ones given. Any other array with one value for each image is kept as a further column.

    Args:
        path: The file.
        images: The array of images (n, H, W) or (n, H, W, C): whole numbers 0..255, or floats 0..1.
        label: The array of labels: words, or numbers, which become words where an array `class_names` lists them.
        site: The array of sites, as `label`, with `site_names`.
        patient: The array of patients.
        masks: The array of truth masks: bool, or bits packed along the width.
        name: The name of the set (default: the file's).

    Raises:
        BadInput: The file is damaged, lacks an array, or its arrays do not fit together.
    """
    arrays = load_npz(Path(path))
    names = {"images": images, "label": label, "site": site, "patient": patient, "masks": masks}
    keys = {part: _find_array(arrays, part, names[part], source=str(path)) for part in _KEYS}
    if keys["images"] is None or keys["label"] is None:
        part, word = ("images", "images") if keys["images"] is None else ("label", "labels")
        raise BadInput(
            f"{path} holds no {word}: none of its arrays is called {' or '.join(_KEYS[part])}; "
            f"{nearest(_KEYS[part][0], arrays)} (use {part}=)",
            code="missing-array",
        )
    pixels = _convert_pixels(arrays[keys["images"]], source=f"array '{keys['images']}' of {path}")
    table = _build_table(arrays, keys, n=len(pixels), source=str(path))
    facts = build_dataset(
        table,
        Schema(columns=(), label=keys["label"], site=keys["site"], patient=keys["patient"], time=None),
        name=name or Path(path).stem,
    )
    truth = None
    if keys["masks"] is not None:
        truth = _convert_masks(arrays[keys["masks"]], pixels.shape[:3], source=f"array '{keys['masks']}' of {path}")
    parts = [keys["label"], keys["site"], keys["patient"]]
    return _build_image_set(facts, pixels, masks=truth, source=str(path), leave=parts)


def read_train_test(path: str | Path) -> ImageSet:
    """Read an .npz file with its own test part: x_train, y_train, x_test, y_test, as many sets are published."""
    arrays = load_npz(Path(path))
    source = str(path)
    pixels = [
        _convert_pixels(arrays[f"x_{part}"], source=f"array 'x_{part}' of {source}") for part in ("train", "test")
    ]
    label = np.concatenate([np.asarray(arrays[f"y_{part}"]).reshape(-1) for part in ("train", "test")])
    sizes = [len(p) for p in pixels]
    if len(label) != sum(sizes):
        raise BadInput(
            f"{source} has {sum(sizes)} images but {len(label)} labels; give one for each image",
            code="length-mismatch",
        )
    part = np.repeat(np.array(["train", "test"], object), sizes)
    words = np.array([str(v) for v in label.tolist()], object)
    return ImageSet(Path(path).stem, np.concatenate(pixels), words, columns={"part": part})


def has_train_test(path: str | Path) -> bool:
    """Tell whether an .npz file holds a training and a test part."""
    try:
        with _open_npz(path) as archive:
            return {"x_train", "y_train", "x_test", "y_test"} <= set(archive.files)
    except _UNREADABLE:
        return False


def has_part(path: str | Path | None, part: str) -> bool:
    """Tell whether an .npz file names the `site` or `patient` of each image; an unreadable file is reported later."""
    try:
        with _open_npz(str(path)) as archive:
            return any(key in archive.files for key in _KEYS[part])
    except _UNREADABLE:
        return False


_UNREADABLE = (OSError, ValueError, EOFError, TypeError, NotImplementedError, zipfile.BadZipFile)


def _open_npz(path: str | Path) -> np.lib.npyio.NpzFile:
    """Open an .npz file without reading its arrays."""
    if not Path(path).is_file():
        raise FileNotFoundError(path)
    opened = np.load(Path(path), allow_pickle=False, mmap_mode="r")
    if not isinstance(opened, np.lib.npyio.NpzFile):
        raise TypeError("a single array")
    return opened


def read_folder(
    folder: str | Path,
    table: str | Path | Table,
    *,
    label: str,
    file: str = "file",
    site: str | None = None,
    patient: str | None = None,
    size: int | tuple[int, int] | None = None,
    masks: str | Path | None = None,
    name: str | None = None,
    drop_unlabelled: bool = False,
) -> ImageSet:
    """Read images from files, their labels from a table with a row for each.

    All images become RGB, or grey where every one is grey; transparency is ignored, a camera's rotation mark is obeyed. The
    table's columns are kept, for subgroups and to name images by.

    Args:
        folder: The folder of image files.
        table: The table, or its file.
        label: The column of labels.
        file: The column of names inside `folder`, with or without ending.
        site: The column of sites.
        patient: The column of patients.
        size: A side or (height, width) to bring all to; without it they must agree.
        masks: A folder of PNG files named like the images.
        name: The name of the set (default: the folder's).
        drop_unlabelled: Leave out rows without a label.

    Raises:
        BadInput: A file is absent or damaged, or sizes differ.
    """
    table = table if isinstance(table, Table) else read_table(table, form=PLAIN)
    schema = Schema(columns=(), label=label, site=site, patient=patient, time=None)
    where = Path(folder)
    facts = build_dataset(table, schema, name=name or where.name, drop_unlabelled=drop_unlabelled)
    paths = _image_files(where, facts.table, column=file)
    image = pillow("reading images")
    heads = [_read_header(image, path) for path in paths]
    target = _common_size([size for size, _ in heads], paths, folder=where, wanted=size)
    mode = "L" if all(grey for _, grey in heads) else "RGB"
    pixels = np.empty((len(paths), *target, len(mode)), np.uint8)
    for i, path in enumerate(paths):
        pixels[i] = _decode(image, path, mode=mode, target=target).reshape(pixels.shape[1:])
    truth = None
    if masks is not None:
        truth = read_masks(masks, [p.stem for p in paths], sizes=[size for size, _ in heads], resize=target)
    return _build_image_set(facts, pixels, masks=truth, source=str(folder))


def _build_image_set(
    facts: Dataset, pixels: Array, *, masks: Array | None, source: str, leave: Sequence[str | None] = ()
) -> ImageSet:
    """Build the set, once at least one image shows something."""
    out = ImageSet(
        name=facts.name,
        pixels=pixels,
        label=facts.label,
        site=facts.site,
        patient=facts.patient,
        masks=masks,
        columns={name: to_text(values) for name, values in facts.table.columns.items() if name not in leave},
    )
    if len(find_dark_images(out)) == len(out):
        raise BadInput(
            f"all {len(out)} images of {source} are black: nothing can be learnt; "
            "check how they were exported (8 bits a channel, 0 to 255)",
            code="black-images",
        )
    return out


# --- npz --------------------------------------------------------------------------------------------


def load_npz(path: Path) -> dict[str, Array]:
    """Load all arrays of an .npz file; nothing in it is ever unpickled."""
    if not path.is_file():
        near = sorted(p.name for p in path.parent.glob("*.npz")) if path.parent.is_dir() else []
        raise BadInput(
            f"file {path} not found; {nearest(path.name, near) if near else 'check the path'}", code="file-not-found"
        )
    key = ""
    try:
        if zipfile.is_zipfile(path):
            check_npz(path, where=str(path))
        opened = np.load(path, allow_pickle=False, mmap_mode="r")
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise BadInput(
                f"{path} holds a single array; save images and labels together with numpy.savez", code="not-an-npz"
            )
        with opened:
            arrays = {}
            for key in opened.files:
                arrays[key] = opened[key]
            return arrays
    except PermissionError:
        raise BadInput(
            f"{path} cannot be read: permission denied; ask its owner for read access", code="permission-denied"
        ) from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError):
        raise BadInput(f"{path} is not a complete .npz file; write or copy it again", code="damaged-file") from None
    except MemoryError:
        raise BadInput(f"{path} needs more memory than this machine has", code="out-of-memory") from None
    except ValueError as error:
        if key and "Object arrays" in str(error):
            raise BadInput(
                f"array '{key}' of {path} holds Python objects, which are never unpickled here; "
                "save numbers, or words as a string array",
                code="pickled-objects",
            ) from None
        raise BadInput(
            f"{path} is not an .npz file of plain arrays; write it again with numpy.savez", code="not-an-npz"
        ) from None


def _find_array(arrays: Mapping[str, Array], part: str, wanted: str | None, *, source: str) -> str | None:
    """Find the array of a role: the one asked for, or the first of the usual names that is present."""
    if wanted is not None and wanted not in arrays:
        raise BadInput(
            f"array '{wanted}' not found in {source}; {nearest(wanted, arrays)} (use {part}=)", code="unknown-array"
        )
    return wanted or next((name for name in _KEYS[part] if name in arrays), None)


def _convert_pixels(values: Array, *, source: str) -> Array:
    """Convert images to uint8 (n, H, W, C) with 1 or 3 channels."""
    if values.ndim not in (3, 4) or 0 in values.shape:
        raise BadInput(
            f"{source} has shape {values.shape}; images are (n, H, W) or (n, H, W, C)", code="invalid-image-shape"
        )
    if values.ndim == 3:
        values = values[..., None]
    if values.shape[3] not in (1, 3, 4):
        first = values.shape[1] in (1, 3, 4)
        way = "move the channels last: (n, H, W, C)" if first else "give 1 (grey), 3 (RGB) or 4 (RGBA)"
        raise BadInput(
            f"{source} has {values.shape[3]} channels (shape {values.shape}); {way}", code="invalid-image-shape"
        )
    if values.shape[3] == 4:
        values = values[..., :3]  # what Pillow does with RGBA, too
    return np.ascontiguousarray(_to_uint8(values, source=source))


def _to_uint8(values: Array, *, source: str) -> Array:
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind not in "iuf":
        raise BadInput(
            f"{source} is of type {values.dtype}; images are whole numbers 0..255 or floats 0..1",
            code="invalid-pixels",
        )
    if values.dtype.kind == "f":
        broken = ~np.isfinite(values).all(axis=(1, 2, 3))
        if broken.any():
            raise BadInput(
                f"{source} has NaN or infinite pixels in {int(broken.sum())} of {len(values)} images, "
                f"first image {int(broken.argmax())} (from 0); correct or leave out those images",
                code="invalid-pixels",
            )
    low, high = values.min(), values.max()
    most = 1 if values.dtype.kind == "f" else 255
    if low < 0 or high > most:
        raise BadInput(
            f"{source} runs from {low:g} to {high:g}; scale images to whole numbers 0..255 or floats 0..1",
            code="invalid-pixels",
        )
    if values.dtype.kind == "f":
        return np.asarray(np.rint(values * 255).astype(np.uint8))
    return values.astype(np.uint8)


def _build_table(arrays: Mapping[str, Array], keys: Mapping[str, str | None], *, n: int, source: str) -> Table:
    """Make columns of the arrays with one value for each image; those with a role must be among them."""
    parts = {part: keys[part] for part in ("label", "site", "patient") if keys[part] is not None}
    for part, key in parts.items():
        if key is not None and arrays[key].shape != (n,):
            raise BadInput(
                f"{source} has {n} images but array '{key}' ({part}) has shape {arrays[key].shape}; "
                "give one value for each image",
                code="length-mismatch",
            )
    columns = {}
    for key, values in arrays.items():
        if values.shape != (n,) or values.dtype.kind not in "biufUS":
            continue
        names = {keys["label"]: "class_names", keys["site"]: "site_names"}.get(key, "")
        worded = _name_codes(values, arrays[names], key=key, source=source) if names in arrays else values
        columns[key] = _convert_column(worded, key=key, source=source)
    for part, key in parts.items():
        gaps = missing_mask(columns[str(key)])
        if gaps.any():
            raise BadInput(
                f"array '{key}' of {source} has no {part} for {int(gaps.sum())} of {n} images, "
                f"first image {int(gaps.argmax())} (from 0); fill it in, or leave those images out",
                code="missing-values",
            )
    return Table(columns, source)


def _name_codes(numbers: Array, names: Array, *, key: str, source: str) -> Array:
    """Replace class or site numbers by the words that the file lists for them."""
    if numbers.dtype.kind not in "iu" or names.ndim != 1 or names.dtype.kind not in "US":
        return numbers
    if numbers.min() < 0 or numbers.max() >= len(names):
        raise BadInput(
            f"array '{key}' of {source} runs from {numbers.min()} to {numbers.max()}, but the file names "
            f"{len(names)} classes or sites; number them from 0 to {len(names) - 1}",
            code="out-of-range",
        )
    return np.asarray(names[numbers])


def _convert_column(values: Array, *, key: str, source: str) -> Array:
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind == "U":
        return to_column([word or None for word in values.tolist()], name=key, source=source)
    return to_column(values, name=key, source=source)


def _convert_masks(values: Array, shape: Sequence[int], *, source: str) -> Array:
    """Read masks (n, H, W) from bool, from 0/1 or 0/255, or from bits packed along the width."""
    n, height, width = shape
    packed = values.dtype == np.uint8 and values.shape == (n, height, -(-width // 8))
    if packed and width > 1:
        return np.unpackbits(values, axis=2, count=width).astype(bool)
    if values.shape != (n, height, width):
        raise BadInput(
            f"{source} has shape {values.shape} for images of shape {(n, height, width)}; {_MASK_WAY}",
            code="invalid-masks",
        )
    if values.dtype == np.bool_:
        return values
    if values.dtype.kind not in "iuf" or not np.isin(values, (0, 1) if values.max() <= 1 else (0, 255)).all():
        raise BadInput(f"{source} holds more than inside and outside; {_MASK_WAY}", code="invalid-masks")
    return np.asarray(values > 0)


# --- folders ----------------------------------------------------------------------------------------


def _image_files(folder: Path, table: Table, *, column: str) -> list[Path]:
    """Find the file of each row; absent ones are counted and the first is named."""
    if not folder.is_dir():
        raise BadInput(f"image folder {folder} not found; check the path", code="folder-not-found")
    words = to_text(table.column(column, flag="file="))
    gaps = missing_mask(words)
    if gaps.any():
        raise BadInput(
            f"column '{column}' of {table.source} has no file name in {int(gaps.sum())} of {len(words)} rows, "
            f"first {table.where(int(gaps.argmax()))}; fill it in, or leave those rows out",
            code="missing-values",
        )
    present = sorted(p for p in folder.iterdir() if p.suffix.lower() in _ENDINGS)
    by_stem = {p.stem: p for p in present}
    names = words.tolist()
    paths = [folder / name if (folder / name).is_file() else by_stem.get(name) for name in names]
    lost = [name for name, path in zip(names, paths, strict=True) if path is None]
    if lost:
        near = nearest(lost[0], (p.name for p in present)) if present else "there is no image in it"
        raise BadInput(
            f"{len(lost)} of {len(names)} images in column '{column}' of {table.source} are not in {folder}, "
            f"first '{lost[0]}'; {near}",
            code="missing-images",
        )
    return [path for path in paths if path is not None]


def _read_header(image: Any, path: Path) -> tuple[tuple[int, int], bool]:
    """Read (height, width) of an image and whether it is grey, from its first bytes."""
    try:
        with image.open(path) as opened:
            width, height = opened.size
            mode = str(opened.mode)
            sideways = opened.getexif().get(_ORIENTATION) in _SIDEWAYS
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError):
        raise _unreadable_error(path) from None
    if mode in _TWO_CHANNELS:
        raise BadInput(
            f"image {path} has 2 channels (grey and transparency); save it as grey or RGB", code="invalid-image-mode"
        )
    if mode not in _GREY + _COLOUR:
        raise BadInput(
            f"image {path} has more than 8 bits a pixel (mode {mode}); save it as 8-bit grey or RGB",
            code="invalid-image-mode",
        )
    return ((width, height) if sideways else (height, width)), mode in _GREY


def _common_size(
    sizes: Sequence[tuple[int, int]], paths: Sequence[Path], *, folder: Path, wanted: int | tuple[int, int] | None
) -> tuple[int, int]:
    """Choose the size all images get: the one asked for, or the one they have."""
    if wanted is not None:
        height, width = (wanted, wanted) if isinstance(wanted, int) else wanted
        if height < 1 or width < 1:
            raise BadInput(
                f"size = {size_text((height, width))}: an image has at least one pixel; give e.g. size=64",
                code="out-of-range",
            )
        return height, width
    counts = Counter(sizes).most_common()
    (usual, n), *rest = counts
    if rest:
        odd = next(i for i, size in enumerate(sizes) if size != usual)
        raise BadInput(
            f"images in {folder} have {len(counts)} sizes: {size_text(usual)} (height x width) in {n} of "
            f"{len(sizes)}, but '{paths[odd].name}' is {size_text(sizes[odd])}; "
            f"bring them to one with size=({usual[0]}, {usual[1]})",
            code="image-size-mismatch",
        )
    return usual


def _decode(pil: Any, path: Path, *, mode: str, target: tuple[int, int]) -> Array:
    from PIL import ImageOps

    try:
        with pil.open(path) as opened:
            image = ImageOps.exif_transpose(opened).convert(mode)
    except (OSError, SyntaxError, ValueError, pil.DecompressionBombError):
        raise _unreadable_error(path) from None
    if image.size != target[::-1]:
        image = image.resize(target[::-1], pil.Resampling.BICUBIC)
    return np.asarray(image)


def _unreadable_error(path: Path) -> BadInput:
    return BadInput(
        f"image {path} cannot be read: it is damaged or no image; replace it or leave its row out",
        code="damaged-image",
    )
