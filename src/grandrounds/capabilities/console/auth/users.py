"""Local users and their roles: `users.json` has hashes of passwords and SHA-256 digests of tokens, never the secrets themselves.

A token has 256 random bits, so a fast hash is enough for it, unlike for a password. A user has one or more roles, and every page
and API route belongs to one area.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import logging
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from grandrounds.capabilities.console.auth.passwords import PasswordHash, check_password, hash_password, is_outdated
from grandrounds.capabilities.hospital.deploy.files import PRIVATE, write_private
from grandrounds.core.errors import BadInput, nearest

SCHEMA = 2
"""Version of the file."""
TOKEN = "grc_"
"""Prefix of every token, so that secret scanners recognise it."""
_NAME = 64
_log = logging.getLogger("grandrounds.capabilities.console")


class Role(StrEnum):
    """The role of a user in the consortium. The first role of a user decides the start page."""

    VIEWER = "viewer"
    CLINICIAN = "clinician"
    AUDITOR = "auditor"
    BOARD = "board"
    ENGINEER = "engineer"
    APPROVER = "approver"


class Area(StrEnum):
    """The area that a route belongs to."""

    RUNS = "runs"
    COMPARE = "compare"
    CASES = "cases"
    AUDIT = "audit"
    PRIVACY = "privacy"
    OVERVIEW = "overview"
    REGISTER = "register"
    APPROVAL = "approval"
    ACCESS = "access log"


_EVERYBODY = frozenset(Role)
_GOVERNANCE = frozenset({Role.BOARD, Role.APPROVER, Role.AUDITOR})
ROLES_BY_AREA: dict[Area, frozenset[Role]] = {
    Area.RUNS: _EVERYBODY,
    Area.COMPARE: _EVERYBODY,
    Area.CASES: frozenset({Role.CLINICIAN}),
    Area.AUDIT: _GOVERNANCE,
    Area.PRIVACY: _GOVERNANCE,
    Area.OVERVIEW: _GOVERNANCE,
    Area.REGISTER: _EVERYBODY,
    Area.APPROVAL: frozenset({Role.APPROVER}),
    Area.ACCESS: _GOVERNANCE | {Role.CLINICIAN},
}
"""Roles by area: only clinicians see patients, and only approvers sign; the board, approvers and auditors see the overview,
ledgers and privacy; everybody sees runs and the register of models."""


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
        self._turn = threading.Lock()

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
                    f"{file} has schema {content['schema']}, and this version reads {SCHEMA}: add the users again to a new file",
                    code="unsupported-version",
                )
            return cls([User.from_dict(u) for u in content["users"]], file)
        except OSError as e:
            raise BadInput(f"cannot read the users of {file}: {e.strerror or e}", code="cannot-read") from None
        except (ValueError, KeyError, TypeError):
            raise BadInput(
                f"{file} is damaged: restore a backup, or remove the file and add users again", code="damaged-file"
            ) from None

    @property
    def is_temporary(self) -> bool:
        """True where the users have no file, and are forgotten when the console stops."""
        return self._file is None

    def __iter__(self) -> Iterator[User]:
        return iter(self._current().values())

    def __len__(self) -> int:
        return len(self._current())

    def add(self, name: str, roles: Iterable[str], *, password: str | None = None) -> User:
        """Add a user, or change the roles and password of an existing one."""
        check_name(name)
        parsed, hashed = parse_roles(roles), None if password is None else hash_password(password)
        with self._changing() as users:
            before = users.get(name)
            if before is None:
                users[name] = User(name, parsed, hashed)
            else:
                users[name] = replace(before, roles=parsed, password=hashed or before.password)
            return users[name]

    def issue(self, name: str, *, days: int) -> str:
        """Issue a new token of a user, which is shown once and stored as its digest only."""
        token = TOKEN + secrets.token_urlsafe(32)
        ends = (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
        with self._changing() as users:
            user = _find(users, name)
            users[name] = replace(user, tokens={**user.tokens, _digest(token): ends})
        return token

    def remove(self, name: str) -> None:
        with self._changing() as users:
            del users[_find(users, name).name]

    def revoke(self, name: str) -> int:
        """Void all tokens of a user, and return how many there were."""
        with self._changing() as users:
            user = _find(users, name)
            users[name] = replace(user, tokens={})
        return len(user.tokens)

    def find_by_password(self, name: str, password: str) -> User | None:
        """Return the user, if the password is theirs. An unknown name takes as long as a wrong password.

        A hash with other parameters than new ones is replaced.
        """
        users = self._current()
        user = users.get(name)
        if not check_password(password, None if user is None else user.password):
            return None
        assert user is not None and user.password is not None
        return self._rehash(user, password) if is_outdated(user.password) else user

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

    def _rehash(self, user: User, password: str) -> User | None:
        """Store a new hash of a password that was right; where the file cannot be written, the old one stays.

        Returns:
            The user with the hash that is stored; None if the user was removed or got another password meanwhile.
        """
        stored = [user.password]
        try:
            hashed = hash_password(password)
            with self._changing() as users:
                current = users.get(user.name)
                if current is not None and current.password == user.password:
                    users[user.name] = replace(current, password=hashed)
                    stored.append(hashed)
        except BadInput as e:
            _log.warning("the password of %r keeps its old hash: %s", user.name, e)
        current = self._current().get(user.name)
        return current if current is not None and current.password in stored else None

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

    @contextmanager
    def _changing(self) -> Iterator[dict[str, User]]:
        """Give the users to change, then save them. No other process changes the file in between.

        Raises:
            BadInput: The file cannot be read or written.
        """
        with self._turn, _lock(self._file):
            users = dict(self._users if self._file is None else Users.load(self._file)._users)
            yield users
            if self._file is not None:
                content = {"schema": SCHEMA, "users": [user.to_dict() for user in users.values()]}
                write_private(self._file, json.dumps(content, indent=1))
            self._users, self._stamp = users, _facts(self._file)


def credential_proof(user: User, secret: str) -> str:
    """Return the credential that a session is bound to: the token's digest, or the password's hash."""
    digest = _digest(secret)
    return digest if digest in user.tokens or user.password is None else str(user.password["hash"])


def check_name(name: str) -> str:
    if not name or len(name) > _NAME or not name.isprintable() or name != name.strip():
        raise BadInput(
            f"{name!r} is not a valid user name: use 1 to {_NAME} characters without line breaks",
            code="invalid-user-name",
        )
    return name


def _find(users: Mapping[str, User], name: str) -> User:
    if name not in users:
        raise BadInput(f"there is no user '{name}'; {nearest(name, users)}", code="unknown-user")
    return users[name]


@contextmanager
def _lock(file: Path | None) -> Iterator[None]:
    """Wait until no other process changes a file. The lock is a file beside it, since the file itself is replaced."""
    if file is None:
        yield
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file.with_name(f".{file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    except OSError as e:
        raise BadInput(f"cannot change {file}: {e.strerror or e}", code="cannot-write") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


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
