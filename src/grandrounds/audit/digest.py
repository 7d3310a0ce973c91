"""Hashes of values that a ledger names but does not contain: models, answers, explanations.

Numbers are hashed as little-endian bytes preceded by name, type and shape, so that values of different meaning never share
their bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array


def model_digest(model: Array) -> str:
    """Hash one model, its parameters as one vector."""
    hasher = hashlib.sha256()
    _add_array(hasher, "model", np.asarray(model))
    return hasher.hexdigest()


def arrays_digest(arrays: Mapping[str, Array]) -> str:
    """Hash named arrays in the order of their names."""
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        _add_array(hasher, name, np.asarray(arrays[name]))
    return hasher.hexdigest()


def row_digests(columns: Mapping[str, Array | Sequence[Any]], rows: int) -> list[bytes]:
    """Hash each site's answer from columns: names, types and shapes, then the data."""
    names = sorted(columns)
    if all(isinstance(columns[name], np.ndarray) for name in names):
        arrays = [np.asarray(columns[name]) for name in names]
        common = hashlib.sha256(
            b"".join(_head(n, _kind(c.dtype), c.shape[1:]) for n, c in zip(names, arrays, strict=True))
        )
        data = [_plain(c) for c in arrays]
        return [_hashed(common.copy(), [d[k : k + 1].data for d in data]) for k in range(rows)]
    return [_answer([(name, *_item(columns[name][k])) for name in names]) for k in range(rows)]


def value_digest(value: Any) -> str:
    """Hash a JSON value; a list of numbers is hashed as an array, which is many times faster than its text."""
    hasher = hashlib.sha256()
    _add_value(hasher, value)
    return hasher.hexdigest()


def _add_value(hasher: hashlib._Hash, value: Any) -> None:
    if isinstance(value, Mapping):
        hasher.update(f"{{{len(value)}\n".encode())
        for key in sorted(value):
            hasher.update(json.dumps(key).encode() + b"\n")
            _add_value(hasher, value[key])
    elif isinstance(value, (list, tuple)):
        if value and all(type(v) is float or type(v) is int for v in value):
            _add_array(hasher, "", np.array(value, float))
        else:
            hasher.update(f"[{len(value)}\n".encode())
            for item in value:
                _add_value(hasher, item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _add_array(hasher, "", np.array(value, float))
    else:
        hasher.update(json.dumps(value).encode() + b"\n")


def _answer(reports: Sequence[tuple[str, str, tuple[int, ...], bytes]]) -> bytes:
    heads = b"".join(_head(name, kind, shape) for name, kind, shape, _ in reports)
    return _hashed(hashlib.sha256(heads), [data for *_, data in reports])


def _hashed(hasher: hashlib._Hash, parts: Iterable[Any]) -> bytes:
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def _item(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Return type, shape and bytes of one report."""
    if isinstance(value, str):
        data = value.encode()
        return "text", (len(data),), data
    array = np.asarray(value)
    return _kind(array.dtype), array.shape, _plain(array).tobytes()


def _add_array(hasher: hashlib._Hash, name: str, array: Array) -> None:
    hasher.update(_head(name, _kind(array.dtype), array.shape))
    hasher.update(_plain(array).tobytes())


def _head(name: str, kind: str, shape: Sequence[int]) -> bytes:
    return json.dumps([name, kind, list(shape)]).encode() + b"\n"


def _kind(dtype: np.dtype[Any]) -> str:
    return dtype.newbyteorder("<").str


def _plain(array: Array) -> Array:
    out: Array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return out
