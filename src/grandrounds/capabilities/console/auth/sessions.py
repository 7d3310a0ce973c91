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
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from grandrounds.capabilities.console.auth.users import Role

if TYPE_CHECKING:
    from grandrounds.capabilities.console.auth.oidc_claims import Identity

MOST = 1000
"""Maximum number of sessions; the least recently used one ends first."""
EARLY, AGAIN = 60.0, 10.0
"""Seconds before the end of a session of single sign-on from which it is renewed, and until the provider is asked again."""


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
        identity: The user as the provider of single sign-on describes them; None for a local user.
        ends: The time at which that description ends. The session is valid again when the provider renews it.
        renew_from: The time from which it is renewed.
        is_locked: The user has to enter the password again before anything is shown.
        turn: Taken by the request that renews the session.
    """

    user: str
    roles: tuple[Role, ...]
    proof: str
    csrf: str
    began: float
    used: float
    identity: Identity | None = None
    ends: float = inf
    renew_from: float = inf
    is_locked: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_renewable(self) -> bool:
        """True where the provider gave a token to renew the session with."""
        return self.identity is not None and self.identity.refresh_token is not None


class Sessions:
    """All sessions. They end after `idle` seconds without a request, and after `longest` in any case.

    A session of single sign-on is valid no longer than the provider says, unless the provider renews it.

    Args:
        idle: Seconds.
        longest: Seconds.
        clock: Measures the time of sessions.
        wall: The time of day (Unix), in which a provider says how long a session may last.
    """

    def __init__(
        self,
        *,
        idle: float = 30 * 60,
        longest: float = 8 * 3600,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.idle, self.longest, self._clock, self._wall = idle, longest, clock, wall
        self._sessions: dict[str, Session] = {}
        self._turn = threading.Lock()

    def begin(
        self, user: str, roles: tuple[Role, ...], proof: str, *, identity: Identity | None = None
    ) -> tuple[str, Session]:
        """Begin a session and return the number for its cookie. Each sign-in gets a new one (no session fixation)."""
        number, now = secrets.token_urlsafe(32), self._clock()
        session = Session(user, roles, proof, secrets.token_urlsafe(32), now, now)
        if identity is not None:
            self._set_identity(session, identity)
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
            if now >= session.ends:
                return None
            session.used = now
            return session

    def peek(self, number: str) -> Session | None:
        """Find a session without using it: an open page must not keep it alive."""
        with self._turn:
            session, now = self._sessions.get(_key(number)), self._clock()
            return None if session is None or self._has_ended(session, now) or now >= session.ends else session

    def find_due(self, number: str) -> Session | None:
        """Find a session that the provider has to renew: its time is nearly over, or over while it is still in use."""
        with self._turn:
            session, now = self._sessions.get(_key(number)), self._clock()
            is_due = session is not None and not self._has_ended(session, now) and now >= session.renew_from
            return session if is_due else None

    def is_valid(self, session: Session) -> bool:
        """Tell whether a session is valid before it is renewed."""
        return self._clock() < session.ends

    def renew(self, session: Session, identity: Identity) -> None:
        """Prolong a session with the provider's new description of its user; roles may have changed."""
        with self._turn:
            self._set_identity(session, identity)

    def postpone(self, session: Session) -> None:
        """Try to renew a session again in a while."""
        session.renew_from = self._clock() + AGAIN

    def seconds_left(self, session: Session) -> float:
        """Return the seconds until a session ends, if it is not used again."""
        now = self._clock()
        return max(0.0, min(session.used + self.idle, session.began + self.longest, session.ends) - now)

    def end(self, number: str) -> None:
        with self._turn:
            self._sessions.pop(_key(number), None)

    def __len__(self) -> int:
        return len(self._sessions)

    def _has_ended(self, session: Session, now: float) -> bool:
        is_over = now >= session.ends and not session.is_renewable
        return is_over or now - session.used > self.idle or now - session.began > self.longest

    def _set_identity(self, session: Session, identity: Identity) -> None:
        now, left = self._clock(), identity.ends - self._wall()
        session.user, session.roles, session.identity = identity.name, identity.roles, identity
        session.ends = now + left
        session.renew_from = session.ends - min(EARLY, left / 2) if session.is_renewable else inf

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
        self._noted: dict[str, float] = {}  # time of the last failure of each wait in which an attempt was noted
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

    def note_wait(self, *keys: str) -> bool:
        """Note an attempt that has to wait.

        Returns:
            True for the first attempt in a wait of one of the keys, so that a log has one entry a wait.
        """
        now = self._clock()
        with self._turn:
            waiting = {key: self._wrong[key][1] for key in keys if self._seconds_left(key, now)}
            new = {key: last for key, last in waiting.items() if self._noted.get(key) != last}
            self._noted |= new
            if len(self._noted) > _MOST:
                self._noted = {key: last for key, last in self._noted.items() if self._seconds_left(key, now)}
        return bool(new)

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
