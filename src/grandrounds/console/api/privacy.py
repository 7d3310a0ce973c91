"""Privacy accounts of runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request

from grandrounds.console.api.parameters import REFUSED, RunName
from grandrounds.console.app_state import get_state
from grandrounds.console.auth.access import CurrentUser, require_area
from grandrounds.console.auth.users import Area
from grandrounds.console.cache import StillComputing
from grandrounds.console.views import privacy as privacy_view

STILL_COMPUTING = 425
"""Status while the account is still being computed."""

router = APIRouter(
    prefix="/api/privacy",
    responses={**REFUSED, STILL_COMPUTING: {"description": "Still being computed: try again."}},
)
PrivacyOfficer = Annotated[CurrentUser, require_area(Area.PRIVACY)]


@router.get("/runs", name="runs", summary="All runs with their privacy guarantees")
def private_runs(request: Request, who: PrivacyOfficer) -> list[privacy_view.PrivacyLine]:
    return privacy_view.privacy_lines(get_state(request).run_index)


@router.get("", summary="A run's privacy account: guarantee, budget spent, data not covered, attacks")
def account(request: Request, who: PrivacyOfficer, run: RunName) -> privacy_view.Promise:
    try:
        return privacy_view.promise(get_state(request).run_index, run)
    except StillComputing:
        raise HTTPException(STILL_COMPUTING, "the account is still being computed: try again in a moment") from None


@router.get("/figure", name="figure", summary="A figure of a run's account as Plotly's data and layout")
def privacy_figure(
    request: Request, who: PrivacyOfficer, run: RunName, figure: Annotated[str, Query(max_length=80)]
) -> dict[str, object]:
    return privacy_view.figure(get_state(request).run_index, run, figure)
