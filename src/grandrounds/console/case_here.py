"""What routes of cases depend on: a clinician, and then a console that was started at a hospital."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, HTTPException, Query, Request

from grandrounds.console import access_log
from grandrounds.console.access import Who, check_script, only, record
from grandrounds.console.case_patients import Patients
from grandrounds.console.cases import Cases
from grandrounds.console.desk import desk_of
from grandrounds.console.roles import Area

NOWHERE = "this console shows no patients: a hospital starts its own with `rounds console --site NAME`, beside its data"
Clinician = Annotated[Who, only(Area.CASES)]


def _here(request: Request, who: Clinician) -> Cases:
    """The role is checked first: to others it is not even said whether there are patients here."""
    found = desk_of(request).cases
    if found is None:
        raise HTTPException(404, NOWHERE)
    return found


def _posted(request: Request, who: Clinician) -> Who:
    check_script(request, who)
    return who


Poster = Annotated[Who, Depends(_posted)]
"""A clinician whose POST is of this console's own pages, or of a program with a token."""


def look_at(request: Request, who: Who, cases: Cases, run: str, case: int, view: str) -> Patients:
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
        AccessLogFault: The access log cannot be written.
    """
    found = cases.open(run)
    event = access_log.PATIENT if case in found.rows.parts else access_log.NOT_FOUND
    record(request, event, who, run=run, site=cases.site, row=case, view=view)
    found.find(case)
    return found


Here = Annotated[Cases, Depends(_here)]
RunName = Annotated[str, Query(description="A run's name, as /api/case/runs has it.", max_length=1024)]
CaseNumber = Annotated[int, Query(description="A row's number, from 1, as /api/case/patients has it.", ge=1, le=10**12)]
