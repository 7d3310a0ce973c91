"""Comparisons of runs: saved ones, of any runs, and published studies."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import Query, Request

from grandrounds.capabilities.console.api.parameters import FIGURE, ComparisonName, FigureName, Name, RunNames
from grandrounds.capabilities.console.api.resources import Resources
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.auth.access import CurrentUser, require_area
from grandrounds.capabilities.console.auth.users import Area
from grandrounds.capabilities.console.comparisons import find_comparisons
from grandrounds.capabilities.console.views import compare as compare_view
from grandrounds.capabilities.console.views.compare import Choice, ComparisonView
from grandrounds.capabilities.console.views.published import StudyView, load_study
from grandrounds.core.errors import BadInput

resources = Resources("comparisons", old="/compare")
Comparer = Annotated[CurrentUser, require_area(Area.COMPARE)]
Axis = Annotated[str, Query(max_length=80, description="A metric from `axes`.")]


@resources.get("/comparisons", old="/choices", summary="Saved comparisons and reproductions")
def choices(request: Request, who: Comparer) -> Choice:
    return compare_view.choices(get_state(request).run_index)


@resources.old_router.get("", summary="A comparison of runs")
def compared(request: Request, who: Comparer, run: RunNames = [], comparison: ComparisonName = None) -> ComparisonView:  # noqa: B006
    return compare_view.compare_runs(get_state(request).run_index, run, comparison)


@resources.old_router.get(
    "/figure",
    summary="A figure of a comparison as Plotly's data and layout",
    responses=FIGURE,
    response_model=None,
)
def comparison_figure(
    request: Request,
    who: Comparer,
    figure: FigureName,
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


ChosenRuns = Annotated[
    list[Name], Query(description="Runs' names, as /api/v1/runs has them.", min_length=1, max_length=200)
]


@resources.get("/compared-runs", summary="A comparison of the runs that the query names")
def compared_runs(request: Request, who: Comparer, run: ChosenRuns) -> ComparisonView:
    return compare_view.compare_runs(get_state(request).run_index, run, None)


@resources.get(
    "/compared-runs/figures/{figure}",
    summary="A figure of these runs as Plotly's data and layout",
    responses=FIGURE,
    response_model=None,
)
def compared_figure(
    request: Request, who: Comparer, figure: FigureName, run: ChosenRuns, x: Axis = "", y: Axis = ""
) -> dict[str, object]:
    return compare_view.figure(get_state(request).run_index, figure, run, None, x=x, y=y)


SavedComparison = Annotated[str, Query(description="A comparison. In a path, `/` is written as `~`.", max_length=1024)]


@resources.get("/comparisons/{comparison}", summary="A saved comparison")
def saved_comparison(request: Request, who: Comparer, comparison: SavedComparison) -> ComparisonView:
    return compare_view.compare_runs(get_state(request).run_index, [], comparison)


@resources.get(
    "/comparisons/{comparison}/figures/{figure}",
    summary="A figure of a saved comparison as Plotly's data and layout",
    responses=FIGURE,
    response_model=None,
)
def saved_figure(
    request: Request, who: Comparer, comparison: SavedComparison, figure: FigureName, x: Axis = "", y: Axis = ""
) -> dict[str, object]:
    return compare_view.figure(get_state(request).run_index, figure, [], comparison, x=x, y=y)


@resources.get("/studies/{study}", old="/study", summary="Published results and reproduced results of a study")
def study(
    request: Request,
    who: Comparer,
    study: Annotated[Name, Query(description="A study. In a path, `/` is written as `~`.")],
) -> StudyView:
    return load_study(find_comparisons(get_state(request).run_index), study)
