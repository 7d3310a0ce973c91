"""Routes of patients, pages and API, for clinicians at a console started with --site.

Without --site there are no patients, and every route here answers with an error.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from grandrounds.capabilities.cases.case_page import Scale
from grandrounds.capabilities.console import access_log
from grandrounds.capabilities.console.api import REFUSED, Responses
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.auth.access import CurrentUser, check_script, log_access, require_area
from grandrounds.capabilities.console.auth.users import Area
from grandrounds.capabilities.console.cases.patients import Patients
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.cases.what_if import LONGEST
from grandrounds.capabilities.console.cases.worklist import (
    FOR_EVALUATION,
    RefusedModel,
    WorklistModel,
    choose_model,
    refuse_unusable,
)
from grandrounds.capabilities.console.render import render_page
from grandrounds.capabilities.console.views import case as of_case
from grandrounds.capabilities.console.views import case_image, case_others, case_outcome, case_shapes
from grandrounds.capabilities.console.views.case_list import Choice, PatientPage, Sort, case_runs, patient_page
from grandrounds.capabilities.console.views.runs import RunLine
from grandrounds.core.errors import BadInput

NO_PATIENTS = "this console shows no patients: a hospital starts its own with `rounds console --site NAME`, next to its data"
Clinician = Annotated[CurrentUser, require_area(Area.CASES)]


def _cases_here(request: Request, who: Clinician) -> SiteCases:
    """Return the hospital's cases. The role is checked first, so other users do not learn that there are patients."""
    site_cases = get_state(request).cases
    if site_cases is None:
        raise HTTPException(404, NO_PATIENTS)
    return site_cases


def _check_post(request: Request, who: Clinician) -> CurrentUser:
    check_script(request, who)
    return who


Poster = Annotated[CurrentUser, Depends(_check_post)]
"""A clinician whose POST comes from this console's pages, or from a program with a token."""


def open_run(request: Request, cases: SiteCases, run: str) -> Patients:
    """Open this site's patients in a run whose model may be used.

    Args:
        request: The user's request.
        cases: The patients of this hospital.
        run: The run.

    Raises:
        RefusedModel: The model was withdrawn, or the run's ledger does not verify.
        NotFound: There is no such run here.
    """
    refuse_unusable(get_state(request).run_index, run)
    return cases.open(run)


def open_patient(request: Request, who: CurrentUser, cases: SiteCases, run: str, case: int, view: str) -> Patients:
    """Open this site's patients for a look at one of them, which is written to the access log first.

    Args:
        request: The user's request.
        who: The user.
        cases: The patients of this hospital.
        run: The run whose model is asked.
        case: The patient's row number.
        view: The part of the record that is shown.

    Returns:
        The patients.

    Raises:
        NotFound: There is no such run or patient here.
        RefusedModel: The model was withdrawn, or the run's ledger does not verify.
        AccessLogFault: The access log cannot be written.
    """
    patients = open_run(request, cases, run)
    event = access_log.PATIENT if case in patients.rows.parts else access_log.NOT_FOUND
    log_access(request, event, who, run=run, site=cases.site, row=case, view=view)
    patients.find(case)
    return patients


CasesHere = Annotated[SiteCases, Depends(_cases_here)]
RunName = Annotated[str, Query(description="A run's name, as /api/case/runs has it.", max_length=1024)]
CaseNumber = Annotated[int, Query(description="A row's number, from 1, as /api/case/patients has it.", ge=1, le=10**12)]


api_router = APIRouter(prefix="/api/case", responses=REFUSED, tags=["cases"], deprecated=True)
"""Paths of the first version; `api.cases` has the resource paths of the same functions."""
PNG: Responses = {200: {"content": {"image/png": {}}, "description": "A PNG."}}
Part = Annotated[str, Query(description="train, val, test, new; empty: all.", max_length=20)]
Verdict = Annotated[str, Query(description="near miss, missed, false alarm, right, wrong.", max_length=20)]
Chosen = Annotated[Choice, Query(description="Only flagged patients, or of those whose inputs are half missing; empty: all.")]
PageNumber = Annotated[int, Query(ge=1, le=10**9)]


