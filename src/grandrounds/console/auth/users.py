"""Users and their roles: `users.json` has scrypt hashes of passwords and SHA-256 digests of tokens, never the secrets themselves.

A token has 256 random bits, so a fast hash is enough for it, unlike for a password. A user has one or more roles, and every page
and API route belongs to one area.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, TypedDict

from grandrounds.core.errors import BadInput, nearest
from grandrounds.deploy.files import write_private

SCHEMA = 1
TOKEN = "grc_"
"""Prefix of every token, so that secret scanners recognise it."""
MIN_PASSWORD = 12
_COST = {"n": 2**15, "r": 8, "p": 1}
_MEMORY = 64 * 2**20
_LONGEST = 1024
_NAME = 64
_log = logging.getLogger("grandrounds.console")


class Role(StrEnum):
    """The role of a user in the consortium."""

    VIEWER = "viewer"
    CLINICIAN = "clinician"
    AUDITOR = "auditor"


class Area(StrEnum):
    """The area that a route belongs to."""

    RUNS = "runs"
    COMPARE = "compare"
    CASES = "cases"
    AUDIT = "audit"
    PRIVACY = "privacy"


_EVERYBODY = frozenset(Role)
ROLES_BY_AREA: dict[Area, frozenset[Role]] = {
    Area.RUNS: _EVERYBODY,
    Area.COMPARE: _EVERYBODY,
    Area.CASES: frozenset({Role.CLINICIAN}),
    Area.AUDIT: frozenset({Role.AUDITOR}),
    Area.PRIVACY: frozenset({Role.AUDITOR}),
}
"""Areas by role: only clinicians see patients; auditors see privacy and ledgers."""


def may_see(roles: Iterable[Role], area: Area) -> bool:
    return not ROLES_BY_AREA[area].isdisjoint(roles)


def parse_roles(words: Iterable[str]) -> tuple[Role, ...]:
    """Parse roles by name.

    Raises:
        BadInput: A role is unknown, or there is none.
    """
    names = [r.value for r in Role]
    roles = []
    for word in words:
        if word not in names:
            raise BadInput(f"there is no role '{word}'; {nearest(word, names)}", code="unknown-role")
        roles.append(Role(word))
    if not roles:
        raise BadInput(f"a user needs a role: {', '.join(names)}", code="missing-role")
    return tuple(dict.fromkeys(roles))


class PasswordHash(TypedDict):
    """A password as it is stored: scrypt's parameters, the salt and the hash, both in base64."""

    n: int
    r: int
    p: int
    salt: str
    hash: str


