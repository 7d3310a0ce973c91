"""A table read through its schema: numbers, category codes, and the parts that are not features."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION, SURVIVAL
from grandrounds.data.formats import AUTO, read_dates
from grandrounds.data.outcome import MAX_CLASSES, read_durations, read_outcome, unlabelled_rows
from grandrounds.data.schema import Column, Schema, check_unambiguous
from grandrounds.data.table import Table, format_number, missing_mask, to_text

MAX_GROUPS = 10  # numbers with more distinct values than this are cut into quartiles


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table read through its schema: rows of one or several sites before anything is agreed between them."""

    name: str
    schema: Schema
    table: Table
    numeric: Array  # (n, p) float64, NaN missing; numeric and ordinal (codes 0..L-1) columns in schema order
    codes: Array  # (n, q) int32 into vocabulary, -1 missing; categorical columns in schema order
    vocabulary: tuple[tuple[str, ...], ...]  # per categorical column, sorted
    label: Array  # (n,) object of str; numeric labels are written without ".0"
    site: Array | None  # (n,) object of str
    patient: Array | None  # (n,) object of str
    time: Array | None  # (n,) float64, sortable: numbers, or dates as seconds since 1970
    incomplete: Array | None = None  # (m,) site of each row left out for a missing value (data.complete), "" if not known
    outcome: Array | None = None  # (n,) float64, the label as a number: regression and counts
    duration: Array | None = None  # (n,) float64, follow-up time of survival data

    def __len__(self) -> int:
        return len(self.label)

    @property
    def numeric_names(self) -> tuple[str, ...]:
        """The columns of `numeric`."""
        return tuple(c.name for c in self.schema.numeric_like)

    @property
    def categorical_names(self) -> tuple[str, ...]:
        """The columns of `codes`."""
        return tuple(c.name for c in self.schema.categorical)

    def take(self, rows: Array | slice | Sequence[int]) -> Dataset:
        """Select rows; the vocabulary stays, so that codes mean the same in every part."""
        return replace(
            self,
            table=self.table.take(rows),
            numeric=self.numeric[rows],
            codes=self.codes[rows],
            label=self.label[rows],
            site=None if self.site is None else self.site[rows],
            patient=None if self.patient is None else self.patient[rows],
            time=None if self.time is None else self.time[rows],
            outcome=None if self.outcome is None else self.outcome[rows],
            duration=None if self.duration is None else self.duration[rows],
        )

    def groups(self, column: str) -> Array:
        """Group rows by a column, as text; call it before `take`, so that cuts agree.

        Numbers with many values are cut at their quartiles. The outer groups are open ("up to 40",
        "over 70"): the lowest and highest value of a table belong to single patients.
        """
        values = self.table.column(column, flag="evaluation.subgroup")
        if values.dtype == np.float64:
            present = values[np.isfinite(values)]
            if len(np.unique(present)) > MAX_GROUPS:
                return group_by_quartile(values, present)
        words = to_text(values).copy()
        words[missing_mask(values)] = "missing"
        return np.asarray(words)


def build_dataset(
    table: Table, schema: Schema, *, name: str, drop_unlabelled: bool = False, dates: str = AUTO
) -> Dataset:
    """Read a table through a schema; every fault in it is refused here, before anything is trained.

    Args:
        table: The raw table.
        schema: The meaning of its columns.
        name: The name of the set, for messages.
        drop_unlabelled: Leave out rows without a label in place of refusing them.
        dates: The order of day and month: "auto", "day-first" or "month-first".

    Raises:
        BadInput: A column cannot be read as its kind, or the label is no set of classes.
    """
    unlabelled = missing_mask(table.column(schema.label, flag="--label"))
    if drop_unlabelled:
        unlabelled = unlabelled_rows(table, schema.label, schema.duration)
    if unlabelled.any():
        if not drop_unlabelled:
            raise BadInput(
                f"label column '{schema.label}' of {table.source} has {_count_rows(unlabelled)} without a value, "
                f"first {_locate_first(table, unlabelled)}; fill them in, or set data.drop_unlabelled = true "
                "(--set data.drop_unlabelled=true)",
                code="missing-labels",
            )
        table = table.take(~unlabelled)
    if len(table) == 0:
        raise BadInput(
            f"label column '{schema.label}' of {table.source} has no value in any row; "
            "choose another column (use --label)",
            code="missing-labels",
        )
    codes, vocabulary = _read_codes(table, schema)
    label, outcome, duration = _read_outcome(table, schema)
    return Dataset(
        name=name,
        schema=schema,
        table=table,
        numeric=_read_numeric(table, schema),
        codes=codes,
        vocabulary=vocabulary,
        label=label,
        site=None if schema.site is None else _read_key_column(table, schema.site, part="site"),
        patient=None if schema.patient is None else _read_key_column(table, schema.patient, part="patient"),
        time=None if schema.time is None else _read_time(table, schema.time, dates),
        outcome=outcome,
        duration=duration,
    )