@api_router.get("/runs", summary="The finished runs in which this site's patients can be looked at")
def runs(request: Request, who: Clinician, cases: CasesHere) -> list[RunLine]:
    return case_runs(get_state(request).run_index, cases)


@api_router.get("/patients", summary="This site's patients, test rows first, the highest risk first")
def patients(
    request: Request,
    who: Clinician,
    cases: CasesHere,
    run: RunName,
    part: Part = "",
    verdict: Verdict = "",
    choice: Chosen = "",
    sort: Sort = "risk",
    page: PageNumber = 1,
) -> PatientPage:
    if "find" in request.query_params:
        raise BadInput(
            'a patient\'s name does not belong in an address, which proxies log: POST {"find": "..."} instead',
            code="name-in-address",
        )
    patients = open_run(request, cases, run)
    shown = patient_page(run, patients, part=part, verdict=verdict, choice=choice, sort=sort, page=page)
    return _list(request, who, cases, shown)


class Search(BaseModel):
    """A search for patients. `find`: a row's number, or part of a patient's name."""

    find: str = Field("", max_length=200)


@api_router.post("/patients", summary="Those of this site's patients whose row number or name fits")
def find_patients(
    request: Request,
    who: Poster,
    cases: CasesHere,
    run: RunName,
    search: Search,
    part: Part = "",
    verdict: Verdict = "",
    choice: Chosen = "",
    sort: Sort = "risk",
    page: PageNumber = 1,
) -> PatientPage:
    patients, find = open_run(request, cases, run), search.find
    shown = patient_page(run, patients, part=part, verdict=verdict, choice=choice, find=find, sort=sort, page=page)
    return _list(request, who, cases, shown)


def _list(request: Request, who: CurrentUser, cases: SiteCases, shown: PatientPage) -> PatientPage:
    """Write a page of the list to the access log, then return it."""
    rows = [line.case for line in shown.patients]
    log_access(request, access_log.PATIENTS, who, run=shown.run, site=cases.site, rows=rows, view="list")
    return shown


@api_router.get(
    "",
    summary="One patient: risk with its band, contributions, data quality, non-clinical factors, columns that can be changed",
)
def one(
    request: Request, who: Clinician, cases: CasesHere, run: RunName, case: CaseNumber
) -> of_case.CaseView | case_image.ImageView | case_outcome.OutcomeView:
    patients = open_patient(request, who, cases, run, case, "record")
    if patients.has_outcome:
        return case_outcome.view(patients, case)
    return case_image.view(patients, case) if patients.has_images else of_case.view(patients, case)


@api_router.get("/figure", summary="A figure of one patient as Plotly's data and layout")
def figure(
    request: Request,
    who: Clinician,
    cases: CasesHere,
    run: RunName,
    case: CaseNumber,
    figure: Annotated[str, Query(max_length=80)],
    scale: Annotated[Scale, Query(description="The axis of the waterfall.")] = "risk",
    column: Annotated[str, Query(description="The column of a shape.", max_length=1024)] = "",
) -> dict[str, object]:
    patients = open_patient(request, who, cases, run, case, "figure")
    if figure == case_shapes.SHAPE:
        return case_shapes.figure(patients, case, column)
    if patients.has_outcome:
        return case_outcome.figure(patients, case, figure)
    drawn = case_others.figure(get_state(request).run_index, run, patients, case, figure)
    return of_case.figure(patients, case, figure, scale=scale) if drawn is None else drawn


async def _text(request: Request) -> str:
    """Read the body: values of a patient, which stay out of addresses."""
    body = await request.body()
    if len(body) > LONGEST:
        raise BadInput(f"the values have more than {LONGEST} bytes", code="request-too-large")
    return body.decode("utf-8", "replace")


VALUES = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object", "additionalProperties": {"type": ["number", "string", "null"]}}
            }
        },
    }
}
"""The body of a what-if, as OpenAPI describes it."""


