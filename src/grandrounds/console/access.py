"""Who asks, and whether they may: every route but signing in names the area that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, HTTPException, Request

from grandrounds.console.desk import desk_of
from grandrounds.console.roles import Area, Role, may_see
from grandrounds.console.sessions import Session

COOKIE = "rounds_session"
_BEARER = "bearer "


@dataclass(frozen=True)
class Who:
    """A signed-in user. `session`: None for a program that brings its token with each request."""

    name: str
    roles: tuple[Role, ...]
    session: Session | None = None

    def may_see(self, area: Area) -> bool:
        return may_see(self.roles, area)


def who_asks(request: Request) -> Who | None:
    """The user of the session's cookie, or of a token in the Authorization header."""
    desk = desk_of(request)
    session = desk.sessions.find(request.cookies.get(COOKIE, ""))
    if session is not None:
        return Who(session.user, session.roles, session)
    given = request.headers.get("authorization", "")
    if not given.lower().startswith(_BEARER):
        return None
    where = f"address {address(request)}"
    if desk.limiter.wait(where):
        raise HTTPException(429, "too many wrong tokens from this address: wait a little")
    user = desk.users.by_token(given[len(_BEARER) :].strip())
    if user is None:
        desk.limiter.wrong(where)
        return None
    return Who(user.name, user.roles)


def signed_in(request: Request) -> Who:
    who = who_asks(request)
    if who is None:
        raise HTTPException(401, "sign in first", headers={"www-authenticate": "Bearer"})
    return who


def only(area: Area) -> Any:
    """What a route of an area depends on: a signed-in user whose role may see it."""
    return Depends(_checked(area))


def _checked(area: Area) -> Callable[[Request], Who]:
    def check(request: Request) -> Who:
        who = signed_in(request)
        if not who.may_see(area):
            raise HTTPException(403, f"your role may not see {area.value}")
        return who

    return check


def address(request: Request) -> str:
    return request.client.host if request.client is not None else "?"
