"""HTML pages: runs, one run, its watches, comparisons, ledgers, privacy. Their values come from `views`."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from grandrounds.capabilities.console.api import ComparisonName, Name, RoundNumber, RunName, RunNames, WithdrawnModel
from grandrounds.capabilities.console.api.resources import to_id
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.auth.access import CurrentUser, require_area
from grandrounds.capabilities.console.auth.users import Area
from grandrounds.capabilities.console.cache import StillComputing
from grandrounds.capabilities.console.comparisons import find_comparisons
from grandrounds.capabilities.console.navigation import RUNS, start_page
from grandrounds.capabilities.console.register.view import load_register
from grandrounds.capabilities.console.render import render_page
from grandrounds.capabilities.console.run_index import FINISHED, NotFound, RunIndex, Unreadable, is_stored
from grandrounds.capabilities.console.views import audit as audit_view
from grandrounds.capabilities.console.views import board as board_view
from grandrounds.capabilities.console.views import compare as compare_view
from grandrounds.capabilities.console.views import engineer as engineer_view
from grandrounds.capabilities.console.views import estimates as estimates_view
from grandrounds.capabilities.console.views import ledger, sections
from grandrounds.capabilities.console.views import privacy as privacy_view
from grandrounds.capabilities.console.views import risk_card as risk_card_view
from grandrounds.capabilities.console.views import run as run_view
from grandrounds.capabilities.console.views import shapes as shapes_view
from grandrounds.capabilities.console.views import watch as watch_view
from grandrounds.capabilities.console.views.overview import find_status, make_run_overview
from grandrounds.capabilities.console.views.published import load_study
from grandrounds.capabilities.console.views.runs import SHOWN
from grandrounds.privacy.in_words import rounded_up

router = APIRouter(include_in_schema=False)


@router.get("/")
def start(request: Request, who: Annotated[CurrentUser, require_area(Area.RUNS)]) -> Response:
    """Show the start page of the user's first role."""
    page = start_page(who, has_patients=get_state(request).cases is not None)
    return runs(request, who) if page is RUNS else RedirectResponse(page.path, 303)


@router.get("/board")
def board(request: Request, who: Annotated[CurrentUser, require_area(Area.OVERVIEW)]) -> Response:
    content = board_view.make_board(get_state(request).run_index, user=who.name)
    return render_page(request, "board.html", who=who, board=content)


@router.get("/runs")
def runs(
    request: Request,
    who: Annotated[CurrentUser, require_area(Area.RUNS)],
    q: Annotated[str, Query(max_length=200)] = "",
    state: Annotated[str, Query(max_length=20)] = "",
    group: Annotated[str, Query(max_length=1024)] = "",
    sort: Annotated[str, Query(max_length=40)] = engineer_view.NEWEST,
    page: Annotated[int, Query(ge=1, le=10**6)] = 1,
) -> Response:
    order = sort if sort in engineer_view.ORDERS else engineer_view.NEWEST
    query = engineer_view.RunQuery(q.strip(), state, group, order, page)
    run_index = get_state(request).run_index
    listed, register = engineer_view.page_runs(run_index, query), load_register(run_index, wait=0.0)
    statuses = {} if register is None else {status.run: status for status in reversed(register.models)}  # the newest of a run
    return render_page(
        request, "runs.html", who=who, listed=listed, metrics=SHOWN, states=engineer_view.STATES, statuses=statuses
    )


@router.get("/run")
def one_run(
    request: Request,
    who: Annotated[CurrentUser, require_area(Area.RUNS)],
    run: RunName,
    section: Annotated[str, Query(max_length=40)] = sections.SUMMARY,
    figure: Annotated[str, Query(max_length=80)] = "",
) -> Response:
    app_state = get_state(request)
    run_index, cases = app_state.run_index, app_state.cases
    head = run_view.head(run_index, run)
    tables = estimates_view.tables(run_index, run)
    estimates = None if head.withdrawn else estimates_view.estimates(run_index, run)
    keys = sections.list_sections(head, has_tables=bool(tables) or estimates is not None)
    if section not in keys:
        raise NotFound(f"run '{run}' has no section '{section[:40]}'; it has: {', '.join(keys)}", code="unknown-run-section")
    status, state = find_status(run_index, run), run_index.get(run).state
    overview = make_run_overview(run_index, run, use="" if status is None else status.record.purpose)
    checked = (
        audit_view.check(run_index, run, deep=True, wait=0.0) if who.may_see(Area.AUDIT) and state == FINISHED else None
    )
    sites = run_view.site_lines(run_index, run)
    folder, path = run_index.get(run).folder, f"/api/v1/runs/{to_id(run)}"
    return render_page(
        request, "run.html", who=who, run=head, overview=overview, model_status=status, ledger=checked,
        section=sections.make_section(run_index, head, section, figure=figure), sections=keys,
        labels=sections.LABELS | ({} if estimates else {sections.ESTIMATES: sections.TABLES}),
        sites=sites, has_events=any(s.events is not None for s in sites), groups=run_view.group_lines(run_index, run),
        outcome_tables=run_view.outcome_tables(run_index, run), estimates=estimates, tables=tables,
        fairness=estimates_view.groups(run_index, run), settings=sections.settings_tables(run_index, run),
        findings=[line for line in head.findings if line not in overview.verdict_lines],
        has_patients=cases is not None and who.may_see(Area.CASES) and cases.has_run(run),
        is_watched=watch_view.has_watches(run_index, run), report_path=f"{path}/report", experiment_path=f"{path}/experiment",
        sites_path=f"{path}/sites.csv", rounds_path=f"{path}/rounds.csv",
        has_report=not head.withdrawn and is_stored(folder / "report.html"),
        has_pdf=not head.withdrawn and is_stored(folder / "report.pdf"),
    )  # fmt: skip