@api_router.post(
    "/what-if",
    summary="The prediction for other values. The body: column -> number, category, or null for no value",
    openapi_extra=VALUES,
)
def what_if(
    request: Request,
    who: Poster,
    cases: CasesHere,
    run: RunName,
    case: CaseNumber,
    values: Annotated[str, Depends(_text)],
) -> of_case.WhatIf:
    return of_case.what_if(open_patient(request, who, cases, run, case, "what-if"), case, values)


@api_router.get("/others", summary="How other sites' models would explain this patient")
def others(
    request: Request, who: Clinician, cases: CasesHere, run: RunName, case: CaseNumber
) -> case_others.OtherModels:
    patients = open_patient(request, who, cases, run, case, "other sites' models")
    return case_others.explain_elsewhere(get_state(request).run_index, run, patients, case)


@api_router.get(
    "/picture", summary="An image, a heat map or the truth mask, as a PNG", response_class=Response, responses=PNG
)
def picture(
    request: Request,
    who: Clinician,
    cases: CasesHere,
    run: RunName,
    case: CaseNumber,
    layer: Annotated[str, Query(max_length=80)] = case_image.PICTURE,
    by: Annotated[str | None, Query(description="The site whose model is asked.", max_length=1024)] = None,
) -> Response:
    patients = open_patient(request, who, cases, run, case, "image")
    return Response(case_image.layer_png(patients, case, layer, model_site=by), media_type="image/png")


router = APIRouter(include_in_schema=False)
TOP = 6
"""Columns each way that the first screen of a patient shows."""
MAX_SLIDERS = 8
"""Sliders that are shown at first; more columns are added by name."""


@router.get("/case")
def cases(
    request: Request,
    who: Clinician,
    cases: CasesHere,
    run: Annotated[str | None, Query(max_length=1024)] = None,
    case: Annotated[int | None, Query(ge=1, le=10**12)] = None,
) -> Response:
    """Show the worklist, or why there is none; with `run` the patients in that run; with `case` one of them."""
    run_index = get_state(request).run_index
    render = partial(render_page, request, who=who)
    if run is None:
        model = choose_model(run_index, cases)
        return _render_list(request, who, cases, model.run, model) if model.run else _render_runs(request, who, cases, model)
    try:
        refuse_unusable(run_index, run)
    except RefusedModel as e:
        return render("case_refused.html", status=422, run=run, sentence=str(e))
    return _render_list(request, who, cases, run, None) if case is None else _patient(request, who, cases, run, case)


@router.get("/case/runs")
def all_runs(request: Request, who: Clinician, cases: CasesHere) -> Response:
    """List the runs in which this hospital's patients can be shown."""
    return _render_runs(request, who, cases, None)


def _render_runs(request: Request, who: CurrentUser, cases: SiteCases, model: WorklistModel | None) -> Response:
    runs = case_runs(get_state(request).run_index, cases)
    return render_page(request, "case_runs.html", who=who, runs=runs, data=cases.data, model=model)


def _render_list(
    request: Request, who: CurrentUser, cases: SiteCases, run: str, model: WorklistModel | None
) -> Response:
    patients = open_run(request, cases, run)
    parts = set(patients.rows.parts.values())
    return render_page(
        request,
        "case_list.html",
        who=who,
        run=run,
        images=patients.has_images,
        model=model,
        evaluation=FOR_EVALUATION,
        part="test" if "test" in parts else "new" if None in parts else "",
    )


def _patient(request: Request, who: Clinician, cases: SiteCases, run: str, number: int) -> Response:
    patients = open_patient(request, who, cases, run, number, "page")
    render = partial(
        render_page, request, who=who, run=run, number=number, model_hash=patients.model_hash, now=time.time()
    )
    if patients.has_outcome:
        return render("case_outcome.html", case=case_outcome.view(patients, number))
    other_models = case_others.explain_elsewhere(get_state(request).run_index, run, patients, number)
    if patients.has_images:
        return render("case_image.html", case=case_image.view(patients, number), others=other_models)
    return render("case.html", case=of_case.view(patients, number), others=other_models, shown=MAX_SLIDERS, top=TOP)
