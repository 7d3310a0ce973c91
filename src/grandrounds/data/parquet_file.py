"""Parquet files: columns keep their types, and text, dates and decimals are converted by their distinct values."""

from __future__ import annotations

from typing import Any

import numpy as np

from grandrounds.core.arrays import Array, refuse_bomb
from grandrounds.core.errors import BadInput
from grandrounds.data.limits import check_table, check_text
from grandrounds.data.table import EXACT, Table, check_names, to_column, without_marks

_HEAD = 1000  # rows that show whether most words of a column are distinct
_READS = 1000  # reads of a file: a column each, several of a wide table
_YEARS = np.array(["1000", "9999-12-31T23:59:59.999999"], dtype="datetime64[us]")  # written with four digits


def read_parquet(raw: bytes, *, source: str, marks: frozenset[str]) -> Table:
    """Read a Parquet file with its own types.

    Args:
        raw: The bytes of the file.
        source: The file, for messages.
        marks: Text that means "no value"; numbers among them match by value.

    Raises:
        BadInput: The file is damaged or too large, has no rows, repeats a name or has a column of lists or binary data.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise BadInput(f"reading {source} needs pyarrow; run: pip install pyarrow", code="missing-package") from None
    try:
        opened = pq.ParquetFile(pa.BufferReader(raw))
        facts, schema = opened.metadata, opened.schema_arrow
        check_table(facts.num_rows, facts.num_columns, where=source)
        refuse_bomb(sum(facts.row_group(g).total_byte_size for g in range(facts.num_row_groups)), where=source)
        nested = next((field.name for field in schema if pa.types.is_nested(field.type)), "")
        if nested or facts.num_columns != len(schema):
            raise BadInput(
                f"column '{nested}' of {source} holds lists or structures, not single values; leave it out of the table",
                code="nested-column",
            )
        # pandas writes an unnamed index under this name
        names = ["index" if name == "__index_level_0__" else name for name in schema.names]
        check_names(names, source=source)
        if facts.num_rows == 0:
            raise BadInput(f"{source} has no rows; give a table with at least one row", code="empty-table")
        opened = pq.ParquetFile(pa.BufferReader(raw), read_dictionary=list_text(schema))
        columns: dict[str, Array] = {}
        size, text, step = 0, 0, max(1, len(names) // _READS)
        for first in range(0, len(names), step):
            part = opened.reader.read_all(column_indices=range(first, min(first + step, len(names))))
            size += part.nbytes
            refuse_bomb(size, where=source)
            for name, column in zip(names[first:], part.columns, strict=False):
                text += count_text(column)
                check_text(text, where=source)
                columns[name] = to_array(column, name=name, source=source, marks=marks)
    except (pa.ArrowException, OSError, ValueError, IndexError):
        raise BadInput(
            f"{source} is not a complete Parquet file; write or copy it again", code="damaged-file"
        ) from None
    return Table(columns, source)


def list_text(schema: Any) -> list[str]:
    """List the columns of text and binary data, which are read as codes of their words so that a long one is stored once."""
    return [field.name for field in schema if _is_text(field.type) or _is_binary(field.type)]


def count_text(values: Any) -> int:
    """Count the bytes of text in all cells of a column that is read as codes of its words; 0 for other columns.

    Args:
        values: A `pyarrow.ChunkedArray` or a `pyarrow.Array`.

    Raises:
        IndexError: A code has no word, because the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(values.type):
        return len(values) * values.type.byte_width if pa.types.is_fixed_size_binary(values.type) else 0
    total = 0
    for chunk in getattr(values, "chunks", [values]):
        codes = chunk.indices.drop_null().to_numpy(zero_copy_only=False)
        if len(codes) and not 0 <= codes.min() <= codes.max() < len(chunk.dictionary):
            raise IndexError("a code of the dictionary")
        if _is_text(chunk.dictionary.type) or _is_binary(chunk.dictionary.type):
            lengths = pc.binary_length(chunk.dictionary).fill_null(0).to_numpy(zero_copy_only=False)
            total += int(np.bincount(codes, minlength=len(lengths)) @ lengths)
    return total


