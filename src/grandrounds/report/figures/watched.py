"""Whether the model in use is right, and for the right reason, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.report.figure import Figure
from grandrounds.report.paint import COLOURS, layout

_LINES = {
    "accuracy": "accuracy on the scoring pictures",
    "xai": "XAI accuracy",
    "grid": "grid accuracy",
    "in_mask": "in-mask share",
}
_COMPARED = "shuffled weights"


def reasons_over_rounds(
    rounds: Sequence[Mapping[str, Any]], baselines: Mapping[str, Mapping[str, float | None]] | None = None
) -> Figure:
    """Accuracy, XAI accuracy, grid accuracy and in-mask share; dotted: the final net with its weights shuffled."""
    told = [r for r in rounds if r.get("reasons")]
    if not told:
        raise BadInput("no round of this run was scored for its reasons: set evaluation.reasons and run it again")
    x = [r["round"] for r in told]
    kept = [key for key in _LINES if any(key in r["reasons"] for r in told)]
    shuffled = (baselines or {}).get(_COMPARED, {})
    lines: list[dict[str, Any]] = []
    shapes = []
    for key, colour in zip(kept, COLOURS, strict=False):
        lines.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": _LINES[key],
                "x": x,
                "y": [r["reasons"].get(key) for r in told],
                "line": {"color": colour, "width": 2},
                "hovertemplate": "round %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
            }
        )
        level = shuffled.get(key)
        if level is not None:
            line = {"color": colour, "dash": "dot", "width": 1.5}
            shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": level, "y1": level, "line": line})
    return Figure(
        lines,
        layout(
            "Right, and for the right reason",
            note="dotted: the final net with its weights shuffled" if shapes else "",
            x="round",
            y="share of scoring pictures",
            height=360,
            yaxis={"range": [0, 1.02]},
            shapes=shapes,
        ),
    )
