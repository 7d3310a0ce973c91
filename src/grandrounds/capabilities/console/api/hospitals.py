"""Hospitals of a run compared with intervals, and the threshold explorer."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Request

from grandrounds.capabilities.console.api.parameters import FIGURE, FigureName, RunName, SiteName, Viewer
from grandrounds.capabilities.console.api.resources import Resources
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.views import hospitals as hospitals_view
from grandrounds.capabilities.console.views import thresholds as thresholds_view

resources = Resources("hospitals")

Order = Literal["auroc", "gain", "benefit", "name", "rows"]
ThresholdSite = Annotated[str, Query(description="A hospital; empty for all hospitals together.", max_length=1024)]


@resources.get(
    "/runs/{run}/hospitals", summary="Hospitals compared with intervals, by pages; null for a run without scores"
)
def compare_hospitals(
    request: Request,
    who: Viewer,
    run: RunName,
    sort: Annotated[Order, Query(description="Order of the hospitals. There is none by accuracy.")] = "auroc",
    q: Annotated[str, Query(description="A part of the hospitals' names.", max_length=200)] = "",
    page: Annotated[int, Query(description="A page, from 1.", ge=1, le=10**6)] = 1,
    limit: Annotated[int, Query(description="Hospitals of a page.", ge=1, le=500)] = hospitals_view.PAGE,
) -> hospitals_view.HospitalsView | None:
    """Compare hospitals by AUROC, gain over the majority class, calibration and net benefit, each with its 95% interval."""
    return hospitals_view.hospitals(get_state(request).run_index, run, order=sort, search=q, page=page, size=limit)


@resources.get("/runs/{run}/hospitals/{site}", summary="One hospital beside the consortium")
def one_hospital(request: Request, who: Viewer, run: RunName, site: SiteName) -> hospitals_view.HospitalPage:
    return hospitals_view.hospital(get_state(request).run_index, run, site)


@resources.get(
    "/runs/{run}/hospitals/{site}/figure",
    summary="Explanations (`importances`) or `weight` of one hospital as Plotly's data and layout",
    responses=FIGURE,
    response_model=None,
)
def hospital_figure(
    request: Request, who: Viewer, run: RunName, site: SiteName, figure: FigureName
) -> dict[str, object]:
    return hospitals_view.figure(get_state(request).run_index, run, site, figure)


@resources.get(
    "/runs/{run}/thresholds",
    summary="Decisions at every threshold at which they are known, for all hospitals and each; null without counts",
)
def thresholds(request: Request, who: Viewer, run: RunName) -> thresholds_view.ThresholdsView | None:
    """Every accuracy is that of the decisions at the threshold of its entry."""
    return thresholds_view.thresholds(get_state(request).run_index, run)


@resources.get(
    "/runs/{run}/thresholds/figure",
    summary="Curves of the threshold explorer as Plotly's data and layout",
    responses=FIGURE,
    response_model=None,
)
def threshold_figure(request: Request, who: Viewer, run: RunName, site: ThresholdSite = "") -> dict[str, object]:
    return thresholds_view.figure(get_state(request).run_index, run, site)
