"""Cases: the runs that this hospital's patients can be looked at in, its patients, and one patient."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from grandrounds.console.case_here import Clinician, Here, look_at
from grandrounds.console.cases import Cases
from grandrounds.console.desk import desk_of
from grandrounds.console.render import page
from grandrounds.console.views import case as of_case
from grandrounds.console.views import case_others, case_picture
from grandrounds.console.views.case_list import case_runs

router = APIRouter(include_in_schema=False)
SHOWN = 8
"""Columns that have a slider at once; the others are added by name."""


@router.get("/case")
def cases(
    request: Request,
    who: Clinician,
    cases: Here,
    run: Annotated[str | None, Query(max_length=1024)] = None,
    case: Annotated[int | None, Query(ge=1, le=10**12)] = None,
) -> Response:
    if run is None:
        return page(
            request, "case_runs.html", who=who, runs=case_runs(desk_of(request).library, cases), data=cases.data
        )
    if case is None:
        held = cases.open(run)
        return page(request, "case_list.html", who=who, run=run, pictures=held.pictures)
    return _patient(request, who, cases, run, case)


def _patient(request: Request, who: Clinician, cases: Cases, run: str, number: int) -> Response:
    held = look_at(request, who, cases, run, number, "page")
    facts: dict[str, Any] = {"who": who, "run": run, "number": number, "model_hash": held.model_hash, "now": time.time()}
    if held.pictures:
        found = case_picture.view(held, number)
        beside = case_others.others(desk_of(request).library, run, held, number)
        return page(request, "case_picture.html", **facts, case=found, others=beside)
    return page(
        request,
        "case.html",
        **facts,
        case=of_case.view(held, number),
        others=case_others.others(desk_of(request).library, run, held, number),
        shown=SHOWN,
    )
