"""Runs at work, as they go on: server-sent events, a line whenever a round is done or a state changes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from grandrounds.console.api import REFUSED
from grandrounds.console.app_state import AppState, get_state
from grandrounds.console.auth.access import CurrentUser, is_signed_in, require_area
from grandrounds.console.auth.users import Area
from grandrounds.console.run_index import UNREADABLE
from grandrounds.console.views.runs import run_lines

EVERY = 1.0
"""Seconds between two looks at the folders."""
LONGEST = 600.0
"""Seconds after which a stream ends; a browser asks again, and is checked again."""
BY_SESSION, BY_USER, MOST = 6, 24, 240
"""Streams at a time: of one session (a browser has no more connections for a host), of one user, and in all."""

router = APIRouter(prefix="/api")


@router.get(
    "/live",
    summary="Runs as they go on, as server-sent events",
    response_class=StreamingResponse,
    responses={**REFUSED, 200: {"content": {"text/event-stream": {}}}},
)
async def live(request: Request, who: Annotated[CurrentUser, require_area(Area.RUNS)], once: bool = False) -> StreamingResponse:
    """`once`: what there is now, and no more."""
    app_state = get_state(request)
    mine = (who.name, f"token of {who.name}" if who.session is None else who.session.csrf)
    if _full(app_state.streams, *mine):
        raise HTTPException(429, "too many pages follow runs at once: close some")
    app_state.streams.append(mine)  # nothing is awaited between the count and this
    return _Stream(_events(request, app_state, once), release=lambda: app_state.streams.remove(mine))


def _full(streams: list[tuple[str, str]], user: str, session: str) -> bool:
    of_user, of_session = sum(u == user for u, _ in streams), sum(s == session for _, s in streams)
    return len(streams) >= MOST or of_user >= BY_USER or of_session >= BY_SESSION


class _Stream(StreamingResponse):
    """Gives its place back when it ends, also where it never began."""

    def __init__(self, content: AsyncIterator[str], *, release: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


async def _events(request: Request, app_state: AppState, once: bool) -> AsyncIterator[str]:
    """States that changed since the last look. It ends with the session."""
    began = time.monotonic()
    before: dict[str, dict[str, Any]] = {}
    while time.monotonic() - began < LONGEST and not await request.is_disconnected():
        if not is_signed_in(request):
            return
        now = await asyncio.to_thread(_states, app_state)
        changed = {name: told for name, told in now.items() if before.get(name) != told}
        if changed or not before:
            yield f"event: runs\ndata: {json.dumps(changed)}\n\n"
        before = now
        if once:
            return
        await asyncio.sleep(EVERY)


def _states(app_state: AppState) -> dict[str, dict[str, Any]]:
    return {
        line.name: {"state": line.state, "rounds": line.rounds, "of": line.of, "metrics": line.metrics}
        for line in run_lines(app_state.run_index)
        if line.state != UNREADABLE
    }
