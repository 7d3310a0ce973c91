"""Read the journal of a run while it is being written: each call reads only the rounds that were appended."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any

from grandrounds.core.arrays import open_file
from grandrounds.core.compact import Packer
from grandrounds.core.errors import BadInput
from grandrounds.core.records import RoundRecord
from grandrounds.engine.checkpoint import LATE, Checkpoint

_TAIL = 256
"""Bytes before the offset that are compared, so that a journal that was written anew is recognised."""
LONGEST = 64 * 2**20
"""Bytes of one line of the journal that are read."""


class JournalReader:
    """The rounds of one run so far. Equal to `Checkpoint.records`, and as quick as the number of new rounds.

    The journal is read from its beginning again where it was replaced (another inode), truncated, or changed before the
    remembered offset. Bytes after the last committed round are not read.

    Args:
        checkpoint: The checkpoint of the run.
        reduce: Applied to each record before it is stored; it may leave parts out.
    """

    def __init__(self, checkpoint: Checkpoint, *, reduce: Callable[[RoundRecord], RoundRecord] = lambda r: r) -> None:
        self._checkpoint, self._reduce = checkpoint, reduce
        self._turn = threading.Lock()
        self.lines_read = 0
        """Lines that were parsed since this reader was made."""
        self._file: tuple[int, int] | None = None
        self._offset, self._tail = 0, b""
        self._records: list[RoundRecord] = []
        self._places: dict[int, int] = {}  # of each round in the list
        self._packer = Packer()

    def read(self) -> list[RoundRecord]:
        """Read the rounds that were appended since the last call.

        Returns:
            The records of all committed rounds; the list is the caller's.

        Raises:
            BadInput: The journal is missing or damaged. The next call reads it from its beginning.
        """
        with self._turn:
            try:
                self._read()
            except BadInput:
                self._forget()
                raise
            return list(self._records)

    def _read(self) -> None:
        facts = self._checkpoint.read_facts()
        if facts is None:
            self._forget()
            return
        self._checkpoint.require_journal()
        try:
            with os.fdopen(open_file(self._checkpoint.journal), "rb") as f:
                self._read_lines(f, int(facts["journal"]))
        except OSError as e:
            raise BadInput(f"cannot read {self._checkpoint.journal}: {e.strerror or e}", code="cannot-read") from None

    def _read_lines(self, f: IO[bytes], committed: int) -> None:
        found = os.fstat(f.fileno())
        if (
            (found.st_dev, found.st_ino) != self._file
            or min(committed, found.st_size) < self._offset
            or not self._fits(f)
        ):
            self._forget()
            self._file = (found.st_dev, found.st_ino)
        f.seek(self._offset)
        while self._offset < committed:
            line = f.readline(min(LONGEST, committed - self._offset))
            if not line:
                return
            if not line.endswith(b"\n") and len(line) == LONGEST:
                raise BadInput(
                    f"{self._checkpoint.journal} has a line of more than {LONGEST:,} bytes: it is not read",
                    code="file-too-large",
                )
            self._add(line)
            self._offset += len(line)
            self._tail = (self._tail + line[-_TAIL:])[-_TAIL:]

    def _fits(self, f: IO[bytes]) -> bool:
        """Tell whether the bytes before the offset are those that were read."""
        f.seek(self._offset - len(self._tail))
        return f.read(len(self._tail)) == self._tail

    def _add(self, line: bytes) -> None:
        values = self._checkpoint.parse_line(line, len(self._records) + 1, finite=False)
        self.lines_read += 1
        late_scores = values.pop(LATE, ())
        self._places[values["round"]] = len(self._records)
        self._records.append(self._store(values))
        for late in late_scores:
            place = self._places.get(late["round"])
            if place is not None:
                self._records[place] = self._store({**self._records[place], **late})

    def _store(self, values: Mapping[str, Any]) -> RoundRecord:
        where = str(self._checkpoint.journal)
        try:
            return self._packer.pack(self._reduce(RoundRecord.from_dict(values, where=where)))
        except ValueError as e:
            raise BadInput(f"{where} is damaged: {e}", code="damaged-file") from None

    def _forget(self) -> None:
        self._file, self._offset, self._tail = None, 0, b""
        self._records, self._places, self._packer = [], {}, Packer()
