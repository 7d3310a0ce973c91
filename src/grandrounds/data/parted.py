"""A table, or pictures, as one file for each hospital, so that each can hold its own."""

from __future__ import annotations

import csv
import io
import zipfile
from dataclasses import replace

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.images import ImageSet
from grandrounds.data.table import Table, missing_mask, text_of


def parted(table: Table, by: str) -> dict[str, Table]:
    """The rows of each value of a column, in their order and without that column. A row that names no site is refused."""
    names = text_of(table.column(by, flag="--by"))
    gaps = np.flatnonzero(missing_mask(names))
    if len(gaps):
        raise BadInput(
            f"column '{by}' of {table.source} is empty in {len(gaps)} rows, the first at {table.where(int(gaps[0]))}: "
            "say whose they are, or leave them out"
        )
    rest = table.without([by])
    return {name: rest.take(names == name) for name in dict.fromkeys(names.tolist())}


def csv_of(table: Table) -> bytes:
    """A table as CSV in UTF-8; cells without a value are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.names)
    columns = [["" if v is None else v for v in text_of(values)] for values in table.columns.values()]
    writer.writerows(zip(*columns, strict=True))
    return out.getvalue().encode()


def parted_pictures(pictures: ImageSet, by: str | None) -> dict[str, ImageSet]:
    """The pictures of each hospital, or of each value of a further column, without what names it."""
    names = pictures.site if by is None else pictures.columns.get(by)
    if names is None:
        way = nearest(by or "", pictures.columns) if pictures.columns else "it has no columns"
        raise BadInput(f"{pictures.name} does not say whose each picture is; {way} (use --by)")
    if missing_mask(names).any():
        raise BadInput(f"column '{by}' of {pictures.name} is empty for some pictures: say whose they are")
    rest = replace(pictures, site=None, columns={n: c for n, c in pictures.columns.items() if n != by})
    return {name: rest.take(names == name) for name in dict.fromkeys(names.tolist())}


def npz_of(pictures: ImageSet) -> bytes:
    """Pictures as an .npz file that `read_npz` reads back; the same bytes at any time."""
    parts = {**pictures.columns, "labels": pictures.label, "patient": pictures.patient}
    arrays = {name: _as_words(values) for name, values in parts.items() if values is not None}
    arrays |= {"images": pictures.pixels, **({} if pictures.masks is None else {"masks": pictures.masks})}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as held:
        for name, values in arrays.items():
            with held.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, values, allow_pickle=False)
    return out.getvalue()


def _as_words(values: Array) -> Array:
    return np.array(["" if v is None else v for v in values.tolist()], dtype=np.str_)