def read_features(table: Table, schema: Schema) -> tuple[Array, Array, tuple[tuple[str, ...], ...]]:
    """Read the features of a table: numbers (n, p), category codes (n, q) and their vocabularies."""
    codes, vocabulary = _read_codes(table, schema)
    return _read_numeric(table, schema), codes, vocabulary


def _read_numeric(table: Table, schema: Schema) -> Array:
    """Put numbers and ordinal codes side by side."""
    out = np.empty((len(table), len(schema.numeric_like)))
    for j, column in enumerate(schema.numeric_like):
        out[:, j] = _read_levels(table, column) if column.kind == "ordinal" else _read_numbers(table, column.name)
    return out


def _read_numbers(table: Table, name: str) -> Array:
    """Read a numeric column; text is converted only where all of it is numbers."""
    check_unambiguous(table, name)
    values = table.column(name, flag="data.kinds")
    if values.dtype == np.object_:
        try:
            values = np.array([np.nan if v is None else float(v) for v in values], dtype=np.float64)
        except ValueError:
            bad = np.array([v is not None and not _is_float(v) for v in values])
            word = values[int(bad.argmax())]
            raise BadInput(
                f"column '{name}' of {table.source} should be numeric but holds text in {_count_rows(bad)}, "
                f"first '{word[:20]}' in {_locate_first(table, bad)}; fix the file or list it in data.missing (--missing WORD)",
                code="text-in-numbers",
            ) from None
    infinite = np.isinf(values)
    if infinite.any():
        raise BadInput(
            f"column '{name}' of {table.source} has an infinite value in {_count_rows(infinite)}, "
            f"first {_locate_first(table, infinite)}; "
            "write a number, leave it empty, or leave the column out (use --drop)",
            code="infinite-value",
        )
    return values


def _read_levels(table: Table, column: Column) -> Array:
    """Ordinal levels as 0..L-1 in their order."""
    words = to_text(table.column(column.name, flag="data.kinds"))
    place: dict[str | None, float] = {level: float(code) for code, level in enumerate(column.order)}
    place[None] = np.nan
    unknown = np.array([word not in place for word in words], dtype=bool)
    if unknown.any():
        word = words[int(unknown.argmax())]
        raise BadInput(
            f"column '{column.name}' of {table.source} holds level '{word[:20]}' in "
            f"{_locate_first(table, unknown)}, which is not one of {', '.join(column.order[:10])}; "
            "fix the file or list the level in data.kinds",
            code="unknown-level",
        )
    return np.fromiter(map(place.__getitem__, words), np.float64, len(words))


def _read_codes(table: Table, schema: Schema) -> tuple[Array, tuple[tuple[str, ...], ...]]:
    """Code categories as numbers into sorted vocabularies."""
    codes = np.empty((len(table), len(schema.categorical)), dtype=np.int32)
    vocabulary = []
    for j, column in enumerate(schema.categorical):
        words = to_text(table.column(column.name, flag="data.kinds"))
        levels = tuple(sorted(set(words) - {None}))
        place: dict[str | None, int] = {level: code for code, level in enumerate(levels)}
        place[None] = -1
        codes[:, j] = np.fromiter(map(place.__getitem__, words), np.int32, len(words))
        vocabulary.append(levels)
    return codes, tuple(vocabulary)


def _read_outcome(table: Table, schema: Schema) -> tuple[Array, Array | None, Array | None]:
    """Read the label as text, and of other tasks than classification its numbers and the follow-up times."""
    if schema.task == CLASSIFICATION:
        return _read_label(table, schema.label), None, None
    values, duration = read_outcome(table, schema.label, schema.task, schema.duration)
    if schema.task == SURVIVAL:
        return values, None, duration
    return np.array(to_text(values), dtype=object), values, None


def _read_label(table: Table, name: str) -> Array:
    """Read the classes as text; a measurement, an identifier or a single class is refused."""
    values = table.columns[name]
    where = f"label column '{name}' of {table.source}"
    number = values.dtype == np.float64
    classes = to_text(values)
    distinct = set(classes)
    broken = ~np.isfinite(values) | (values != np.floor(values)) if number else np.zeros(0)
    if broken.any() and (len(distinct) > 2 or not np.isfinite(values).all()):
        value = values[int(broken.argmax())]
        raise BadInput(
            f"{where} looks like a measurement (it holds {value:g}), but data.task is 'classification': say --task regression "
            "(data.task), cut it into classes first, or choose another column (use --label)",
            code="label-not-classes",
        )
    if len(distinct) > MAX_CLASSES:
        task = "; say --task regression or --task count if it is a number, or" if number else ";"
        raise BadInput(
            f"{where} has {len(distinct)} classes and looks like a measurement or an identifier, "
            f"but classification has at most {MAX_CLASSES}{task} choose another column (use --label)",
            code="too-many-classes",
        )
    if len(distinct) == 1:
        raise BadInput(
            f"{where} has one class only ('{classes[0]}' in all {len(classes)} rows): nothing can be learnt; "
            "choose another column (use --label) or add rows of the other class",
            code="one-class-only",
        )
    return np.array(classes, dtype=object)


