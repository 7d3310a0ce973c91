"""Ledgers of runs: checks, entries, countersignatures, proofs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import Response

from grandrounds.capabilities.console.api.parameters import RoundNumber, RunName, SiteName
from grandrounds.capabilities.console.api.resources import Resources, Responses, file_word, send_file
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.auth.access import CurrentUser, require_area
from grandrounds.capabilities.console.auth.users import Area
from grandrounds.capabilities.console.cache import StillComputing
from grandrounds.capabilities.console.views import audit as audit_view
from grandrounds.capabilities.console.views import ledger

resources = Resources("audit", "/audit", old="/audit", computed=True)
Auditor = Annotated[CurrentUser, require_area(Area.AUDIT)]
JSON_FILE: Responses = {200: {"description": "A JSON file.", "content": {"application/json": {"schema": {"type": "object"}}}}}
EntryNumber = Annotated[int, Query(description="An entry, from 0.", ge=0, le=10**9)]


@resources.get("/runs", old="/runs", summary="All runs with the state of their ledgers")
def audited_runs(request: Request, who: Auditor) -> list[audit_view.LedgerLine]:
    return audit_view.ledger_lines(get_state(request).run_index)


@resources.old_router.get("/check", summary="Findings of `rounds audit verify` in a run's ledger, model and records")
def check(request: Request, who: Auditor, run: RunName, deep: bool = True) -> audit_view.Check:
    """Check a ledger. A long check continues in the background (see `state`); repeat the request for its result."""
    return audit_view.check(get_state(request).run_index, run, deep=deep)


@resources.get("/runs/{run}/check", summary="Findings of `rounds audit verify` in a run's ledger, model and records")
def finished_check(request: Request, who: Auditor, run: RunName, deep: bool = True) -> audit_view.Check:
    """Check a ledger; with `deep` also the model and the records that it names. A long check is answered with 202."""
    found = check(request, who, run, deep)
    if found.state == audit_view.WORKING:
        raise StillComputing
    return found


@resources.get("/runs/{run}/entries", old="/entries", summary="Entries of a ledger, a page of 25")
def entries(request: Request, who: Auditor, run: RunName, page: RoundNumber = 1) -> ledger.Entries:
    return ledger.entries(get_state(request).run_index, run, page)


@resources.get("/runs/{run}/entries/{number}", old="/entry", summary="One entry, word for word")
def entry(request: Request, who: Auditor, run: RunName, number: EntryNumber) -> ledger.FullEntry:
    return ledger.entry(get_state(request).run_index, run, number)


@resources.get("/runs/{run}/countersignatures", old="/sites", summary="Countersignatures by site")
def countersignatures(request: Request, who: Auditor, run: RunName) -> list[ledger.SiteSignatures]:
    run_index = get_state(request).run_index
    return ledger.signatures(run_index, run, audit_view.check(run_index, run))


@resources.get(
    "/runs/{run}/anchors", old="/anchors", summary="Anchors of the run on a chain, as its folder records them"
)
def anchors(request: Request, who: Auditor, run: RunName) -> list[ledger.AnchorContract]:
    return ledger.anchors(get_state(request).run_index, run)


@resources.get(
    "/runs/{run}/sites/{site}/proof",
    old="/proof",
    summary="A site's inclusion proof, for `rounds audit check`",
    response_class=Response,
    responses=JSON_FILE,
)
def proof(
    request: Request,
    who: Auditor,
    run: RunName,
    site: SiteName,
    round: RoundNumber | None = None,
) -> Response:
    """Prove a site's weight in one round, or in all where none is given. A ledger that does not verify is refused."""
    data = ledger.proof(get_state(request).run_index, run, site, round)
    suffix = "" if round is None else f"-round-{round}"
    return send_file(data, f"proof-{file_word(run)}-{file_word(site)}{suffix}.json", "application/json")


@resources.get(
    "/runs/{run}/ledger",
    old="/export",
    summary="The whole ledger as JSON lines, for `rounds audit verify`",
    response_class=Response,
    responses={200: {"description": "JSON lines.", "content": {"application/jsonl": {}}}},
)
def export(request: Request, who: Auditor, run: RunName) -> Response:
    return send_file(
        ledger.export(get_state(request).run_index, run), f"ledger-{file_word(run)}.jsonl", "application/jsonl"
    )


@resources.get(
    "/runs/{run}/head",
    old="/head",
    summary="The newest signed head, to be stored elsewhere",
    response_class=Response,
    responses=JSON_FILE,
)
def head(request: Request, who: Auditor, run: RunName) -> Response:
    return send_file(
        ledger.newest_head(get_state(request).run_index, run), f"head-{file_word(run)}.json", "application/json"
    )
