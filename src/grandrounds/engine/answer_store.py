"""Store large or many answers on disk, so that the server's memory does not grow with the number of sites.

`AnswerSpool` stores answers from their arrival until they are used: they arrive in any order and are used in the order of the
sites, so that sums are the same to the bit. `join_on_disk` then joins them, with large columns in a file. A method sees the
usual `Answers`: `answers["model"]` is a (K, P) array, mapped from an unlinked file, so that no file remains when the method or
the process ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed
from grandrounds.protocol.messages import Answer, Answers

LARGE_COLUMN = 32 * 2**20
"""Size of a column, if every site answered, from which it is stored in a file."""

_SMALL_ANSWER = 64 * 2**10
"""Size up to which an answer is kept in memory, as long as all of them have at most `_MEMORY`."""
_MEMORY = 16 * 2**20

Column = Array | list[Any]


@dataclass(frozen=True)
class SpooledAnswer:
    """An answer's bytes, and the decoded answer if it was kept in memory."""

    body: bytes
    answer: Answer | None


class AnswerSpool:
    """Answers by name, each taken once.

    Args:
        folder: A folder of this spool alone; files that a killed process left in it are removed. None: the system's.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._in_memory: dict[str, SpooledAnswer] = {}
        self._memory_bytes = 0
        self._files: dict[str, Path] = {}
        if folder is not None:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                for stale in folder.glob("answer-*"):
                    stale.unlink()
            except OSError as e:
                raise RunFailed(
                    f"cannot use {folder} for the sites' answers: {e.strerror}", code="cannot-write"
                ) from None

    def put(self, name: str, body: bytes, answer: Answer | None = None) -> None:
        """Store an answer until it is taken: small ones in memory, decoded once; others as bytes in a file."""
        if len(body) <= _SMALL_ANSWER and self._memory_bytes + len(body) <= _MEMORY:
            self._in_memory[name] = SpooledAnswer(body, answer)
            self._memory_bytes += len(body)
            return
        try:
            handle, path = tempfile.mkstemp(prefix="answer-", dir=self.folder)
            self._files[name] = Path(path)
            with os.fdopen(handle, "wb") as f:
                f.write(body)
        except OSError as e:
            raise _disk_error("a site's answer", self.folder, e) from None

    def take(self, name: str) -> SpooledAnswer:
        """Remove and return the answer of this name."""
        if name in self._in_memory:
            return self._pop(name)
        path = self._files.pop(name)
        try:
            return SpooledAnswer(path.read_bytes(), None)
        finally:
            path.unlink(missing_ok=True)

    def discard(self, names: Iterable[str]) -> None:
        """Remove those of these answers that were not taken."""
        for name in names:
            if name in self._in_memory:
                self._pop(name)
            path = self._files.pop(name, None)
            if path is not None:
                path.unlink(missing_ok=True)

    def _pop(self, name: str) -> SpooledAnswer:
        entry = self._in_memory.pop(name)
        self._memory_bytes -= len(entry.body)
        return entry


def join_on_disk(blocks: Iterable[Answers], max_sites: int, folder: Path | None) -> Answers:
    """Join blocks of answers in their order, with large columns in files.

    Args:
        blocks: Answers of some sites each; a block is freed once it is written.
        max_sites: Largest number of answers, which determines the large columns.
        folder: Folder of the files; None for the system's.
    """
    joined = _DiskAnswers(max_sites, folder)
    for block in blocks:
        joined.add(block)
    return joined.answers()


class _DiskAnswers:
    """Collect blocks: small columns in memory, rows of large ones in files; totals are summed at once."""

    def __init__(self, max_sites: int, folder: Path | None) -> None:
        self._max_sites, self._folder = max_sites, folder
        self._blocks: list[Answers] = []
        self._files: dict[str, _RowFile] = {}
        self._totals: dict[str, Array] = {}
        self._rows = 0

    def add(self, block: Answers) -> None:
        columns = {name: self._store(name, column) for name, column in block.columns.items()} if len(block) else {}
        self._blocks.append(Answers(block.sites, columns, missing=block.missing))
        self._rows += len(block)
        for name, part in block.totals.items() if len(block) else ():
            self._totals[name] = self._totals[name] + part if name in self._totals else part

    def _store(self, name: str, column: Column) -> Column:
        """Return the column, or an empty one if its rows are in a file, which the first row decides."""
        if not isinstance(column, np.ndarray):
            return column
        if self._rows == 0 and column.nbytes // len(column) * self._max_sites >= LARGE_COLUMN:
            self._files[name] = _RowFile(column.shape[1:], column.dtype, self._folder)
        file = self._files.get(name)
        if file is None or file.shape != column.shape[1:]:
            return column
        file.add(column)
        file.positions += range(self._rows, self._rows + len(column))
        return np.empty((len(column), 0))

    def answers(self) -> Answers:
        if not self._blocks:
            return Answers((), {})
        joined = Answers.join(self._blocks)
        joined.totals = self._totals
        for name, file in self._files.items():
            rows = file.read()
            is_whole = len(rows) == len(joined)
            joined.columns[name] = rows if is_whole else _fill(joined.columns[name], rows, file.positions)
        return joined


def _fill(column: Column, rows: Array, positions: list[int]) -> list[Any]:
    """Insert rows from a file into a column of rows of several shapes."""
    filled = list(column)
    for k, row in zip(positions, rows, strict=True):
        filled[k] = row
    return filled


class _RowFile:
    """Rows of one shape in an unlinked file. They are written, not mapped, so that a full disk is an error and not a signal."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], folder: Path | None) -> None:
        self.shape = shape
        self.positions: list[int] = []  # of its rows in the answers
        self._dtype, self._folder, self._rows = dtype, folder, 0
        self._file = self._create()

    def add(self, rows: Array) -> None:
        """Append rows. If their dtype is wider than the file's, the file is rewritten in a common dtype."""
        dtype = np.result_type(self._dtype, rows.dtype)
        if dtype != self._dtype:
            before = self.read()
            self._file, self._dtype, self._rows = self._create(), dtype, 0
            for row in before:
                self._write(row[None])
        self._write(rows)

    def _write(self, rows: Array) -> None:
        try:
            self._file.write(np.ascontiguousarray(rows, self._dtype).data)
        except OSError as e:
            raise _disk_error("the sites' answers", self._folder, e) from None
        self._rows += len(rows)

    def _create(self) -> IO[bytes]:
        try:
            return tempfile.TemporaryFile(prefix="answers-", dir=self._folder)
        except OSError as e:
            raise _disk_error("the sites' answers", self._folder, e) from None

    def read(self) -> Array:
        """Map all rows so far, (rows, ...)."""
        try:
            self._file.flush()
        except OSError as e:
            raise _disk_error("the sites' answers", self._folder, e) from None
        return np.memmap(self._file, self._dtype, "r", shape=(self._rows, *self.shape))


def _disk_error(subject: str, folder: Path | None, error: OSError) -> RunFailed:
    where = folder or tempfile.gettempdir()
    return RunFailed(
        f"cannot store {subject} in {where} ({error.strerror}): make room there, then resume", code="cannot-write"
    )
