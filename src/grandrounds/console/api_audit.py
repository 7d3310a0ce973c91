"""Ledgers, for programs: what `rounds audit` says, and the files that it writes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from grandrounds.console.access import Who, only
from grandrounds.console.api import REFUSED, RoundNumber, RunName
from grandrounds.console.desk import desk_of
from grandrounds.console.roles import Area
from grandrounds.console.views import audit as view
from grandrounds.console.views import ledger
from grandrounds.core.names import slug

router = APIRouter(prefix="/api/audit", responses=REFUSED)
Auditor = Annotated[Who, only(Area.AUDIT)]
Number = Annotated[int, Query(ge=0, le=10**9)]


@router.get("/runs", summary="All runs with the state of their ledgers")
def runs(request: Request, who: Auditor) -> list[view.LedgerLine]:
    return view.ledger_lines(desk_of(request).library)


@router.get("/check", summary="What `rounds audit verify` finds in a run's ledger, model and records")
def check(request: Request, who: Auditor, run: RunName, deep: bool = True) -> view.Check:
    """Waits for a check for a while; `state` says where it goes on, and the same request finds it later."""
    return view.check(desk_of(request).library, run, deep=deep)


@router.get("/entries", summary="Entries of a ledger, a page of 25")
def entries(request: Request, who: Auditor, run: RunName, page: RoundNumber = 1) -> ledger.Entries:
    return ledger.entries(desk_of(request).library, run, page)


@router.get("/entry", summary="One entry, word for word")
def entry(request: Request, who: Auditor, run: RunName, number: Number) -> ledger.EntryWhole:
    return ledger.entry(desk_of(request).library, run, number)


@router.get("/sites", summary="Countersignatures by site")
def sites(request: Request, who: Auditor, run: RunName) -> list[ledger.SiteSigned]:
    library = desk_of(request).library
    return ledger.signatures(library, run, view.check(library, run))


@router.get("/anchors", summary="Where the run was anchored on a chain, as its folder says")
def anchors(request: Request, who: Auditor, run: RunName) -> list[ledger.Place]:
    return ledger.anchors(desk_of(request).library, run)


@router.get("/proof", summary="A site's inclusion proof, which `rounds audit check` checks", response_class=Response)
def proof(
    request: Request,
    who: Auditor,
    run: RunName,
    site: Annotated[str, Query(max_length=1024)],
    round: RoundNumber | None = None,
) -> Response:
    """Of one round, or of all where none is given. None is made from a ledger that does not verify."""
    data = ledger.proof(desk_of(request).library, run, site, round)
    which = "" if round is None else f"-round-{round}"
    return _file(data, f"proof-{_word(run)}-{_word(site)}{which}.json", "application/json")


@router.get(
    "/export", summary="The whole ledger as JSON lines, which `rounds audit verify` checks", response_class=Response
)
def export(request: Request, who: Auditor, run: RunName) -> Response:
    return _file(ledger.export(desk_of(request).library, run), f"ledger-{_word(run)}.jsonl", "application/jsonl")


@router.get("/head", summary="The newest signed head, for somebody to keep elsewhere", response_class=Response)
def head(request: Request, who: Auditor, run: RunName) -> Response:
    return _file(ledger.newest_head(desk_of(request).library, run), f"head-{_word(run)}.json", "application/json")


def _file(data: bytes, name: str, kind: str) -> Response:
    return Response(data, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})


def _word(name: str) -> str:
    """A name as part of a file's: letters, digits and dots alone."""
    return slug(name)[:80] or "unnamed"