@dataclass(frozen=True)
class User:
    """A user of the console. `tokens`: the end of each token (ISO), by the token's digest."""

    name: str
    roles: tuple[Role, ...]
    password: PasswordHash | None = None
    tokens: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        return {
            "name": self.name,
            "roles": [r.value for r in self.roles],
            "password": self.password,
            "tokens": dict(self.tokens),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> User:
        return cls(str(plain["name"]), parse_roles(plain["roles"]), plain["password"], dict(plain["tokens"]))


class Users:
    """The users of a console. Their file is read again when it changes, so that a removed user loses access at once; without a
    file they are forgotten when the console stops."""

    def __init__(self, users: Iterable[User] = (), file: Path | None = None) -> None:
        self._users = {user.name: user for user in users}
        self._file = file
        self._stamp = _facts(file)

    @classmethod
    def load(cls, file: Path) -> Users:
        """Load the users of a file; none where there is no file yet.

        Raises:
            BadInput: The file cannot be read, is damaged, or is of another version.
        """
        if not file.exists():
            return cls(file=file)
        try:
            content = json.loads(file.read_text())
            if content["schema"] != SCHEMA:
                raise BadInput(
                    f"{file} has schema {content['schema']}, this version reads {SCHEMA}: update the older side",
                    code="unsupported-version",
                )
            return cls([User.from_dict(u) for u in content["users"]], file)
        except OSError as e:
            raise BadInput(f"cannot read the users of {file}: {e.strerror or e}", code="cannot-read") from None
        except (ValueError, KeyError, TypeError):
            raise BadInput(
                f"{file} is damaged: restore a backup, or remove the file and add users again", code="damaged-file"
            ) from None

    def __iter__(self) -> Iterator[User]:
        return iter(self._current().values())

    def __len__(self) -> int:
        return len(self._current())

    def add(self, name: str, roles: Iterable[str], *, password: str | None = None) -> User:
        """Add a user, or change the roles and password of an existing one."""
        check_name(name)
        before = self._current().get(name)
        hashed = None if before is None else before.password
        if password is not None:
            hashed = hash_password(password)
        user = User(name, parse_roles(roles), hashed, {} if before is None else before.tokens)
        self._store(user)
        return user

    def issue(self, name: str, *, days: int) -> str:
        """Issue a new token of a user, which is shown once and stored as its digest only."""
        user = self._find(name)
        token = TOKEN + secrets.token_urlsafe(32)
        ends = (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
        self._store(replace(user, tokens={**user.tokens, _digest(token): ends}))
        return token

    def remove(self, name: str) -> None:
        self._find(name)
        del self._users[name]
        self._save()

    def revoke(self, name: str) -> int:
        """Void all tokens of a user, and return how many there were."""
        user = self._find(name)
        self._store(replace(user, tokens={}))
        return len(user.tokens)

    def find_by_password(self, name: str, password: str) -> User | None:
        """Return the user, if the password is theirs. An unknown name takes as long as a wrong password."""
        user = self._current().get(name)
        hashed = None if user is None else user.password
        right = check_password(password, _NOBODY if hashed is None else hashed)
        return user if right and hashed is not None else None

    def find_by_token(self, token: str) -> User | None:
        """Return the user whose token this is, while it is valid."""
        digest = _digest(token)
        return next((u for u in self if any(hmac.compare_digest(stored, digest) for stored in _valid_tokens(u))), None)

    def is_current(self, name: str, roles: tuple[Role, ...], proof: str) -> bool:
        """Check that a signed-in user still has the same token or password, and the same roles."""
        user = self._current().get(name)
        if user is None or user.roles != roles:
            return False
        return proof in _valid_tokens(user) or (user.password is not None and proof == user.password["hash"])

    def _find(self, name: str) -> User:
        users = self._current()
        if name not in users:
            raise BadInput(f"there is no user '{name}'; {nearest(name, users)}", code="unknown-user")
        return users[name]

    def _current(self) -> dict[str, User]:
        """Return the current users of the file; none if it cannot be read (fail closed)."""
        stamp = _facts(self._file)
        if self._file is not None and stamp != self._stamp:
            try:
                self._users = Users.load(self._file)._users
            except BadInput as e:
                _log.error("nobody can sign in: %s", e)
                self._users = {}
            self._stamp = stamp
        return self._users

    def _store(self, user: User) -> None:
        self._users[user.name] = user
        self._save()

    def _save(self) -> None:
        if self._file is None:
            return
        content = {"schema": SCHEMA, "users": [user.to_dict() for user in self._users.values()]}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_private(self._file, json.dumps(content, indent=1))
        self._stamp = _facts(self._file)


def credential_proof(user: User, secret: str) -> str:
    """Return the credential that a session is bound to: the token's digest, or the password's hash."""
    digest = _digest(secret)
    return digest if digest in user.tokens or user.password is None else str(user.password["hash"])


def hash_password(password: str) -> PasswordHash:
    """Hash a password with a new salt.

    Raises:
        BadInput: It is too short or too long.
    """
    if len(password) < MIN_PASSWORD:
        raise BadInput(f"a password needs {MIN_PASSWORD} characters or more: use several words", code="password-length")
    if len(password) > _LONGEST:
        raise BadInput(f"a password has at most {_LONGEST} characters", code="password-length")
    salt = secrets.token_bytes(16)
    return _hash(salt, _scrypt(password, salt, **_COST))


def check_password(password: str, stored: PasswordHash) -> bool:
    """Check a password against a stored hash."""
    if len(password) > _LONGEST:
        return False
    cost = {"n": int(stored["n"]), "r": int(stored["r"]), "p": int(stored["p"])}
    return hmac.compare_digest(_text(_scrypt(password, base64.b64decode(stored["salt"]), **cost)), str(stored["hash"]))


def check_name(name: str) -> str:
    if not name or len(name) > _NAME or not name.isprintable() or name != name.strip():
        raise BadInput(
            f"{name!r} is not a valid user name: use 1 to {_NAME} characters without line breaks",
            code="invalid-user-name",
        )
    return name


def _scrypt(password: str, salt: bytes, *, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY, dklen=32)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _valid_tokens(user: User) -> list[str]:
    """List the digests of a user's tokens that have not ended."""
    now = datetime.now(UTC)
    return [digest for digest, ends in user.tokens.items() if now < datetime.fromisoformat(ends)]


def _facts(file: Path | None) -> tuple[int, ...]:
    """Stamp a file: the value changes when it is written, or put in the place of another."""
    try:
        s = None if file is None else file.stat()
    except OSError:
        s = None
    return () if s is None else (s.st_mtime_ns, s.st_size, s.st_ino)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _hash(salt: bytes, digest: bytes) -> PasswordHash:
    return {"n": _COST["n"], "r": _COST["r"], "p": _COST["p"], "salt": _text(salt), "hash": _text(digest)}


_NOBODY = _hash(b"\0" * 16, b"\0" * 32)