def _read_key_column(table: Table, name: str, *, part: str) -> Array:
    """Read a column that rows are grouped by, as text, without gaps."""
    values = table.column(name, flag=f"--{part}")
    gaps = missing_mask(values)
    if gaps.any():
        raise BadInput(
            f"{part} column '{name}' of {table.source} has {_count_rows(gaps)} without a value, "
            f"first {_locate_first(table, gaps)}; fill them in, or choose another column (use --{part})",
            code="missing-values",
        )
    return np.array(to_text(values), dtype=object)


def _read_time(table: Table, name: str, dates: str) -> Array:
    """Read a column to order rows by: numbers as they are, dates as seconds since 1970 (UTC if not said)."""
    values = table.column(name, flag="data.time")
    seconds = read_dates(values.tolist(), dates) if values.dtype == np.object_ else values
    if seconds is None:
        word = next(v for v in values if v is not None)
        raise BadInput(
            f"time column '{name}' of {table.source} has dates that can be read in two ways, such as '{word[:20]}'; "
            "say --set data.dates=day-first or --set data.dates=month-first",
            code="ambiguous-dates",
        )
    bad = ~np.isfinite(seconds)
    if bad.any():
        value = values[int(bad.argmax())]
        shown = f"'{value[:20]}'" if isinstance(value, str) else "no value"
        raise BadInput(
            f"time column '{name}' of {table.source} cannot be ordered: {_count_rows(bad)} without a number "
            f"or a date (an ISO date such as 2024-05-31 is best), first {shown} in {_locate_first(table, bad)}; "
            "fix them or choose another column (use data.time)",
            code="unreadable-dates",
        )
    return np.array(seconds, dtype=np.float64)


def group_by_quartile(values: Array, present: Array) -> Array:
    """Group numbers by open-ended quartile ranges, as text."""
    edges = np.unique(np.quantile(present, (0.25, 0.5, 0.75)))
    edges = edges[edges < present.max()]
    if len(edges) == 0:  # most rows hold the highest value: it against the rest
        edges = np.array([present[present < present.max()].max()])
    ends = _distinct_texts(edges)
    dash = "-" if (edges >= 0).all() else " to "
    between = [f"{a}{dash}{b}" for a, b in itertools.pairwise(ends)]
    names = [f"up to {ends[0]}", *between, f"over {ends[-1]}"]
    out = np.array([*names, "missing"], dtype=object)
    cell = np.searchsorted(edges, values, side="left")
    return np.asarray(out[np.where(np.isnan(values), len(names), cell)])


def _distinct_texts(edges: Array) -> list[str]:
    """Write each edge as short as no two read the same."""
    for digits in range(3, 18):
        texts = [_short_number(float(edge), digits=digits) for edge in edges]
        if len(set(texts)) == len(texts):
            return texts
    return [repr(float(edge)) for edge in edges]


def _short_number(value: float, *, digits: int) -> str:
    """Write a whole number in full, any other with a number of digits, never as 1e+03."""
    if value == np.floor(value):
        return format_number(value)
    digits = max(digits, len(str(int(abs(value)))))
    return str(np.format_float_positional(value, precision=digits, fractional=False, trim="-"))


def _is_float(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _count_rows(mask: Array) -> str:
    n = int(mask.sum())
    return "1 row" if n == 1 else f"{n} rows"


def _locate_first(table: Table, mask: Array) -> str:
    return table.where(int(mask.argmax()))


def read_new_rows(table: Table, schema: Schema, *, labelled: bool = False) -> Dataset:
    """Read new rows as the training data were read.

    A feature column that the table lacks is left out of the schema, which the encoding then fills in and notes; a table
    that shares no feature at all is refused.
    """
    columns = tuple(c for c in schema.columns if c.name in table.columns)
    if not any(c in schema.features for c in columns):
        expected = ", ".join(c.name for c in schema.features[:8])
        raise BadInput(
            f"{table.source} has none of the model's columns ({expected} ...): is it the right file?",
            code="missing-columns",
        )
    narrowed = replace(schema, columns=columns)
    label = np.full(len(table), "", object)
    outcome, duration = None, None
    if labelled:
        values = table.column(schema.label, flag="the label the model was trained on")
        if missing_mask(values).any():
            raise BadInput(
                f"label column '{schema.label}' of {table.source} has rows without a value: remove them",
                code="missing-labels",
            )
        label = np.array(to_text(values), object)
        if schema.task == SURVIVAL:
            duration = read_durations(table, str(schema.duration))
        elif schema.task != CLASSIFICATION:
            outcome = _read_numbers(table, schema.label)
    numeric, codes, vocabulary = read_features(table, narrowed)
    site = table.columns.get(schema.site) if schema.site else None
    if site is not None and missing_mask(site).any():
        site = None
    return Dataset(
        name=table.source,
        schema=narrowed,
        table=table,
        numeric=numeric,
        codes=codes,
        vocabulary=vocabulary,
        label=label,
        site=None if site is None else np.array(to_text(site), object),
        patient=None,
        time=None,
        outcome=outcome,
        duration=duration,
    )
