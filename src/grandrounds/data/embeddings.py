"""Embeddings of texts, computed once and kept: a file that stands for exactly these texts and this encoder.

Its name holds a hash of both, so other words or other weights never find it. It is looked for where all data files
are, and written to the cache. A file that is cut short or was changed is taken for none, and computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import Array, encode, load
from grandrounds.core.errors import BadInput
from grandrounds.data.store import cache_folder, folders, new_file

_ARRAY = "embeddings"


def kept_path(texts: Sequence[str], *, encoder: str, folder: str) -> str:
    """The file of these texts inside a data folder; `encoder` says whose numbers they are (a hash of its weights)."""
    digest = hashlib.sha256(encoder.encode())
    for text in texts:
        digest.update(b"\0" + text.encode())
    return f"{folder}/embeddings-{digest.hexdigest()[:16]}.safetensors"


def find(path: str, *, rows: int) -> tuple[Path, Array] | None:
    """The first sound file of this name, and its embeddings (rows, d); None where there is none."""
    for folder in folders():
        place = folder / path
        if place.is_file() and (held := _sound(place, rows)) is not None:
            return place, held
    return None


def kept(path: str, *, rows: int, compute: Callable[[], Array]) -> tuple[Path, Array]:
    """The embeddings in this file, computed and written to the cache where there is no sound one."""
    found = find(path, rows=rows)
    if found is not None:
        return found
    with new_file(path) as f:
        values = np.ascontiguousarray(compute(), np.float32)
        f.write(encode({_ARRAY: values}, {"sha256": _digest(values)}))
    return cache_folder() / path, values


def _sound(place: Path, rows: int) -> Array | None:
    try:
        arrays, meta = load(place, links=True)
    except BadInput:
        return None
    values = arrays.get(_ARRAY)
    if values is None or values.ndim != 2 or len(values) != rows or values.dtype != np.float32:
        return None
    return values if isinstance(meta, dict) and meta.get("sha256") == _digest(values) else None


def _digest(values: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, "<f4").tobytes()).hexdigest()
