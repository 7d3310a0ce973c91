"""Progress of runs: as changes since the last request, for pages; as server-sent events, for programs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Annotated

from fastapi import HTTPException, Query, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from grandrounds.capabilities.console.api.parameters import Viewer
from grandrounds.capabilities.console.api.resources import Resources
from grandrounds.capabilities.console.app_state import AppState, get_state
from grandrounds.capabilities.console.auth.access import is_signed_in
from grandrounds.capabilities.console.progress import Changes, RunState

resources = Resources("live", tagged=False)
STREAM_INTERVAL = 1.0
"""Seconds between two looks at the progress."""
STREAM_SECONDS = 600.0
"""Seconds after which a stream ends; the browser reconnects and is authenticated again."""
STREAMS_BY_SESSION, STREAMS_BY_USER, MOST_STREAMS = 6, 24, 240
"""Maximum number of streams: per session (browsers limit connections per host), per user, and in total."""


@resources.get("/progress", summary="Runs that changed since the last request")
def progress(
    request: Request,
    who: Viewer,
    since: Annotated[str, Query(max_length=40, description="`version` of the last response.")] = "",
) -> Changes:
    """Follow runs with short requests. Without `since`: unfinished runs, and those that ended in the last minute."""
    return get_state(request).progress.changes(since)


@resources.get(
    "/live",
    old="/live",
    summary="Progress of runs, as server-sent events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Events `runs`: a JSON object of changed states by run.",
            "content": {"text/event-stream": {}},
        }
    },
)
async def live(request: Request, who: Viewer, once: bool = False) -> StreamingResponse:
    """Follow runs. `once`: send the present state, and no more."""
    app_state = get_state(request)
    mine = (who.name, f"token of {who.name}" if who.session is None else who.session.csrf)
    if _is_full(app_state.streams, *mine):
        raise HTTPException(429, "too many open pages follow runs: close some of them")
    app_state.streams.append(mine)  # no await between the count and this line
    return _Stream(_events(request, app_state, once), release=lambda: app_state.streams.remove(mine))


def _is_full(streams: list[tuple[str, str]], user: str, session: str) -> bool:
    of_user, of_session = sum(u == user for u, _ in streams), sum(s == session for _, s in streams)
    return len(streams) >= MOST_STREAMS or of_user >= STREAMS_BY_USER or of_session >= STREAMS_BY_SESSION


class _Stream(StreamingResponse):
    """A stream that frees its slot when it ends, even if it never started."""

    def __init__(self, content: AsyncIterator[str], *, release: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


async def _events(request: Request, app_state: AppState, once: bool) -> AsyncIterator[str]:
    """Send changed states until the session ends."""
    began = time.monotonic()
    before: Mapping[str, RunState] = {}
    while time.monotonic() - began < STREAM_SECONDS and not await request.is_disconnected():
        if not is_signed_in(request):
            return
        now = await asyncio.to_thread(app_state.progress.states)
        changed = {name: state.model_dump() for name, state in now.items() if before.get(name) != state}
        if changed or not before:
            yield f"event: runs\ndata: {json.dumps(changed)}\n\n"
        before = now
        if once:
            return
        await asyncio.sleep(STREAM_INTERVAL)
