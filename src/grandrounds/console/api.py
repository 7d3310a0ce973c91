"""The API of the console: JSON under /api, described by /api/openapi.json. Routes of patients are in `cases.routes`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, StringConstraints
from starlette.types import Receive, Scope, Send

from grandrounds.console.app_state import AppState, get_state
from grandrounds.console.auth.access import CurrentUser, is_signed_in, require_area, require_user
from grandrounds.console.auth.users import Area
from grandrounds.console.cache import Working
from grandrounds.console.comparisons import comparisons_of
from grandrounds.console.run_index import UNREADABLE
from grandrounds.console.views import audit as audit_view
from grandrounds.console.views import compare as compare_view
from grandrounds.console.views import ledger
from grandrounds.console.views import privacy as privacy_view
from grandrounds.console.views import run as run_view
from grandrounds.console.views.compare import Choice, Compared
from grandrounds.console.views.published import StudyShown, of_study
from grandrounds.console.views.runs import RunLine, run_lines
from grandrounds.core.errors import BadInput
from grandrounds.core.names import slug

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
Viewer = Annotated[CurrentUser, require_area(Area.RUNS)]


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> dict[str, Any]:
    """What this API takes and gives."""
    require_user(request)
    schema: dict[str, Any] = request.app.openapi()
    return schema


class SessionLeft(BaseModel):
    """`seconds`: None for a program that brings its token with each request."""

    seconds: float | None


@router.get("/session", summary="Seconds until this session ends if it is not used; asking does not use it")
def session(request: Request) -> SessionLeft:
    if not is_signed_in(request):
        raise HTTPException(401, "sign in first", headers={"www-authenticate": "Bearer"})
    app_state = get_state(request)
    found = app_state.sessions.peek(request.cookies.get(app_state.session_cookie, ""))
    return SessionLeft(seconds=None if found is None else app_state.sessions.left(found))


@router.get("/runs", summary="All runs, the newest first")
def runs(request: Request, who: Viewer) -> list[RunLine]:
    return run_lines(get_state(request).run_index)


@router.get("/run", summary="One run: final figures and which drawings it has")
def one_run(request: Request, who: Viewer, run: RunName) -> run_view.RunHead:
    return run_view.head(get_state(request).run_index, run)


@router.get("/run/sites", summary="The sites of a finished run, the lowest AUROC first")
def sites(request: Request, who: Viewer, run: RunName) -> list[run_view.SiteLine]:
    return run_view.site_lines(get_state(request).run_index, run)


@router.get("/run/subgroups", summary="The subgroups of a finished run, with 95% intervals")
def subgroups(request: Request, who: Viewer, run: RunName) -> list[run_view.GroupLine]:
    return run_view.group_lines(get_state(request).run_index, run)


@router.get("/run/figure", summary="A figure as Plotly's data and layout")
def figure(
    request: Request,
    who: Viewer,
    run: RunName,
    figure: Annotated[str, Query(max_length=80)],
    round: RoundNumber | None = None,
) -> dict[str, Any]:
    return run_view.figure(get_state(request).run_index, run, figure, round=round)


@router.get("/run/round", summary="A round's decision: weights, signals, who was missing")
def one_round(request: Request, who: Viewer, run: RunName, round: RoundNumber) -> run_view.Round:
    return run_view.one_round(get_state(request).run_index, run, round)


@router.get("/run/why", summary="Why a site had its weight in a round, in words")
def why(
    request: Request, who: Viewer, run: RunName, round: RoundNumber, site: Annotated[str, Query(max_length=1024)]
) -> list[str]:
    return run_view.why(get_state(request).run_index, run, round, site)


compare_router = APIRouter(prefix="/api/compare", responses=REFUSED)
Comparer = Annotated[CurrentUser, require_area(Area.COMPARE)]
Name = Annotated[str, StringConstraints(max_length=1024)]
RunNames = Annotated[list[Name], Query(description="Runs' names, as /api/runs has them.", max_length=200)]
ComparisonName = Annotated[Name | None, Query(description="A comparison's name, as /api/compare/choices has it.")]
Axis = Annotated[str, Query(max_length=80, description="A figure of `axes`.")]


@compare_router.get("/choices", summary="Comparisons and studies that are here")
def choices(request: Request, who: Comparer) -> Choice:
    return compare_view.choices(get_state(request).run_index)


@compare_router.get("", summary="Runs, or a comparison, side by side")
def compared(request: Request, who: Comparer, run: RunNames = [], comparison: ComparisonName = None) -> Compared:  # noqa: B006
    return compare_view.compared(get_state(request).run_index, run, comparison)


@compare_router.get("/study", summary="A study's figures beside those that a paper prints")
def study(request: Request, who: Comparer, study: Name) -> StudyShown:
    return of_study(comparisons_of(get_state(request).run_index), study)


@compare_router.get("/figure", name="figure", summary="A figure of a comparison as Plotly's data and layout")
def comparison_figure(
    request: Request,
    who: Comparer,
    figure: Annotated[str, Query(max_length=80)],
    run: RunNames = [],  # noqa: B006
    runs: Annotated[str | None, Query(max_length=65536, description="The same as a JSON list.")] = None,
    comparison: ComparisonName = None,
    x: Axis = "",
    y: Axis = "",
) -> dict[str, Any]:
    names = [*run, *(_parse_names(runs) if runs else ())]
    return compare_view.figure(get_state(request).run_index, figure, names, comparison or None, x=x, y=y)


def _parse_names(text: str) -> list[str]:
    """Names from a JSON list."""
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise BadInput("runs must be a JSON list of names")
    return names


LATER = 425
"""The account is being worked out still: ask again."""

privacy_router = APIRouter(
    prefix="/api/privacy", responses={**REFUSED, LATER: {"description": "It is being worked out still: ask again."}}
)
PrivacyOfficer = Annotated[CurrentUser, require_area(Area.PRIVACY)]


@privacy_router.get("/runs", name="runs", summary="All runs with what they promised")
def private_runs(request: Request, who: PrivacyOfficer) -> list[privacy_view.PrivacyLine]:
    return privacy_view.privacy_lines(get_state(request).run_index)


@privacy_router.get("", summary="A run's account: promised, spent, not covered, attacked")
def account(request: Request, who: PrivacyOfficer, run: RunName) -> privacy_view.Promise:
    try:
        return privacy_view.promise(get_state(request).run_index, run)
    except Working:
        raise HTTPException(LATER, "the account is being worked out still: ask again in a moment") from None


@privacy_router.get("/figure", name="figure", summary="A figure of a run's account as Plotly's data and layout")
def privacy_figure(
    request: Request, who: PrivacyOfficer, run: RunName, figure: Annotated[str, Query(max_length=80)]
) -> dict[str, Any]:
    return privacy_view.figure(get_state(request).run_index, run, figure)


audit_router = APIRouter(prefix="/api/audit", responses=REFUSED)
Auditor = Annotated[CurrentUser, require_area(Area.AUDIT)]
EntryNumber = Annotated[int, Query(ge=0, le=10**9)]


@audit_router.get("/runs", name="runs", summary="All runs with the state of their ledgers")
def audited_runs(request: Request, who: Auditor) -> list[audit_view.LedgerLine]:
    return audit_view.ledger_lines(get_state(request).run_index)


@audit_router.get("/check", summary="What `rounds audit verify` finds in a run's ledger, model and records")
def check(request: Request, who: Auditor, run: RunName, deep: bool = True) -> audit_view.Check:
    """Waits for a check for a while; `state` says where it goes on, and the same request finds it later."""
    return audit_view.check(get_state(request).run_index, run, deep=deep)


@audit_router.get("/entries", summary="Entries of a ledger, a page of 25")
def entries(request: Request, who: Auditor, run: RunName, page: RoundNumber = 1) -> ledger.Entries:
    return ledger.entries(get_state(request).run_index, run, page)


@audit_router.get("/entry", summary="One entry, word for word")
def entry(request: Request, who: Auditor, run: RunName, number: EntryNumber) -> ledger.EntryWhole:
    return ledger.entry(get_state(request).run_index, run, number)


@audit_router.get("/sites", name="sites", summary="Countersignatures by site")
def countersignatures(request: Request, who: Auditor, run: RunName) -> list[ledger.SiteSigned]:
    run_index = get_state(request).run_index
    return ledger.signatures(run_index, run, audit_view.check(run_index, run))


@audit_router.get("/anchors", summary="Where the run was anchored on a chain, as its folder says")
def anchors(request: Request, who: Auditor, run: RunName) -> list[ledger.Place]:
    return ledger.anchors(get_state(request).run_index, run)


@audit_router.get("/proof", summary="A site's inclusion proof, which `rounds audit check` checks", response_class=Response)
def proof(
    request: Request,
    who: Auditor,
    run: RunName,
    site: Annotated[str, Query(max_length=1024)],
    round: RoundNumber | None = None,
) -> Response:
    """Of one round, or of all where none is given. None is made from a ledger that does not verify."""
    data = ledger.proof(get_state(request).run_index, run, site, round)
    which = "" if round is None else f"-round-{round}"
    return _file(data, f"proof-{_word(run)}-{_word(site)}{which}.json", "application/json")


@audit_router.get(
    "/export", summary="The whole ledger as JSON lines, which `rounds audit verify` checks", response_class=Response
)
def export(request: Request, who: Auditor, run: RunName) -> Response:
    return _file(ledger.export(get_state(request).run_index, run), f"ledger-{_word(run)}.jsonl", "application/jsonl")


@audit_router.get("/head", summary="The newest signed head, for somebody to keep elsewhere", response_class=Response)
def head(request: Request, who: Auditor, run: RunName) -> Response:
    return _file(ledger.newest_head(get_state(request).run_index, run), f"head-{_word(run)}.json", "application/json")


def _file(data: bytes, name: str, kind: str) -> Response:
    return Response(data, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})


def _word(name: str) -> str:
    """A name as part of a file's: letters, digits and dots alone."""
    return slug(name)[:80] or "unnamed"


