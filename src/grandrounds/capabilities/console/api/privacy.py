"""Privacy accounts of runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request

from grandrounds.capabilities.console.api.parameters import FIGURE, FigureName, RunName
from grandrounds.capabilities.console.api.resources import Resources
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.auth.access import CurrentUser, require_area
from grandrounds.capabilities.console.auth.users import Area
from grandrounds.capabilities.console.views import privacy as privacy_view

resources = Resources("privacy", "/privacy", old="/privacy", computed=True)
PrivacyOfficer = Annotated[CurrentUser, require_area(Area.PRIVACY)]


@resources.get("/runs", old="/runs", summary="All runs with their privacy guarantees")
def private_runs(request: Request, who: PrivacyOfficer) -> list[privacy_view.PrivacyLine]:
    return privacy_view.privacy_lines(get_state(request).run_index)


@resources.get(
    "/runs/{run}", old="", summary="A run's privacy account: guarantee, budget spent, data not covered, attacks"
)
def account(request: Request, who: PrivacyOfficer, run: RunName) -> privacy_view.Promise:
    return privacy_view.promise(get_state(request).run_index, run)


@resources.get(
    "/runs/{run}/figures/{figure}",
    old="/figure",
    summary="A figure of a run's account as Plotly's data and layout",
    responses=FIGURE,
    response_model=None,
)
def privacy_figure(request: Request, who: PrivacyOfficer, run: RunName, figure: FigureName) -> dict[str, object]:
    return privacy_view.figure(get_state(request).run_index, run, figure)
