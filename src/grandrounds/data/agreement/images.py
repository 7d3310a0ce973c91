"""A site's pictures as it holds them: an .npz file, or a folder with a table `labels.csv` in it and masks in `masks/`.

`Held` is what is there, faults and all, for the check before a site joins; `read_own` is what a run works with.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.agreement.schema import PictureSchema
from grandrounds.data.formats import PLAIN
from grandrounds.data.image_files import load_npz, read_folder, read_npz
from grandrounds.data.images import ImageSet
from grandrounds.data.readers import read_table
from grandrounds.data.table import Table, column_of

USUAL = {
    "images": ("images", "x"),
    "label": ("labels", "label", "y"),
    "patient": ("patient", "groups"),
    "masks": ("masks", "mask"),
}
"""Arrays of an .npz file by the part they play, as `image_files.read_npz` finds them."""

LABELS = "labels"
"""What the table in a folder of pictures is called, before its ending."""

MASKS = "masks"
"""The folder of masks in a folder of pictures."""

_TABLES = (".csv", ".csv.gz", ".tsv", ".parquet")


@dataclass(frozen=True)
class Held:
    """Pictures before anything is made of them. `told`: label and patient by their agreed names, as far as they are there."""

    source: str
    count: int
    told: Table
    images: Array | None = None  # as they are in the file
    masks: Array | None = None
    fault: str = ""  # why the pictures of a folder cannot be read
    unasked: str = ""  # an array that names patients where none was agreed on

    def where(self, index: int) -> str:
        """A picture as a person finds it: by its row in the table, or its number in the arrays."""
        return self.told.where(index) if Path(self.source).is_dir() else f"number {index} (from 0)"


def is_pictures(where: str) -> bool:
    """Whether what a site names as its data are pictures: an .npz file, or a folder."""
    return where.lower().endswith(".npz") or Path(where).is_dir()


def read_own(where: str, agreed: PictureSchema) -> ImageSet:
    """The site's pictures; the first fault is refused in words. Those of a folder are brought to the agreed size."""
    path = Path(where)
    if not path.is_dir():
        names = _array_names(path, agreed)
        return read_npz(path, label=names["label"], patient=names["patient"])
    masks = path / MASKS
    return read_folder(
        path,
        read_table(_labels(path), missing=agreed.missing, form=PLAIN),
        label=agreed.label,
        file=agreed.file,
        patient=agreed.patient,
        size=agreed.size,
        masks=masks if masks.is_dir() else None,
    )


def held(where: str, agreed: PictureSchema) -> Held:
    """What is there; only what is no picture file or table at all is refused."""
    if not is_pictures(where):
        raise BadInput(
            f"{where} holds no pictures, which the consortium agreed on: give an .npz file, or a folder of pictures "
            f"with {LABELS}.csv in it",
            code="no-images",
        )
    return _held_in_folder(Path(where), agreed) if Path(where).is_dir() else _held_in_npz(Path(where), agreed)


def _held_in_npz(path: Path, agreed: PictureSchema) -> Held:
    arrays = load_npz(path)
    names = _names(arrays, agreed)
    images, masks = (arrays.get(names[part] or "") for part in ("images", "masks"))
    told = {}
    for part, name in (("label", agreed.label), ("patient", agreed.patient)):
        if name is not None and names[part] is not None:
            values = arrays[str(names[part])].reshape(-1)
            told[name] = _words(values, arrays.get("class_names") if part == "label" else None, source=str(path))
    labelled = Table(told, str(path))
    count = len(labelled) if images is None or images.ndim == 0 else len(images)
    unasked = names["patient"] if agreed.patient is None else None
    return Held(str(path), count, labelled, images, masks, unasked=unasked or "")


def _held_in_folder(path: Path, agreed: PictureSchema) -> Held:
    table = read_table(_labels(path), missing=agreed.missing, form=PLAIN)
    told = Table({n: table.columns[n] for n in agreed.names if n in table.columns}, table.source, table.origin)
    try:
        pictures = read_own(str(path), agreed)
    except BadInput as e:
        return Held(str(path), len(table), told, fault=str(e))
    return Held(str(path), len(pictures), told, pictures.pixels, pictures.masks)


def _array_names(path: Path, agreed: PictureSchema) -> Mapping[str, str | None]:
    """As `_names`, without reading the arrays; a file that cannot be read is told by whoever reads it."""
    try:
        with np.load(path, allow_pickle=False) as opened:
            return _names(dict.fromkeys(opened.files), agreed)
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile):
        return dict.fromkeys(USUAL)


def _names(arrays: Mapping[str, object], agreed: PictureSchema) -> dict[str, str | None]:
    """Which array plays which part: that of the agreed name, else one of the usual ones."""
    asked = {"label": agreed.label, "patient": agreed.patient}
    tried = {part: [*([asked[part]] if asked.get(part) else []), *usual] for part, usual in USUAL.items()}
    return {part: next((str(n) for n in names if n in arrays), None) for part, names in tried.items()}


def _words(values: Array, names: Array | None, *, source: str) -> Array:
    """As the reader has them: text, or numbers that the file may list words for."""
    numbered = names is not None and values.dtype.kind in "iu" and names.ndim == 1 and names.dtype.kind in "US"
    if names is not None and numbered and len(values) and values.min() >= 0 and values.max() < len(names):
        values = names[values]
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    plain = [v or None for v in values.tolist()] if values.dtype.kind == "U" else values
    return column_of(plain, name="label", source=source)


def _labels(folder: Path) -> Path:
    """The table in a folder of pictures."""
    found = [folder / f"{LABELS}{ending}" for ending in _TABLES if (folder / f"{LABELS}{ending}").is_file()]
    if not found:
        near = nearest(f"{LABELS}.csv", sorted(p.name for p in folder.iterdir() if p.name.endswith(_TABLES)))
        raise BadInput(
            f"{folder} has no {LABELS}.csv, which names the pictures in it and what they show; {near}",
            code="file-not-found",
        )
    if len(found) > 1:
        raise BadInput(f"{folder} has {found[0].name} and {found[1].name}: leave one of them", code="ambiguous-file")
    return found[0]
