"""Runs: the list by pages, one run, its sites, subgroups, tables, figures and watches."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Query, Request
from fastapi.responses import Response
from pydantic import AfterValidator, BaseModel

from grandrounds.capabilities.console.api.parameters import (
    FIGURE,
    FigureName,
    RoundNumber,
    RunName,
    SiteName,
    Viewer,
    WithdrawnModel,
)
from grandrounds.capabilities.console.api.resources import ROOT, Resources, to_id
from grandrounds.capabilities.console.api.run_files import STORED
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.render import link
from grandrounds.capabilities.console.run_index import NotFound, is_stored
from grandrounds.capabilities.console.views import estimates as estimates_view
from grandrounds.capabilities.console.views import run as run_view
from grandrounds.capabilities.console.views import watch as watch_view
from grandrounds.capabilities.console.views.engineer import NEWEST, ORDERS, PAGE_SIZE, RunQuery, find_runs
from grandrounds.capabilities.console.views.estimates import EstimatesView, TableView
from grandrounds.capabilities.console.views.overview import make_run_overview
from grandrounds.capabilities.console.views.runs import RunLine, run_line, run_lines
from grandrounds.report.overview import Overview

MOST = 500
"""Runs of a page."""
State = Literal["", "running", "failed", "interrupted", "stopped", "finished", "unreadable"]
resources = Resources("runs")


class RunItem(RunLine):
    """A run of the list. `id`: its name in paths; `url`: its resource; `changed_at`: `changed` in RFC 3339."""

    id: str
    url: str
    changed_at: str


class RunPage(BaseModel):
    """A page of runs. `total`: runs that fit the search; `pages`: pages that they fill."""

    runs: list[RunItem]
    total: int
    page: int
    pages: int
    limit: int


class RunResource(run_view.RunHead):
    """One run. `changed`: seconds since 1970 of its last change, and as text in RFC 3339; `links`: its resources."""

    id: str
    state: str
    changed: float
    changed_at: str
    links: dict[str, str]


LINKED = (
    *(
        "overview",
        "hospitals",
        "sites",
        "subgroups",
        "groups",
        "rounds",
        "figures",
        "estimates",
        "tables",
        "shapes",
        "card",
        "watch",
        "summary",
        "model",
    ),
    *("experiment", "report", "report.pdf", "sites.csv", "subgroups.csv", "rounds.csv", "weights.csv", "metrics.csv"),
)
KEPT = ("q", "state", "group", "sort", "limit")
"""Parameters of the search, which links to other pages have too."""


def _check_order(text: str) -> str:
    if text not in ORDERS:
        raise ValueError(f"Input should be one of: {', '.join(ORDERS)}")
    return text


Order = Annotated[
    str,
    Query(description="A column; with a minus, the largest first.", json_schema_extra={"enum": list(ORDERS)}),
    AfterValidator(_check_order),
]
PAGED: dict[int | str, dict[str, Any]] = {
    200: {
        "headers": {
            "Link": {"description": "RFC 8288: first, prev, next and last page.", "schema": {"type": "string"}},
        }
    }
}


@resources.get("/runs", summary="Runs by pages, the newest first", responses=PAGED)
def list_runs(
    request: Request,
    response: Response,
    who: Viewer,
    q: Annotated[str, Query(description="Words that the name, data, method or model contains.", max_length=200)] = "",
    state: Annotated[State, Query(description="Runs in this state alone.")] = "",
    group: Annotated[str, Query(description="Runs of this folder, comparison or study alone.", max_length=1024)] = "",
    sort: Order = NEWEST,
    page: Annotated[int, Query(description="A page, from 1.", ge=1, le=10**6)] = 1,
    limit: Annotated[int, Query(description="Runs of a page.", ge=1, le=MOST)] = PAGE_SIZE,
) -> RunPage:
    """List runs. The header Link has the addresses of the first, previous, next and last page."""
    run_index = get_state(request).run_index
    entries = run_index.runs()
    states = {entry.name: entry.state for entry in entries}
    found = find_runs(run_index, RunQuery(q, state, group, sort), entries, states)
    pages = max(1, -(-len(found) // limit))
    response.headers["link"] = _page_links(request, page, pages)
    shown = [_item(run_line(run_index, entry)) for entry in found[(page - 1) * limit : page * limit]]
    return RunPage(runs=shown, total=len(found), page=page, pages=pages, limit=limit)


def _page_links(request: Request, page: int, pages: int) -> str:
    """Write the header Link with the addresses of other pages, with the search of this one."""
    search = {name: value for name, value in request.query_params.items() if name in KEPT}
    others = {"first": 1, "prev": min(page - 1, pages), "next": page + 1, "last": pages}
    return ", ".join(
        f'<{link(request.url.path, **search, page=number)}>; rel="{relation}"'
        for relation, number in others.items()
        if 1 <= number <= pages
    )


def _item(line: RunLine) -> RunItem:
    return RunItem(
        **line.model_dump(),
        id=to_id(line.name),
        url=f"{ROOT}/runs/{to_id(line.name)}",
        changed_at=_moment(line.changed),
    )


def _moment(seconds: float) -> str:
    """Write a time in RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@resources.old_router.get("/runs", summary="All runs, the newest first")
