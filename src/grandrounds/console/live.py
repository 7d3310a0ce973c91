"""Runs at work, as they go on: server-sent events, a line whenever a round is done or a state changes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import StreamingResponse

from grandrounds.console.access import Who, only, still_signed_in
from grandrounds.console.api import REFUSED
from grandrounds.console.desk import Desk, desk_of
from grandrounds.console.library import UNREADABLE
from grandrounds.console.roles import Area
from grandrounds.console.views.runs import run_lines

EVERY = 1.0
"""Seconds between two looks at the folders."""
LONGEST = 600.0
"""Seconds after which a stream ends; a browser asks again, and is checked again."""
MOST = 100
"""Streams at a time."""

router = APIRouter(prefix="/api")


@router.get(
    "/live",
    summary="Runs as they go on, as server-sent events",
    response_class=StreamingResponse,
    responses={**REFUSED, 200: {"content": {"text/event-stream": {}}}},
)
async def live(request: Request, who: Annotated[Who, only(Area.RUNS)], once: bool = False) -> StreamingResponse:
    """`once`: what there is now, and no more."""
    desk = desk_of(request)
    if desk.streams >= MOST:
        raise HTTPException(429, "too many pages follow runs at once: close some")
    return StreamingResponse(_events(request, desk, once), media_type="text/event-stream")


async def _events(request: Request, desk: Desk, once: bool) -> AsyncIterator[str]:
    """States that changed since the last look. It ends with the session."""
    began = time.monotonic()
    before: dict[str, dict[str, Any]] = {}
    desk.streams += 1
    try:
        while time.monotonic() - began < LONGEST and not await request.is_disconnected():
            if not still_signed_in(request):
                return
            now = await asyncio.to_thread(_states, desk)
            changed = {name: told for name, told in now.items() if before.get(name) != told}
            if changed or not before:
                yield f"event: runs\ndata: {json.dumps(changed)}\n\n"
            before = now
            if once:
                return
            await asyncio.sleep(EVERY)
    finally:
        desk.streams -= 1


def _states(desk: Desk) -> dict[str, dict[str, Any]]:
    return {
        line.name: {"state": line.state, "rounds": line.rounds, "of": line.of, "metrics": line.metrics}
        for line in run_lines(desk.library)
        if line.state != UNREADABLE
    }
