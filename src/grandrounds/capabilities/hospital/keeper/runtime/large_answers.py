"""Large answers of a site, which the server fetches in parts: files of encrypted bytes, for the owner only.

A file is removed when the server has all of it, and after a day.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from grandrounds.core.errors import BadInput
from grandrounds.protocol.envelope import digest
from grandrounds.protocol.parts import (
    ANNOUNCE,
    BYTES,
    DONE,
    FETCH,
    LARGE,
    LONGEST,
    MISSING,
    PartMessage,
    decode_part,
    is_part,
)

KEEP_SECONDS = 24 * 3600.0
"""Age at which an answer that nobody fetched is removed."""


class LargeAnswers:
    """Answers messages as `handler` does, with an announcement in place of each answer of more than `large` bytes.

    Args:
        folder: The folder of waiting answers; it is created.
        handler: Answers one message.
        large: Size in bytes from which on an answer is fetched in parts.
    """

    def __init__(self, folder: Path, handler: Callable[[bytes], bytes], *, large: int = LARGE) -> None:
        self._folder, self._handler, self._large = folder, handler, large
        folder.mkdir(mode=0o700, exist_ok=True)
        self._remove_old()

    def handle(self, message: bytes) -> bytes:
        """Answer a message; one about parts from the files, any other by the handler."""
        if is_part(message):
            return self._serve(decode_part(message)).encode()
        answer = self._handler(message)
        if len(answer) <= self._large:
            return answer
        self._remove_old()
        mark = digest(answer)
        try:
            self._write(mark, answer)
        except OSError:  # the disk is full: the answer leaves in one piece
            with contextlib.suppress(OSError):
                (self._folder / f"{mark}.part").unlink(missing_ok=True)
            return answer
        return PartMessage(ANNOUNCE, mark, size=len(answer)).encode()

    def _serve(self, request: PartMessage) -> PartMessage:
        path = self._folder / request.digest
        if request.kind == DONE:
            path.unlink(missing_ok=True)
            return PartMessage(DONE, request.digest)
        if request.kind != FETCH or request.length > LONGEST:
            raise BadInput("received a malformed request for a part of an answer", code="malformed-message")
        try:
            with path.open("rb") as f:
                size = os.fstat(f.fileno()).st_size
                f.seek(request.offset)
                data = f.read(request.length)
        except OSError:
            return PartMessage(MISSING, request.digest)
        return PartMessage(BYTES, request.digest, size=size, offset=request.offset, length=len(data), data=data)

    def _write(self, mark: str, answer: bytes) -> None:
        part = self._folder / f"{mark}.part"
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
            f.write(answer)
            f.flush()
            os.fsync(f.fileno())  # the announcement must not survive a loss of power that the file does not
        part.replace(self._folder / mark)

    def _remove_old(self) -> None:
        before = time.time() - KEEP_SECONDS
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if path.suffix == ".part" or path.stat().st_mtime < before:
                    path.unlink()
