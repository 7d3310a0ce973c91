"""Hashes of passwords: argon2id with the parameters of OWASP. Hashes of earlier versions (scrypt) are still checked.

Parameters: OWASP Password Storage Cheat Sheet, argon2id with 19 MiB of memory, 2 iterations and 1 thread.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING, TypedDict

from grandrounds.core.errors import BadInput, install_extra

if TYPE_CHECKING:
    from argon2 import PasswordHasher

MIN_PASSWORD = 12
MEMORY_KIB, ITERATIONS, THREADS = 19_456, 2, 1
_LONGEST = 1024
_SCRYPT_MEMORY = 64 * 2**20
_COSTS = {"n": 2**15, "r": 8, "p": 1}  # of scrypt, as earlier versions wrote them


class PasswordHash(TypedDict, total=False):
    """A password as it is stored.

    `hash` is argon2's own text, with its parameters and salt. A hash of an earlier version has scrypt's parameters n, r and
    p beside it, and its salt; both are in base64.
    """

    hash: str
    n: int
    r: int
    p: int
    salt: str


def hash_password(password: str) -> PasswordHash:
    """Hash a password with a new salt.

    Raises:
        BadInput: It is too short or too long.
    """
    if len(password) < MIN_PASSWORD:
        raise BadInput(f"a password needs {MIN_PASSWORD} characters or more: use several words", code="password-length")
    if len(password) > _LONGEST:
        raise BadInput(f"a password has at most {_LONGEST} characters", code="password-length")
    return {"hash": _hasher().hash(password)}


def check_password(password: str, stored: PasswordHash | None, *, legacy: bool = False) -> bool:
    """Check a password against a stored hash, in a time that does not depend on the user.

    Args:
        password: The password, as it was typed.
        stored: The hash; None for an unknown user, whose check takes as long.
        legacy: Another user still has a hash of scrypt: each check then computes both kinds of hash.

    Returns:
        True if the password is right.
    """
    if len(password) > _LONGEST:
        return False
    is_old = stored is not None and is_legacy(stored)
    right = _check_argon2(password, None if is_old else stored)
    right_old = _check_scrypt(password, stored if is_old else None) if legacy or is_old else False
    return right_old if is_old else right


def is_legacy(stored: PasswordHash) -> bool:
    """Tell whether an earlier version wrote a hash."""
    return "salt" in stored


def is_outdated(stored: PasswordHash) -> bool:
    """Tell whether a hash is of an earlier version, or has other parameters than new ones."""
    return is_legacy(stored) or _hasher().check_needs_rehash(stored["hash"])


def _check_argon2(password: str, stored: PasswordHash | None) -> bool:
    from argon2.exceptions import InvalidHashError, VerificationError

    hasher = _hasher()
    try:
        if stored is not None:
            return hasher.verify(stored["hash"], password)
        hasher.hash(password)  # the time of a check
    except (InvalidHashError, VerificationError):
        return False
    return False


def _check_scrypt(password: str, stored: PasswordHash | None) -> bool:
    costs = {name: _COSTS[name] if stored is None else int(stored[name]) for name in _COSTS}  # type: ignore[literal-required]
    salt = b"\0" * 16 if stored is None else base64.b64decode(stored["salt"])
    digest = hashlib.scrypt(password.encode(), salt=salt, maxmem=_SCRYPT_MEMORY, dklen=32, **costs)
    return stored is not None and hmac.compare_digest(base64.b64encode(digest).decode(), stored["hash"])


def _hasher() -> PasswordHasher:
    try:
        from argon2 import PasswordHasher
    except ImportError:
        raise BadInput(
            f"passwords of the console need argon2-cffi; {install_extra('console')}", code="missing-package"
        ) from None
    return PasswordHasher(time_cost=ITERATIONS, memory_cost=MEMORY_KIB, parallelism=THREADS)
