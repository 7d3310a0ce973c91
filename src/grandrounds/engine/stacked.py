"""Answers side by side whose large columns lie in a file: the server's memory does not grow with the sites that answer.

A row is written as it is decoded and is then let go. What a method is given looks like any other answers: `answers["model"]`
is a (K, P) array, mapped from a file that has no name any more, so that nothing of it is left when the method is done with
it, or when the process ends in the middle.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed
from grandrounds.protocol.messages import Answers

LARGE = 32 * 2**20
"""Bytes that a column would have if every site answered, from which on it lies in a file."""


def stacked(blocks: Iterable[Answers], most: int, folder: Path | None) -> Answers:
    """Blocks of answers as one, in their order; `most`: how many sites there can be at most."""
    stack = _Stack(most, folder)
    for block in blocks:
        stack.add(block)
    return stack.answers()


class _Stack:
    """Keeps what is small as it came and piles up the rest; totals are added up at once."""

    def __init__(self, most: int, folder: Path | None) -> None:
        self._most, self._folder = most, folder
        self._small: list[Answers] = []
        self._piles: dict[str, _Pile] = {}
        self._totals: dict[str, Array] = {}
        self._rows = 0

    def add(self, block: Answers) -> None:
        columns = {name: self._kept(name, column) for name, column in block.columns.items()} if len(block) else {}
        self._small.append(Answers(block.sites, columns, missing=block.missing))
        self._rows += len(block)
        for name, part in block.totals.items() if len(block) else ():
            self._totals[name] = self._totals[name] + part if name in self._totals else part

    def _kept(self, name: str, column: Array | list[Any]) -> Array | list[Any]:
        """The column, or one without a number in it where its rows went to a pile: the first row says whether they do."""
        if not isinstance(column, np.ndarray):
            return column
        if self._rows == 0 and column.nbytes // len(column) * self._most >= LARGE:
            self._piles[name] = _Pile(column.shape[1:], column.dtype, self._folder)
        pile = self._piles.get(name)
        if pile is None or pile.shape != column.shape[1:]:
            return column
        pile.add(column)
        pile.at += range(self._rows, self._rows + len(column))
        return np.empty((len(column), 0))

    def answers(self) -> Answers:
        if not self._small:
            return Answers((), {})
        out = Answers.join(self._small)
        out.totals = self._totals
        for name, pile in self._piles.items():
            rows = pile.read()
            out.columns[name] = rows if len(rows) == len(out) else _filled(out.columns[name], rows, pile.at)
        return out


def _filled(column: Array | list[Any], rows: Array, at: list[int]) -> list[Any]:
    """A column of rows of several shapes, with those that were piled up in their places."""
    out = list(column)
    for k, row in zip(at, rows, strict=True):
        out[k] = row
    return out


class _Pile:
    """Rows of one shape in a file without a name. Written and not mapped: a full disk is then an error and not a signal."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], folder: Path | None) -> None:
        self.shape = shape
        self.at: list[int] = []  # which rows of the answers lie here
        self._dtype, self._folder, self._rows = dtype, folder, 0
        self._file = self._new()

    def add(self, rows: Array) -> None:
        """Put rows on the pile. Where their type holds more than the pile's, the pile is written again in a type for both."""
        dtype = np.result_type(self._dtype, rows.dtype)
        if dtype != self._dtype:
            before = self.read()
            self._file, self._dtype, self._rows = self._new(), dtype, 0
            for row in before:
                self._write(row[None])
        self._write(rows)

    def _write(self, rows: Array) -> None:
        try:
            self._file.write(np.ascontiguousarray(rows, self._dtype).data)
        except OSError as e:
            raise self._failed(e) from None
        self._rows += len(rows)

    def _new(self) -> Any:
        try:
            return tempfile.TemporaryFile(prefix="answers-", dir=self._folder)
        except OSError as e:
            raise self._failed(e) from None

    def _failed(self, error: OSError) -> RunFailed:
        where = self._folder or tempfile.gettempdir()
        return RunFailed(
            f"cannot keep the sites' answers in {where} ({error.strerror}): make room there, then resume",
            code="cannot-write",
        )

    def read(self) -> Array:
        """All rows so far, (rows, ...)."""
        try:
            self._file.flush()
        except OSError as e:
            raise self._failed(e) from None
        return np.memmap(self._file, self._dtype, "r", shape=(self._rows, *self.shape))
