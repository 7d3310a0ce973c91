"""Comparisons of runs, saved ones and published studies."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query, Request

from grandrounds.console.api.parameters import REFUSED, ComparisonName, Name, RunNames
from grandrounds.console.app_state import get_state
from grandrounds.console.auth.access import CurrentUser, require_area
from grandrounds.console.auth.users import Area
from grandrounds.console.comparisons import find_comparisons
from grandrounds.console.views import compare as compare_view
from grandrounds.console.views.compare import Choice, ComparisonView
from grandrounds.console.views.published import StudyView, load_study
from grandrounds.core.errors import BadInput

router = APIRouter(prefix="/api/compare", responses=REFUSED)
Comparer = Annotated[CurrentUser, require_area(Area.COMPARE)]
Axis = Annotated[str, Query(max_length=80, description="A metric from `axes`.")]


@router.get("/choices", summary="Saved comparisons and reproductions")
def choices(request: Request, who: Comparer) -> Choice:
    return compare_view.choices(get_state(request).run_index)


@router.get("", summary="A comparison of runs")
def compared(request: Request, who: Comparer, run: RunNames = [], comparison: ComparisonName = None) -> ComparisonView:  # noqa: B006
    return compare_view.compare_runs(get_state(request).run_index, run, comparison)


@router.get("/study", summary="Published results and reproduced results of a study")
def study(request: Request, who: Comparer, study: Name) -> StudyView:
    return load_study(find_comparisons(get_state(request).run_index), study)


@router.get("/figure", name="figure", summary="A figure of a comparison as Plotly's data and layout")
def comparison_figure(
    request: Request,
    who: Comparer,
    figure: Annotated[str, Query(max_length=80)],
    run: RunNames = [],  # noqa: B006
    runs: Annotated[str | None, Query(max_length=65536, description="Runs as a JSON list.")] = None,
    comparison: ComparisonName = None,
    x: Axis = "",
    y: Axis = "",
) -> dict[str, object]:
    names = [*run, *(_parse_names(runs) if runs else ())]
    return compare_view.figure(get_state(request).run_index, figure, names, comparison or None, x=x, y=y)


def _parse_names(text: str) -> list[str]:
    """Parse a JSON list of names."""
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise BadInput("runs must be a JSON list of names", code="invalid-request")
    return names
