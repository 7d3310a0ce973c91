"""Runs side by side, for programs and for the page's figures."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import StringConstraints

from grandrounds.console.access import Who, only
from grandrounds.console.api import REFUSED
from grandrounds.console.desk import desk_of
from grandrounds.console.roles import Area
from grandrounds.console.shelf import shelf_of
from grandrounds.console.views import compare as view
from grandrounds.console.views.compared import Choice, Compared
from grandrounds.console.views.published import StudyShown, of_study
from grandrounds.core.errors import BadInput

router = APIRouter(prefix="/api/compare", responses=REFUSED)
Viewer = Annotated[Who, only(Area.COMPARE)]
Name = Annotated[str, StringConstraints(max_length=1024)]
RunNames = Annotated[list[Name], Query(description="Runs' names, as /api/runs has them.", max_length=200)]
ComparisonName = Annotated[Name | None, Query(description="A comparison's name, as /api/compare/choices has it.")]
Axis = Annotated[str, Query(max_length=80, description="A figure of `axes`.")]


@router.get("/choices", summary="Comparisons and studies that are here")
def choices(request: Request, who: Viewer) -> Choice:
    return view.choices(desk_of(request).library)


@router.get("", summary="Runs, or a comparison, side by side")
def compared(request: Request, who: Viewer, run: RunNames = [], comparison: ComparisonName = None) -> Compared:  # noqa: B006
    return view.compared(desk_of(request).library, run, comparison)


@router.get("/study", summary="A study's figures beside those that a paper prints")
def study(request: Request, who: Viewer, study: Name) -> StudyShown:
    return of_study(shelf_of(desk_of(request).library), study)


@router.get("/figure", summary="A figure of a comparison as Plotly's data and layout")
def figure(
    request: Request,
    who: Viewer,
    figure: Annotated[str, Query(max_length=80)],
    run: RunNames = [],  # noqa: B006
    runs: Annotated[str | None, Query(max_length=65536, description="The same as a JSON list.")] = None,
    comparison: ComparisonName = None,
    x: Axis = "",
    y: Axis = "",
) -> dict[str, Any]:
    names = [*run, *(listed(runs) if runs else ())]
    return view.figure(desk_of(request).library, figure, names, comparison or None, x=x, y=y)


def listed(text: str) -> list[str]:
    """Names from a JSON list."""
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise BadInput("runs must be a JSON list of names")
    return names
