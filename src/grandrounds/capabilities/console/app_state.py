"""The state that all routes share: the runs, the users, their sessions, the access log, and the hospital's cases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request

from grandrounds.capabilities.console.access_log import AccessLog
from grandrounds.capabilities.console.auth.sessions import FREE_EVERYWHERE, Limiter, Sessions
from grandrounds.capabilities.console.auth.users import Users
from grandrounds.capabilities.console.progress import Progress
from grandrounds.capabilities.console.run_index import RunIndex

if TYPE_CHECKING:
    from grandrounds.capabilities.console.auth.single_sign_on import SingleSignOn
    from grandrounds.capabilities.console.cases.site_cases import SiteCases


LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass
class AppState:
    """The state of one console.

    Attributes:
        run_index: The runs that are shown.
        users: The local users and their roles.
        sso: Single sign-on; None where it is not offered.
        local_users: Local users may sign in.
        sessions: The sessions of signed-in users.
        limiter: Counts wrong sign-ins by name and address.
        name_limiter: Counts wrong sign-ins by name, at all addresses.
        log: The access log.
        cases: The hospital's own rows; None where the console was not started with --site.
        tls: The console is served over HTTPS.
        hosts: Host names that are accepted.
        proxies: Addresses of reverse proxies whose X-Forwarded-For is trusted.
        port: Part of the cookies' names: browsers share cookies between ports of a host.
        title: The hospital or consortium, as the header and the sign-in page show it; "" leaves it out.
        contact: The person or address to ask for access and help, as pages show it.
        lock: Seconds without input after which a page locks; None: never.
        streams: User and session of each open event stream.
        progress: The states of the runs, for pages and streams that follow them.
    """

    run_index: RunIndex
    users: Users
    sessions: Sessions = field(default_factory=Sessions)
    limiter: Limiter = field(default_factory=Limiter)
    name_limiter: Limiter = field(default_factory=lambda: Limiter(free=FREE_EVERYWHERE))
    log: AccessLog = field(default_factory=AccessLog)
    sso: SingleSignOn | None = None
    local_users: bool = True
    cases: SiteCases | None = None
    tls: bool = False
    hosts: tuple[str, ...] = LOOPBACK
    proxies: frozenset[str] = frozenset()
    port: int | None = None
    title: str = ""
    contact: str = ""
    lock: float | None = None
    streams: list[tuple[str, str]] = field(default_factory=list)
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(self.run_index)

    @property
    def session_cookie(self) -> str:
        """The name of the cookie with the session's number."""
        return self._cookie("rounds_session")

    @property
    def form_cookie(self) -> str:
        """The name of the cookie that a sign-in form's hidden field must equal: a foreign page can set neither."""
        return self._cookie("rounds_form")

    @property
    def sso_cookie(self) -> str:
        """The name of the cookie that binds a sign-in at the provider to the browser that began it."""
        return self._cookie("rounds_sso")

    def _cookie(self, name: str) -> str:
        return name if self.port is None else f"{name}_{self.port}"


def get_state(request: Request) -> AppState:
    """Return the state of the application that a request came to."""
    app_state: AppState = request.app.state.console
    return app_state
