"""The API of the console: JSON under /api, described by /api/openapi.json. Routes of patients are in `cases.routes`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypedDict

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, StringConstraints
from starlette.types import Receive, Scope, Send

from grandrounds.console.app_state import AppState, get_state
from grandrounds.console.auth.access import CurrentUser, is_signed_in, require_area, require_user
from grandrounds.console.auth.users import Area
from grandrounds.console.cache import StillComputing
from grandrounds.console.comparisons import find_comparisons
from grandrounds.console.run_index import UNREADABLE
from grandrounds.console.views import audit as audit_view
from grandrounds.console.views import compare as compare_view
from grandrounds.console.views import estimates as estimates_view
from grandrounds.console.views import ledger
from grandrounds.console.views import privacy as privacy_view
from grandrounds.console.views import risk_card as risk_card_view
from grandrounds.console.views import run as run_view
from grandrounds.console.views import shapes as shapes_view
from grandrounds.console.views import watch as watch_view
from grandrounds.console.views.compare import Choice, ComparisonView
from grandrounds.console.views.estimates import EstimatesView, TableView
from grandrounds.console.views.published import StudyView, load_study
from grandrounds.console.views.runs import RunLine, run_lines
from grandrounds.core.errors import BadInput
from grandrounds.core.names import slug

Responses = dict[int | str, dict[str, Any]]
"""Responses by status, as FastAPI takes them."""

REFUSED: Responses = {
    401: {"description": "Not signed in."},
    403: {"description": "This role has no access."},
    404: {"description": "No such run, round, site or figure."},
    422: {"description": "The request is invalid, or the run is damaged."},
    429: {"description": "Too many wrong tokens from this address."},
}
router = APIRouter(prefix="/api", responses=REFUSED)
RunName = Annotated[str, Query(description="A run's name, as /api/runs has it.", max_length=1024)]
RoundNumber = Annotated[int, Query(ge=1, le=10**9)]
WithdrawnModel = Annotated[bool, Query(description="Show the model although a site withdrew from the run.")]
Viewer = Annotated[CurrentUser, require_area(Area.RUNS)]


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> dict[str, object]:
    """Describe this API."""
    require_user(request)
    schema: dict[str, object] = request.app.openapi()
    return schema


class SessionTime(BaseModel):
    """The time until a session ends. `seconds`: None for a program that sends its token with each request."""

    seconds: float | None


@router.get("/session", summary="Seconds until this session ends if it is not used; this request does not count as use")
def session(request: Request) -> SessionTime:
    if not is_signed_in(request):
        raise HTTPException(401, "sign in first", headers={"www-authenticate": "Bearer"})
    app_state = get_state(request)
    current = app_state.sessions.peek(request.cookies.get(app_state.session_cookie, ""))
    return SessionTime(seconds=None if current is None else app_state.sessions.seconds_left(current))


@router.get("/runs", summary="All runs, the newest first")
def runs(request: Request, who: Viewer) -> list[RunLine]:
    return run_lines(get_state(request).run_index)


@router.get("/run", summary="One run: final scores and the figures that it has")
def one_run(request: Request, who: Viewer, run: RunName) -> run_view.RunHead:
    return run_view.head(get_state(request).run_index, run)


@router.get("/run/sites", summary="The sites of a finished run, the lowest AUROC first")
def sites(request: Request, who: Viewer, run: RunName) -> list[run_view.SiteLine]:
    return run_view.site_lines(get_state(request).run_index, run)


@router.get("/run/subgroups", summary="The subgroups of a finished run, with 95% intervals")
def subgroups(request: Request, who: Viewer, run: RunName) -> list[run_view.GroupLine]:
    return run_view.group_lines(get_state(request).run_index, run)


@router.get("/run/groups", summary="Groups of patients of a finished run: figures, gaps and a correction by group, as text")
def groups(request: Request, who: Viewer, run: RunName) -> list[TableView]:
    return estimates_view.groups(get_state(request).run_index, run)


@router.get("/run/estimates", summary="The estimates of a finished run; null for a run without them")
def estimates(request: Request, who: Viewer, run: RunName, withdrawn: WithdrawnModel = False) -> EstimatesView | None:
    get_state(request).run_index.refuse_withdrawn(run, withdrawn=withdrawn)
    return estimates_view.estimates(get_state(request).run_index, run)


@router.get("/run/tables", summary="Table 1, survival and deployed models of a finished run, as text")
def tables(request: Request, who: Viewer, run: RunName) -> list[TableView]:
    return estimates_view.tables(get_state(request).run_index, run)


@router.get("/run/shapes", summary="The shapes of an additive model, the most important column first; null without them")
def shapes(request: Request, who: Viewer, run: RunName, withdrawn: WithdrawnModel = False) -> shapes_view.ShapesView | None:
    get_state(request).run_index.refuse_withdrawn(run, withdrawn=withdrawn)
    return shapes_view.shapes(get_state(request).run_index, run)


@router.get("/run/shape", summary="The shape of one column as Plotly's data and layout")
def shape(
    request: Request,
    who: Viewer,
    run: RunName,
    column: Annotated[str, Query(max_length=1024)],
    withdrawn: WithdrawnModel = False,
) -> dict[str, object]:
    get_state(request).run_index.refuse_withdrawn(run, withdrawn=withdrawn)
    return shapes_view.figure(get_state(request).run_index, run, column)


@router.get("/run/card", summary="The risk card of a run: terms with points, and the risk of each total; null without one")
def risk_card(
    request: Request, who: Viewer, run: RunName, withdrawn: WithdrawnModel = False
) -> risk_card_view.RiskCardView | None:
    get_state(request).run_index.refuse_withdrawn(run, withdrawn=withdrawn)
    return risk_card_view.risk_card(get_state(request).run_index, run)


@router.get("/run/card/nomogram", summary="The nomogram of a risk card as SVG", response_class=Response)
def nomogram(request: Request, who: Viewer, run: RunName, withdrawn: WithdrawnModel = False) -> Response:
    get_state(request).run_index.refuse_withdrawn(run, withdrawn=withdrawn)
    return Response(risk_card_view.drawing(get_state(request).run_index, run), media_type="image/svg+xml")


@router.get("/run/figure", summary="A figure as Plotly's data and layout")
def figure(
    request: Request,
    who: Viewer,
    run: RunName,
    figure: Annotated[str, Query(max_length=80)],
    round: RoundNumber | None = None,
) -> dict[str, object]:
    return run_view.figure(get_state(request).run_index, run, figure, round=round)


@router.get("/run/watch", summary="Watches of the model at sites whose folder is at hand: alarms, checks, state of the record")
def watches(request: Request, who: Viewer, run: RunName) -> list[watch_view.WatchView]:
    return watch_view.watches(get_state(request).run_index, run)


@router.get("/run/watch/figure", summary="The evidence of a site's watch over patients as Plotly's data and layout")
def watch_figure(
    request: Request, who: Viewer, run: RunName, site: Annotated[str, Query(max_length=1024)]
) -> dict[str, object]:
    return watch_view.figure(get_state(request).run_index, run, site)


@router.get("/run/round", summary="A round's decision: weights, signals, missing sites")
def one_round(request: Request, who: Viewer, run: RunName, round: RoundNumber) -> run_view.Round:
    return run_view.one_round(get_state(request).run_index, run, round)


@router.get("/run/why", summary="An explanation of a site's weight in a round")
def why(
    request: Request, who: Viewer, run: RunName, round: RoundNumber, site: Annotated[str, Query(max_length=1024)]
) -> list[str]:
    return run_view.why(get_state(request).run_index, run, round, site)


compare_router = APIRouter(prefix="/api/compare", responses=REFUSED)
Comparer = Annotated[CurrentUser, require_area(Area.COMPARE)]
Name = Annotated[str, StringConstraints(max_length=1024)]
RunNames = Annotated[list[Name], Query(description="Runs' names, as /api/runs has them.", max_length=200)]
ComparisonName = Annotated[Name | None, Query(description="A comparison's name, as /api/compare/choices has it.")]
Axis = Annotated[str, Query(max_length=80, description="A metric from `axes`.")]


@compare_router.get("/choices", summary="Saved comparisons and reproductions")
def choices(request: Request, who: Comparer) -> Choice:
    return compare_view.choices(get_state(request).run_index)


@compare_router.get("", summary="A comparison of runs")
def compared(request: Request, who: Comparer, run: RunNames = [], comparison: ComparisonName = None) -> ComparisonView:  # noqa: B006
    return compare_view.compare_runs(get_state(request).run_index, run, comparison)


@compare_router.get("/study", summary="Published results and reproduced results of a study")
def study(request: Request, who: Comparer, study: Name) -> StudyView:
    return load_study(find_comparisons(get_state(request).run_index), study)


@compare_router.get("/figure", name="figure", summary="A figure of a comparison as Plotly's data and layout")
def comparison_figure(
    request: Request,
    who: Comparer,
    figure: Annotated[str, Query(max_length=80)],
    run: RunNames = [],  # noqa: B006
    runs: Annotated[str | None, Query(max_length=65536, description="Runs as a JSON list.")] = None,
    comparison: ComparisonName = None,
    x: Axis = "",
    y: Axis = "",
) -> dict[str, object]:
    names = [*run, *(_parse_names(runs) if runs else ())]
    return compare_view.figure(get_state(request).run_index, figure, names, comparison or None, x=x, y=y)


def _parse_names(text: str) -> list[str]:
    """Parse a JSON list of names."""
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise BadInput("runs must be a JSON list of names", code="invalid-request")
    return names


STILL_COMPUTING = 425
"""Status while the account is still being computed."""

privacy_router = APIRouter(
    prefix="/api/privacy",
    responses={**REFUSED, STILL_COMPUTING: {"description": "Still being computed: try again."}},
)
PrivacyOfficer = Annotated[CurrentUser, require_area(Area.PRIVACY)]


@privacy_router.get("/runs", name="runs", summary="All runs with their privacy guarantees")
def private_runs(request: Request, who: PrivacyOfficer) -> list[privacy_view.PrivacyLine]:
    return privacy_view.privacy_lines(get_state(request).run_index)


@privacy_router.get("", summary="A run's privacy account: guarantee, budget spent, data not covered, attacks")
def account(request: Request, who: PrivacyOfficer, run: RunName) -> privacy_view.Promise:
    try:
        return privacy_view.promise(get_state(request).run_index, run)
    except StillComputing:
        raise HTTPException(STILL_COMPUTING, "the account is still being computed: try again in a moment") from None


@privacy_router.get("/figure", name="figure", summary="A figure of a run's account as Plotly's data and layout")
def privacy_figure(
    request: Request, who: PrivacyOfficer, run: RunName, figure: Annotated[str, Query(max_length=80)]
) -> dict[str, object]:
    return privacy_view.figure(get_state(request).run_index, run, figure)


audit_router = APIRouter(prefix="/api/audit", responses=REFUSED)
Auditor = Annotated[CurrentUser, require_area(Area.AUDIT)]
EntryNumber = Annotated[int, Query(ge=0, le=10**9)]


@audit_router.get("/runs", name="runs", summary="All runs with the state of their ledgers")
def audited_runs(request: Request, who: Auditor) -> list[audit_view.LedgerLine]:
    return audit_view.ledger_lines(get_state(request).run_index)


@audit_router.get("/check", summary="Findings of `rounds audit verify` in a run's ledger, model and records")
def check(request: Request, who: Auditor, run: RunName, deep: bool = True) -> audit_view.Check:
    """Check a ledger. A long check continues in the background (see `state`); repeat the request for its result."""
    return audit_view.check(get_state(request).run_index, run, deep=deep)


@audit_router.get("/entries", summary="Entries of a ledger, a page of 25")
def entries(request: Request, who: Auditor, run: RunName, page: RoundNumber = 1) -> ledger.Entries:
    return ledger.entries(get_state(request).run_index, run, page)


@audit_router.get("/entry", summary="One entry, word for word")
def entry(request: Request, who: Auditor, run: RunName, number: EntryNumber) -> ledger.FullEntry:
    return ledger.entry(get_state(request).run_index, run, number)


@audit_router.get("/sites", name="sites", summary="Countersignatures by site")
def countersignatures(request: Request, who: Auditor, run: RunName) -> list[ledger.SiteSignatures]:
    run_index = get_state(request).run_index
    return ledger.signatures(run_index, run, audit_view.check(run_index, run))


@audit_router.get("/anchors", summary="Anchors of the run on a chain, as its folder records them")
def anchors(request: Request, who: Auditor, run: RunName) -> list[ledger.AnchorContract]:
    return ledger.anchors(get_state(request).run_index, run)


@audit_router.get("/proof", summary="A site's inclusion proof, for `rounds audit check`", response_class=Response)
def proof(
    request: Request,
    who: Auditor,
    run: RunName,
    site: Annotated[str, Query(max_length=1024)],
    round: RoundNumber | None = None,
) -> Response:
    """Prove a site's weight in one round, or in all where none is given. A ledger that does not verify is refused."""
    data = ledger.proof(get_state(request).run_index, run, site, round)
    suffix = "" if round is None else f"-round-{round}"
    return _file(data, f"proof-{_word(run)}-{_word(site)}{suffix}.json", "application/json")


