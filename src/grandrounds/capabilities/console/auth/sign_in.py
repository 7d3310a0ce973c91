"""Sign-in of local users by password or token, and sign-out. Only forms of this console's own pages are accepted."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from urllib.parse import parse_qs

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from grandrounds.capabilities.console.access_log import SIGN_IN, SIGN_OUT, WRONG_SIGN_IN, AccessLogFault
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.auth.access import (
    CurrentUser,
    check_origin,
    client_address,
    is_over_tls,
    log_access,
    require_user,
)
from grandrounds.capabilities.console.auth.sessions import secrets_equal
from grandrounds.capabilities.console.auth.single_sign_on import START
from grandrounds.capabilities.console.auth.users import User, credential_proof
from grandrounds.capabilities.console.render import link, local_path, render_page

_CHECKS = ThreadPoolExecutor(4, thread_name_prefix="passwords")
"""Passwords that are checked in parallel: each check needs 20 MB."""
NOT_KNOWN = "Unknown name, password or token."

UNKNOWN_NAME = "(no such user)"
"""Entry in the access log for an unknown name: people type passwords into the wrong field."""

router = APIRouter(include_in_schema=False)
_log = logging.getLogger("grandrounds.capabilities.console")


@dataclass(frozen=True)
class CheckedSecret:
    """The user of a secret; None where it is wrong or has to wait, with the sentence and the status to answer with."""

    user: User | None
    wrong: str = ""
    status: int = 200


async def check_secret(request: Request, name: str, secret: str, *, by: str) -> CheckedSecret:
    """Check a password or token. Wrong ones are counted and logged, and make the next attempt wait.

    Of the attempts in a wait only the first is logged, so that nobody can flood the access log.

    Args:
        request: The user's request.
        name: The user's name; "" with a token.
        secret: The password or token.
        by: The form, for the access log.

    Returns:
        The user, or what to answer.
    """
    app_state = get_state(request)
    user = app_state.users.find_by_token(secret)
    if user is not None and name in ("", user.name):  # a valid token has 256 random bits: it need not wait
        return CheckedSecret(user)
    attempt = f"{name} at {client_address(request)}"
    wait = max(app_state.limiter.wait(attempt), app_state.name_limiter.wait(name))
    if wait:
        noted = [app_state.limiter.note_wait(attempt), app_state.name_limiter.note_wait(name)]
        if any(noted):
            _log_wrong(request, name, by=by, why="too many attempts")
        return CheckedSecret(None, f"Too many attempts with this name. Try again in {math.ceil(wait)} s.", 429)
    app_state.limiter.count_failure(attempt)  # counted before the check, so that parallel attempts are counted too
    app_state.name_limiter.count_failure(name)
    check = partial(app_state.users.find_by_password, name, secret)
    user = await asyncio.get_running_loop().run_in_executor(_CHECKS, check)
    if user is None:
        _log.warning("a sign-in from %s failed", client_address(request))
        _log_wrong(request, name, by=by)
        return CheckedSecret(None, NOT_KNOWN, 401)
    app_state.limiter.clear(attempt)
    app_state.name_limiter.take_back(name)
    return CheckedSecret(user)


def _log_wrong(request: Request, name: str, **facts: str) -> None:
    """Write an entry about a wrong sign-in, with the name only if a user has it."""
    app_state = get_state(request)
    tried = name if name in {user.name for user in app_state.users} else UNKNOWN_NAME
    app_state.log.try_write(WRONG_SIGN_IN, user=tried, address=client_address(request), **facts)


@router.get("/sign-in")
def form(request: Request, next: str = "/") -> Response:
    return _form(request, next=next)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Check a name and password, or a token. The answer does not say which of them was wrong."""
    app_state, fields = get_state(request), await read_fields(request)
    check_origin(request)
    if not app_state.local_users:
        raise HTTPException(403, "local users are turned off here: use single sign-on")
    if not fields.get("form") or not secrets_equal(fields["form"], request.cookies.get(app_state.form_cookie, "")):
        return _form(request, next=fields.get("next", "/"), wrong="The form has expired. Try again.", status=403)
    name, secret = fields.get("name", "")[:64], fields.get("secret", "")
    checked = await check_secret(request, name, secret, by="form")
    user = checked.user
    if user is None:
        return _form(request, next=fields.get("next", "/"), wrong=checked.wrong, status=checked.status, name=name)
    credential = "password" if credential_proof(user, secret) not in user.tokens else "token"
    app_state.log.write(SIGN_IN, user=user.name, roles=user.roles, address=client_address(request), by=credential)
    app_state.sessions.end(request.cookies.get(app_state.session_cookie, ""))
    number, _ = app_state.sessions.begin(user.name, user.roles, credential_proof(user, secret))
    _log.info("%r signed in", user.name)
    answer = RedirectResponse(local_path(fields.get("next", "/")), 303)
    _set(answer, request, app_state.session_cookie, number)
    answer.delete_cookie(app_state.form_cookie)
    return answer


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    who, fields = require_user(request, locked=True), await read_fields(request)
    check_origin(request)
    if who.session is None or not secrets_equal(fields.get("csrf", ""), who.session.csrf):
        raise HTTPException(403, "the form is not of this session")
    app_state = get_state(request)
    app_state.sessions.end(request.cookies.get(app_state.session_cookie, ""))
    with suppress(AccessLogFault):  # signing out is always allowed
        log_access(request, SIGN_OUT, who)
    answer = _leave(request, who)
    answer.delete_cookie(app_state.session_cookie)
    return answer


def _leave(request: Request, who: CurrentUser) -> Response:
    """Lead a user who signed out to the sign-in page; after single sign-on to the provider, whose session ends too.

    A form may not redirect to another site (Content-Security-Policy), so a page leads there.
    """
    sso, identity = get_state(request).sso, None if who.session is None else who.session.identity
    url = None if sso is None or identity is None else sso.provider.sign_out_url(identity)
    if url is None:
        return RedirectResponse("/sign-in", 303)
    sentence = "You are signed out of this console. Your provider ends its session next."
    return render_page(request, "leave.html", title="Signed out", sentence=sentence, url=url)


def _form(request: Request, *, next: str, wrong: str = "", status: int = 200, name: str = "") -> Response:
    token, app_state, sso = secrets.token_urlsafe(32), get_state(request), None
    if app_state.sso is not None:
        settings = app_state.sso.provider.settings  # the whole address: its cookie has to belong to this host
        sso = {"url": settings.url + link(START, next=local_path(next)), "label": settings.label}
    answer = render_page(
        request,
        "sign_in.html",
        status=status,
        form=token,
        next=local_path(next),
        wrong=wrong,
        given=name,
        sso=sso,
        local_users=app_state.local_users,
        is_alone=app_state.users.is_temporary,
    )
    _set(answer, request, app_state.form_cookie, token)
    return answer


def _set(answer: Response, request: Request, cookie: str, value: str) -> None:
    answer.set_cookie(cookie, value, httponly=True, samesite="strict", secure=is_over_tls(request), path="/")


async def read_fields(request: Request) -> dict[str, str]:
    """Read the fields of a form, each once.

    Raises:
        HTTPException: They cannot be read (400).
    """
    try:
        return {n: v[0] for n, v in parse_qs((await request.body()).decode(), max_num_fields=20).items()}
    except ValueError:
        raise HTTPException(400, "the form cannot be read") from None
