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
from grandrounds.core.names import check_site_names
from grandrounds.data.images import ImageSet
from grandrounds.data.table import Table, missing_mask, to_text


def split_table(table: Table, column: str) -> dict[str, Table]:
    """Split rows by the values of a column, in their order and without it. A row that names no site is refused."""
    names = to_text(table.column(column, flag="--by"))
    gaps = np.flatnonzero(missing_mask(names))
    if len(gaps):
        raise BadInput(
            f"column '{column}' of {table.source} is empty in {len(gaps)} rows, the first at {table.where(int(gaps[0]))}: "
            "fill in the site, or leave the rows out",
            code="missing-values",
        )
    rest = table.without([column])
    sites = dict.fromkeys(names.tolist())
    check_site_names(sites, where=f"column '{column}' of {table.source}")
    return {name: rest.take(names == name) for name in sites}


def to_csv(table: Table) -> bytes:
    """Write a table as CSV in UTF-8; cells without a value are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.names)
    columns = [["" if v is None else v for v in to_text(values)] for values in table.columns.values()]
    writer.writerows(zip(*columns, strict=True))
    return out.getvalue().encode()


def to_parquet(table: Table) -> bytes:
    """Write a table as Parquet with the types of its columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    columns = {
        name: pa.array(values, pa.float64() if values.dtype == np.float64 else pa.string(), from_pandas=True)
        for name, values in table.columns.items()
    }
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def split_images(images: ImageSet, column: str | None) -> dict[str, ImageSet]:
    """Split images by hospital, or by another column, without what names it."""
    names = images.site if column is None else images.columns.get(column)
    if names is None:
        way = nearest(column or "", images.columns) if images.columns else "it has no columns"
        raise BadInput(f"{images.name} has no column that names the site of each image; {way} (use --by)", code="no-site-column")
    if missing_mask(names).any():
        raise BadInput(
            f"column '{column}' of {images.name} is empty for some images; fill in the site of each",
            code="missing-values",
        )
    rest = replace(images, site=None, columns={n: c for n, c in images.columns.items() if n != column})
    return {name: rest.take(names == name) for name in dict.fromkeys(names.tolist())}


def to_npz(images: ImageSet) -> bytes:
    """Write images as an .npz file that `read_npz` reads back; the same bytes at any time."""
    parts = {**images.columns, "labels": images.label, "patient": images.patient}
    arrays = {name: _to_words(values) for name, values in parts.items() if values is not None}
    arrays |= {"images": images.pixels, **({} if images.masks is None else {"masks": images.masks})}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, values, allow_pickle=False)
    return out.getvalue()


def _to_words(values: Array) -> Array:
    return np.array(["" if v is None else v for v in values.tolist()], dtype=np.str_)


_SUFFIX = ".rows.safetensors"


def is_bundle(where: str) -> bool:
    return str(where).endswith(_SUFFIX)


def write_bundle(rows: Table | ImageSet, plan: Path) -> Path:
    """Write a table or images beside a plan; text becomes numbers into a list of words."""
    path = plan.with_name(plan.stem + _SUFFIX)
    if isinstance(rows, Table):
        arrays, words = _pack_columns(rows)
        save(path, arrays, {"source": rows.source, "order": list(rows.names), "words": words})
        return path
    columns = {"label": rows.label, "site": rows.site, "patient": rows.patient}
    facts = {n: c for n, c in columns.items() if c is not None} | {f"column/{n}": c for n, c in rows.columns.items()}
    arrays, words = _pack_columns(Table(facts, rows.name))
    arrays["pixels"] = rows.pixels
    if rows.masks is not None:
        arrays["masks"] = rows.masks
    save(path, arrays, {"source": rows.name, "order": list(facts), "words": words})
    return path


def _pack_columns(table: Table) -> tuple[dict[str, Array], dict[str, list[str]]]:
    arrays, words = {}, {}
    for name, column in table.columns.items():
        if column.dtype.kind == "f":
            arrays[f"number/{name}"] = column
        else:
            levels = sorted({v for v in column.tolist() if v is not None})
            code_by_level = {level: i for i, level in enumerate(levels)}
            arrays[f"word/{name}"] = np.array(
                [-1 if v is None else code_by_level[v] for v in column.tolist()], np.int32
            )
            words[name] = levels
    return arrays, words


def read_bundle(where: str | Path) -> Table | ImageSet:
    """Read the rows that `write_bundle` wrote, column by column the same."""
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
    images = ImageSet(str(meta["source"]), arrays["pixels"], columns["label"], columns=further)
    return replace(images, site=columns.get("site"), patient=columns.get("patient"), masks=arrays.get("masks"))
