"""A first `[data]` section from a table or pictures that somebody holds: a start, to be read and changed by people.

Kinds and categories come from the table. Rare categories are left out, and ranges and quantiles are told only where they
are asked for, because all of these are of patients; quantiles are rounded and ranges reach far beyond what was seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.agreement.check import brightness
from grandrounds.data.agreement.schema import LEVELS, AgreedColumn, DataSchema, PictureSchema
from grandrounds.data.images import ImageSet
from grandrounds.data.schema import Column, infer_schema
from grandrounds.data.table import Table, missing_mask, text_of

RARE = 5
"""Rows below which a category is not named."""

_FEWEST = 40  # values below which quantiles would be those of single patients
_PATIENT = "patient"  # what an .npz file usually calls it
_BEYOND = 2.0  # widths between the outer quantiles that a range reaches beyond them, at least


def draft_schema(
    table: Table,
    *,
    label: str,
    site: str | None = None,
    patient: str | None = None,
    time: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    quantiles: bool = False,
) -> DataSchema:
    """The schema that this table has; `quantiles`: tell those of its numbers, and ranges around them.

    `categories`: columns that are categories though they look like numbers.
    """
    kinds = dict.fromkeys(categories, "categorical")
    schema = infer_schema(table, label=label, site=site, patient=patient, time=time, drop=drop, overrides=kinds)
    return DataSchema(
        label=label,
        columns=tuple(_column(table, c, quantiles=quantiles) for c in schema.features),
        classes=_levels(table, label, fewest=1),
        patient=patient,
        time=time,
    )


def draft_image_schema(
    pictures: ImageSet, *, label: str | None = None, patient: str | None = None, quantiles: bool = False
) -> PictureSchema:
    """The schema that these pictures have; `quantiles`: tell those of their brightness too."""
    channels, height, width = pictures.shape
    told = quantiles and len(pictures) >= _FEWEST
    light = np.quantile(brightness(pictures.pixels)[0], LEVELS) if told else ()
    return PictureSchema(
        size=(height, width),
        channels=channels,
        label=label or PictureSchema.label,
        classes=tuple(sorted(set(pictures.label.tolist()))),
        patient=patient or (None if pictures.patient is None else _PATIENT),
        masks=pictures.masks is not None,
        brightness=tuple(_rounded(float(q)) for q in light),
    )


def _column(table: Table, column: Column, *, quantiles: bool) -> AgreedColumn:
    if column.kind == "ordinal":
        return AgreedColumn(column.name, "ordinal", values=column.order)
    if column.kind == "categorical":
        return AgreedColumn(column.name, "category", values=_levels(table, column.name))
    values = table.columns[column.name]
    present = values[~missing_mask(values)]
    if set(np.unique(present).tolist()) == {0.0, 1.0}:
        return AgreedColumn(column.name, "binary", values=("0", "1"))
    if not quantiles or len(present) < _FEWEST:
        return AgreedColumn(column.name, "number")
    found = tuple(_rounded(float(q)) for q in np.quantile(present, LEVELS))
    return AgreedColumn(column.name, "number", range=_range(found, present), quantiles=found)


def _levels(table: Table, name: str, *, fewest: int = RARE) -> tuple[str, ...]:
    words = text_of(table.columns[name])
    counts = Counter(w for w in words.tolist() if w is not None)
    return tuple(sorted(word for word, n in counts.items() if n >= fewest))


def _range(quantiles: tuple[float, ...], present: Array) -> tuple[float, float] | None:
    """Far beyond the outer quantiles, and beyond what all but a few patients show; not below 0 where nothing is."""
    low, high = quantiles[0], quantiles[-1]
    reach = _BEYOND * (high - low)
    ends = np.quantile(present, [RARE / len(present), 1 - RARE / len(present)])
    highest = max(high + reach, ends[1] + (ends[1] - low) / 2)
    lowest = 0.0 if present.min() >= 0 else min(low - reach, ends[0] - (high - ends[0]) / 2)
    found = (_rounded(float(lowest), digits=2), _rounded(float(highest), digits=2))
    return found if found[0] < found[1] else None  # all but a few show the same


def _rounded(value: float, *, digits: int = 3) -> float:
    """So many digits."""
    return float(f"{value:.{digits}g}")
