"""Runs or methods side by side; without a choice, what there is to choose from."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import Response

from grandrounds.console.access import Who, only
from grandrounds.console.api_compare import ComparisonName, Name, RunNames
from grandrounds.console.desk import desk_of
from grandrounds.console.library import FINISHED
from grandrounds.console.render import page
from grandrounds.console.roles import Area
from grandrounds.console.shelf import shelf_of
from grandrounds.console.views import compare as view
from grandrounds.console.views.published import of_study
from grandrounds.console.views.runs import run_lines

router = APIRouter(include_in_schema=False)


@router.get("/compare")
def compare(
    request: Request,
    who: Annotated[Who, only(Area.COMPARE)],
    run: RunNames = [],  # noqa: B006
    comparison: ComparisonName = None,
    study: Name | None = None,
) -> Response:
    library = desk_of(request).library
    if study is not None:
        shown = of_study(shelf_of(library), study)
        return page(request, "compare_study.html", who=who, study=shown, place=study)
    if not run and comparison is None:
        lines = [line for line in run_lines(library) if line.state == FINISHED]
        return page(request, "compare_choose.html", who=who, runs=lines, choices=view.choices(library))
    found = view.compared(library, run, comparison)
    return page(
        request, "compare.html", who=who, compared=found, differences=view.by_metric(found.differences),
        runs=json.dumps(run), comparison=comparison or "",
    )  # fmt: skip
