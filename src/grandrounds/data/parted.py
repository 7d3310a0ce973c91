"""A table as one file for each hospital, so that each can hold its own."""

from __future__ import annotations

import csv
import io

import numpy as np

from grandrounds.data.table import Table, missing_mask, text_of
from grandrounds.errors import BadInput


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
