"""Resource paths of patients, at a console started with --site. The functions are those of `cases.routes`.

A patient's values and names are sent in bodies, never in addresses. Answers have no ETag: nothing about a patient is stored
by a client.
"""

from __future__ import annotations

from fastapi.responses import Response

from grandrounds.capabilities.console.api.parameters import FIGURE
from grandrounds.capabilities.console.api.resources import Resources
from grandrounds.capabilities.console.cases import routes

resources = Resources("cases", "/cases", tagged=False)
_PATIENT = "/runs/{run}/patients/{case}"

resources.add("/runs", routes.runs, summary="The finished runs in which this site's patients can be looked at")
resources.add("/runs/{run}/patients", routes.patients, summary="This site's patients, test rows first, by pages")
resources.add(
    "/runs/{run}/patients",
    routes.find_patients,
    method="POST",
    summary="Those of this site's patients whose row number or name fits",
)
resources.add(_PATIENT, routes.one, summary="One patient: risk with its band, contributions, data quality")
resources.add(
    f"{_PATIENT}/figures/{{figure}}",
    routes.figure,
    summary="A figure of one patient as Plotly's data and layout",
    responses=FIGURE,
    response_model=None,
)
resources.add(
    f"{_PATIENT}/what-if",
    routes.what_if,
    method="POST",
    summary="The prediction for other values. The body: column -> number, category, or null for no value",
    openapi_extra=routes.VALUES,
)
resources.add(f"{_PATIENT}/other-models", routes.others, summary="How other sites' models would explain this patient")
resources.add(
    f"{_PATIENT}/image",
    routes.picture,
    summary="An image, a heat map or the truth mask, as a PNG",
    response_class=Response,
    responses=routes.PNG,
)
