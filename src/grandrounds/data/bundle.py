"""A table as one array file that NumPy alone can read: how data travels to a bare machine with its plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from grandrounds.arrays import load, save
from grandrounds.data.table import Table

_SUFFIX = ".table.safetensors"


def is_bundle(where: str) -> bool:
    return str(where).endswith(_SUFFIX)


def write_bundle(table: Table, plan: Path) -> Path:
    """Write the table beside a plan; text columns become numbers into a list of words."""
    arrays, words = {}, {}
    for name, column in table.columns.items():
        if column.dtype.kind == "f":
            arrays[f"number/{name}"] = column
        else:
            levels = sorted({v for v in column.tolist() if v is not None})
            at = {level: i for i, level in enumerate(levels)}
            arrays[f"word/{name}"] = np.array([-1 if v is None else at[v] for v in column.tolist()], np.int32)
            words[name] = levels
    path = plan.with_name(plan.stem + _SUFFIX)
    save(path, arrays, {"source": table.source, "order": list(table.names), "words": words})
    return path


def read_bundle(where: str | Path) -> Table:
    """The table that `write_bundle` wrote, column by column the same."""
    arrays, meta = load(Path(where))
    columns = {}
    for name in meta["order"]:
        if f"number/{name}" in arrays:
            columns[name] = np.array(arrays[f"number/{name}"], float)
        else:
            levels = np.array([*meta["words"][name], None], object)
            columns[name] = levels[arrays[f"word/{name}"]]
    return Table(columns, source=str(meta["source"]))
