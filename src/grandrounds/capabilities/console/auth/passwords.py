"""Hashes of passwords: argon2id with the parameters of OWASP.

Parameters: OWASP Password Storage Cheat Sheet, argon2id with 19 MiB of memory, 2 iterations and 1 thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from grandrounds.core.errors import BadInput, install_extra

if TYPE_CHECKING:
    from argon2 import PasswordHasher

MIN_PASSWORD = 12
MEMORY_KIB, ITERATIONS, THREADS = 19_456, 2, 1
_LONGEST = 1024


class PasswordHash(TypedDict):
    """A password as it is stored. `hash` is argon2's own text, with its parameters and salt."""

    hash: str


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


def check_password(password: str, stored: PasswordHash | None) -> bool:
    """Check a password against a stored hash, in a time that does not depend on the user.

    Args:
        password: The password, as it was typed.
        stored: The hash; None for an unknown user, whose check takes as long.

    Returns:
        True if the password is right.
    """
    if len(password) > _LONGEST:
        return False
    from argon2.exceptions import InvalidHashError, VerificationError

    hasher = _hasher()
    try:
        if stored is not None:
            return hasher.verify(stored["hash"], password)
        hasher.hash(password)  # the time of a check
    except (InvalidHashError, VerificationError):
        return False
    return False


def is_outdated(stored: PasswordHash) -> bool:
    """Tell whether a hash has other parameters than new ones."""
    return _hasher().check_needs_rehash(stored["hash"])


def _hasher() -> PasswordHasher:
    try:
        from argon2 import PasswordHasher
    except ImportError:
        raise BadInput(
            f"passwords of the console need argon2-cffi; {install_extra('console')}", code="missing-package"
        ) from None
    return PasswordHasher(time_cost=ITERATIONS, memory_cost=MEMORY_KIB, parallelism=THREADS)
