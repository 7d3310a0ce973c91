"""The same figures for programs: JSON under /api, described by /api/openapi.json."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel

from grandrounds.console.access import Who, only, signed_in, still_signed_in
from grandrounds.console.desk import desk_of
from grandrounds.console.roles import Area
from grandrounds.console.views import run as of_run
from grandrounds.console.views.runs import RunLine, run_lines

REFUSED: dict[int | str, dict[str, Any]] = {
    401: {"description": "Not signed in."},
    403: {"description": "Not for this role."},
    404: {"description": "There is no such run, round, site or figure."},
    422: {"description": "What was asked for cannot be read, or the run is damaged."},
    429: {"description": "Too many wrong tokens from this address."},
}
router = APIRouter(prefix="/api", responses=REFUSED)
RunName = Annotated[str, Query(description="A run's name, as /api/runs has it.", max_length=1024)]
RoundNumber = Annotated[int, Query(ge=1, le=10**9)]
Viewer = Annotated[Who, only(Area.RUNS)]


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> dict[str, Any]:
    """What this API takes and gives."""
    signed_in(request)
    schema: dict[str, Any] = request.app.openapi()
    return schema


class SessionLeft(BaseModel):
    """`seconds`: None for a program that brings its token with each request."""

    seconds: float | None


@router.get("/session", summary="Seconds until this session ends if it is not used; asking does not use it")
def session(request: Request) -> SessionLeft:
    if not still_signed_in(request):
        raise HTTPException(401, "sign in first", headers={"www-authenticate": "Bearer"})
    desk = desk_of(request)
    found = desk.sessions.peek(request.cookies.get(desk.session_cookie, ""))
    return SessionLeft(seconds=None if found is None else desk.sessions.left(found))


@router.get("/runs", summary="All runs, the newest first")
def runs(request: Request, who: Viewer) -> list[RunLine]:
    return run_lines(desk_of(request).library)


@router.get("/run", summary="One run: final figures and which drawings it has")
def one_run(request: Request, who: Viewer, run: RunName) -> of_run.RunHead:
    return of_run.head(desk_of(request).library, run)


@router.get("/run/sites", summary="The sites of a finished run, the lowest AUROC first")
def sites(request: Request, who: Viewer, run: RunName) -> list[of_run.SiteLine]:
    return of_run.site_lines(desk_of(request).library, run)


@router.get("/run/subgroups", summary="The subgroups of a finished run, with 95% intervals")
def subgroups(request: Request, who: Viewer, run: RunName) -> list[of_run.GroupLine]:
    return of_run.group_lines(desk_of(request).library, run)


@router.get("/run/figure", summary="A figure as Plotly's data and layout")
def figure(
    request: Request,
    who: Viewer,
    run: RunName,
    figure: Annotated[str, Query(max_length=80)],
    round: RoundNumber | None = None,
) -> dict[str, Any]:
    return of_run.figure(desk_of(request).library, run, figure, round=round)


@router.get("/run/round", summary="A round's decision: weights, signals, who was missing")
def one_round(request: Request, who: Viewer, run: RunName, round: RoundNumber) -> of_run.Round:
    return of_run.one_round(desk_of(request).library, run, round)


@router.get("/run/why", summary="Why a site had its weight in a round, in words")
def why(
    request: Request, who: Viewer, run: RunName, round: RoundNumber, site: Annotated[str, Query(max_length=1024)]
) -> list[str]:
    return of_run.why(desk_of(request).library, run, round, site)
