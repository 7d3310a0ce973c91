"""Named arrays as bytes: the safetensors format, read and written with NumPy alone.

Everything that travels or is stored (messages, models, checkpoints) is a flat dict of arrays plus
a small JSON value. The format is a length, a JSON header and raw little-endian bytes, so nothing
is ever unpickled. The header is checked entry by entry before a byte of data is looked at,
because it may come from a stranger.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.errors import BadInput

Array = np.ndarray[Any, np.dtype[Any]]

_NAMES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_BY_DTYPE = {np.dtype(code): name for name, code in _NAMES.items()}
_MAX_HEADER = 100_000_000


Shapes = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]


def _header(arrays: Mapping[str, Array], meta: Any) -> bytes:
    facts = json.dumps({"__metadata__": {"meta": json.dumps(meta, sort_keys=True)}}, separators=(",", ":"))
    listed, _ = _listed(tuple((name, a.dtype, a.shape) for name, a in arrays.items()))
    text = (facts[:-1] + listed + "}").encode()
    return text + b" " * (-len(text) % 8)


@lru_cache(maxsize=64)
def _listed(shapes: Shapes) -> tuple[str, int]:
    """The header's text about arrays, and their bytes; the same in every round, and so kept."""
    head: dict[str, Any] = {}
    at = 0
    for name, dtype, shape in shapes:
        kind = _BY_DTYPE.get(dtype.newbyteorder("<"))
        if kind is None:
            raise TypeError(f"array '{name}' has type {dtype}, which has no place in a message")
        end = at + dtype.itemsize * prod(shape)
        head[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(head, separators=(",", ":"))
    return ("," + text[1:-1] if head else ""), at


def encode(arrays: Mapping[str, Array], meta: Any = None) -> bytes:
    """The bytes of named arrays and a JSON value; `safetensors` reads them too."""
    head = _header(arrays, meta)
    parts = [len(head).to_bytes(8, "little"), head]
    parts += [np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("<")).tobytes() for a in arrays.values()]
    return b"".join(parts)


def encoded_size(arrays: Mapping[str, Array], meta: Any = None) -> int:
    """How many bytes `encode` would give, without copying the data."""
    return 8 + len(_header(arrays, meta)) + sum(a.nbytes for a in arrays.values())


def decode(data: bytes, *, where: str = "message") -> tuple[dict[str, Array], Any]:
    """Arrays and JSON value from bytes; anything that does not add up is refused."""
    try:
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or size > min(_MAX_HEADER, len(data) - 8):
            raise ValueError("header length")
        head = json.loads(data[8 : 8 + size])
        meta = json.loads(head.pop("__metadata__", {}).get("meta", "null"))
        body = memoryview(data)[8 + size :]
        arrays = {}
        end = 0
        for name, entry in head.items():
            dtype = np.dtype(_NAMES[entry["dtype"]])
            shape = tuple(int(n) for n in entry["shape"])
            start, stop = (int(n) for n in entry["data_offsets"])
            count = int(np.prod(shape, dtype=object)) if shape else 1
            if start != end or stop - start != count * dtype.itemsize or stop > len(body) or min(shape, default=0) < 0:
                raise ValueError(f"offsets of '{name}'")
            arrays[name] = np.frombuffer(body[start:stop], dtype=dtype).reshape(shape)
            end = stop
        if end != len(body):
            raise ValueError("bytes left over")
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError, OverflowError) as e:
        raise BadInput(f"{where} is not a readable array file ({e}); it may be damaged or cut short") from None
    return arrays, meta


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Put `data` at `path` whole or not at all: a reader never sees half a file, nor does a crash."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as f:
            f.write(data)
            f.flush()
            if durable:
                os.fsync(f.fileno())
        part.replace(path)
        if durable:
            _sync_folder(path.parent)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save(path: Path, arrays: Mapping[str, Array], meta: Any = None, *, durable: bool = True) -> None:
    """Write named arrays to a .safetensors file, atomically."""
    write_atomic(path, encode(arrays, meta), durable=durable)


def load(path: Path) -> tuple[dict[str, Array], Any]:
    """Read a .safetensors file; a missing or damaged one is the caller's `BadInput`."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}") from None
    return decode(data, where=str(path))
