"""Large delimited texts by Arrow: the same columns as the strict reader of `text_file`, in a tenth of the time.

Only texts whose structure proves that both readers cut them into the same cells are read: every quote opens or closes a
cell, lines end in one way, all rows have as many cells as the header. For everything else `split_columns` returns None, and
the strict reader reads the text or names the line at fault.

Columns are converted whole. A cell is a number exactly where `parse_numbers` takes it; Arrow's conversion is correctly
rounded, as Python's is. Columns that are not plainly numbers are converted by their distinct words.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.formats import proves_comma
from grandrounds.data.table import EXACT, is_number, parse_numbers, without_marks

if TYPE_CHECKING:
    import pyarrow as pa

DELIMITERS = (",", ";", "\t", "|")
BATCH_ROWS = 1000  # of the strict reader, whose notes on missing numbers depend on it
_BLOCK = 2**19  # bytes that Arrow cuts at a time: they stay in the processor's cache
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SAMPLE = 24  # cells that decide which conversion is tried first
_HEAD = 1000  # cells that show whether a column of text has few distinct words


@dataclass(frozen=True)
class FastColumn:
    """One column: its values and, for the notes, cells of numbers, words read as missing and distinct words of text."""

    values: Array
    batches: Sequence[str]
    missing_words: set[str]
    distinct: Sequence[str] | None = None
    comma: str | None = None  # the first cell with a decimal comma, of numbers that have them


def split_columns(
    text: bytes,
    start: int,
    *,
    delimiter: str,
    marks: frozenset[str],
    formatted: Sequence[bool],
    with_cells: bool,
) -> list[FastColumn] | None:
    """Read rows of UTF-8 text as columns; None where the strict reader has to.

    Args:
        text: The text.
        start: The place of the first row, after the header.
        delimiter: The character between cells.
        marks: Cells that mean "no value".
        formatted: For each column whether it may be read as numbers with decimal commas.
        with_cells: Keep the cells of numbers, which decide about decimal marks.
    """
    try:
        import pyarrow as pa
        import pyarrow.csv
    except ImportError:
        return None
    width = len(formatted)
    if width < 2 or delimiter not in DELIMITERS or b"\0" in text or not _has_regular_lines(text):
        return None
    if text.startswith(_BYTE_ORDER_MARK, start):  # Arrow would skip it, also after a header
        return None
    quoted = text.find(b'"', start) >= 0
    if quoted and not _has_regular_quotes(np.frombuffer(text, np.uint8, offset=start), delimiter):
        return None
    names = [str(position) for position in range(width)]
    try:
        content = pyarrow.csv.read_csv(
            pa.BufferReader(pa.py_buffer(text).slice(start)),
            read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK, column_names=names),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=delimiter, quote_char='"' if quoted else False, newlines_in_values=quoted
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                check_utf8=False, strings_can_be_null=False, column_types=dict.fromkeys(names, pa.string())
            ),
        )
        if len(content) == 0:
            return None
        places = pa.array(np.linspace(0, len(content) - 1, min(max(len(content) // 500, 4), _SAMPLE)).astype(np.int64))
        reader = _ColumnReader(marks, places, with_cells)
        remaining = content.columns[::-1]
        del content
        columns = []
        for free in formatted:  # cells are freed once their column is converted
            column = reader.read(_Cells.from_arrow(pa.concat_arrays(remaining.pop().chunks)), formatted=free)
            if column is None:
                return None
            columns.append(column)
    except pa.ArrowException:
        return None
    return columns


def _has_regular_lines(text: bytes) -> bool:
    """Tell whether all carriage returns are before a line feed: Arrow counts others differently."""
    if b"\r" not in text:
        return True
    raw = np.frombuffer(text, np.uint8)
    places = np.flatnonzero(raw == ord("\r"))
    return bool(places[-1] + 1 < len(raw) and (raw[places + 1] == ord("\n")).all())


def _has_regular_quotes(raw: Array, delimiter: str) -> bool:
    """Tell whether every quote opens or closes a cell, or is doubled in one."""
    places = np.flatnonzero(raw == ord('"'))
    if len(places) % 2:
        return False
    opening, closing = places[::2], places[1::2]
    before = raw[opening[1 if opening[0] == 0 else 0 :] - 1]
    after = raw[closing[: -1 if closing[-1] == len(raw) - 1 else None] + 1]
    edges = np.zeros(256, dtype=bool)
    edges[list(f'{delimiter}\n"'.encode())] = True
    if not edges[before].all():
        return False
    edges[ord("\r")] = True
    return bool(edges[after].all())


@dataclass(frozen=True)
class _Cells:
    """Cells of a column as Arrow has them: one run of bytes, and the place in it at which each cell begins."""

    array: pa.StringArray
    offsets: Array
    data: Array

    @classmethod
    def from_arrow(cls, array: pa.StringArray) -> _Cells:
        _, places, content = array.buffers()
        offsets = np.frombuffer(places, np.int32)[array.offset : array.offset + len(array) + 1]
        return cls(array, offsets, np.frombuffer(b"" if content is None else content, np.uint8))

    def without(self, missing: Array) -> _Cells:
        """Return the same cells with null where `missing` is true."""
        import pyarrow as pa

        present = pa.py_buffer(np.packbits(~missing, bitorder="little"))
        content = self.array.buffers()[2]
        array = pa.StringArray.from_buffers(len(self.array), pa.py_buffer(self.offsets), content, present)
        return _Cells(array, self.offsets, self.data)

    def translate(self, mark: bytes, other: bytes) -> _Cells:
        """Return the same cells with another character in place of one."""
        import pyarrow as pa

        present, places, content = self.array.buffers()
        changed = pa.py_buffer(content.to_pybytes().replace(mark, other))
        array = pa.StringArray.from_buffers(len(self.array), places, changed, present, offset=self.array.offset)
        return _Cells(array, self.offsets, np.frombuffer(changed, np.uint8))

    def has_leading_zero(self) -> bool:
        """Tell whether a number is written as a code, such as 007 or -01."""
        if len(self.data) == 0:
            return False
        first = self.data.take(self.offsets[:-1], mode="clip")
        rows, signed = np.flatnonzero(first == ord("0")), np.flatnonzero(first == ord("-"))
        zeros = self.offsets[rows]
        if len(signed):
            places = self.offsets[signed] + 1
            is_zero = self.data.take(places, mode="clip") == ord("0")
            rows, zeros = np.append(rows, signed[is_zero]), np.append(zeros, places[is_zero])
        following = zeros[zeros + 1 < self.offsets[rows + 1]] + 1
        return bool((self.data[following] - np.uint8(ord("0")) < 10).any())


class _ColumnReader:
    """Reads columns as numbers or text; some of a column's cells decide which is tried first."""

    def __init__(self, marks: frozenset[str], places: pa.Array, with_cells: bool) -> None:
        import pyarrow as pa

        self.marks = marks
        self.places = places
        self.with_cells = with_cells
        self.number_marks = [float(mark) for mark in marks if is_number(mark)]
        self.mark_array = pa.array(sorted(marks), pa.string())
        self.longest = csv.field_size_limit()

    def read(self, cells: _Cells, *, formatted: bool) -> FastColumn | None:
        """Read one column; None where a cell is longer than the strict reader takes."""
        if len(cells.data) > self.longest and (cells.offsets[1:] - cells.offsets[:-1]).max() > self.longest:
            return None
        numbers = None
        sample = map(str.strip, cells.array.take(self.places).to_pylist())
        if all(word in self.marks or is_number(word) for word in sample):
            numbers = self._read_plain(cells) or self._read_marked(cells)
        if numbers is None:
            return (self._read_commas(cells) if formatted else None) or self._read_words(cells)
        return FastColumn(numbers[0], self._batches(cells), numbers[1])

    def _batches(self, cells: _Cells) -> Sequence[str]:
        return _Batches(cells) if self.with_cells else ()

    def _read_plain(self, cells: _Cells) -> tuple[Array, set[str]] | None:
        """Read plain numbers and empty cells, with the words that mean "missing"; None where there is anything else."""
        empty = cells.offsets[1:] == cells.offsets[:-1]
        if not empty.any():
            values = self._convert(cells)
            return None if values is None else (values, set())
        values = self._convert(cells.without(empty)) if "" in self.marks else None
        return None if values is None else (values, {""})

    def _read_marked(self, cells: _Cells) -> tuple[Array, set[str]] | None:
        """Read numbers among any marks for missing, with spaces around them."""
        words, missing_words = self._trim(cells)
        values = None if any(map(is_number, missing_words)) else self._convert(words)
        return None if values is None else (values, missing_words)

    def _trim(self, cells: _Cells) -> tuple[_Cells, set[str]]:
        """Remove spaces around cells; marks for missing become null, and are returned."""
        import pyarrow.compute as pc

        words = pc.ascii_trim_whitespace(cells.array)
        missing = pc.is_in(words, value_set=self.mark_array)
        missing_words = set(words.filter(missing).unique().to_pylist())
        return _Cells.from_arrow(words).without(missing.to_numpy(zero_copy_only=False)), missing_words

    def _read_commas(self, cells: _Cells) -> FastColumn | None:
        """Read numbers that differ from plain ones by a decimal comma alone, as `read_formats` does; None for others."""
        content = cells.data.tobytes()
        sample = map(str.strip, cells.array.take(self.places).to_pylist())
        if b"," not in content or b"." in content or any("," in mark for mark in self.marks):
            return None
        if not all(word in self.marks or is_number(word.replace(",", ".")) for word in sample):
            return None
        words, missing_words = self._trim(cells)
        values = self._convert(words.translate(b",", b"."))
        if values is None:
            return None
        first = None
        for start in range(0, len(values), BATCH_ROWS):  # mostly the first rows prove it
            batch = [word for word in words.array.slice(start, BATCH_ROWS).to_pylist() if word is not None]
            first = first or next((word for word in batch if "," in word), None)
            if proves_comma(batch):
                return FastColumn(values, (), missing_words, comma=first)
        return None

    def _convert(self, cells: _Cells) -> Array | None:
        """Convert cells to numbers, NaN for null; None where one may be refused by `parse_numbers` or is a mark."""
        import pyarrow as pa

        try:
            values: Array = cells.array.cast(pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            return None
        absent = cells.array.null_count
        if absent and np.count_nonzero(np.isnan(values)) != absent:
            return None
        if absent < len(values):
            low, high = (np.fmin.reduce(values), np.fmax.reduce(values)) if absent else (values.min(), values.max())
            if not -EXACT <= low <= high <= EXACT:  # codes of many digits, "inf" and "nan"
                return None
        if self.number_marks and np.isin(values, self.number_marks).any():
            return None
        return None if cells.has_leading_zero() else values

    def _read_words(self, cells: _Cells) -> FastColumn:
        """Read a column by its distinct words, as numbers if all of them are and as text otherwise."""
        words, index = find_words(cells.array)
        listed: list[str] = words.tolist()
        stripped = list(map(str.strip, listed))
        missing_words = set(self.marks.intersection(stripped))
        missing = [place for place, word in enumerate(stripped) if word in missing_words] if missing_words else []
        present = stripped if not missing else [word for word in stripped if word not in missing_words]
        numbers = parse_numbers(present)
        if numbers is not None:
            floats = np.full(len(words), np.nan)
            floats[np.delete(np.arange(len(words)), missing)] = numbers
            found = _find_missing(listed, stripped, missing, index)
            values = without_marks(floats, marks=self.marks)
            return FastColumn(values if index is None else values[index], self._batches(cells), found)
        if stripped != listed:
            words[:] = stripped
        words[missing] = None
        if index is None:
            return FastColumn(words, (), missing_words)
        return FastColumn(words[index], (), missing_words, list(dict.fromkeys(present)))


def find_words(cells: Any) -> tuple[Array, Array | None]:
    """Return words of an Arrow text column, and for each row the place of its word; None if all rows are listed in order.

    Few words are listed once each, in the order of the rows. Many, such as identifiers, are not worth the search.
    """
    head = cells.slice(0, _HEAD)
    if len(head.unique()) > len(head) / 2:
        return cells.to_numpy(zero_copy_only=False), None
    encoded = cells.dictionary_encode()
    return encoded.dictionary.to_numpy(zero_copy_only=False), encoded.indices.to_numpy()


def _find_missing(
    words: Sequence[str], stripped: Sequence[str], missing: Sequence[int], index: Array | None
) -> set[str]:
    """Find marks for missing among numbers; one that is a number counts in batches with a cell that is none."""
    plain = np.array([is_number(w) and not (w.lstrip("+-").isdigit() and abs(float(w)) > EXACT) for w in words])
    if not plain[missing].any():
        return {stripped[place] for place in missing}
    index = np.arange(len(words)) if index is None else index
    batch = np.arange(len(index)) // BATCH_ROWS
    mixed = np.bincount(batch, weights=~plain[index]) > 0
    return {stripped[place] for place in set(index[mixed[batch]].tolist()).intersection(missing)}


class _Batches(Sequence[str]):
    """Cells of a column of numbers, some rows at a time with \\0 between them; mostly the first rows are asked for."""

    def __init__(self, cells: _Cells) -> None:
        self.cells = cells

    def __len__(self) -> int:
        return -(-len(self.cells.array) // BATCH_ROWS)

    def __iter__(self) -> Iterator[str]:
        """Go through the batches: none if there is no decimal point and no exponent, which is all that is looked for."""
        content = self.cells.data.tobytes()
        return map(self.__getitem__, range(len(self) if any(m in content for m in (b".", b"e", b"E")) else 0))

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        rows = self.cells.array.slice(place * BATCH_ROWS, BATCH_ROWS)
        return "\0".join(rows.to_numpy(zero_copy_only=False).tolist())
