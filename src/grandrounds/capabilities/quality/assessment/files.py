"""Files: cut off at the end, fewer rows than the site states, and text in two encodings.

A text file is cut where its last line has no line break and too few cells, or an open quote; a gzip file where its end mark is
absent. A file that was cut between two lines looks whole: state the rows with `--rows`, or agree on dates, which then
end early. Two encodings are in one file where some cells are valid UTF-8 beyond ASCII and others are not. Text that was encoded
twice ("Ã©" for "é") is found in every kind of source.

False alarms are controlled by asking for evidence in the bytes: a file without a last line break but with whole cells is no
cut, and a file in one encoding other than UTF-8 is none in two.
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import refuse_bomb
from grandrounds.data.agreement.check import Finding, format_count
from grandrounds.data.agreement.dates import read_days
from grandrounds.data.agreement.schema import DataSchema
from grandrounds.data.table import Table

TRUNCATED = "truncated-file"
ENCODING = "mixed-encoding"
DECIMALS = "mixed-decimals"
ROWS = "row-count"

_TEXT = (".csv", ".tsv", ".data", ".txt")
_PIECE = 2**22
_SEPARATORS = (",", ";", "\t", "|")
_EARLY = 0.08  # part of the agreed time that is absent at the end of a sorted table
_SORTED = 0.98
_ENOUGH = 50
_ENCODINGS = ("cp1252", "cp850", "mac-roman", "utf-8")


@dataclass(frozen=True)
class FileFacts:
    """Evidence in the bytes of a text file: findings, and the columns with two encodings."""

    findings: tuple[Finding, ...] = ()
    encoded: tuple[str, ...] = field(default=())

    @property
    def truncated(self) -> bool:
        """True where the file is cut off at the end."""
        return any(f.code == TRUNCATED for f in self.findings)


def inspect_file(where: str, names: Sequence[str]) -> FileFacts:
    """Look for a cut end and two encodings in the bytes of a text file.

    Args:
        where: The file; SQL URLs and binary formats give no evidence.
        names: The agreed columns; other columns with two encodings are reported without a name.
    """
    path = Path(where).expanduser()
    stem = path.name.lower().removesuffix(".gz")
    if "://" in where or not stem.endswith(_TEXT) or not path.is_file():
        return FileFacts()
    raw = path.read_bytes()
    findings: list[Finding] = []
    if path.name.lower().endswith(".gz"):
        raw, whole = _unpack(raw, where)
        if not whole:
            findings.append(Finding("error", TRUNCATED, "", "the gzip file ends before its end mark: copy it again"))
            return FileFacts(tuple(findings))
    if not raw or raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return FileFacts()
    separator = _find_separator(raw)
    findings += _check_last_line(raw, separator)
    encoded = list(_find_two_encodings(raw, separator))
    for column in encoded:
        text = "some cells are UTF-8 and others are not: write the whole file in one encoding (UTF-8)"
        findings.append(Finding("error", ENCODING, column if column in names else "", text))
    return FileFacts(tuple(findings), tuple(encoded))


def _unpack(raw: bytes, where: str) -> tuple[bytes, bool]:
    """Unpack gzip as far as it goes, and tell whether its end was there."""
    parts: list[bytes] = []
    size = 0
    while raw:
        machine = zlib.decompressobj(wbits=31)
        try:
            while raw and not machine.eof:
                parts.append(machine.decompress(raw, _PIECE))
                raw = machine.unconsumed_tail
                size += len(parts[-1])
                refuse_bomb(size, where=where)
                if not parts[-1] and not raw:
                    break
        except zlib.error:
            return b"".join(parts), True  # damaged or no gzip at all: the reader says so
        if not machine.eof:
            return b"".join(parts), False
        raw = machine.unused_data
    return b"".join(parts), True


def _find_separator(raw: bytes) -> str:
    header = raw.split(b"\n", 1)[0].decode("latin-1")
    return max(_SEPARATORS, key=lambda mark: header.count(mark))


def _cut(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])


def _check_last_line(raw: bytes, separator: str) -> Iterator[Finding]:
    if raw.endswith((b"\n", b"\r")):
        return
    lines = raw.split(b"\n")
    if len(lines) < 3:
        return
    width = len(_cut(lines[0].decode("latin-1"), separator))
    last = lines[-1].decode("latin-1")
    cells = len(_cut(last, separator))
    if last.count('"') % 2 or cells < width:
        text = (
            f"the file ends in the middle of line {len(lines)}, after {format_count(cells, 'cell')} of {width}: it was cut off; "
            "copy or export it again"
        )
        yield Finding("error", TRUNCATED, "", text)


def _find_two_encodings(raw: bytes, separator: str) -> Iterator[str]:
    """Name the columns with cells in UTF-8 and cells that are not."""
    if raw.isascii():
        return
    try:
        raw.decode("utf-8")
        return
    except UnicodeDecodeError:
        pass
    lines = raw.split(b"\n")
    header = _cut(_decode_cell(lines[0].rstrip(b"\r").removeprefix(b"\xef\xbb\xbf")), separator)
    kinds: dict[int, set[bool]] = {}
    for line in lines:
        if line.isascii():
            continue
        for place, cell in enumerate(_cut(line.rstrip(b"\r").decode("latin-1"), separator)):
            if not cell.isascii():
                kinds.setdefault(place, set()).add(_is_utf8(cell.encode("latin-1")))
    if {kind for both in kinds.values() for kind in both} != {True, False}:
        return
    mixed = [place for place, both in kinds.items() if len(both) == 2]
    mixed = mixed or [place for place, both in kinds.items() if both == {False}]  # a column from another system
    yield from (header[place].strip() if place < len(header) else "" for place in mixed)


def _decode_cell(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def check_text(table: Table, schema: DataSchema) -> Iterator[Finding]:
    """Find words that were encoded twice, or in another encoding than they were read in, and mixed decimal marks.

    Args:
        table: The site's table.
        schema: The agreed schema; agreed words show what was meant.
    """
    agreed = {c.name: c.values for c in schema.columns} | {schema.label: schema.classes}
    for name, values in table.columns.items():
        if values.dtype != np.object_:
            continue
        words = [w for w in dict.fromkeys(values.tolist()) if w is not None and not w.isascii()]
        wrong = {w: right for w in words if (right := _repair(w, agreed.get(name, ())))}
        if wrong:
            cells = sum(w in wrong for w in values.tolist())
            word, right = next(iter(wrong.items()))
            such = f"'{word[:30]}' for '{right[:30]}'"
            text = f"{format_count(cells, 'cell')} in another encoding, such as {such}: export it as UTF-8"
            column = name if name in (*schema.names, *schema.date_names) else ""
            yield Finding("error", ENCODING, column, text)
    mixed = () if table.reading is None else table.reading.mixed
    for name in mixed:
        if name in schema.names:
            text = "decimal comma and decimal point are mixed: write all numbers one way"
            yield Finding("warning", DECIMALS, name, text)


def _repair(word: str, agreed: Sequence[str]) -> str:
    """Find the word that was meant; "" where this one is as it should be."""
    if word in agreed:
        return ""
    if "\ufffd" in word or "\ufeff" in word:
        plain = word.replace("\ufeff", "")
        return plain if plain in agreed or "\ufffd" not in plain else "?"
    for read in _ENCODINGS[:3]:
        for meant in _ENCODINGS:
            if read == meant:
                continue
            try:
                other = word.encode(read).decode(meant)
            except UnicodeError:
                continue
            if other in agreed or (read == "cp1252" and meant == "utf-8" and other != word):
                return other
    return ""


def check_rows(table: Table, schema: DataSchema, expected: int | None) -> Iterator[Finding]:
    """Find a table with fewer or more rows than the site states, one whose last row is cut, and one that ends early.

    Args:
        table: The site's table.
        schema: The agreed schema.
        expected: The number of rows that the site states; None: not stated.
    """
    n = len(table)
    if expected is not None and n < expected:
        text = f"{format_count(n, 'row')} where {expected} are expected: the end of the file may be absent; export it again"
        yield Finding("error", TRUNCATED, "", text)
        return
    if expected is not None and n > expected:
        yield Finding("warning", ROWS, "", f"{format_count(n, 'row')} where {expected} are expected: were rows copied?")
    cut = _find_cut_word(table, schema)
    if cut:
        yield Finding(
            "error", TRUNCATED, "", f"the last cell is '{cut}', the beginning of an agreed word: the file was cut off"
        )
        return
    for entry in schema.dates:
        days = read_days(table.columns[entry.name]) if entry.name in table.columns else None
        if days is None or entry.days is None:
            continue
        present = days[~np.isnan(days)]
        first, last = ((day - np.datetime64("1970-01-01").astype(object)).days for day in entry.days)
        if len(present) < _ENOUGH or (np.diff(present) >= 0).mean() < _SORTED or present[0] < first:
            continue
        absent = (last - present[-1]) / max(last - first, 1)
        if absent > _EARLY and absent * len(present) > 10:
            text = (
                f"rows are in the order of '{entry.name}' and end on {np.datetime64(int(present[-1]), 'D')}; the agreed time "
                f"ends on {entry.days[1]}: is the end of the file absent?"
            )
            yield Finding("warning", TRUNCATED, "", text)
            return


def _find_cut_word(table: Table, schema: DataSchema) -> str:
    """Find a last cell that is the beginning of an agreed word, and none itself."""
    name = table.names[-1]
    words = schema.classes if name == schema.label else next((c.values for c in schema.columns if c.name == name), ())
    last = table.columns[name][-1]
    if not isinstance(last, str) or not words or last in words or (table.columns[name] == last).sum() > 1:
        return ""
    return last if any(word.startswith(last) for word in words) else ""
