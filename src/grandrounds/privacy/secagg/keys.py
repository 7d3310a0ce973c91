"""Keys, masks and randomness of a site for one secure sum.

Everything is fresh for each sum: one X25519 pair for masks (its private key is shared out, and reconstructed by the server
if the site drops out), one for sealing shares (its private key never leaves), and the seed of the site's own mask. Keys and
noise come from a `Secret`, in a deployed run never from the experiment's seed.

A mask is a stream of ring elements from a 32-byte key, added or subtracted in place: AES-256 in counter mode of
`cryptography` over zeros (two to four times as fast as ChaCha20 on processors with AES). A key is used for one mask, so the
counter starts at zero. Work is done block by block, with all masks of a block in turn: the block stays in the processor's
cache, and memory does not grow with the number of masks.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from grandrounds.core.arrays import Array
from grandrounds.privacy.secagg.shamir import SHARE_BYTES
from grandrounds.privacy.secagg.terms import Context, digest, joined
from grandrounds.protocol.identity import SIGNATURE_BYTES, Identity


class Secret:
    """Random bytes known to one site only. Its `repr` shows the kind only."""

    def __init__(self, root: bytes | None) -> None:
        self._root = root

    @classmethod
    def own(cls) -> Secret:
        """Create a secret from the operating system's entropy, fresh at every call.

        It is not derived from a stored root on purpose: a site that lost a sum half-way and is asked again must not mask
        other values with the same masks.
        """
        return cls(None)

    @classmethod
    def simulated(cls, seed: int, site: str) -> Secret:
        """Derive a secret from the seed, so that runs are reproducible; anyone who knows the seed can remove every mask."""
        return cls(hashlib.sha256(joined("grandrounds simulated secret", seed, site)).digest())

    @property
    def is_simulated(self) -> bool:
        return self._root is not None

    def bytes(self, purpose: str, size: int) -> bytes:
        """Return bytes for one purpose; a simulated secret returns the same bytes for the same purpose."""
        if self._root is None:
            return os.urandom(size)
        return hashlib.shake_256(joined(self._root, purpose)).digest(size)

    def __repr__(self) -> str:
        return "Secret(simulated)" if self.is_simulated else "Secret(own)"


KEY_BYTES = 32
_BLOCK_BYTES = 1 << 18
_ZEROS = bytes(_BLOCK_BYTES)
_AT_ONCE = 256
"""Number of streams open at a time."""


def derived(secret: bytes, purpose: str, *context: bytes | str | int, size: int = KEY_BYTES) -> bytes:
    """Derive a key for one purpose in one context with HKDF-SHA256."""
    return HKDF(SHA256(), size, None, joined("grandrounds secagg", purpose, *context)).derive(secret)


def apply_masks(values: Array, *, add: Sequence[bytes] = (), take: Sequence[bytes] = ()) -> None:
    """Add the masks of some keys to ring elements (P,) and subtract those of others, in place."""
    for start in range(0, max(len(add), len(take)), _AT_ONCE):
        _apply_block(values, add[start : start + _AT_ONCE], take[start : start + _AT_ONCE])


def _apply_block(values: Array, add: Sequence[bytes], take: Sequence[bytes]) -> None:
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


ANNOUNCED_BYTES = 3 * KEY_BYTES + SIGNATURE_BYTES
SEALED_BYTES = 2 * SHARE_BYTES + 16
_NONCE = bytes(12)  # a sealing key is for one message
_PROBE = X25519PrivateKey.from_private_bytes(bytes(range(32)))


@dataclass(frozen=True)
class Announced:
    """Public keys of a site, signed by it: both public keys and a commitment to the seed."""

    mask: bytes
    seal: bytes
    commitment: bytes
    signature: bytes

    @classmethod
    def unpack(cls, data: bytes) -> Announced:
        mask, seal, commitment = (data[k * KEY_BYTES : (k + 1) * KEY_BYTES] for k in range(3))
        return cls(mask, seal, commitment, data[3 * KEY_BYTES :])

    def pack(self) -> bytes:
        return self.mask + self.seal + self.commitment + self.signature

    def statement(self, context: Context, site: str) -> bytes:
        """Return the signed bytes."""
        return joined("keys", context.bytes, site, self.mask, self.seal, self.commitment)

    @property
    def weak(self) -> bool:
        """True if a key is a point of low order: all secrets agreed with it are equal."""
        return _weak(self.mask) or _weak(self.seal)


class OwnKeys:
    """Private keys of a site; its `repr` shows nothing of them."""

    def __init__(self, secret: Secret, context: Context, site: str) -> None:
        def fresh(purpose: str) -> bytes:
            return secret.bytes(f"{context}: {purpose}", KEY_BYTES)

        self.mask_private, self.seal_private, self.seed = fresh("mask key"), fresh("seal key"), fresh("self-mask")
        self.mask = X25519PrivateKey.from_private_bytes(self.mask_private)
        self.seal = X25519PrivateKey.from_private_bytes(self.seal_private)
        self._context, self._site = context, site

    def announce(self, identity: Identity) -> Announced:
        unsigned = Announced(
            self.mask.public_key().public_bytes_raw(),
            self.seal.public_key().public_bytes_raw(),
            commitment(self._context, self._site, self.seed),
            b"",
        )
        signature = identity.sign(unsigned.statement(self._context, self._site))
        return Announced(unsigned.mask, unsigned.seal, unsigned.commitment, signature)

    def __repr__(self) -> str:
        return f"OwnKeys({self._site})"


def commitment(context: Context, site: str, seed: bytes) -> bytes:
    """Compute a commitment that binds a site to its seed before any share is seen; it reveals nothing about 32 random
    bytes.
    """
    return digest("self-mask", context.bytes, site, seed)


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def mask_key(private: X25519PrivateKey, public: bytes, *, terms: bytes, pair: tuple[int, int]) -> bytes:
    """Derive the key of the mask that two sites share, the same at both; `pair` is their numbers on the roster."""
    return derived(_agreed(private, public), "mask", terms, min(pair), max(pair))


def self_mask_key(seed: bytes, *, terms: bytes, site: int) -> bytes:
    return derived(seed, "self-mask", terms, site)


def seal_keys(private: X25519PrivateKey, public: bytes, *, terms: bytes, site: int, other: int) -> tuple[bytes, bytes]:
    """Derive the keys for shares that this site seals for another, and for those that the other seals for it."""
    both = derived(_agreed(private, public), "seal", terms, min(site, other), max(site, other), size=2 * KEY_BYTES)
    up, down = both[:KEY_BYTES], both[KEY_BYTES:]
    return (up, down) if site < other else (down, up)


def seal(key: bytes, text: bytes, *, terms: bytes, sender: int, receiver: int) -> bytes:
    return ChaCha20Poly1305(key).encrypt(_NONCE, text, joined(terms, sender, receiver))


def unseal(key: bytes, sealed: bytes, *, terms: bytes, sender: int, receiver: int) -> bytes | None:
    """Open sealed shares; None if they were altered or sealed with another key."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, joined(terms, sender, receiver))
    except InvalidTag:
        return None


def _agreed(private: X25519PrivateKey, public: bytes) -> bytes:
    return private.exchange(X25519PublicKey.from_public_bytes(public))


def _weak(public: bytes) -> bool:
    try:
        _agreed(_PROBE, public)
    except ValueError:
        return True
    return False
