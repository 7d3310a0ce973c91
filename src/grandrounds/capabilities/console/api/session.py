"""The user's session, and the description of this API."""

from __future__ import annotations

from fastapi import HTTPException, Request
from pydantic import BaseModel

from grandrounds.capabilities.console.api.resources import Resources
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.auth.access import is_signed_in, require_user

resources = Resources("session", tagged=False)


@resources.old_router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> dict[str, object]:
    """Describe this API."""
    require_user(request)
    schema: dict[str, object] = request.app.openapi()
    return schema


class SessionTime(BaseModel):
    """The time until a session ends.

    `seconds`: None for a program that sends its token with each request; `locked`: the user has to enter the password again.
    """

    seconds: float | None
    locked: bool = False


@resources.get(
    "/session",
    old="/session",
    summary="Seconds until this session ends if it is not used; this request does not count as use",
)
def session(request: Request) -> SessionTime:
    if not is_signed_in(request):
        raise HTTPException(401, "sign in first", headers={"www-authenticate": "Bearer"})
    app_state = get_state(request)
    current = app_state.sessions.peek(request.cookies.get(app_state.session_cookie, ""))
    if current is None:
        return SessionTime(seconds=None)
    return SessionTime(seconds=app_state.sessions.seconds_left(current), locked=current.is_locked)
