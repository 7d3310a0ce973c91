"""Draft of the `[data]` section from a table or images: a start, to be read and changed by people.

Kinds and categories come from the table. Rare categories are left out, and ranges and quantiles are written only on
request, because they describe patients. Quantiles are rounded, and ranges extend far beyond the values of the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.outcome import AUTO, CLASSIFICATION, SURVIVAL
from grandrounds.data.agreement.check import mean_brightness
from grandrounds.data.agreement.schema import LEVELS, AgreedColumn, DataSchema, ImageSchema
from grandrounds.data.images import ImageSet
from grandrounds.data.outcome import settle_task
from grandrounds.data.schema import Column, infer_schema
from grandrounds.data.table import Table, missing_mask, to_text

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
    task: str = AUTO,
    duration: str | None = None,
) -> DataSchema:
    """Draft the schema of a table.

    Args:
        table: The table.
        label: The column to predict.
        site: The column that names the hospital, which is left out.
        patient: The column that names the patient.
        time: The column to order rows by.
        drop: Columns to leave out.
        categories: Columns that are categories though they look like numbers.
        quantiles: Add the quantiles of its numbers, and ranges around them.
        task: The type of the outcome; "auto" tells it from the label.
        duration: The column with the follow-up time, for survival.
    """
    kinds = dict.fromkeys(categories, "categorical")
    task = settle_task(table, label, task=task, duration=duration)
    schema = infer_schema(
        table,
        label=label,
        site=site,
        patient=patient,
        time=time,
        drop=drop,
        overrides=kinds,
        task=task,
        duration=duration,
    )
    return DataSchema(
        label=label,
        columns=tuple(_draft_column(table, c, quantiles=quantiles) for c in schema.features),
        classes=_draft_levels(table, label, fewest=1) if task in (CLASSIFICATION, SURVIVAL) else (),
        patient=patient,
        time=time,
        task=task,
        duration=duration,
    )


def draft_image_schema(
    images: ImageSet, *, label: str | None = None, patient: str | None = None, quantiles: bool = False
) -> ImageSchema:
    """Draft the schema of a set of images; `quantiles` adds those of their brightness."""
    channels, height, width = images.shape
    with_quantiles = quantiles and len(images) >= _FEWEST
    light = np.quantile(mean_brightness(images.pixels)[0], LEVELS) if with_quantiles else ()
    return ImageSchema(
        size=(height, width),
        channels=channels,
        label=label or ImageSchema.label,
        classes=tuple(sorted(set(images.label.tolist()))),
        patient=patient or (None if images.patient is None else _PATIENT),
        masks=images.masks is not None,
        brightness=tuple(_round_digits(float(q)) for q in light),
    )


def _draft_column(table: Table, column: Column, *, quantiles: bool) -> AgreedColumn:
    if column.kind == "ordinal":
        return AgreedColumn(column.name, "ordinal", values=column.order)
    if column.kind == "categorical":
        return AgreedColumn(column.name, "category", values=_draft_levels(table, column.name))
    values = table.columns[column.name]
    present = values[~missing_mask(values)]
    if set(np.unique(present).tolist()) == {0.0, 1.0}:
        return AgreedColumn(column.name, "binary", values=("0", "1"))
    if not quantiles or len(present) < _FEWEST:
        return AgreedColumn(column.name, "number")
    rounded = tuple(_round_digits(float(q)) for q in np.quantile(present, LEVELS))
    return AgreedColumn(column.name, "number", range=_draft_range(rounded, present), quantiles=rounded)


def _draft_levels(table: Table, name: str, *, fewest: int = RARE) -> tuple[str, ...]:
    words = to_text(table.columns[name])
    counts = Counter(w for w in words.tolist() if w is not None)
    return tuple(sorted(word for word, n in counts.items() if n >= fewest))


def _draft_range(quantiles: tuple[float, ...], present: Array) -> tuple[float, float] | None:
    """Far beyond the outer quantiles, and beyond what all but a few patients show; not below 0 where nothing is."""
    low, high = quantiles[0], quantiles[-1]
    reach = _BEYOND * (high - low)
    ends = np.quantile(present, [RARE / len(present), 1 - RARE / len(present)])
    highest = max(high + reach, ends[1] + (ends[1] - low) / 2)
    lowest = 0.0 if present.min() >= 0 else min(low - reach, ends[0] - (high - ends[0]) / 2)
    limits = (_round_digits(float(lowest), digits=2), _round_digits(float(highest), digits=2))
    return limits if limits[0] < limits[1] else None  # all but a few show the same


def _round_digits(value: float, *, digits: int = 3) -> float:
    """Round to a number of significant digits."""
    return float(f"{value:.{digits}g}")
