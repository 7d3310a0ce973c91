"""A run's ledger, checked; without a run, all runs with the state of their ledgers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import Response

from grandrounds.console.access import Who, only
from grandrounds.console.api import RoundNumber, RunName
from grandrounds.console.desk import desk_of
from grandrounds.console.library import Library, Unreadable
from grandrounds.console.render import page as render
from grandrounds.console.roles import Area
from grandrounds.console.views import audit as view
from grandrounds.console.views import ledger

router = APIRouter(include_in_schema=False)


@router.get("/audit")
def audit(
    request: Request,
    who: Annotated[Who, only(Area.AUDIT)],
    run: RunName | None = None,
    deep: bool = True,
    page: RoundNumber = 1,
) -> Response:
    library = desk_of(request).library
    if run is None:
        return render(request, "audit_runs.html", who=who, lines=view.ledger_lines(library))
    done = view.check(library, run, deep=deep, wait=view.PAGE_WAIT)
    if done.state == view.NONE:
        return render(request, "audit_none.html", who=who, run=run, done=done)
    held, wrong = _entries(library, run, page)
    signed = [] if held is None else _signed(library, run, done)
    places, unread = _anchors(library, run)
    return render(
        request, "audit.html", who=who, run=run, done=done, deep=deep, held=held, wrong=wrong, signed=signed,
        found=ledger.findings_at(done, [] if held is None else held.entries), anchored=places, unread=unread,
        sites=ledger.sites_of(library, run) if done.colour and not done.findings else [],
    )  # fmt: skip


def _entries(library: Library, run: str, page: int) -> tuple[ledger.Entries | None, str]:
    """Entries, or why there are none to show: a damaged ledger has a page all the same."""
    try:
        return ledger.entries(library, run, page), ""
    except Unreadable as e:
        return None, str(e)


def _signed(library: Library, run: str, done: view.Check) -> list[ledger.SiteSigned]:
    try:
        return ledger.signatures(library, run, done)
    except Unreadable:
        return []


def _anchors(library: Library, run: str) -> tuple[list[ledger.Place], str]:
    try:
        return ledger.anchors(library, run), ""
    except Unreadable as e:
        return [], str(e)
