"""What runs promised and spent, for programs: what `rounds privacy` says."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request

from grandrounds.console.access import Who, only
from grandrounds.console.api import REFUSED, RunName
from grandrounds.console.desk import desk_of
from grandrounds.console.held import Working
from grandrounds.console.roles import Area
from grandrounds.console.views import privacy as view

LATER = 425
"""The account is being worked out still: ask again."""

router = APIRouter(
    prefix="/api/privacy", responses={**REFUSED, LATER: {"description": "It is being worked out still: ask again."}}
)
Auditor = Annotated[Who, only(Area.PRIVACY)]


@router.get("/runs", summary="All runs with what they promised")
def runs(request: Request, who: Auditor) -> list[view.PrivacyLine]:
    return view.privacy_lines(desk_of(request).library)


@router.get("", summary="A run's account: promised, spent, not covered, attacked")
def account(request: Request, who: Auditor, run: RunName) -> view.Promise:
    try:
        return view.promise(desk_of(request).library, run)
    except Working:
        raise HTTPException(LATER, "the account is being worked out still: ask again in a moment") from None


@router.get("/figure", summary="A figure of a run's account as Plotly's data and layout")
def figure(
    request: Request, who: Auditor, run: RunName, figure: Annotated[str, Query(max_length=80)]
) -> dict[str, Any]:
    return view.figure(desk_of(request).library, run, figure)
