"""Parameters that several resources and pages share."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, StringConstraints

from grandrounds.capabilities.console.api.resources import Responses
from grandrounds.capabilities.console.auth.access import CurrentUser, require_area
from grandrounds.capabilities.console.auth.users import Area

Name = Annotated[str, StringConstraints(max_length=1024)]
RunName = Annotated[
    str, Query(description="A run. In a path, its `id`: the name with `/` written as `~`.", max_length=1024)
]
RunNames = Annotated[list[Name], Query(description="Runs' names, as /api/v1/runs has them.", max_length=200)]
ComparisonName = Annotated[
    str | None, Query(description="A comparison's name, as /api/v1/comparisons has it.", max_length=1024)
]
SiteName = Annotated[str, Query(description="A site. In a path, `/` is written as `~`.", max_length=1024)]
ColumnName = Annotated[str, Query(description="A column. In a path, `/` is written as `~`.", max_length=1024)]
FigureName = Annotated[str, Query(description="A figure's name, as the list of figures has it.", max_length=80)]
RoundNumber = Annotated[int, Query(description="A round, from 1.", ge=1, le=10**9)]
WithdrawnModel = Annotated[bool, Query(description="Show the model although a site withdrew from the run.")]
Viewer = Annotated[CurrentUser, require_area(Area.RUNS)]


class PlotlyFigure(BaseModel):
    """A figure as Plotly reads it: `Plotly.newPlot(element, data, layout)`."""

    data: list[dict[str, object]]
    layout: dict[str, object]


FIGURE: Responses = {200: {"description": "Plotly's data and layout.", "model": PlotlyFigure}}
"""The answer of routes that draw a figure; what they draw is not validated again."""
