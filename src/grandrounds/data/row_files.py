"""Rows as files: one for each site (CSV, npz), or a bundle that travels with its plan to a machine that has NumPy alone."""

from __future__ import annotations

import csv
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import Array, load, save
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.images import ImageSet
from grandrounds.data.table import Table, missing_mask, text_of


def split_table(table: Table, by: str) -> dict[str, Table]:
    """The rows of each value of a column, in their order and without that column. A row that names no site is refused."""
    names = text_of(table.column(by, flag="--by"))
    gaps = np.flatnonzero(missing_mask(names))
    if len(gaps):
        raise BadInput(
            f"column '{by}' of {table.source} is empty in {len(gaps)} rows, the first at {table.where(int(gaps[0]))}: "
            "say whose they are, or leave them out",
            code="missing-values",
        )
    rest = table.without([by])
    return {name: rest.take(names == name) for name in dict.fromkeys(names.tolist())}


def to_csv(table: Table) -> bytes:
    """A table as CSV in UTF-8; cells without a value are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.names)
    columns = [["" if v is None else v for v in text_of(values)] for values in table.columns.values()]
    writer.writerows(zip(*columns, strict=True))
    return out.getvalue().encode()


def split_images(pictures: ImageSet, by: str | None) -> dict[str, ImageSet]:
    """The pictures of each hospital, or of each value of a further column, without what names it."""
    names = pictures.site if by is None else pictures.columns.get(by)
    if names is None:
        way = nearest(by or "", pictures.columns) if pictures.columns else "it has no columns"
        raise BadInput(f"{pictures.name} does not say whose each picture is; {way} (use --by)", code="no-site-column")
    if missing_mask(names).any():
        raise BadInput(
            f"column '{by}' of {pictures.name} is empty for some pictures: say whose they are", code="missing-values"
        )
    rest = replace(pictures, site=None, columns={n: c for n, c in pictures.columns.items() if n != by})
    return {name: rest.take(names == name) for name in dict.fromkeys(names.tolist())}


def to_npz(pictures: ImageSet) -> bytes:
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


_SUFFIX = ".rows.safetensors"


def is_bundle(where: str) -> bool:
    return str(where).endswith(_SUFFIX)


def write_bundle(rows: Table | ImageSet, plan: Path) -> Path:
    """Write a table or pictures beside a plan; text becomes numbers into a list of words."""
    path = plan.with_name(plan.stem + _SUFFIX)
    if isinstance(rows, Table):
        arrays, words = _packed(rows)
        save(path, arrays, {"source": rows.source, "order": list(rows.names), "words": words})
        return path
    columns = {"label": rows.label, "site": rows.site, "patient": rows.patient}
    facts = {n: c for n, c in columns.items() if c is not None} | {f"column/{n}": c for n, c in rows.columns.items()}
    arrays, words = _packed(Table(facts, rows.name))
    arrays["pixels"] = rows.pixels
    if rows.masks is not None:
        arrays["masks"] = rows.masks
    save(path, arrays, {"source": rows.name, "order": list(facts), "words": words})
    return path


def _packed(table: Table) -> tuple[dict[str, Array], dict[str, list[str]]]:
    arrays, words = {}, {}
    for name, column in table.columns.items():
        if column.dtype.kind == "f":
            arrays[f"number/{name}"] = column
        else:
            levels = sorted({v for v in column.tolist() if v is not None})
            at = {level: i for i, level in enumerate(levels)}
            arrays[f"word/{name}"] = np.array([-1 if v is None else at[v] for v in column.tolist()], np.int32)
            words[name] = levels
    return arrays, words


def read_bundle(where: str | Path) -> Table | ImageSet:
    """The rows that `write_bundle` wrote, column by column the same."""
    arrays, meta = load(Path(where), links=True)
    columns: dict[str, Array] = {}
    for name in meta["order"]:
        if f"number/{name}" in arrays:
            columns[name] = np.array(arrays[f"number/{name}"], float)
        else:
            levels = np.array([*meta["words"][name], None], object)
            columns[name] = levels[arrays[f"word/{name}"]]
    if "pixels" not in arrays:
        return Table(columns, source=str(meta["source"]))
    further = {n.removeprefix("column/"): c for n, c in columns.items() if n.startswith("column/")}
    pictures = ImageSet(str(meta["source"]), arrays["pixels"], columns["label"], columns=further)
    return replace(pictures, site=columns.get("site"), patient=columns.get("patient"), masks=arrays.get("masks"))
