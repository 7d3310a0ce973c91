"""What all routes share: the runs, who may sign in, who is signed in, and the cases of this hospital where there are any."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request

from grandrounds.console.access_log import AccessLog
from grandrounds.console.library import Library
from grandrounds.console.limiter import FREE_EVERYWHERE, Limiter
from grandrounds.console.sessions import Sessions
from grandrounds.console.users import Users

if TYPE_CHECKING:
    from grandrounds.console.cases import Cases

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass
class Desk:
    """`log`: who looked at what; `cases`: this hospital's own rows, None where the console was not started with --site; `tls`:
    served over HTTPS. `limiter` counts wrong sign-ins by name and address, `everywhere` by name. `proxies`: addresses of reverse
    proxies whose X-Forwarded-For is believed. `port`: in the cookies' names, since cookies are of a host and not of a port."""

    library: Library
    users: Users
    sessions: Sessions = field(default_factory=Sessions)
    limiter: Limiter = field(default_factory=Limiter)
    everywhere: Limiter = field(default_factory=lambda: Limiter(free=FREE_EVERYWHERE))
    log: AccessLog = field(default_factory=AccessLog)
    cases: Cases | None = None
    tls: bool = False
    hosts: tuple[str, ...] = LOOPBACK
    proxies: frozenset[str] = frozenset()
    port: int | None = None
    streams: list[tuple[str, str]] = field(default_factory=list)  # user and session of each page that follows runs now


    @property
    def session_cookie(self) -> str:
        """The name of the cookie with the session's number."""
        return self._cookie("rounds_session")

    @property
    def form_cookie(self) -> str:
        """The name of the cookie that a sign-in form's hidden field must equal: a foreign page can set neither."""
        return self._cookie("rounds_form")

    def _cookie(self, name: str) -> str:
        return name if self.port is None else f"{name}_{self.port}"


def desk_of(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk
