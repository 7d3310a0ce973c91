"""Letters over a pipe: a length, then the bytes."""

from __future__ import annotations

from typing import IO

LENGTH = 8
LARGEST = 16 * 2**30


def write_frame(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(LENGTH, "big"))
    pipe.write(data)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """The next letter; None where the other side is gone."""
    head = _exactly(pipe, LENGTH)
    if head is None:
        return None
    size = int.from_bytes(head, "big")
    return None if size > LARGEST else _exactly(pipe, size)


def _exactly(pipe: IO[bytes], size: int) -> bytes | None:
    parts, left = [], size
    while left:
        part = pipe.read(left)
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