def all_runs(request: Request, who: Viewer) -> list[RunLine]:
    return run_lines(get_state(request).run_index)


@resources.get("/runs/{run}", old="/run", summary="One run: final scores and the figures that it has")
def one_run(request: Request, who: Viewer, run: RunName) -> RunResource:
    run_index = get_state(request).run_index
    line = run_line(run_index, run_index.get(run))
    return RunResource(
        **run_view.head(run_index, run).model_dump(),
        id=to_id(run),
        state=line.state,
        changed=line.changed,
        changed_at=_moment(line.changed),
        links={name: f"{ROOT}/runs/{to_id(run)}/{name}" for name in _linked(run_index.get(run).folder)},
    )


def _linked(folder: Path) -> list[str]:
    """List the resources of a run; of files those that are stored."""
    return [name for name in LINKED if name not in STORED or is_stored(folder / STORED[name])]


@resources.get(
    "/runs/{run}/overview",
    summary="The overview of a run, as pages and reports show it: outcome, verdict, scores, cause of an end",
)
def overview(request: Request, who: Viewer, run: RunName) -> Overview:
    """Describe a run. `verdict`: better, mixed, unclear, worse or untested against no model; `ending`: the cause of a run that
    did not finish. The ledger is not checked here: see /api/v1/audit."""
    return make_run_overview(get_state(request).run_index, run)


@resources.get("/runs/{run}/sites", old="/run/sites", summary="The sites of a finished run, the lowest AUROC first")
def sites(request: Request, who: Viewer, run: RunName) -> list[run_view.SiteLine]:
    return run_view.site_lines(get_state(request).run_index, run)


@resources.get("/runs/{run}/sites/{site}", summary="One site of a finished run")
def one_site(request: Request, who: Viewer, run: RunName, site: SiteName) -> run_view.SiteLine:
    for line in run_view.site_lines(get_state(request).run_index, run):
        if line.site == site:
            return line
    raise NotFound(f"run '{run[:200]}' has no scores of a site '{site[:80]}'", code="unknown-site")


@resources.get(
    "/runs/{run}/subgroups", old="/run/subgroups", summary="The subgroups of a finished run, with 95% intervals"
)
def subgroups(request: Request, who: Viewer, run: RunName) -> list[run_view.GroupLine]:
    return run_view.group_lines(get_state(request).run_index, run)


@resources.get(
    "/runs/{run}/groups",
    old="/run/groups",
    summary="Groups of patients of a finished run: figures, gaps and a correction by group, as text",
)
def groups(request: Request, who: Viewer, run: RunName) -> list[TableView]:
    return estimates_view.groups(get_state(request).run_index, run)


@resources.get(
    "/runs/{run}/estimates",
    old="/run/estimates",
    summary="The estimates of a finished run; null for a run without them",
)
def estimates(request: Request, who: Viewer, run: RunName, withdrawn: WithdrawnModel = False) -> EstimatesView | None:
    get_state(request).run_index.refuse_withdrawn(run, withdrawn=withdrawn)
    return estimates_view.estimates(get_state(request).run_index, run)


@resources.get(
    "/runs/{run}/tables",
    old="/run/tables",
    summary="Table 1, survival and deployed models of a finished run, as text",
)
def tables(request: Request, who: Viewer, run: RunName) -> list[TableView]:
    return estimates_view.tables(get_state(request).run_index, run)


@resources.get("/runs/{run}/figures", summary="The figures that a run has")
def figures(request: Request, who: Viewer, run: RunName) -> list[run_view.FigurePlace]:
    return run_view.head(get_state(request).run_index, run).figures


@resources.get(
    "/runs/{run}/figures/{figure}",
    old="/run/figure",
    summary="A figure as Plotly's data and layout",
    responses=FIGURE,
    response_model=None,
)
def figure(
    request: Request, who: Viewer, run: RunName, figure: FigureName, round: RoundNumber | None = None
) -> dict[str, object]:
    return run_view.figure(get_state(request).run_index, run, figure, round=round)


@resources.get(
    "/runs/{run}/watch",
    old="/run/watch",
    summary="Watches of the model at sites whose folder is at hand: alarms, checks, state of the record",
)
def watches(request: Request, who: Viewer, run: RunName) -> list[watch_view.WatchView]:
    return watch_view.watches(get_state(request).run_index, run)


@resources.get(
    "/runs/{run}/watch/{site}/figure",
    old="/run/watch/figure",
    summary="The evidence of a site's watch over patients as Plotly's data and layout",
    responses=FIGURE,
    response_model=None,
)
def watch_figure(request: Request, who: Viewer, run: RunName, site: SiteName) -> dict[str, object]:
    return watch_view.figure(get_state(request).run_index, run, site)
