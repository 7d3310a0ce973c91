"""What a run promised to patients; without a run, all runs with their epsilon."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import Response

from grandrounds.console.access import Who, only
from grandrounds.console.api import RunName
from grandrounds.console.desk import desk_of
from grandrounds.console.held import Working
from grandrounds.console.library import FINISHED
from grandrounds.console.render import page
from grandrounds.console.roles import Area
from grandrounds.console.views import privacy as view
from grandrounds.privacy.in_words import rounded_up

router = APIRouter(include_in_schema=False)


@router.get("/privacy")
def privacy(request: Request, who: Annotated[Who, only(Area.PRIVACY)], run: RunName | None = None) -> Response:
    library = desk_of(request).library
    if run is None:
        return page(request, "privacy_runs.html", who=who, lines=view.privacy_lines(library))
    if library.get(run).state != FINISHED:
        line = next(one for one in view.privacy_lines(library) if one.run == run)
        return page(request, "privacy_wait.html", who=who, run=run, line=line, going=False)
    try:
        told = view.promise(library, run, wait=view.PAGE_WAIT)
    except Working:
        return page(request, "privacy_wait.html", who=who, run=run, line=None, going=True)
    return page(request, "privacy.html", who=who, told=told, up=rounded_up)
