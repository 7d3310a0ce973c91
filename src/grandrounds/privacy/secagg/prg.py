"""Masks: a stream of ring elements from a 32-byte key, added or taken away in place.

The stream is AES-256 in counter mode, of `cryptography`, over zeros (two to four times as fast as ChaCha20 where the
processor knows AES). A key is made for one mask, so the counter starts at zero. Work goes block by block, all masks of a
block after one another: the block stays in the processor's cache, and memory does not grow with the number of masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from grandrounds.core.arrays import Array
from grandrounds.privacy.secagg.context import joined

KEY_BYTES = 32
_BLOCK_BYTES = 1 << 18
_ZEROS = bytes(_BLOCK_BYTES)
_AT_ONCE = 256
"""Streams open at a time."""


def derived(secret: bytes, purpose: str, *context: bytes | str | int, size: int = KEY_BYTES) -> bytes:
    """A key for one purpose in one context: HKDF-SHA256."""
    return HKDF(SHA256(), size, None, joined("grandrounds secagg", purpose, *context)).derive(secret)


def apply(values: Array, *, add: Sequence[bytes] = (), take: Sequence[bytes] = ()) -> None:
    """Add the masks of some keys to ring elements (P,) and take away those of others, in place."""
    for at in range(0, max(len(add), len(take)), _AT_ONCE):
        _apply(values, add[at : at + _AT_ONCE], take[at : at + _AT_ONCE])


def _apply(values: Array, add: Sequence[bytes], take: Sequence[bytes]) -> None:
    streams: list[tuple[Any, Any]] = [(_stream(key), np.add) for key in add]
    streams += [(_stream(key), np.subtract) for key in take]
    kind = values.dtype.newbyteorder("<")
    count = min(len(values), _BLOCK_BYTES // kind.itemsize)
    mask = np.empty(count, kind)
    raw = mask.data.cast("B") if count else memoryview(b"")
    for start in range(0, len(values), max(count, 1)):
        block = values[start : start + count]
        size = len(block) * kind.itemsize
        for stream, operation in streams:
            stream.update_into(_ZEROS[:size] if size < _BLOCK_BYTES else _ZEROS, raw[:size])
            operation(block, mask[: len(block)], out=block)


def _stream(key: bytes) -> Any:
    return Cipher(AES(key), CTR(bytes(16))).encryptor()
