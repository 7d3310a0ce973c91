"""Ed25519 identities of server and sites: create, store and load keys, and verify signatures.

The private key stays where it was made. A simulation derives it from the experiment's seed, so that runs are reproducible.
Anyone who knows the seed can then sign as any party; the ledger and `rounds audit verify` state this.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from grandrounds.core.arrays import read_file
from grandrounds.core.errors import BadInput

PUBLIC_BYTES, SIGNATURE_BYTES = 32, 64
_SMALL_ORDER = frozenset(
    bytes.fromhex(point)
    for point in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)
"""Points of order 1, 2, 4 and 8 without the sign bit. Anyone can make a signature that verifies with such a key."""
_LARGEST = 100_000
"""Largest size of a key file, in bytes."""


class Identity:
    """A private signing key. Its `repr` shows the public key only."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()

    @classmethod
    def new(cls) -> Identity:
        """Create a key from the operating system's entropy, as a deployed site or server does."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def simulated(cls, seed: int, who: str) -> Identity:
        """Derive the simulated key of a site or of the server from the experiment's seed."""
        secret = hashlib.sha256(f"grandrounds identity\x1f{seed}\x1f{who}".encode()).digest()
        return cls(Ed25519PrivateKey.from_private_bytes(secret))

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Load a private key that `save` wrote.

        Args:
            path: The PEM file.

        Returns:
            The identity.

        Raises:
            BadInput: The file cannot be read, or is not an Ed25519 key in PEM format without a password.
        """
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except OSError as e:
            raise BadInput(f"cannot read the key {path}: {e.strerror or e}", code="cannot-read") from None
        except (ValueError, TypeError):
            raise BadInput(f"{path} is not a private key in PEM format without a password", code="bad-key") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise BadInput(f"{path} holds another type of key; an Ed25519 key is required", code="wrong-key-type")
        return cls(key)

    def save(self, path: Path) -> None:
        """Write the private key with mode 0600. An existing file is never overwritten.

        Args:
            path: The new PEM file.

        Raises:
            BadInput: The file exists or cannot be written.
        """
        pem = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as e:
            raise BadInput(f"cannot write the key {path}: {e.strerror or e}", code="cannot-write") from None
        with os.fdopen(handle, "wb") as f:
            f.write(pem)

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def private_bytes(self) -> bytes:
        """Return the 32 secret bytes, to be encrypted where the key is stored."""
        return self._key.private_bytes_raw()

    def __repr__(self) -> str:
        return f"Identity({self.public.hex()})"


@dataclass(frozen=True)
class Signers:
    """Keys that sign a run's ledger: the server's key, each site's public key, and a description of how they were made."""

    server: Identity
    sites: Mapping[str, bytes]
    made: str


def signed_by(public: bytes, message: bytes, signature: bytes) -> bool:
    """Verify that the owner of this public key signed this message; False for an invalid key or signature."""
    if is_weak(public):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def is_weak(public: bytes) -> bool:
    """Tell whether a key is of small order, so that anyone can make signatures that verify with it."""
    return len(public) == PUBLIC_BYTES and public[:-1] + bytes([public[-1] & 0x7F]) in _SMALL_ORDER


def load_public(path: Path) -> bytes:
    """Read a public key from a PEM file, or from one line of 64 hexadecimal digits.

    Args:
        path: The file.

    Returns:
        The 32 bytes of the key.

    Raises:
        BadInput: The file cannot be read, is not an Ed25519 key, or holds a key of small order.
    """
    key = _read_public(path)
    if is_weak(key):
        raise BadInput(
            f"{path} holds a key of small order, with which anyone can sign: ask its owner for the real key",
            code="weak-key",
        )
    return key


def _read_public(path: Path) -> bytes:
    data = read_file(path, largest=_LARGEST, links=True)
    try:
        return _checked(bytes.fromhex(data.decode().strip()))
    except ValueError:
        pass
    try:
        key = serialization.load_pem_public_key(data)
    except ValueError:
        raise BadInput(f"{path} is not a public key: PEM or 64 hexadecimal digits are required", code="bad-key") from None
    if not isinstance(key, Ed25519PublicKey):
        raise BadInput(f"{path} holds another type of key; an Ed25519 public key is required", code="wrong-key-type")
    return key.public_bytes_raw()


def public_pem(public: bytes) -> bytes:
    """Encode a public key as PEM."""
    key = Ed25519PublicKey.from_public_bytes(public)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _checked(public: bytes) -> bytes:
    if len(public) != PUBLIC_BYTES:
        raise ValueError
    return public
