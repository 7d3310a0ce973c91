"""Private keys of signatories: Ed25519, stored encrypted under a passphrase that is asked for at each signature.

The file has the scrypt parameters and salt, and the key sealed with AES-256-GCM. Parameters: OWASP Password Storage Cheat
Sheet, scrypt with N = 2^15, r = 8, p = 3 (32 MiB).
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from grandrounds.audit.canonical import canonical
from grandrounds.core.arrays import misfit, read_json
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import Identity

SCHEMA = 1
LEAST, LONGEST = 12, 1024
"""Characters of a passphrase."""
COSTS = {"n": 2**15, "r": 8, "p": 3}
_MOST = {"n": 2**20, "r": 32, "p": 16}
"""Largest parameters that are read from a file: others would let a forged file use up memory."""
_LARGEST = 10_000
_KIND = {"schema": int, "name": str, "key": str, "scrypt": {"n": int, "r": int, "p": int, "salt": str},
         "nonce": str, "sealed": str}  # fmt: skip


class WrongPassphrase(BadInput):
    """The passphrase does not open the key."""


def check_passphrase(passphrase: str) -> None:
    """Refuse a new passphrase that is too short or too long.

    Raises:
        BadInput: It is.
    """
    if not LEAST <= len(passphrase) <= LONGEST:
        raise BadInput(
            f"a signing passphrase needs {LEAST} to {LONGEST} characters: use several words", code="password-length"
        )


def seal_key(path: Path, identity: Identity, *, name: str, passphrase: str) -> None:
    """Write a private key, encrypted, with mode 0600. An existing file is never overwritten.

    Args:
        path: The new file.
        identity: The key.
        name: The signatory; a file that is renamed to another person's does not open.
        passphrase: The passphrase.

    Raises:
        BadInput: The passphrase is too short, or the file exists or cannot be written.
    """
    check_passphrase(passphrase)
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    facts: dict[str, Any] = {"schema": SCHEMA, "name": name, "key": identity.public.hex()}
    facts |= {"scrypt": {**COSTS, "salt": salt.hex()}, "nonce": nonce.hex()}
    sealed = AESGCM(_derive(passphrase, facts["scrypt"])).encrypt(nonce, identity.private_bytes(), canonical(facts))
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as f:
            f.write(json.dumps({**facts, "sealed": sealed.hex()}, indent=1).encode())
            f.flush()
            os.fsync(f.fileno())
    except OSError as e:
        raise BadInput(f"cannot write the key {path}: {e.strerror or e}", code="cannot-write") from None


def open_key(path: Path, *, passphrase: str) -> Identity:
    """Open a private key with its passphrase.

    Args:
        path: The file that `seal_key` wrote.
        passphrase: The passphrase.

    Returns:
        The key.

    Raises:
        WrongPassphrase: It is not the passphrase of this key.
        BadInput: The file cannot be read or is damaged.
    """
    facts = read_json(path, largest=_LARGEST)
    fault = misfit(facts, _KIND)
    if fault or facts["schema"] != SCHEMA or any(not 0 < facts["scrypt"][n] <= most for n, most in _MOST.items()):
        raise BadInput(f"{path} is damaged: it is not the key of a signatory", code="damaged-file")
    try:
        nonce, sealed = bytes.fromhex(facts["nonce"]), bytes.fromhex(facts.pop("sealed"))
        secret = AESGCM(_derive(passphrase, facts["scrypt"])).decrypt(nonce, sealed, canonical(facts))
    except InvalidTag:
        raise WrongPassphrase("the signing passphrase is wrong", code="wrong-passphrase") from None
    except ValueError:
        raise BadInput(f"{path} is damaged: it is not the key of a signatory", code="damaged-file") from None
    return Identity(Ed25519PrivateKey.from_private_bytes(secret))


def _derive(passphrase: str, costs: dict[str, Any]) -> bytes:
    salt, n = bytes.fromhex(costs["salt"]), costs["n"]
    return Scrypt(salt=salt, length=32, n=n, r=costs["r"], p=costs["p"]).derive(passphrase[:LONGEST].encode())
