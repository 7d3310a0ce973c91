"""Sessions of signed-in users, and the limit of wrong sign-ins.

Sessions are kept in memory, so that all users are signed out when the console stops. A cookie holds a random number only.

After a few wrong sign-ins a name waits at its address, twice as long after each further one. Others at the same address
(behind one proxy, say) do not wait with it. A name also waits everywhere after more wrong tries, so that guessing from many
addresses is slowed down too.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from grandrounds.console.auth.users import Role

MOST = 1000
"""Maximum number of sessions; the least recently used one ends first."""


@dataclass
class Session:
    """The session of a signed-in user.

    Attributes:
        user: The user's name.
        roles: The user's roles at sign-in.
        proof: The credential of the sign-in (`users.credential_proof`).
        csrf: The token that forms of this session must send.
        began: The time of the sign-in.
        used: The time of the last request.
    """

    user: str
    roles: tuple[Role, ...]
    proof: str
    csrf: str
    began: float
    used: float


class Sessions:
    """All sessions. They end after `idle` seconds without a request, and after `longest` in any case."""

    def __init__(
        self, *, idle: float = 30 * 60, longest: float = 8 * 3600, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.idle, self.longest, self._clock = idle, longest, clock
        self._sessions: dict[str, Session] = {}
        self._turn = threading.Lock()

    def begin(self, user: str, roles: tuple[Role, ...], proof: str) -> tuple[str, Session]:
        """Begin a session and return the number for its cookie. Each sign-in gets a new one (no session fixation)."""
        number, now = secrets.token_urlsafe(32), self._clock()
        session = Session(user, roles, proof, secrets.token_urlsafe(32), now, now)
        with self._turn:
            self._sweep(now)
            if len(self._sessions) >= MOST:
                del self._sessions[min(self._sessions, key=lambda k: self._sessions[k].used)]
            self._sessions[_key(number)] = session
        return number, session

    def find(self, number: str) -> Session | None:
        """Find the session of a cookie, while it is valid; looking it up counts as using it."""
        now = self._clock()
        with self._turn:
            session = self._sessions.get(_key(number))
            if session is None or self._has_ended(session, now):
                self._sessions.pop(_key(number), None)
                return None
            session.used = now
            return session

    def peek(self, number: str) -> Session | None:
        """Find a session without using it: an open page must not keep it alive."""
        with self._turn:
            session = self._sessions.get(_key(number))
            return None if session is None or self._has_ended(session, self._clock()) else session

    def seconds_left(self, session: Session) -> float:
        """Return the seconds until a session ends, if it is not used again."""
        now = self._clock()
        return max(0.0, min(session.used + self.idle, session.began + self.longest) - now)

    def end(self, number: str) -> None:
        with self._turn:
            self._sessions.pop(_key(number), None)

    def __len__(self) -> int:
        return len(self._sessions)

    def _has_ended(self, session: Session, now: float) -> bool:
        return now - session.used > self.idle or now - session.began > self.longest

    def _sweep(self, now: float) -> None:
        for key in [k for k, s in self._sessions.items() if self._has_ended(s, now)]:
            del self._sessions[key]


def secrets_equal(secret: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(secret.encode(), expected.encode())


def _key(number: str) -> str:
    """Hash a session's number, so that a memory dump reveals no cookies."""
    return hashlib.sha256(number.encode()).hexdigest()


FREE, FREE_EVERYWHERE = 5, 25
"""Wrong sign-ins without a wait: of a name at one address, and of a name at all addresses."""
FIRST, LONGEST = 2.0, 900.0
"""Seconds to wait after the last wrong sign-in that is free, and at most."""
_MOST = 10_000


class Limiter:
    """A counter of wrong sign-ins by key, which makes the next attempt wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, free: int = FREE) -> None:
        self._clock, self._free = clock, free
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()  # number of failures, and time of the last
        self._turn = threading.Lock()

    def wait(self, *keys: str) -> float:
        """Return the seconds until the next attempt is checked; 0 where it may be now."""
        now = self._clock()
        with self._turn:
            return max((self._seconds_left(key, now) for key in keys), default=0.0)

    def count_failure(self, *keys: str) -> None:
        now = self._clock()
        with self._turn:
            for key in keys:
                count, last = self._wrong.pop(key, (0, now))
                if now - last > LONGEST:
                    count = 0
                self._wrong[key] = (count + 1, now)
            while len(self._wrong) > _MOST:
                self._wrong.popitem(last=False)

    def clear(self, key: str) -> None:
        with self._turn:
            self._wrong.pop(key, None)

    def take_back(self, key: str) -> None:
        """Remove one failure: attempts are counted before they are checked, so that parallel attempts are counted too."""
        with self._turn:
            count, last = self._wrong.get(key, (0, 0.0))
            if count > 1:
                self._wrong[key] = (count - 1, last)
            else:
                self._wrong.pop(key, None)

    def _seconds_left(self, key: str, now: float) -> float:
        count, last = self._wrong.get(key, (0, now))
        if count < self._free:
            return 0.0
        return max(0.0, last + min(LONGEST, FIRST * 2.0 ** min(count - self._free, 30)) - now)
