"""HTML pages of hospitals: all compared, one beside the consortium, and the threshold explorer."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from grandrounds.capabilities.console.api.parameters import RunName, SiteName
from grandrounds.capabilities.console.api.resources import to_id
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.auth.access import CurrentUser, require_area
from grandrounds.capabilities.console.auth.users import Area
from grandrounds.capabilities.console.render import render_page
from grandrounds.capabilities.console.run_index import NotFound
from grandrounds.capabilities.console.views import hospitals as hospitals_view
from grandrounds.capabilities.console.views import run as run_view
from grandrounds.capabilities.console.views import thresholds as thresholds_view
from grandrounds.report.hospitals import BY_SCORE, ORDERS

router = APIRouter(include_in_schema=False)


@router.get("/hospitals")
def hospitals(
    request: Request,
    who: Annotated[CurrentUser, require_area(Area.RUNS)],
    run: RunName,
    sort: Annotated[str, Query(max_length=20)] = BY_SCORE,
    find: Annotated[str, Query(max_length=200)] = "",
    page: Annotated[int, Query(ge=1, le=10**6)] = 1,
) -> Response:
    run_index = get_state(request).run_index
    found = hospitals_view.hospitals(run_index, run, order=sort, search=find, page=page)
    return render_page(
        request, "hospitals.html", who=who, run=run_view.head(run_index, run), state=run_index.get(run).state, found=found,
        find=find, orders=ORDERS, groups=hospitals_view.subgroups(run_index, run),
    )  # fmt: skip


@router.get("/hospital")
def hospital(
    request: Request, who: Annotated[CurrentUser, require_area(Area.RUNS)], run: RunName, site: SiteName
) -> Response:
    run_index = get_state(request).run_index
    return render_page(
        request, "hospital.html", who=who, run=run_view.head(run_index, run), found=hospitals_view.hospital(run_index, run, site),
        run_id=to_id(run), site_id=to_id(site), titles=hospitals_view.HOSPITAL_FIGURES,
        has_thresholds=_has_thresholds(request, run, site),
    )  # fmt: skip


def _has_thresholds(request: Request, run: str, site: str) -> bool:
    found = thresholds_view.thresholds(get_state(request).run_index, run)
    return found is not None and any(h.name == site for h in found.hospitals)


@router.get("/thresholds")
def thresholds(
    request: Request,
    who: Annotated[CurrentUser, require_area(Area.RUNS)],
    run: RunName,
    site: Annotated[str, Query(max_length=1024)] = "",
) -> Response:
    run_index = get_state(request).run_index
    found = thresholds_view.thresholds(run_index, run)
    shown = None if found is None else next((c for c in (found.overall, *found.hospitals) if c.name == site), None)
    if found is not None and site and shown is None:
        raise NotFound(f"run '{run}' has no score counts of hospital '{site[:80]}'", code="unknown-site")
    return render_page(
        request, "thresholds.html", who=who, run=run_view.head(run_index, run), state=run_index.get(run).state, found=found,
        curve=shown or (None if found is None else found.overall), site_name=site, run_id=to_id(run),
        absent=thresholds_view.absence(run_index, run),
        chosen=[] if found is None else thresholds_view.chosen(run_index, run, site),
    )  # fmt: skip