@audit_router.get(
    "/export", summary="The whole ledger as JSON lines, for `rounds audit verify`", response_class=Response
)
def export(request: Request, who: Auditor, run: RunName) -> Response:
    return _file(ledger.export(get_state(request).run_index, run), f"ledger-{_word(run)}.jsonl", "application/jsonl")


@audit_router.get("/head", summary="The newest signed head, to be stored elsewhere", response_class=Response)
def head(request: Request, who: Auditor, run: RunName) -> Response:
    return _file(ledger.newest_head(get_state(request).run_index, run), f"head-{_word(run)}.json", "application/json")


def _file(data: bytes, name: str, kind: str) -> Response:
    return Response(data, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})


def _word(name: str) -> str:
    """Make a name safe for a file: only letters, digits and dots."""
    return slug(name)[:80] or "unnamed"


STREAM_INTERVAL = 1.0
"""Seconds between two scans of the folders."""
STREAM_SECONDS = 600.0
"""Seconds after which a stream ends; the browser reconnects and is authenticated again."""
STREAMS_BY_SESSION, STREAMS_BY_USER, MOST_STREAMS = 6, 24, 240
"""Maximum number of streams: per session (browsers limit connections per host), per user, and in total."""


@router.get(
    "/live",
    summary="Progress of runs, as server-sent events",
    response_class=StreamingResponse,
    responses={**REFUSED, 200: {"content": {"text/event-stream": {}}}},
)
async def live(
    request: Request, who: Annotated[CurrentUser, require_area(Area.RUNS)], once: bool = False
) -> StreamingResponse:
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
    before: dict[str, RunState] = {}
    while time.monotonic() - began < STREAM_SECONDS and not await request.is_disconnected():
        if not is_signed_in(request):
            return
        now = await asyncio.to_thread(_states, app_state)
        changed = {name: state for name, state in now.items() if before.get(name) != state}
        if changed or not before:
            yield f"event: runs\ndata: {json.dumps(changed)}\n\n"
        before = now
        if once:
            return
        await asyncio.sleep(STREAM_INTERVAL)


class RunState(TypedDict):
    """The state of a run that changes while it is running."""

    state: str
    rounds: int
    of: int
    metrics: dict[str, float | None]


def _states(app_state: AppState) -> dict[str, RunState]:
    return {
        line.name: {"state": line.state, "rounds": line.rounds, "of": line.of, "metrics": line.metrics}
        for line in run_lines(app_state.run_index)
        if line.state != UNREADABLE
    }
