"""Signing in by password or token, and out. A form is taken from this console's own pages only."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from urllib.parse import parse_qs

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from grandrounds.console.access import COOKIE, address, check_origin, record, signed_in
from grandrounds.console.access_log import SIGN_IN, SIGN_OUT, WRONG, AccessLogFault
from grandrounds.console.desk import Desk, desk_of
from grandrounds.console.render import page
from grandrounds.console.sessions import same
from grandrounds.console.users import TOKEN, User, proof_of

FORM = "rounds_form"
"""The cookie that a sign-in form's hidden field must equal: a foreign page can set neither."""
NOT_KNOWN = "That name, password or token is not known here."

router = APIRouter(include_in_schema=False)
_log = logging.getLogger("grandrounds.console")


@router.get("/sign-in")
def form(request: Request, next: str = "/") -> Response:
    return _form(request, next=next)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Check a name and password, or a token. Which of them was wrong is not said."""
    desk, given = desk_of(request), await _fields(request)
    check_origin(request)
    if not given.get("form") or not same(given["form"], request.cookies.get(FORM, "")):
        return _form(request, next=given.get("next", "/"), wrong="The form was too old: try again.", status=403)
    name, where = given.get("name", "")[:64], f"address {address(request)}"
    keys = (f"name {name}", where)
    wait = desk.limiter.wait(*keys)
    if wait:
        said = f"Too many wrong tries: wait {wait:.0f} seconds."
        return _form(request, next=given.get("next", "/"), wrong=said, status=429, name=name)
    desk.limiter.wrong(*keys)
    secret = given.get("secret", "")
    user = await asyncio.to_thread(_known, desk, name, secret)
    if user is None:
        _log.warning("a sign-in from %s failed", address(request))
        tried = "(a token)" if name.startswith(TOKEN) else name
        desk.log.try_write(WRONG, user=tried, address=address(request), by="form")
        return _form(request, next=given.get("next", "/"), wrong=NOT_KNOWN, status=401, name=name)
    desk.limiter.right(keys[0])
    desk.limiter.forgive(where)
    by = "password" if proof_of(user, secret) not in user.tokens else "token"
    desk.log.write(SIGN_IN, user=user.name, roles=user.roles, address=address(request), by=by)
    desk.sessions.end(request.cookies.get(COOKIE, ""))
    number, _ = desk.sessions.begin(user.name, user.roles, proof_of(user, secret))
    _log.info("%r signed in", user.name)
    answer = RedirectResponse(_inside(given.get("next", "/")), 303)
    _set(answer, desk, COOKIE, number)
    answer.delete_cookie(FORM)
    return answer


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    who, given = signed_in(request), await _fields(request)
    check_origin(request)
    if who.session is None or not same(given.get("csrf", ""), who.session.csrf):
        raise HTTPException(403, "the form is not of this session")
    desk_of(request).sessions.end(request.cookies.get(COOKIE, ""))
    with suppress(AccessLogFault):  # who leaves is not held back
        record(request, SIGN_OUT, who)
    answer = RedirectResponse("/sign-in", 303)
    answer.delete_cookie(COOKIE)
    return answer


def _known(desk: Desk, name: str, secret: str) -> User | None:
    """By token where no name is given, else by password, or by a token of that name's."""
    by_token = desk.users.by_token(secret)
    if by_token is not None and name in ("", by_token.name):
        return by_token
    return desk.users.by_password(name, secret)


def _form(request: Request, *, next: str, wrong: str = "", status: int = 200, name: str = "") -> Response:
    token = secrets.token_urlsafe(32)
    answer = page(request, "sign_in.html", status=status, form=token, next=_inside(next), wrong=wrong, given=name)
    _set(answer, desk_of(request), FORM, token)
    return answer


def _set(answer: Response, desk: Desk, cookie: str, value: str) -> None:
    answer.set_cookie(cookie, value, httponly=True, samesite="strict", secure=desk.tls, path="/")


async def _fields(request: Request) -> dict[str, str]:
    """The fields of a form, each once."""
    try:
        return {n: v[0] for n, v in parse_qs((await request.body()).decode(), max_num_fields=20).items()}
    except ValueError:
        raise HTTPException(400, "the form cannot be read") from None


def _inside(next: str) -> str:
    """A path of this console; anything else leads to its front page."""
    there = next.startswith("/") and not next.startswith(("//", "/\\")) and next.isprintable() and "\\" not in next
    return next if there else "/"
