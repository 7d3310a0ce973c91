"""The lock of a page that nobody uses: the session stays, and nothing is shown until the user enters the password again.

A page locks after some minutes without input (static/session.js). It empties itself first and then locks the session at the
server, so that other tabs, the Back button and the API show nothing either.
"""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from grandrounds.capabilities.console.access_log import LOCK, UNLOCK
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.auth.access import (
    CurrentUser,
    check_origin,
    check_script,
    log_access,
    require_user,
)
from grandrounds.capabilities.console.auth.sessions import secrets_equal
from grandrounds.capabilities.console.auth.sign_in import check_secret, read_fields
from grandrounds.capabilities.console.auth.single_sign_on import START
from grandrounds.capabilities.console.render import link, local_path, render_page

router = APIRouter(include_in_schema=False)
NO_SESSION = "a program with a token has no session to lock"


@router.post("/lock")
def lock(request: Request) -> Response:
    """Lock the session of a page that nobody used for a while."""
    who = require_user(request, locked=True)
    check_script(request, who)
    if who.session is None:
        raise HTTPException(400, NO_SESSION)
    if not who.session.is_locked:
        who.session.is_locked = True
        log_access(request, LOCK, who)
    return Response(status_code=204)


@router.get("/unlock")
def form(request: Request, next: str = "/") -> Response:
    """Ask for the password of a locked session."""
    who = require_user(request, locked=True)
    if who.session is None or not who.session.is_locked:
        return RedirectResponse(local_path(next), 303)
    return _form(request, who, next=next)


@router.post("/unlock")
async def unlock(request: Request) -> Response:
    """Check the password or token of the session's own user, and show pages again."""
    who, fields = require_user(request, locked=True), await read_fields(request)
    check_origin(request)
    if who.session is None:
        raise HTTPException(400, NO_SESSION)
    if not secrets_equal(fields.get("csrf", ""), who.session.csrf):
        raise HTTPException(403, "the form is not of this session")
    next = fields.get("next", "/")
    if who.session.identity is not None:
        raise HTTPException(403, "sign in again at your provider")
    checked = await check_secret(request, who.name, fields.get("secret", ""), by="unlock")
    if checked.user is None:
        return _form(request, who, next=next, wrong=checked.wrong, status=checked.status)
    log_access(request, UNLOCK, who)
    who.session.is_locked = False
    return RedirectResponse(local_path(next), 303)


def _form(request: Request, who: CurrentUser, *, next: str, wrong: str = "", status: int = 200) -> Response:
    sso, provider = get_state(request).sso, None
    if sso is not None and who.session is not None and who.session.identity is not None:
        settings = sso.provider.settings
        provider = {"url": settings.url + link(START, next=local_path(next), again="true"), "label": settings.label}
    return render_page(
        request, "unlock.html", status=status, who=who, next=local_path(next), wrong=wrong, provider=provider
    )
