"""Parse messages of secure aggregation defensively: each part must be present, of its type and of its shape."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.privacy.secagg.terms import joined
from grandrounds.protocol.messages import Value


class Malformed(Exception):
    """A message of another form than agreed; the text names the part."""


def part(message: Any, name: str, kind: type[np.generic], shape: tuple[int | None, ...]) -> Array:
    """Read an array of this type and shape (None: any length).

    Raises:
        Malformed: It is anything else.
    """
    value = message.get(name) if isinstance(message, Mapping) else None
    if not isinstance(value, np.ndarray) or value.dtype != np.dtype(kind) or value.ndim != len(shape):
        raise Malformed(name)
    if any(want is not None and want != have for want, have in zip(shape, value.shape, strict=True)):
        raise Malformed(name)
    return value


def raw(message: Any, name: str, size: int) -> bytes:
    """Read a given number of bytes."""
    return part(message, name, np.uint8, (size,)).tobytes()


def rows(message: Any, name: str, size: int, *, count: int | None = None) -> list[bytes]:
    """Read rows of a given number of bytes."""
    return [row.tobytes() for row in part(message, name, np.uint8, (count, size))]


def numbers(message: Any, name: str, *, below: int) -> tuple[int, ...]:
    """Read increasing numbers of sites, all below a limit."""
    values = part(message, name, np.uint32, (None,))
    if len(values) and (int(values[-1]) >= below or not (values[1:] > values[:-1]).all()):
        raise Malformed(name)
    return tuple(values.tolist())


def as_bytes(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)


def as_rows(data: list[bytes], size: int) -> Array:
    return np.frombuffer(b"".join(data), np.uint8).reshape(len(data), size)


def as_numbers(sites: Any) -> Array:
    return np.array(sorted(sites), np.uint32)


def fingerprint(message: Mapping[str, Value]) -> bytes:
    """Hash the content of a message, to tell whether a step is repeated with the same request."""
    h = hashlib.sha256()
    for name in sorted(message):
        value = message[name]
        if isinstance(value, np.ndarray):
            h.update(joined(name, str(value.dtype), str(value.shape)))
            h.update(np.ascontiguousarray(value).data)
        else:
            h.update(joined(name, type(value).__name__, str(value)))
    return h.digest()
