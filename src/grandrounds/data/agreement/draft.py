"""Draft of the `[data]` section from a table or images: a start, to be read and changed by people.

Kinds and categories come from the table. Rare categories are left out. Ranges, quantiles, shares and dates are written only on
request, because they describe patients. Quantiles are rounded, and ranges extend far beyond the values of the table. Shares
are rounded to steps of at least `RARE` rows, so that none tells a smaller count; dates leave out the `RARE` first and last rows
and are rounded to months.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.outcome import AUTO, CLASSIFICATION, SURVIVAL
from grandrounds.data.agreement.check import mean_brightness
from grandrounds.data.agreement.dates import AgreedDates, read_days
from grandrounds.data.agreement.profiles import draft_profile
from grandrounds.data.agreement.relations import as_numbers, draft_relations
from grandrounds.data.agreement.schema import LEVELS, AgreedColumn, DataSchema, ImageSchema
from grandrounds.data.checks import score_column
from grandrounds.data.images import ImageSet
from grandrounds.data.outcome import settle_task
from grandrounds.data.schema import Column, infer_schema
from grandrounds.data.table import Table, missing_mask, to_text

RARE = 5
"""Rows below which a category is not named."""

_FEWEST = 40  # values below which quantiles would be those of single patients
_EVENTS = 20  # rows of the smaller class below which the AUROC of a column is not written
_FIXED = 0.97  # share of a patient's rows that agree in a fixed column
_DIFFER = 0.8  # share of all pairs of rows that may agree in it by chance
_STEPS = (0.01, 0.02, 0.05, 0.1)  # of shares
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
        quantiles: Add the reference that checks compare with: quantiles of numbers and ranges around them, shares of levels and
            of missing values, time ranges of dates, the AUROC of each column alone, rank correlations, profiles of levels,
            and the share of repeated patients.
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
    columns = [_draft_column(table, c, quantiles=quantiles) for c in schema.features]
    about = {} if table.reading is None else table.reading.labels
    draft = DataSchema(
        label=label,
        columns=tuple(replace(c, about=about.get(c.name, "")) for c in columns),
        classes=_draft_levels(table, label, fewest=1) if task in (CLASSIFICATION, SURVIVAL) else (),
        patient=patient,
        time=time,
        task=task,
        duration=duration,
    )
    return _add_reference(table, draft, drop) if quantiles and len(table) >= _FEWEST else draft


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


def _add_reference(table: Table, draft: DataSchema, drop: Sequence[str]) -> DataSchema:
    """Add what is normal: shares of levels, classes, missing values and repeated patients, AUROCs, dates."""
    target = _find_event(table, draft)
    shares = {c.name: _draft_shares(table.columns[c.name], c.values) for c in draft.columns}
    numbers = {}
    for c in draft.columns:
        ordered = () if c.kind == "ordinal" else shares[c.name]
        as_number = as_numbers(table.columns[c.name], c.values, ordered) if c.values == () or shares[c.name] else None
        if as_number is not None:
            numbers[c.name] = as_number
    relations = draft_relations(numbers)
    columns = tuple(
        replace(
            column,
            shares=shares[column.name],
            missing_share=_round_share(float(missing_mask(table.columns[column.name]).mean()), len(table)),
            auroc=_draft_auroc(table.columns[column.name], target),
            relations=relations.get(column.name, ()),
            whole=column.kind == "number" and _is_whole(table.columns[column.name]),
            profiles=(
                draft_profile(to_text(table.columns[column.name]), column.values, numbers, name=column.name)
                if shares[column.name]
                else ()
            ),
        )
        for column in draft.columns
    )
    return replace(
        draft,
        columns=columns,
        class_shares=_draft_shares(table.columns[draft.label], draft.classes) if draft.task == CLASSIFICATION else (),
        repeated_share=_draft_repeated(table, draft.patient),
        fixed=_draft_fixed(table, draft),
        dates=draft_dates(table, drop=(draft.label, *drop)),
    )


def _round_share(share: float, rows: int) -> float:
    """Round to steps of at least `RARE` rows, so that no smaller count shows."""
    step = next((s for s in _STEPS if s * rows >= RARE), 0.2)
    return round(round(share / step) * step, 2)


def _draft_shares(values: Array, levels: Sequence[str]) -> tuple[float, ...]:
    words = to_text(values)
    counts = Counter(w for w in words.tolist() if w is not None)
    total = sum(counts.values())
    if total < _FEWEST or not levels:
        return ()
    return tuple(_round_share(counts[word] / total, total) for word in levels)


def _draft_repeated(table: Table, patient: str | None) -> float | None:
    if patient is None:
        return None
    words = [w for w in to_text(table.columns[patient]).tolist() if w is not None]
    return _round_share(1 - len(set(words)) / len(words), len(words)) if len(words) >= _FEWEST else None


def _draft_fixed(table: Table, draft: DataSchema) -> tuple[str, ...]:
    """Find categories that are the same in all rows of a patient, though patients differ in them."""
    if draft.patient is None:
        return ()
    pairs = pair_rows(table.columns[draft.patient])
    out = []
    for column in draft.columns:
        if column.kind == "number" or len(pairs) < _FEWEST:
            continue
        words = to_text(table.columns[column.name])
        shares = np.array(list(Counter(words.tolist()).values())) / len(words)
        same = float((words[pairs[:, 0]] == words[pairs[:, 1]]).mean())
        if same >= _FIXED and (shares**2).sum() <= _DIFFER:
            out.append(column.name)
    return tuple(out)


def pair_rows(patient: Array) -> Array:
    """Pair each row of a patient with the patient's row before it, (m, 2)."""
    last: dict[object, int] = {}
    pairs = []
    for i, word in enumerate(to_text(patient).tolist()):
        if word is not None and word in last:
            pairs.append((last[word], i))
        last[word] = i
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _is_whole(values: Array) -> bool:
    present = values[~np.isnan(values)] if values.dtype == np.float64 else values[:0]
    return len(present) >= _FEWEST and bool((present == np.floor(present)).all())


