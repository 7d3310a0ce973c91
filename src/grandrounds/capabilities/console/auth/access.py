"""Access control: the user of a request, and their right to see it. Every route but sign-in belongs to one area."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Request

from grandrounds.capabilities.console import access_log
from grandrounds.capabilities.console.app_state import AppState, get_state
from grandrounds.capabilities.console.auth.sessions import Session, secrets_equal
from grandrounds.capabilities.console.auth.users import Area, Role, may_see

CSRF = "x-csrf-token"
AUTOMATIC = "x-automatic"
"""Header of requests that a page makes by itself, such as the update of a live figure: they do not prolong a session."""
_BEARER = "bearer "


@dataclass(frozen=True)
class CurrentUser:
    """A signed-in user. `session`: None for a program that sends its token with each request."""

    name: str
    roles: tuple[Role, ...]
    session: Session | None = None

    def may_see(self, area: Area) -> bool:
        return may_see(self.roles, area)


def find_user(request: Request) -> CurrentUser | None:
    """Find the user of the session's cookie, or of a token in the Authorization header."""
    app_state = get_state(request)
    cookie = request.cookies.get(app_state.session_cookie, "")
    session = app_state.sessions.peek(cookie) if AUTOMATIC in request.headers else app_state.sessions.find(cookie)
    if session is not None:
        if _is_valid(app_state, session):
            return CurrentUser(session.user, session.roles, session)
        app_state.sessions.end(cookie)
    token = _token(request)
    if token is None:
        return None
    user = app_state.users.find_by_token(token)
    if user is None:
        where = f"tokens at {client_address(request)}"
        if app_state.limiter.wait(where):
            if app_state.limiter.note_wait(where):
                _log_wrong_token(request, why="too many attempts")
            raise HTTPException(429, "too many wrong tokens from this address: wait and try again")
        app_state.limiter.count_failure(where)
        _log_wrong_token(request)
        return None
    return CurrentUser(user.name, user.roles)


def _log_wrong_token(request: Request, **facts: str) -> None:
    log = get_state(request).log
    log.try_write(access_log.WRONG_SIGN_IN, user="", address=client_address(request), by="token", **facts)


def require_user(request: Request, *, locked: bool = False) -> CurrentUser:
    """Find the user of a request.

    Args:
        request: The request.
        locked: Accept a user whose session is locked.

    Raises:
        HTTPException: Nobody is signed in (401), or the session is locked (423).
    """
    who = find_user(request)
    if who is None:
        raise HTTPException(401, "sign in first", headers={"www-authenticate": "Bearer"})
    if who.session is not None and who.session.is_locked and not locked:
        raise HTTPException(423, "this session is locked: enter your password")
    return who


def is_signed_in(request: Request) -> bool:
    """Check that the user of a stream is still signed in; the check does not count as using the session."""
    app_state = get_state(request)
    session, token = app_state.sessions.peek(request.cookies.get(app_state.session_cookie, "")), _token(request)
    if session is not None:
        return _is_valid(app_state, session)
    return token is not None and app_state.users.find_by_token(token) is not None


def require_area(area: Area) -> Any:
    """Return the dependency of a route: a signed-in user whose role may see the area."""
    return Depends(AreaCheck(area))


@dataclass(frozen=True)
class AreaCheck:
    """The check that a user may see an area; the description of the API reads the area of each route from it."""

    area: Area

    def __call__(self, request: Request) -> CurrentUser:
        who = require_user(request)
        if not who.may_see(self.area):
            with suppress(access_log.AccessLogFault):
                log_access(request, access_log.REFUSED, who, area=self.area.value)
            raise HTTPException(403, f"your role has no access to {self.area.value}")
        return who


def check_origin(request: Request) -> None:
    """Refuse a form from another site, by the browser's Origin header.

    Raises:
        HTTPException: It came from elsewhere (403).
    """
    origin = request.headers.get("origin")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "the form came from another site")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise HTTPException(403, "the form came from another site")


def check_script(request: Request, who: CurrentUser) -> None:
    """Refuse a POST from a script of another site. A program with a token needs no further check.

    Raises:
        HTTPException: It does not carry its session's number in the header X-CSRF-Token (403).
    """
    check_origin(request)
    if who.session is not None and not secrets_equal(request.headers.get(CSRF, ""), who.session.csrf):
        raise HTTPException(403, "the CSRF token does not match this session")


def log_access(request: Request, event: str, who: CurrentUser, **facts: Any) -> None:
    """Write an entry of the access log about a user.

    Args:
        request: The user's request.
        event: One of `access_log.EVENTS`.
        who: The user.
        **facts: As `AccessLog.write` takes them.

    Raises:
        AccessLogFault: It cannot be written.
    """
    identity = None if who.session is None else who.session.identity
    credential: dict[str, str] = {"by": "token" if who.session is None else "session"}
    if (
        identity is not None
    ):  # a name may change at the provider, and may be that of a local user; the subject is neither
        credential = {"by": "sso session", "subject": identity.subject}
    get_state(request).log.write(
        event, user=who.name, roles=who.roles, address=client_address(request), **credential, **facts
    )


def _is_valid(app_state: AppState, session: Session) -> bool:
    """Check that the user of a session is still the same; the provider of single sign-on says so when it renews one."""
    return session.identity is not None or app_state.users.is_current(session.user, session.roles, session.proof)


def _token(request: Request) -> str | None:
    """Return the token of the Authorization header."""
    header = request.headers.get("authorization", "")
    return header[len(_BEARER) :].strip() if header.lower().startswith(_BEARER) else None


def client_address(request: Request) -> str:
    """Find the network address that a request comes from.

    Returns:
        The client's address; behind a trusted proxy the last address in X-Forwarded-For that is not a trusted proxy's.
    """
    peer = request.client.host if request.client is not None else "?"
    trusted = get_state(request).proxies
    if peer not in trusted:
        return peer
    for hop in reversed(",".join(request.headers.getlist("x-forwarded-for")).split(",")):
        hop_address = plain_address(hop)
        if hop_address is None:
            break
        if hop_address not in trusted:
            return hop_address
    return peer


def is_over_tls(request: Request) -> bool:
    """Tell whether a request came over HTTPS, to this console or to a trusted proxy."""
    app_state = get_state(request)
    if app_state.tls or request.client is None or request.client.host not in app_state.proxies:
        return app_state.tls
    return request.headers.get("x-forwarded-proto", "").split(",")[-1].strip() == "https"


def plain_address(text: str) -> str | None:
    """Normalise an IP address.

    Args:
        text: The address.

    Returns:
        The normalised address; None if the text is no address.
    """
    try:
        return str(ipaddress.ip_address(text.strip()))
    except ValueError:
        return None
