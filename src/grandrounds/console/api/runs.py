"""Runs: scores, sites, subgroups, figures, rounds, shapes and the risk card."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from grandrounds.console.api.parameters import REFUSED, RoundNumber, RunName, WithdrawnModel
from grandrounds.console.app_state import get_state
from grandrounds.console.auth.access import CurrentUser, require_area
from grandrounds.console.auth.users import Area
from grandrounds.console.views import estimates as estimates_view
from grandrounds.console.views import risk_card as risk_card_view
from grandrounds.console.views import run as run_view
from grandrounds.console.views import shapes as shapes_view
from grandrounds.console.views import watch as watch_view
from grandrounds.console.views.estimates import EstimatesView, TableView
from grandrounds.console.views.runs import RunLine, run_lines

router = APIRouter(prefix="/api", responses=REFUSED)
Viewer = Annotated[CurrentUser, require_area(Area.RUNS)]


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


@router.get(
    "/run/groups", summary="Groups of patients of a finished run: figures, gaps and a correction by group, as text"
)
def groups(request: Request, who: Viewer, run: RunName) -> list[TableView]:
    return estimates_view.groups(get_state(request).run_index, run)


@router.get("/run/estimates", summary="The estimates of a finished run; null for a run without them")
def estimates(request: Request, who: Viewer, run: RunName, withdrawn: WithdrawnModel = False) -> EstimatesView | None:
    get_state(request).run_index.refuse_withdrawn(run, withdrawn=withdrawn)
    return estimates_view.estimates(get_state(request).run_index, run)


@router.get("/run/tables", summary="Table 1, survival and deployed models of a finished run, as text")
def tables(request: Request, who: Viewer, run: RunName) -> list[TableView]:
    return estimates_view.tables(get_state(request).run_index, run)


@router.get(
    "/run/shapes", summary="The shapes of an additive model, the most important column first; null without them"
)
def shapes(
    request: Request, who: Viewer, run: RunName, withdrawn: WithdrawnModel = False
) -> shapes_view.ShapesView | None:
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


@router.get(
    "/run/card", summary="The risk card of a run: terms with points, and the risk of each total; null without one"
)
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


@router.get(
    "/run/watch", summary="Watches of the model at sites whose folder is at hand: alarms, checks, state of the record"
)
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
