"""This hospital's patients for programs. Without --site there are none, and every route here says so."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from grandrounds.console import access_log
from grandrounds.console.access import Who, record
from grandrounds.console.api import REFUSED
from grandrounds.console.case_here import CaseNumber, Clinician, Here, Poster, RunName, look_at
from grandrounds.console.case_what_if import LONGEST
from grandrounds.console.cases import Cases
from grandrounds.console.desk import desk_of
from grandrounds.console.views import case as of_case
from grandrounds.console.views import case_others, case_picture
from grandrounds.console.views.case_list import PatientPage, Sort, case_runs, patient_page
from grandrounds.console.views.runs import RunLine
from grandrounds.core.errors import BadInput

router = APIRouter(prefix="/api/case", responses=REFUSED, tags=["cases"])
PNG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}, "description": "A PNG."}}
Part = Annotated[str, Query(description="train, val, test, new; empty: all.", max_length=20)]
Verdict = Annotated[str, Query(description="near miss, missed, false alarm, right, wrong.", max_length=20)]
PageNumber = Annotated[int, Query(ge=1, le=10**9)]


@router.get("/runs", summary="The finished runs in which this site's patients can be looked at")
def runs(request: Request, who: Clinician, cases: Here) -> list[RunLine]:
    return case_runs(desk_of(request).library, cases)


@router.get("/patients", summary="This site's patients, test rows first, the highest risk first")
def patients(
    request: Request,
    who: Clinician,
    cases: Here,
    run: RunName,
    part: Part = "",
    verdict: Verdict = "",
    sort: Sort = "risk",
    page: PageNumber = 1,
) -> PatientPage:
    if "find" in request.query_params:
        raise BadInput(
            'a patient\'s name does not belong in an address, which proxies log: POST {"find": "..."} instead'
        )
    return _list(
        request, who, cases, patient_page(run, cases.open(run), part=part, verdict=verdict, sort=sort, page=page)
    )


class Search(BaseModel):
    """`find`: a row's number, or part of a patient's name."""

    find: str = Field("", max_length=200)


@router.post("/patients", summary="Those of this site's patients whose row number or name fits")
def find_patients(
    request: Request,
    who: Poster,
    cases: Here,
    run: RunName,
    search: Search,
    part: Part = "",
    verdict: Verdict = "",
    sort: Sort = "risk",
    page: PageNumber = 1,
) -> PatientPage:
    found = patient_page(
        run, cases.open(run), part=part, verdict=verdict, find=search.find, sort=sort, page=page
    )  # fmt: skip
    return _list(request, who, cases, found)


def _list(request: Request, who: Who, cases: Cases, shown: PatientPage) -> PatientPage:
    """A page of the list, once it is in the access log."""
    rows = [line.case for line in shown.patients]
    record(request, access_log.PATIENTS, who, run=shown.run, site=cases.site, rows=rows, view="list")
    return shown


@router.get(
    "", summary="One patient: risk with its band, reasons, notes about data, possible bias, what can be changed"
)
def one(
    request: Request, who: Clinician, cases: Here, run: RunName, case: CaseNumber
) -> of_case.CaseView | case_picture.PictureView:
    held = look_at(request, who, cases, run, case, "record")
    return case_picture.view(held, case) if held.pictures else of_case.view(held, case)


@router.get("/figure", summary="A figure of one patient as Plotly's data and layout")
def figure(
    request: Request,
    who: Clinician,
    cases: Here,
    run: RunName,
    case: CaseNumber,
    figure: Annotated[str, Query(max_length=80)],
) -> dict[str, Any]:
    held = look_at(request, who, cases, run, case, "figure")
    beside = case_others.figure(desk_of(request).library, run, held, case, figure)
    return of_case.figure(held, case, figure) if beside is None else beside


async def _text(request: Request) -> str:
    """The body: values of a patient, which stay out of addresses."""
    body = await request.body()
    if len(body) > LONGEST:
        raise BadInput(f"the values have more than {LONGEST} bytes")
    return body.decode("utf-8", "replace")


@router.post(
    "/what-if",
    summary="What the model would say of other values. The body: column -> number, category, or null for no value",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"type": "object", "additionalProperties": {"type": ["number", "string", "null"]}}
                }
            },
        }
    },
)
def what_if(
    request: Request,
    who: Poster,
    cases: Here,
    run: RunName,
    case: CaseNumber,
    values: Annotated[str, Depends(_text)],
) -> of_case.WhatIf:
    return of_case.what_if(look_at(request, who, cases, run, case, "what-if"), case, values)


@router.get("/others", summary="How other sites' models would explain this patient")
def others(request: Request, who: Clinician, cases: Here, run: RunName, case: CaseNumber) -> case_others.Others:
    held = look_at(request, who, cases, run, case, "other sites' models")
    return case_others.others(desk_of(request).library, run, held, case)


@router.get(
    "/picture", summary="A picture, a heat map or the truth mask, as a PNG", response_class=Response, responses=PNG
)
def picture(
    request: Request,
    who: Clinician,
    cases: Here,
    run: RunName,
    case: CaseNumber,
    layer: Annotated[str, Query(max_length=80)] = case_picture.PICTURE,
    by: Annotated[str | None, Query(description="The site whose model is asked.", max_length=1024)] = None,
) -> Response:
    held = look_at(request, who, cases, run, case, "image")
    return Response(case_picture.layer_png(held, case, layer, by=by), media_type="image/png")