def _find_event(table: Table, draft: DataSchema) -> Array | None:
    """Find the rows (n,) of the last of two classes; None for other outcomes."""
    if draft.task != CLASSIFICATION or len(draft.classes) != 2:
        return None
    return np.asarray(to_text(table.columns[draft.label]) == draft.classes[1])


def _draft_auroc(values: Array, target: Array | None) -> float | None:
    if target is None:
        return None
    present = ~missing_mask(values)
    if min((present & target).sum(), (present & ~target).sum()) < _EVENTS:
        return None
    return round(score_column(values, target)[0], 2)


def draft_dates(table: Table, *, drop: Sequence[str] = ()) -> tuple[AgreedDates, ...]:
    """Draft the date columns of a table: the months that they cover, and which is never before which.

    Args:
        table: The table.
        drop: Columns to leave out.
    """
    days: dict[str, Array] = {}
    for name, values in table.columns.items():
        if name not in drop and values.dtype == np.object_:
            read = read_days(values)
            if read is not None and (~np.isnan(read)).sum() >= _FEWEST:
                days[name] = read
    out = []
    for name, mine in days.items():
        earlier = _find_earlier(name, days)
        gaps = tuple((other, _draft_gap(mine - days[other])) for other in earlier)
        out.append(AgreedDates(name, _draft_months(mine), earlier, gaps))
    return tuple(out)


def _draft_gap(gap: Array) -> tuple[float, ...]:
    return tuple(_round_digits(float(q)) for q in np.nanquantile(gap, LEVELS))


def _draft_months(days: Array) -> tuple[str, str] | None:
    ordered = np.sort(days[~np.isnan(days)])
    low, high = (np.datetime64(int(day), "D").astype("datetime64[M]") for day in (ordered[RARE - 1], ordered[-RARE]))
    return str(low.astype("datetime64[D]")), str((high + 1).astype("datetime64[D]") - 1)


def _find_earlier(name: str, days: Mapping[str, Array]) -> tuple[str, ...]:
    """Find date columns that are never later than this one, and earlier in some rows."""
    out = []
    for other, theirs in days.items():
        both = ~np.isnan(days[name]) & ~np.isnan(theirs)
        gap = days[name][both] - theirs[both]
        if other != name and len(gap) >= _FEWEST and (gap >= 0).all() and (gap > 0).sum() >= _FEWEST:
            out.append(other)
    return tuple(out)


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