def to_array(values: Any, *, name: str, source: str, marks: frozenset[str]) -> Array:
    """Convert an Arrow column: numbers at once, the rest by its distinct values.

    Args:
        values: A `pyarrow.ChunkedArray` with at least one row.
        name: The column, for messages.
        source: The file, for messages.
        marks: Text that means "no value".

    Raises:
        BadInput: The column holds binary data.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = values.type.value_type if pa.types.is_dictionary(values.type) else None
    if coded is not None and not (_is_text(coded) or _is_binary(coded)):
        values = values.cast(coded)
    kind = values.type
    simple = pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if pa.types.is_integer(kind):
        ends = pc.min_max(values).as_py()
        simple = max(abs(ends["min"] or 0), abs(ends["max"] or 0)) <= EXACT
    if simple:
        floats: Array = values.cast(pa.float64()).to_numpy()
        return without_marks(floats, marks=marks)
    distinct, index = _find_distinct(values, name=name, source=source)
    if distinct.dtype == np.float64:
        return without_marks(np.append(distinct, np.nan), marks=marks)[index]
    return _clean(distinct, marks=marks)[index]


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _find_distinct(values: Any, *, name: str, source: str) -> tuple[Array, Array]:
    """Return the distinct values as a column, and for each row the place of its value there, -1 for null."""
    import pyarrow as pa

    every = np.arange(len(values))
    if _is_text(values.type) and len(values.slice(0, _HEAD).unique()) > min(_HEAD, len(values)) / 2:
        parts = [_to_words(part, name=name, source=source) for part in values.chunks]
        return np.concatenate(parts), every  # identifiers: mostly distinct
    try:
        encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        chunks = encoded.unify_dictionaries().chunks
    except pa.ArrowException:  # lists, structures and other types that Arrow does not compare
        return _to_cells(values, name=name, source=source), every
    words = chunks[0].dictionary
    index = np.concatenate([chunk.indices.cast(pa.int64()).fill_null(-1).to_numpy() for chunk in chunks])
    used = np.bincount(index[index >= 0], minlength=len(words)) > 0
    if not used.all():  # categories without a row
        index = np.append(np.cumsum(used) - 1, -1)[index]
        words = words.filter(pa.array(used))
    return _to_words(words, name=name, source=source), index


def _to_words(words: Any, *, name: str, source: str) -> Array:
    """Convert distinct values as `to_column` does, text and times without a step for each."""
    import pyarrow as pa

    if _is_text(words.type):
        try:
            out: Array = words.to_numpy(zero_copy_only=False)
        except (pa.ArrowException, UnicodeDecodeError):
            raise BadInput(
                f"column '{name}' of {source} holds binary data, not text; leave it out of the table",
                code="binary-column",
            ) from None
        return out if len(out) else np.empty(0)
    if pa.types.is_timestamp(words.type) and words.type.tz in (None, "UTC") and words.null_count == 0:
        written = _write_times(words.to_numpy(), zone="+00:00" if words.type.tz else "")
        if written is not None:
            return written
    return _to_cells(words, name=name, source=source)


def _to_cells(values: Any, *, name: str, source: str) -> Array:
    """Convert value by value."""
    import pyarrow as pa

    try:
        cells = values.to_pylist()
    except (pa.ArrowException, OverflowError, ValueError):
        raise BadInput(
            f"column '{name}' of {source} has a date outside of the years 1 to 9999, or times in a zone that is not known; "
            "correct it, or leave it out of the table",
            code="damaged-file",
        ) from None
    return to_column(cells, name=name, source=source)


def _write_times(moments: Array, *, zone: str) -> Array | None:
    """Write times as `datetime.isoformat` does; None if one has nanoseconds or a year that is not of four digits."""
    exact = moments.astype("datetime64[us]")
    if len(moments) == 0 or (exact != moments).any() or exact.min() < _YEARS[0] or exact.max() > _YEARS[1]:
        return None
    seconds = exact.astype("datetime64[s]")
    out = np.datetime_as_string(seconds).astype(object)
    finer = seconds != exact
    out[finer] = np.datetime_as_string(exact[finer]).astype(object)
    return out + zone if zone else out


def _clean(words: Array, *, marks: frozenset[str]) -> Array:
    """Strip words, with None for marks and one more None at the end, for null; NaN if all words are marks."""
    cells: list[Any] = words.tolist()
    nothing = None in cells
    stripped = [None if cell is None else cell.strip() for cell in cells] if nothing else list(map(str.strip, cells))
    missing = marks.intersection(stripped)
    out = np.empty(len(words) + 1, dtype=object)
    out[:-1] = [None if word in missing else word for word in stripped] if missing else stripped
    return out if any(word is not None for word in out) else np.full(len(out), np.nan)
