"""Models that people can read: shapes of an additive model, and the risk card."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from grandrounds.capabilities.console.api.parameters import FIGURE, ColumnName, RunName, Viewer, WithdrawnModel
from grandrounds.capabilities.console.api.resources import Resources
from grandrounds.capabilities.console.app_state import get_state
from grandrounds.capabilities.console.views import risk_card as risk_card_view
from grandrounds.capabilities.console.views import shapes as shapes_view

resources = Resources("models")


@resources.get(
    "/runs/{run}/shapes",
    old="/run/shapes",
    summary="The shapes of an additive model, the most important column first; null without them",
)
def shapes(
    request: Request, who: Viewer, run: RunName, withdrawn: WithdrawnModel = False
) -> shapes_view.ShapesView | None:
    get_state(request).run_index.refuse_withdrawn(run, withdrawn=withdrawn)
    return shapes_view.shapes(get_state(request).run_index, run)


@resources.get(
    "/runs/{run}/shapes/{column}/figure",
    old="/run/shape",
    summary="The shape of one column as Plotly's data and layout",
    responses=FIGURE,
    response_model=None,
)
def shape(
    request: Request, who: Viewer, run: RunName, column: ColumnName, withdrawn: WithdrawnModel = False
) -> dict[str, object]:
    get_state(request).run_index.refuse_withdrawn(run, withdrawn=withdrawn)
    return shapes_view.figure(get_state(request).run_index, run, column)


@resources.get(
    "/runs/{run}/card",
    old="/run/card",
    summary="The risk card of a run: terms with points, and the risk of each total; null without one",
)
def risk_card(
    request: Request, who: Viewer, run: RunName, withdrawn: WithdrawnModel = False
) -> risk_card_view.RiskCardView | None:
    get_state(request).run_index.refuse_withdrawn(run, withdrawn=withdrawn)
    return risk_card_view.risk_card(get_state(request).run_index, run)


@resources.get(
    "/runs/{run}/card/nomogram",
    old="/run/card/nomogram",
    summary="The nomogram of a risk card as SVG",
    response_class=Response,
    responses={200: {"description": "A drawing.", "content": {"image/svg+xml": {}}}},
)
def nomogram(request: Request, who: Viewer, run: RunName, withdrawn: WithdrawnModel = False) -> Response:
    get_state(request).run_index.refuse_withdrawn(run, withdrawn=withdrawn)
    return Response(risk_card_view.drawing(get_state(request).run_index, run), media_type="image/svg+xml")
