"""Limits of data files and of the tables in them, checked before or while a file is read.

`GRANDROUNDS_LARGEST` (2 GiB) is the budget: it bounds the bytes of a file, the bytes that a compressed file unpacks to, and the
memory of a table, of its text and of a scan. A reader counts cells and characters at the memory that it needs for one. Limits
of columns and lines do not depend on the budget.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

from grandrounds.core.arrays import UNPACKED, largest_unpacked, refuse_bomb
from grandrounds.core.errors import BadInput

MOST_COLUMNS = 2**16
"""Columns of a table: more than a microarray (54,675 probe sets) or the human genes (60,660 in GENCODE 36) need."""

LONGEST_LINE = 2**25
"""Bytes of one FHIR resource in a line of ndjson."""

CELL, OBJECT_CELL, EXCEL_CELL = 8, 64, 128
"""Bytes of memory for a cell: of text and Parquet files, of files of statistics packages, and of Excel sheets."""

WORKING_COLUMNS = 4
"""Columns that a reader needs beside the table, to convert one of them."""

CHARACTER = 8
"""Bytes of memory for a character of the cells of Excel and Parquet, where one stored text may fill many cells."""

XML_BYTE, STYLE_BYTE = 4, 128
"""Bytes of memory for a byte of an unpacked Excel workbook: of cells and texts, and of parts such as styles and relations."""

VOXEL = 4
"""Bytes of memory for a value of a scan."""

BROKEN_ARCHIVE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError)
"""Errors of a damaged, cut or encrypted archive, or one of an unknown method (a RuntimeError)."""


def check_file(size: int, *, where: str) -> None:
    """Refuse a file of more bytes than the budget."""
    limit = largest_unpacked()
    if size > limit:
        raise BadInput(
            f"{where} has {size:,} bytes, and at most {limit:,} are read: if you have the memory, set {UNPACKED}=8G (or more)",
            code="file-too-large",
        )


def check_columns(count: int, *, where: str) -> None:
    """Refuse a table of more than `MOST_COLUMNS` columns."""
    if count > MOST_COLUMNS:
        raise BadInput(
            f"{where} has {count:,} columns, and at most {MOST_COLUMNS:,} are read: keep those that the experiment needs",
            code="too-many-columns",
        )


def check_table(rows: int, columns: int, *, where: str, cell: int = CELL) -> None:
    """Refuse a table that needs more memory than the budget.

    Args:
        rows: Its rows.
        columns: Its columns.
        where: The file, for messages.
        cell: Bytes of memory for a cell.
    """
    check_columns(columns, where=where)
    refuse_bomb(rows * (columns + WORKING_COLUMNS) * cell, where=f"the table of {rows:,} rows in {where}")


def check_text(characters: int, *, where: str) -> None:
    """Refuse cells with more text than the budget, counted in every cell that shows it."""
    refuse_bomb(CHARACTER * characters, where=f"the text in the cells of {where}")


def check_scan(values: int, *, where: str, value: int = VOXEL) -> None:
    """Refuse a scan whose values need more memory than the budget; `value` is the bytes for one of them."""
    refuse_bomb(values * value, where=where)


def read_bounded_lines(stream: IO[bytes], *, where: str) -> Iterator[bytes]:
    """Read lines of at most `LONGEST_LINE` bytes, with their ends."""
    number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise BadInput(
                f"line {number} of {where} has more than {LONGEST_LINE:,} bytes: write one resource to each line, without "
                "attachments",
                code="line-too-long",
            )
        yield line


def open_gzip(stream: IO[bytes], *, where: str, buffer: int = 2**16) -> IO[bytes]:
    """Open a gzip stream that refuses to unpack to more than the budget."""
    return io.BufferedReader(_Unpacked(stream, where), buffer)


class _Unpacked(io.RawIOBase):
    def __init__(self, stream: IO[bytes], where: str) -> None:
        self._stream = gzip.GzipFile(fileobj=stream)
        self._where = where
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._stream.read(len(buffer))
        self._size += len(part)
        refuse_bomb(self._size, where=self._where)
        buffer[: len(part)] = part
        return len(part)
