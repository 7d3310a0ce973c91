"""Ledgers of runs: checks, entries, countersignatures, proofs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from grandrounds.console.api.parameters import REFUSED, RoundNumber, RunName
from grandrounds.console.app_state import get_state
from grandrounds.console.auth.access import CurrentUser, require_area
from grandrounds.console.auth.users import Area
from grandrounds.console.views import audit as audit_view
from grandrounds.console.views import ledger
from grandrounds.core.names import slug

router = APIRouter(prefix="/api/audit", responses=REFUSED)
Auditor = Annotated[CurrentUser, require_area(Area.AUDIT)]
EntryNumber = Annotated[int, Query(ge=0, le=10**9)]


@router.get("/runs", name="runs", summary="All runs with the state of their ledgers")
def audited_runs(request: Request, who: Auditor) -> list[audit_view.LedgerLine]:
    return audit_view.ledger_lines(get_state(request).run_index)


@router.get("/check", summary="Findings of `rounds audit verify` in a run's ledger, model and records")
def check(request: Request, who: Auditor, run: RunName, deep: bool = True) -> audit_view.Check:
    """Check a ledger. A long check continues in the background (see `state`); repeat the request for its result."""
    return audit_view.check(get_state(request).run_index, run, deep=deep)


@router.get("/entries", summary="Entries of a ledger, a page of 25")
def entries(request: Request, who: Auditor, run: RunName, page: RoundNumber = 1) -> ledger.Entries:
    return ledger.entries(get_state(request).run_index, run, page)


@router.get("/entry", summary="One entry, word for word")
def entry(request: Request, who: Auditor, run: RunName, number: EntryNumber) -> ledger.FullEntry:
    return ledger.entry(get_state(request).run_index, run, number)


@router.get("/sites", name="sites", summary="Countersignatures by site")
def countersignatures(request: Request, who: Auditor, run: RunName) -> list[ledger.SiteSignatures]:
    run_index = get_state(request).run_index
    return ledger.signatures(run_index, run, audit_view.check(run_index, run))


@router.get("/anchors", summary="Anchors of the run on a chain, as its folder records them")
def anchors(request: Request, who: Auditor, run: RunName) -> list[ledger.AnchorContract]:
    return ledger.anchors(get_state(request).run_index, run)


@router.get("/proof", summary="A site's inclusion proof, for `rounds audit check`", response_class=Response)
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


@router.get("/export", summary="The whole ledger as JSON lines, for `rounds audit verify`", response_class=Response)
def export(request: Request, who: Auditor, run: RunName) -> Response:
    return _file(ledger.export(get_state(request).run_index, run), f"ledger-{_word(run)}.jsonl", "application/jsonl")


@router.get("/head", summary="The newest signed head, to be stored elsewhere", response_class=Response)
def head(request: Request, who: Auditor, run: RunName) -> Response:
    return _file(ledger.newest_head(get_state(request).run_index, run), f"head-{_word(run)}.json", "application/json")


def _file(data: bytes, name: str, kind: str) -> Response:
    return Response(data, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})


def _word(name: str) -> str:
    """Make a name safe for a file: only letters, digits and dots."""
    return slug(name)[:80] or "unnamed"
