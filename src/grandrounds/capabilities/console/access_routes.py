"""The access log as a page: who opened which patient, when.

Filters and exports are sent by POST, so that no address names a patient. Viewing and exporting the log are entries of it too.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response, StreamingResponse

from grandrounds.capabilities.console import access_log
from grandrounds.capabilities.console.access_export import (
    COLUMNS,
    COUNTED,
    Extent,
    count_by_day,
    extent_of,
    read_page,
    to_csv,
    to_json_lines,
)
from grandrounds.capabilities.console.access_log import EVENTS, Filter, read_entries
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.auth.access import CurrentUser, check_origin, log_access, require_area
from grandrounds.capabilities.console.auth.sessions import secrets_equal
from grandrounds.capabilities.console.auth.sign_in import read_fields
from grandrounds.capabilities.console.auth.users import Area
from grandrounds.capabilities.console.render import render_page
from grandrounds.core.errors import BadInput

router = APIRouter(include_in_schema=False)
Reader = Annotated[CurrentUser, require_area(Area.ACCESS)]
PAGE_SIZE = 50
FORMATS = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


@router.get("/access")
def newest(request: Request, who: Reader) -> Response:
    """Show the newest entries."""
    return _render(request, who, Filter(), page=1)


@router.post("/access")
async def filtered(request: Request, who: Reader) -> Response:
    """Show the entries that match a form."""
    fields = await _checked_fields(request, who)
    return _render(request, who, _filter(fields, who), page=_number(fields.get("page", "1")) or 1, sent=fields)


@router.post("/access/export")
async def export(request: Request, who: Reader) -> Response:
    """Give the entries that match a form as a file: of all pages, within what the user's role may take away."""
    fields = await _checked_fields(request, who)
    kind, extent = fields.get("format", ""), _extent(who)
    if kind not in FORMATS:
        raise BadInput(f"there is no format '{kind[:20]}'; known: {', '.join(FORMATS)}", code="unknown-format")
    file = get_state(request).log.file
    if file is None:
        raise HTTPException(404, "this console writes no access log")
    log_access(request, access_log.LOG, who, view=f"export {kind}")
    chosen = _filter(fields, who)
    entries = read_entries(file, chosen)
    rows = count_by_day(entries) if extent is Extent.COUNTS else entries
    lines = to_csv(rows, COUNTED if extent is Extent.COUNTS else COLUMNS) if kind == "csv" else to_json_lines(rows)
    name = f"access-log-{datetime.now(UTC):%Y-%m-%d}.{kind}"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines, media_type=FORMATS[kind], headers=headers)


def _render(
    request: Request, who: CurrentUser, chosen: Filter, *, page: int, sent: dict[str, str] | None = None
) -> Response:
    file, extent = get_state(request).log.file, _extent(who)
    chosen = _own(chosen, who, extent)
    log_access(request, access_log.LOG, who, view="page")
    values: dict[str, Any] = {"counts": [], "shown": None}
    if file is not None and extent is Extent.COUNTS:
        values["counts"] = count_by_day(read_entries(file, chosen))
    elif file is not None:
        values["shown"] = read_page(file, chosen, page=page, size=PAGE_SIZE)
    given = {name: "" if value is None else str(value) for name, value in asdict(chosen).items()}
    return render_page(
        request, "access.html", who=who, extent=extent, given=given, events=EVENTS, file=file, sent=bool(sent), **values
    )


def _filter(fields: dict[str, str], who: CurrentUser) -> Filter:
    """Read a filter from a form; a user with a part of the log gets that part whatever the form says."""
    event = fields.get("event", "")
    if event and event not in EVENTS:
        raise BadInput(f"there is no event '{event[:40]}'", code="unknown-event")
    row = fields.get("row", "").strip()
    if row and _number(row) is None:
        raise BadInput(f"'{row[:20]}' is no row number: give a whole number from 1", code="not-numeric")
    chosen = Filter(
        user=fields.get("user", "").strip()[:64],
        run=fields.get("run", "").strip()[:1024],
        row=_number(row),
        event=event,
        since=fields.get("since", "")[:16],
        until=fields.get("until", "")[:16],
    )
    return _own(chosen, who, _extent(who))


def _own(chosen: Filter, who: CurrentUser, extent: Extent) -> Filter:
    """Restrict a filter to the user's own entries, where the user may see no others; of counts, to days and events."""
    if extent is Extent.OWN:
        identity = None if who.session is None else who.session.identity
        return replace(chosen, user=who.name, subject="" if identity is None else identity.subject)
    if extent is Extent.COUNTS:  # a count for one user or one patient would name them
        return Filter(event=chosen.event, since=chosen.since, until=chosen.until)
    return chosen


def _extent(who: CurrentUser) -> Extent:
    extent = extent_of(who.roles)
    assert extent is not None  # the area admits no other roles
    return extent


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) <= 12 and int(text) else None


async def _checked_fields(request: Request, who: CurrentUser) -> dict[str, str]:
    """Read a form of this session's own pages; a program with a token needs no further check."""
    fields = await read_fields(request)
    check_origin(request)
    if who.session is not None and not secrets_equal(fields.get("csrf", ""), who.session.csrf):
        raise HTTPException(403, "the form is not of this session")
    return fields
