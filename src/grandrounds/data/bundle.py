"""Rows as one file that NumPy alone can read: how data travels to a bare machine with its plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import Array, load, save
from grandrounds.data.images import ImageSet
from grandrounds.data.table import Table

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
