"""Tables in memory: columns of numbers or of text."""

from __future__ import annotations

import datetime
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.limits import check_columns

if TYPE_CHECKING:
    from grandrounds.data.formats import Reading

Values = Sequence[Any] | Array

EXACT = float(2**53)  # whole numbers up to here survive float64; larger ones are codes and stay text
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NUMBER_TYPES = (bool, int, float, Decimal, np.number, np.bool_)
_ALPHABET = b"0123456789+-.eE\n"


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length; float64 with NaN for missing, or object arrays of str | None."""

    columns: Mapping[str, Array]
    source: str  # what the user called it, for messages
    origin: Array | None = None  # for a part of a table: which row of the source each row was
    reading: Reading | None = None  # what was assumed to read it from text

    def __post_init__(self) -> None:
        """Check the two forms, and hold read-only views so that tables can share columns safely."""
        views: dict[str, Array] = {}
        for name, values in self.columns.items():
            if values.ndim != 1 or values.dtype not in (np.float64, np.object_):
                raise TypeError(f"column {name!r} is not a float64 or object array; use Table.from_mapping")
            views[name] = values.view()
            views[name].flags.writeable = False
        lengths = {name: len(values) for name, values in views.items()}
        if len(set(lengths.values())) > 1:
            first, *rest = lengths
            odd = next(name for name in rest if lengths[name] != lengths[first])
            raise BadInput(
                f"columns of {self.source} differ in length: '{first}' has {lengths[first]} rows, "
                f"'{odd}' has {lengths[odd]}; give every column one value per row",
                code="length-mismatch",
            )
        object.__setattr__(self, "columns", views)

    def __len__(self) -> int:
        return next((len(values) for values in self.columns.values()), 0)

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, in the order of the source."""
        return tuple(self.columns)

    def column(self, name: str, *, flag: str = "") -> Array:
        """Find one column by name; `flag` is the setting the user would mend if it is absent."""
        if name not in self.columns:
            use = f" (use {flag})" if flag else ""
            raise BadInput(
                f"column '{name}' not found in {self.source}; {nearest(name, self.names)}{use}", code="unknown-column"
            )
        return self.columns[name]

    def take(self, rows: Array | slice | Sequence[int]) -> Table:
        """Select rows by indices, a mask or a slice."""
        if not self.columns:
            return self
        origin = np.arange(len(self)) if self.origin is None else self.origin
        return Table(
            {name: values[rows] for name, values in self.columns.items()}, self.source, origin[rows], self.reading
        )

    def with_columns(self, columns: Mapping[str, Values]) -> Table:
        """Add columns at the end, or replace existing ones in place."""
        added = {name: to_column(values, name=name, source=self.source) for name, values in columns.items()}
        return Table({**self.columns, **added}, self.source, self.origin, self.reading)

    def without(self, names: Iterable[str]) -> Table:
        """Leave columns out; a name that is absent is an error, not a no-op."""
        dropped = set(names)
        for name in sorted(dropped):
            self.column(name)
        columns = {k: v for k, v in self.columns.items() if k not in dropped}
        return Table(columns, self.source, self.origin, self.reading)

    def where(self, index: int) -> str:
        """Name a row as a person counts it in the source, where the header is row 1."""
        row = index if self.origin is None else int(self.origin[index])
        if self.reading is not None and self.reading.rows is not None:
            return f"row {int(self.reading.rows[row])} (the header is row {self.reading.header})"
        return f"row {row + 2} (the header is row 1)"

    def sha256(self) -> str:
        """Hash names and content (not the source), the same on every machine."""
        digest = hashlib.sha256(f"{len(self.columns)} columns of {len(self)}".encode())
        for name, values in self.columns.items():
            digest.update(f"\n{len(name)} {values.dtype.kind} {name}\n".encode("utf-8", "surrogatepass"))
            if values.dtype == np.float64:
                # one bit pattern for NaN and for zero, so that equal tables hash alike
                bits = np.where(np.isnan(values), np.nan, values + 0.0)
                digest.update(np.ascontiguousarray(bits, dtype="<f8").tobytes())
            else:
                lengths = np.fromiter((-1 if v is None else len(v) for v in values), "<i8", len(values))
                digest.update(lengths.tobytes())
                digest.update("".join(v for v in values if v is not None).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    @classmethod
    def from_mapping(cls, columns: Mapping[str, Values], *, source: str = "mapping") -> Table:
        """Make a table from any sequences: numbers and bools become float64, dates ISO text, the rest text."""
        return cls({str(k): to_column(v, name=str(k), source=source) for k, v in columns.items()}, source)

    @classmethod
    def from_pandas(cls, df: Any, *, source: str = "data frame") -> Table:
        """Make a table from a pandas data frame, without its index.

        Raises:
            BadInput: It is no data frame, has no rows or columns, or a column name appears twice.
        """
        if not (hasattr(df, "columns") and hasattr(df, "iloc")):
            raise BadInput(
                f"an object of type {type(df).__name__} is no pandas DataFrame: give one, with column names",
                code="not-a-table",
            )
        names = [str(name) for name in df.columns]
        check_names(names, source=source)
        if len(df) == 0:
            raise BadInput(f"{source} has no rows; give a data frame with at least one row", code="empty-table")
        columns: dict[str, Array] = {}
        for position, name in enumerate(names):
            series = df.iloc[:, position]
            plain = isinstance(series.dtype, np.dtype) and series.dtype.kind in "fiub"
            columns[name] = to_column(series.to_numpy() if plain else list(series), name=name, source=source)
        return cls(columns, source)


def check_names(names: Sequence[str], *, source: str) -> None:
    """Refuse a table without columns, with too many, or with a repeated name."""
    check_columns(len(names), where=source)
    if not names:
        raise BadInput(
            f"{source} has no columns; give a table with a header and at least one column", code="no-columns"
        )
    position_by_name: dict[str, int] = {}
    for position, name in enumerate(names, start=1):
        if name in position_by_name:
            raise BadInput(
                f"column name '{name}' appears twice in {source} (columns {position_by_name[name]} and {position}); "
                "rename or remove one of them",
                code="repeated-column",
            )
        position_by_name[name] = position


def to_column(values: Values, *, name: str, source: str) -> Array:
    """Convert any sequence to a table column: float64 where every value is a number, otherwise text."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiubmM":
        return _convert_typed(values)
    items = list(values)
    present = [v for v in items if not _is_absent(v)]
    if all(isinstance(v, datetime.timedelta) for v in present):
        items = [v.total_seconds() if isinstance(v, datetime.timedelta) else None for v in items]
        return np.array([np.nan if v is None else v for v in items], dtype=np.float64)
    if all(isinstance(v, _NUMBER_TYPES) for v in present) and not _needs_text(present):
        floats = [np.nan if _is_absent(v) else float(v) for v in items]
        return np.array(floats, dtype=np.float64)
    out = np.empty(len(items), dtype=object)
    out[:] = [None if _is_absent(v) else _format_value(v, name=name, source=source) for v in items]
    return out


def is_number(word: str) -> bool:
    """Tell whether a cell is written as a finite number; "007", "inf" and "1_000" are not."""
    return _NUMBER.fullmatch(word) is not None and math.isfinite(float(word))


def parse_numbers(words: Sequence[str]) -> Array | None:
    """Parse all the cells as numbers; None when one of them is not, or is too large a whole number.

    The whole column is checked at once on its bytes, which is several times faster than a pattern
    per cell: `float` itself is too generous (it takes "1_000", "inf", " 7" and "007").
    """
    try:
        floats = np.fromiter(map(float, words), np.float64, len(words))
        joined = ("\n" + "\n".join(words) + "\n").encode("ascii")
    except ValueError:  # UnicodeEncodeError is one, too
        return None
    if joined.translate(None, _ALPHABET) or not np.isfinite(floats).all():
        return None
    raw = np.frombuffer(joined, dtype=np.uint8)
    first = np.flatnonzero(raw[:-1] == ord("\n")) + 1  # where each cell starts
    if len(first) != max(len(words), 1):
        return None  # a cell holds a line break
    first += (raw[first] == ord("+")) | (raw[first] == ord("-"))
    first = first[raw[first] == ord("0")]
    if (raw[first + 1] - np.uint8(ord("0")) < 10).any():
        return None
    large = np.flatnonzero(np.abs(floats) > EXACT).tolist()
    return None if any(words[i].lstrip("+-").isdigit() for i in large) else floats


def without_marks(floats: Array, *, marks: frozenset[str]) -> Array:
    """Replace numbers that are themselves a mark for missing, such as -999, by NaN."""
    numbers = [float(mark) for mark in marks if is_number(mark)]
    return np.where(np.isin(floats, numbers), np.nan, floats) if numbers else floats


def format_number(value: float) -> str:
    """Write a number as a person would: whole numbers without ".0"."""
    return str(int(value)) if value == np.floor(value) and abs(value) <= EXACT else repr(float(value))


def to_text(values: Array) -> Array:
    """Convert a column to text with None for missing; numbers are written without ".0"."""
    if values.dtype == np.object_:
        return values
    out = np.full(len(values), None, dtype=object)
    present = ~np.isnan(values)
    distinct, inverse = np.unique(values[present], return_inverse=True)
    words = np.array([format_number(float(v)) for v in distinct], dtype=object)
    out[present] = words[inverse]
    return out


def missing_mask(values: Array) -> Array:
    """Return True where a column has no value."""
    if values.dtype == np.float64:
        return np.asarray(np.isnan(values))
    return np.fromiter((v is None for v in values), dtype=bool, count=len(values))


def _convert_typed(values: Array) -> Array:
    """Convert a numpy array of numbers, bools, dates or durations to a column."""
    if values.dtype.kind == "m":
        seconds = values.astype("timedelta64[ns]").astype(np.float64) / 1e9
        return np.where(np.isnat(values), np.nan, seconds)
    if values.dtype.kind == "M":
        out = np.datetime_as_string(values).astype(object)
        out[np.isnat(values)] = None
        return np.asarray(out)
    if values.dtype.kind in "iu" and len(values) and _needs_text([values.min(), values.max()]):
        return values.astype(str).astype(object)
    return values.astype(np.float64)


def _needs_text(numbers: Sequence[object]) -> bool:
    """Tell whether a whole number is too large for float64, so that two identifiers could become one."""
    return any(isinstance(v, int | np.integer) and abs(int(v)) > EXACT for v in numbers)


def _is_absent(value: object) -> bool:
    """Recognise None, NaN, NaT or pandas' NA by type name, so that pandas need not be imported."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating | Decimal) and value != value


def _format_value(value: object, *, name: str, source: str) -> str:
    """Convert one value to text: ISO for dates, decoded bytes, numbers without ".0"."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, float | np.floating) and np.isfinite(value):
        return format_number(float(value))
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            raise BadInput(
                f"column '{name}' of {source} holds binary data, not text; leave it out of the table",
                code="binary-column",
            ) from None
    return str(value)
