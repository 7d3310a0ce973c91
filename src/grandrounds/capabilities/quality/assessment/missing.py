"""Missing values over time: a column that stops being filled, or begins late.

Rows are put in the order of the agreed time column, or of the first agreed date column, and cut into periods of the same
number of rows. A column stops where its last periods have no value at all and most cells before them have one. The chance of an
empty period of 15 rows is below 0.5 to the power of 15 for a column that is filled in half of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.agreement.check import Finding
from grandrounds.data.agreement.dates import read_days
from grandrounds.data.agreement.schema import DataSchema
from grandrounds.data.table import Table, missing_mask

STOPS = "column-stops"

PERIODS = 8
FEWEST = 15
"""Rows of a period below which nothing is said."""

_FILLED = 0.5


def check_stops(table: Table, schema: DataSchema) -> Iterator[Finding]:
    """Find columns without values from some time on, or until some time.

    Args:
        table: The site's table.
        schema: The agreed schema, with a time column or date columns.
    """
    order = _order_rows(table, schema)
    if order is None or len(order) < PERIODS * FEWEST:
        return
    for column in schema.columns:
        if column.name not in table.columns or (column.missing_share or 0.0) > _FILLED:
            continue
        gaps = missing_mask(table.columns[column.name])[order]
        share = np.array([float(part.mean()) for part in np.array_split(gaps, PERIODS)])
        where = _find_stop(share)
        if where:
            filled = f"has values in {1 - share.mean():.0%} of the rows and none {where} of the time"
            text = f"{filled}: did the export or the test change?"
            yield Finding("warning", STOPS, column.name, text)


def _find_stop(share: Array) -> str:
    """Say when a column is empty, by the share of missing values in each period."""
    empty = share == 1
    if not empty.any() or empty.all():
        return ""
    after = int(np.argmin(empty[::-1]))  # empty periods at the end
    before = int(np.argmin(empty))
    if after and share[: len(share) - after].max() < _FILLED:
        return f"in the last {after / len(share):.0%}"
    if before and share[before:].max() < _FILLED:
        return f"in the first {before / len(share):.0%}"
    return ""


def _order_rows(table: Table, schema: DataSchema) -> Array | None:
    """Order rows by time; None where no column tells it. Rows without a time are left out."""
    names = [
        n for n in (schema.time, *(d.name for d in schema.dates if d.after)) if n is not None and n in table.columns
    ]
    for name in names:
        values = table.columns[name]
        moment = values if values.dtype == np.float64 else read_days(values)
        if moment is not None:
            known = np.flatnonzero(~np.isnan(moment))
            return np.asarray(known[np.argsort(moment[known], kind="stable")])
    return None
