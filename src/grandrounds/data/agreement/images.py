"""A site's images as it holds them: an .npz file, or a folder with a table `labels.csv` in it and masks in `masks/`.

A folder of DICOM or NIfTI scans has `labels.csv` or `manifest.csv`, which lists them with their labels, patients and masks.

`SiteImages` is what is there, faults and all, for the check before a site joins; `read_site_images` is what a run works with.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.agreement.schema import ImageSchema
from grandrounds.data.formats import PLAIN
from grandrounds.data.image_files import load_npz, read_folder, read_npz
from grandrounds.data.images import ImageSet
from grandrounds.data.readers import find_reader, lists_scans, read_table
from grandrounds.data.scan_options import ScanFinding, ScanOptions
from grandrounds.data.table import Table, to_column

USUAL = {
    "images": ("images", "x"),
    "label": ("labels", "label", "y"),
    "patient": ("patient", "groups"),
    "masks": ("masks", "mask"),
}
"""Arrays of an .npz file by the part they play, as `image_files.read_npz` finds them."""

LABELS = "labels"
"""Name of the table in a folder of images, before its ending."""

MANIFEST = "manifest"
"""Another name of that table, for scans."""

MASKS = "masks"
"""The folder of masks in a folder of images."""

_TABLES = (".csv", ".csv.gz", ".tsv", ".parquet", ".xlsx")


@dataclass(frozen=True)
class SiteImages:
    """A site's images before they are checked; `columns` has label and patient by their agreed names, as far as present."""

    source: str
    count: int
    columns: Table
    images: Array | None = None  # as they are in the file
    masks: Array | None = None
    fault: str = ""  # why the images of a folder cannot be read
    unagreed_patient: str = ""  # an array that names patients where none was agreed on
    scans: tuple[ScanFinding, ...] | None = None  # about DICOM and NIfTI files; None for other images

    def where(self, index: int) -> str:
        """Name an image as a person finds it: by its row in the table, or its number in the arrays."""
        return self.columns.where(index) if Path(self.source).is_dir() else f"number {index} (from 0)"


def is_image_source(where: str) -> bool:
    """Tell whether a site's data are images: an .npz file, or a folder."""
    return where.lower().endswith(".npz") or Path(where).is_dir()


def read_site_images(where: str, agreed: ImageSchema) -> ImageSet:
    """Read a site's images; the first fault is refused, and those of a folder are brought to the agreed size."""
    path = Path(where)
    if not path.is_dir():
        names = _array_names(path, agreed)
        return read_npz(path, label=names["label"], patient=names["patient"])
    table = read_table(_label_file(path), missing=agreed.missing, form=PLAIN)
    if lists_scans(table, path, file=agreed.file):
        images: ImageSet = find_reader("data.scan")(
            path,
            table,
            label=agreed.label,
            options=agreed.scan or ScanOptions(),
            file=agreed.file,
            patient=agreed.patient,
            size=agreed.size,
        )
        return images
    masks = path / MASKS
    return read_folder(
        path,
        table,
        label=agreed.label,
        file=agreed.file,
        patient=agreed.patient,
        size=agreed.size,
        masks=masks if masks.is_dir() else None,
    )


def inspect_images(where: str, agreed: ImageSchema) -> SiteImages:
    """Look at a site's images without checking them; only what is no image file or table at all is refused."""
    if not is_image_source(where):
        raise BadInput(
            f"{where} holds no images, which the consortium agreed on: give an .npz file, or a folder of images "
            f"with {LABELS}.csv in it",
            code="no-images",
        )
    return _inspect_folder(Path(where), agreed) if Path(where).is_dir() else _inspect_npz(Path(where), agreed)


def _inspect_npz(path: Path, agreed: ImageSchema) -> SiteImages:
    arrays = load_npz(path)
    names = _role_names(arrays, agreed)
    images, masks = (arrays.get(names[part] or "") for part in ("images", "masks"))
    columns = {}
    for part, name in (("label", agreed.label), ("patient", agreed.patient)):
        if name is not None and names[part] is not None:
            values = arrays[str(names[part])].reshape(-1)
            columns[name] = _words(values, arrays.get("class_names") if part == "label" else None, source=str(path))
    labelled = Table(columns, str(path))
    count = len(labelled) if images is None or images.ndim == 0 else len(images)
    unagreed_patient = names["patient"] if agreed.patient is None else None
    return SiteImages(str(path), count, labelled, images, masks, unagreed_patient=unagreed_patient or "")


def _inspect_folder(path: Path, agreed: ImageSchema) -> SiteImages:
    table = read_table(_label_file(path), missing=agreed.missing, form=PLAIN)
    columns = Table({n: table.columns[n] for n in agreed.names if n in table.columns}, table.source, table.origin)
    if lists_scans(table, path, file=agreed.file):
        scans: SiteImages = find_reader("data.scan site")(path, table, columns, agreed)
        return scans
    try:
        images = read_site_images(str(path), agreed)
    except BadInput as e:
        return SiteImages(str(path), len(table), columns, fault=str(e))
    return SiteImages(str(path), len(images), columns, images.pixels, images.masks)


def _array_names(path: Path, agreed: ImageSchema) -> Mapping[str, str | None]:
    """Find the arrays of `_role_names` without reading them; a file that cannot be read is reported by its reader."""
    try:
        with np.load(path, allow_pickle=False) as opened:
            return _role_names(dict.fromkeys(opened.files), agreed)
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile):
        return dict.fromkeys(USUAL)


def _role_names(arrays: Mapping[str, object], agreed: ImageSchema) -> dict[str, str | None]:
    """Find the array of each role: that of the agreed name, else one of the usual ones."""
    roles = {"label": agreed.label, "patient": agreed.patient}
    tried = {part: [*([roles[part]] if roles.get(part) else []), *usual] for part, usual in USUAL.items()}
    return {part: next((str(n) for n in names if n in arrays), None) for part, names in tried.items()}


def _words(values: Array, names: Array | None, *, source: str) -> Array:
    """Convert an array to words as the reader does: text, or numbers that the file may list words for."""
    numbered = names is not None and values.dtype.kind in "iu" and names.ndim == 1 and names.dtype.kind in "US"
    if names is not None and numbered and len(values) and values.min() >= 0 and values.max() < len(names):
        values = names[values]
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    plain = [v or None for v in values.tolist()] if values.dtype.kind == "U" else values
    return to_column(plain, name="label", source=source)


def _label_file(folder: Path) -> Path:
    """Find the table in a folder of images."""
    names = [f"{stem}{ending}" for stem in (LABELS, MANIFEST) for ending in _TABLES]
    candidates = [folder / name for name in names if (folder / name).is_file()]
    if not candidates:
        near = nearest(f"{LABELS}.csv", sorted(p.name for p in folder.iterdir() if p.name.endswith(_TABLES)))
        raise BadInput(
            f"{folder} has no {LABELS}.csv, which names the images in it and what they show; {near}",
            code="file-not-found",
        )
    if len(candidates) > 1:
        raise BadInput(
            f"{folder} has {candidates[0].name} and {candidates[1].name}: leave one of them", code="ambiguous-file"
        )
    return candidates[0]
