"""Encrypt the plan of a submitted run for the server: it names columns, and Flower's routes pass it in plain text.

The server has an X25519 key for plans, `server/plan.key`. Its public half is in every operator's folder, under the signed
manifest. Each plan gets an ephemeral key of its own (X25519, HKDF-SHA256, ChaCha20-Poly1305), bound to the name of the run.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from grandrounds.capabilities.hospital.deploy.files import read, write, write_private
from grandrounds.core.errors import BadInput

PRIVATE, PUBLIC = "plan.key", "plan.pub"
_PREFIX = "encrypted:"
_INFO = b"grandrounds plan 1\x00"
_KEY, _NONCE = 32, 12


def make_plan_key(server: Path) -> None:
    """Create the server's key for plans."""
    key = X25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private(server / PRIVATE, pem)
    write(server / PUBLIC, f"{key.public_key().public_bytes_raw().hex()}\n")


def encrypt_plan(plan: str, folder: Path, *, run: str) -> str:
    """Encrypt a plan for the server.

    Args:
        plan: The plan as JSON.
        folder: The server's or an operator's folder, with the public key.
        run: Name of the run.

    Returns:
        Text for the settings of a Flower run.

    Raises:
        BadInput: The folder has no key, or a damaged one.
    """
    try:
        public = X25519PublicKey.from_public_bytes(bytes.fromhex(read(folder / PUBLIC).decode().strip()))
    except ValueError:
        raise BadInput(f"{folder / PUBLIC} is damaged: take the operator's folder again", code="damaged-file") from None
    ephemeral, nonce = X25519PrivateKey.generate(), os.urandom(_NONCE)
    half = ephemeral.public_key().public_bytes_raw()
    cipher = _cipher(ephemeral.exchange(public), half, public.public_bytes_raw())
    return _PREFIX + base64.b64encode(half + nonce + cipher.encrypt(nonce, plan.encode(), run.encode())).decode()


def decrypt_plan(text: str, server: Path, *, run: str) -> str:
    """Decrypt a plan at the server.

    Raises:
        BadInput: It was changed, is not encrypted, belongs to another run, or was encrypted for another server.
    """
    key = _load_private(server)
    try:
        data = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        half, nonce = data[:_KEY], data[_KEY : _KEY + _NONCE]
        secret = key.exchange(X25519PublicKey.from_public_bytes(half))
        plain = _cipher(secret, half, key.public_key().public_bytes_raw()).decrypt(nonce, data[_KEY + _NONCE :], run.encode())
    except (ValueError, InvalidTag):
        raise BadInput(
            f"the plan of run {run} cannot be decrypted with {server / PRIVATE}: take the operator's folder again, and submit",
            code="unreadable-plan",
        ) from None
    return plain.decode()


def _cipher(secret: bytes, half: bytes, public: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(HKDF(hashes.SHA256(), _KEY, salt=None, info=_INFO + half + public).derive(secret))


def _load_private(server: Path) -> X25519PrivateKey:
    path = server / PRIVATE
    try:
        key = serialization.load_pem_private_key(read(path), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, X25519PrivateKey):
        raise BadInput(f"{path} is not an X25519 key in PEM format: restore it from the backup", code="invalid-key")
    return key
