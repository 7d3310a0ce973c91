"""Parameters and responses that several resources share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import StringConstraints

Responses = dict[int | str, dict[str, Any]]
"""Responses by status, as FastAPI takes them."""

REFUSED: Responses = {
    401: {"description": "Not signed in."},
    403: {"description": "This role has no access."},
    404: {"description": "No such run, round, site or figure."},
    422: {"description": "The request is invalid, or the run is damaged."},
    429: {"description": "Too many wrong tokens from this address."},
}
Name = Annotated[str, StringConstraints(max_length=1024)]
RunName = Annotated[str, Query(description="A run's name, as /api/runs has it.", max_length=1024)]
RunNames = Annotated[list[Name], Query(description="Runs' names, as /api/runs has them.", max_length=200)]
ComparisonName = Annotated[Name | None, Query(description="A comparison's name, as /api/compare/choices has it.")]
RoundNumber = Annotated[int, Query(ge=1, le=10**9)]
WithdrawnModel = Annotated[bool, Query(description="Show the model although a site withdrew from the run.")]
