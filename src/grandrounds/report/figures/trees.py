"""Boosted trees: the validation loss over rounds of boosting."""

from __future__ import annotations

from collections.abc import Sequence

from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure, Trace
from grandrounds.report.style import COLOURS, layout


def validation_curve(losses: Sequence[float]) -> Figure:
    """Draw the summed validation loss after each round of boosting, with its lowest value.

    Args:
        losses: The loss after each round.

    Raises:
        BadInput: There are no losses.
    """
    if not losses:
        raise BadInput("no validation loss was recorded: there is nothing to draw", code="nothing-to-draw")
    rounds = list(range(1, len(losses) + 1))
    best = min(range(len(losses)), key=lambda k: losses[k])
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "validation loss",
            "x": rounds,
            "y": list(losses),
            "line": {"color": COLOURS[0], "width": 2},
            "marker": {"size": 5},
            "hovertemplate": "round %{x}: %{y:.4f}<extra></extra>",
            "showlegend": False,
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "lowest",
            "x": [rounds[best]],
            "y": [losses[best]],
            "marker": {"symbol": "diamond", "size": 11, "color": COLOURS[1]},
            "hovertemplate": "lowest, round %{x}: %{y:.4f}<extra></extra>",
        },
    ]
    shown = layout(
        "Validation loss over rounds of boosting",
        note="summed over the validation rows of all hospitals",
        x="round of boosting",
        y="mean loss of a row",
        height=340,
    )
    return Figure(traces, shown)