STREAM_INTERVAL = 1.0
"""Seconds between two looks at the folders."""
STREAM_SECONDS = 600.0
"""Seconds after which a stream ends; a browser asks again, and is checked again."""
STREAMS_BY_SESSION, STREAMS_BY_USER, MOST_STREAMS = 6, 24, 240
"""Streams at a time: of one session (a browser has no more connections for a host), of one user, and in all."""

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
    if _is_full(app_state.streams, *mine):
        raise HTTPException(429, "too many pages follow runs at once: close some")
    app_state.streams.append(mine)  # nothing is awaited between the count and this
    return _Stream(_events(request, app_state, once), release=lambda: app_state.streams.remove(mine))


def _is_full(streams: list[tuple[str, str]], user: str, session: str) -> bool:
    of_user, of_session = sum(u == user for u, _ in streams), sum(s == session for _, s in streams)
    return len(streams) >= MOST_STREAMS or of_user >= STREAMS_BY_USER or of_session >= STREAMS_BY_SESSION


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
    while time.monotonic() - began < STREAM_SECONDS and not await request.is_disconnected():
        if not is_signed_in(request):
            return
        now = await asyncio.to_thread(_states, app_state)
        changed = {name: told for name, told in now.items() if before.get(name) != told}
        if changed or not before:
            yield f"event: runs\ndata: {json.dumps(changed)}\n\n"
        before = now
        if once:
            return
        await asyncio.sleep(STREAM_INTERVAL)


def _states(app_state: AppState) -> dict[str, dict[str, Any]]:
    return {
        line.name: {"state": line.state, "rounds": line.rounds, "of": line.of, "metrics": line.metrics}
        for line in run_lines(app_state.run_index)
        if line.state != UNREADABLE
    }
