"""The front page: all runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import Response

from grandrounds.console.access import Who, only
from grandrounds.console.desk import desk_of
from grandrounds.console.render import page
from grandrounds.console.roles import Area
from grandrounds.console.views.runs import SHOWN, run_lines

router = APIRouter(include_in_schema=False)


@router.get("/")
def runs(request: Request, who: Annotated[Who, only(Area.RUNS)]) -> Response:
    lines = run_lines(desk_of(request).library)
    return page(request, "runs.html", who=who, runs=lines, metrics=SHOWN)