@router.get("/shapes")
def shapes(
    request: Request,
    who: Annotated[CurrentUser, require_area(Area.RUNS)],
    run: RunName,
    column: Annotated[str, Query(max_length=1024)] = "",
    withdrawn: WithdrawnModel = False,
) -> Response:
    run_index = get_state(request).run_index
    run_index.refuse_withdrawn(run, withdrawn=withdrawn)
    found = shapes_view.shapes(run_index, run)
    names = [] if found is None else [c.column for c in found.columns]
    return render_page(
        request, "shapes.html", who=who, run=run_view.head(run_index, run), state=run_index.get(run).state, shapes=found,
        chosen=column if column in names else names[0] if names else "",
    )  # fmt: skip


@router.get("/watch")
def watch(request: Request, who: Annotated[CurrentUser, require_area(Area.RUNS)], run: RunName) -> Response:
    run_index = get_state(request).run_index
    head, watches = run_view.head(run_index, run), watch_view.watches(run_index, run)
    return render_page(request, "watch.html", who=who, run=head, watches=watches)


@router.get("/card")
def risk_card(
    request: Request,
    who: Annotated[CurrentUser, require_area(Area.RUNS)],
    run: RunName,
    withdrawn: WithdrawnModel = False,
) -> Response:
    run_index = get_state(request).run_index
    run_index.refuse_withdrawn(run, withdrawn=withdrawn)
    return render_page(
        request, "risk_card.html", who=who, run=run_view.head(run_index, run), state=run_index.get(run).state,
        card=risk_card_view.risk_card(run_index, run),
    )  # fmt: skip


@router.get("/compare")
def compare(
    request: Request,
    who: Annotated[CurrentUser, require_area(Area.COMPARE)],
    run: RunNames = [],  # noqa: B006
    comparison: ComparisonName = None,
    study: Name | None = None,
    q: Annotated[str, Query(max_length=200)] = "",
    page: Annotated[int | None, Query(ge=1, le=10**6)] = None,
) -> Response:
    """Show a comparison, or a page of finished runs to choose from; with `page` the choice goes on."""
    run_index = get_state(request).run_index
    if study is not None:
        shown = load_study(find_comparisons(run_index), study)
        return render_page(request, "compare_study.html", who=who, study=shown, place=study)
    if comparison is None and (page is not None or not run):
        choice = compare_view.choose_runs(run_index, q.strip(), page or 1, run)
        saved = compare_view.choices(run_index)
        return render_page(request, "compare_choose.html", who=who, choice=choice, choices=saved)
    compared = compare_view.compare_runs(run_index, run, comparison)
    return render_page(
        request, "compare.html", who=who, compared=compared, differences=compare_view.by_metric(compared.differences),
        runs=json.dumps(run), comparison=comparison or "",
    )  # fmt: skip


@router.get("/audit")
def audit(
    request: Request,
    who: Annotated[CurrentUser, require_area(Area.AUDIT)],
    run: RunName | None = None,
    deep: bool = True,
    page: RoundNumber = 1,
    q: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    run_index = get_state(request).run_index
    if run is None:
        listed = engineer_view.page_entries(run_index, engineer_view.RunQuery(q.strip(), page=page))
        lines = audit_view.ledger_lines(run_index, listed.entries)
        return render_page(request, "audit_runs.html", who=who, listed=listed, lines=lines)
    checked = audit_view.check(run_index, run, deep=deep, wait=audit_view.PAGE_WAIT)
    if checked.state == audit_view.NONE:
        return render_page(request, "audit_none.html", who=who, run=run, done=checked)
    entries, wrong = _entries(run_index, run, page)
    signed = [] if entries is None else _countersignatures(run_index, run, checked)
    places, unread = _anchors(run_index, run)
    return render_page(
        request, "audit.html", who=who, run=run, done=checked, deep=deep, held=entries, wrong=wrong, signed=signed,
        found=ledger.findings_by_entry(checked, [] if entries is None else entries.entries), anchored=places, unread=unread,
        sites=ledger.list_sites(run_index, run) if checked.colour and not checked.findings else [],
    )  # fmt: skip


def _entries(run_index: RunIndex, run: str, page: int) -> tuple[ledger.Entries | None, str]:
    """Return entries, or the reason why there are none: a damaged ledger still has a page."""
    try:
        return ledger.entries(run_index, run, page), ""
    except Unreadable as e:
        return None, str(e)


def _countersignatures(run_index: RunIndex, run: str, checked: audit_view.Check) -> list[ledger.SiteSignatures]:
    try:
        return ledger.signatures(run_index, run, checked)
    except Unreadable:
        return []


def _anchors(run_index: RunIndex, run: str) -> tuple[list[ledger.AnchorContract], str]:
    try:
        return ledger.anchors(run_index, run), ""
    except Unreadable as e:
        return [], str(e)


@router.get("/privacy")
def privacy(
    request: Request, who: Annotated[CurrentUser, require_area(Area.PRIVACY)], run: RunName | None = None
) -> Response:
    run_index = get_state(request).run_index
    if run is None:
        return render_page(request, "privacy_runs.html", who=who, lines=privacy_view.privacy_lines(run_index))
    if run_index.get(run).state != FINISHED:
        line = next(one for one in privacy_view.privacy_lines(run_index) if one.run == run)
        return render_page(request, "privacy_wait.html", who=who, run=run, line=line, going=False)
    try:
        promise = privacy_view.promise(run_index, run, wait=privacy_view.PAGE_WAIT)
    except StillComputing:
        return render_page(request, "privacy_wait.html", who=who, run=run, line=None, going=True)
    return render_page(request, "privacy.html", who=who, told=promise, up=rounded_up)
