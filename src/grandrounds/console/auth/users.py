"""Users and their roles: `users.json`, with scrypt hashes of passwords and SHA-256 digests of tokens, and never either itself.

A token has 256 random bits, so a fast hash is enough for it; a password has not. A user has one or more roles, and every page
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
from typing import Any

from grandrounds.core.errors import BadInput, nearest
from grandrounds.deploy.files import write_private

SCHEMA = 1
TOKEN = "grc_"
"""How every token begins, so that scanners of logs and repositories know one."""
SHORTEST = 12
_COST = {"n": 2**15, "r": 8, "p": 1}
_MEMORY = 64 * 2**20
_LONGEST = 1024
_NAME = 64
_log = logging.getLogger("grandrounds.console")


class Role(StrEnum):
    """What a user is to the consortium."""

    VIEWER = "viewer"
    CLINICIAN = "clinician"
    AUDITOR = "auditor"


class Area(StrEnum):
    """What a route shows."""

    RUNS = "runs"
    COMPARE = "compare"
    CASES = "cases"
    AUDIT = "audit"
    PRIVACY = "privacy"


_EVERYBODY = frozenset(Role)
OPEN_TO: dict[Area, frozenset[Role]] = {
    Area.RUNS: _EVERYBODY,
    Area.COMPARE: _EVERYBODY,
    Area.CASES: frozenset({Role.CLINICIAN}),
    Area.AUDIT: frozenset({Role.AUDITOR}),
    Area.PRIVACY: frozenset({Role.AUDITOR}),
}
"""Cases are of patients, so they are the clinician's alone; how patients are protected is the auditor's to check."""


def may_see(roles: Iterable[Role], area: Area) -> bool:
    return not OPEN_TO[area].isdisjoint(roles)


def parse_roles(words: Iterable[str]) -> tuple[Role, ...]:
    """Roles by name; an unknown one is refused in words."""
    known = [r.value for r in Role]
    found = []
    for word in words:
        if word not in known:
            raise BadInput(f"there is no role '{word}'; {nearest(word, known)}")
        found.append(Role(word))
    if not found:
        raise BadInput(f"a user needs a role: {', '.join(known)}")
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class User:
    """`password`: scrypt's parameters, salt and hash; `tokens`: digest -> when it ends (ISO)."""

    name: str
    roles: tuple[Role, ...]
    password: Mapping[str, Any] | None = None
    tokens: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
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
    """The users of a console. Their file is read anew when it changes, so that who is removed is out at once; without a
    file they are forgotten when the console stops."""

    def __init__(self, users: Iterable[User] = (), file: Path | None = None) -> None:
        self._users = {user.name: user for user in users}
        self._file = file
        self._stamp = _facts(file)

    @classmethod
    def load(cls, file: Path) -> Users:
        """The users of a file; none where there is no file yet."""
        if not file.exists():
            return cls(file=file)
        try:
            held = json.loads(file.read_text())
            if held["schema"] != SCHEMA:
                raise BadInput(
                    f"{file} has schema {held['schema']}, this version reads {SCHEMA}: update the older side"
                )
            return cls([User.from_dict(u) for u in held["users"]], file)
        except OSError as e:
            raise BadInput(f"cannot read the users of {file}: {e.strerror or e}") from None
        except (ValueError, KeyError, TypeError):
            raise BadInput(f"{file} is damaged: bring a copy back, or remove it and add users again") from None

    def __iter__(self) -> Iterator[User]:
        return iter(self._now().values())

    def __len__(self) -> int:
        return len(self._now())

    def add(self, name: str, roles: Iterable[str], *, password: str | None = None) -> User:
        """A new user, or other roles and another password for a known one."""
        check_name(name)
        before = self._now().get(name)
        hashed = None if before is None else before.password
        if password is not None:
            hashed = hash_password(password)
        user = User(name, parse_roles(roles), hashed, {} if before is None else before.tokens)
        self._keep(user)
        return user

    def issue(self, name: str, *, days: int) -> str:
        """A new token of a user, said once and kept as its digest only."""
        user = self._known(name)
        token = TOKEN + secrets.token_urlsafe(32)
        ends = (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
        self._keep(replace(user, tokens={**user.tokens, _digest(token): ends}))
        return token

    def remove(self, name: str) -> None:
        self._known(name)
        del self._users[name]
        self._save()

    def revoke(self, name: str) -> int:
        """Void all tokens of a user; how many there were."""
        user = self._known(name)
        self._keep(replace(user, tokens={}))
        return len(user.tokens)

    def by_password(self, name: str, password: str) -> User | None:
        """The user, if the password is theirs. An unknown name takes as long as a wrong password."""
        user = self._now().get(name)
        hashed = None if user is None else user.password
        right = check_password(password, _NOBODY if hashed is None else hashed)
        return user if right and hashed is not None else None

    def by_token(self, token: str) -> User | None:
        """The user whose token this is, while it holds."""
        digest = _digest(token)
        return next((u for u in self if any(hmac.compare_digest(known, digest) for known in _valid_tokens(u))), None)

    def vouches(self, name: str, roles: tuple[Role, ...], proof: str) -> bool:
        """Whether who signed in is still known by the same token or password, and in the same roles."""
        user = self._now().get(name)
        if user is None or user.roles != roles:
            return False
        return proof in _valid_tokens(user) or (user.password is not None and proof == user.password["hash"])

    def _known(self, name: str) -> User:
        users = self._now()
        if name not in users:
            raise BadInput(f"there is no user '{name}'; {nearest(name, users)}")
        return users[name]

    def _now(self) -> dict[str, User]:
        """Users as their file has them now. A file that can no longer be read knows nobody: better shut than open."""
        stamp = _facts(self._file)
        if self._file is not None and stamp != self._stamp:
            try:
                self._users = Users.load(self._file)._users
            except BadInput as e:
                _log.error("nobody can sign in: %s", e)
                self._users = {}
            self._stamp = stamp
        return self._users

    def _keep(self, user: User) -> None:
        self._users[user.name] = user
        self._save()

    def _save(self) -> None:
        if self._file is None:
            return
        held = {"schema": SCHEMA, "users": [user.to_dict() for user in self._users.values()]}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_private(self._file, json.dumps(held, indent=1))
        self._stamp = _facts(self._file)


def proof_of(user: User, secret: str) -> str:
    """What a session remembers of the secret that it began with: the token's digest, or the password's hash."""
    digest = _digest(secret)
    return digest if digest in user.tokens or user.password is None else str(user.password["hash"])


def hash_password(password: str) -> dict[str, Any]:
    """Salt, cost and hash of a password; a short one is refused."""
    if len(password) < SHORTEST:
        raise BadInput(f"a password needs {SHORTEST} characters or more: take a few words")
    if len(password) > _LONGEST:
        raise BadInput(f"a password has at most {_LONGEST} characters")
    salt = secrets.token_bytes(16)
    return {**_COST, "salt": _text(salt), "hash": _text(_scrypt(password, salt, **_COST))}


def check_password(password: str, held: Mapping[str, Any]) -> bool:
    if len(password) > _LONGEST:
        return False
    cost = {name: int(held[name]) for name in _COST}
    return hmac.compare_digest(_text(_scrypt(password, base64.b64decode(held["salt"]), **cost)), str(held["hash"]))


def check_name(name: str) -> str:
    if not name or len(name) > _NAME or not name.isprintable() or name != name.strip():
        raise BadInput(f"{name!r} is no user name: give 1 to {_NAME} characters without line breaks")
    return name


def _scrypt(password: str, salt: bytes, *, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY, dklen=32)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _valid_tokens(user: User) -> list[str]:
    """The digests of a user's tokens that have not ended."""
    now = datetime.now(UTC)
    return [digest for digest, ends in user.tokens.items() if now < datetime.fromisoformat(ends)]


def _facts(file: Path | None) -> tuple[int, ...]:
    """Changes when a file is written, or is put in the place of another."""
    try:
        s = None if file is None else file.stat()
    except OSError:
        s = None
    return () if s is None else (s.st_mtime_ns, s.st_size, s.st_ino)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


_NOBODY = {**_COST, "salt": _text(b"\0" * 16), "hash": _text(b"\0" * 32)}
