"""How training went: the consortium's figures, and each site's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.errors import BadInput
from grandrounds.metrics import HIGHER_IS_BETTER
from grandrounds.report.figure import Figure
from grandrounds.report.paint import COLOURS, INK, MANY, QUIET, layout, safe, words

_NAMED = 3
"""Sites that have a colour and a line in the legend: the worst."""


def curves(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy and AUROC on the left, log loss on the right, on the rows of all sites."""
    judged = _judged(rounds)
    x = [r["round"] for r in judged]
    worst = [min((v for v in r["sites"]["accuracy"].values() if v is not None), default=None) for r in judged]
    left = [
        _line(x, [r["test"]["accuracy"] for r in judged], "accuracy", COLOURS[0], width=3),
        _line(x, [r["test"]["auroc"] for r in judged], "AUROC", COLOURS[1], width=3),
        _line(x, worst, "accuracy of the worst site", COLOURS[2]),
        _line(x, [r["test"]["majority"] for r in judged], "accuracy of the majority class", QUIET, dash="dot"),
    ]
    right = [
        _line(x, [r["test"]["log_loss"] for r in judged], "log loss, test", COLOURS[0], width=3),
        _line(x, [r["val"]["log_loss"] for r in judged], "log loss, validation", COLOURS[4], dash="dash"),
    ]
    for line in right:
        line |= {"xaxis": "x2", "yaxis": "y2"}
    shape = layout("Test figures, round by round", x="round", y="test rows of all sites", height=360)
    shape["xaxis"] |= {"domain": [0, 0.46]}
    shape["xaxis2"] = {"title": {"text": "round"}, "domain": [0.56, 1], "anchor": "y2"}
    shape["yaxis2"] = {"title": {"text": "log loss (nats)"}, "anchor": "x2"}
    return Figure([*left, *right], shape)


def site_curves(rounds: Sequence[Mapping[str, Any]], metric: str = "accuracy") -> Figure:
    """A metric at every site over the rounds, the consortium's in bold and the worst three sites in colour.

    Of many sites it shows the thirty that ended worst.
    """
    judged = _judged(rounds)
    recorded = judged[-1]["sites"]
    if metric not in recorded:
        raise BadInput(f"no metric '{metric}' is recorded of each site; recorded are: {', '.join(recorded)}")
    x = [r["round"] for r in judged]
    down = HIGHER_IS_BETTER.get(metric) is False
    last = {s: v for s, v in recorded[metric].items() if v is not None}
    order = sorted(last, key=lambda s: (-last[s] if down else last[s], s))
    shown = order[:MANY]
    lines = []
    for rank, site in reversed(list(enumerate(shown))):
        y = [r["sites"][metric].get(site) for r in judged]
        named = rank < _NAMED
        line = _line(x, y, safe(site), COLOURS[rank] if named else "#c3c9cf", width=2 if named else 1)
        lines.append({**line, "showlegend": named, "legendrank": 1001 + rank})
    whole = [r["test"].get(metric) for r in judged]
    lines.append({**_line(x, whole, "all sites together", INK, width=4), "legendrank": 1000})
    some = f"the {len(shown)} of {len(order)} sites that ended worst; " if len(shown) < len(order) else ""
    note = f"{some}the worst {min(_NAMED, len(shown))} in colour; names on hover"
    return Figure(
        lines,
        layout(
            f"{words(metric)[:1].upper()}{words(metric)[1:]} at each site",
            note=note,
            x="round",
            y=f"{words(metric)}, test rows",
            height=380,
        ),
    )


def _judged(rounds: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    judged = [r for r in rounds if "test" in r]
    if not judged:
        raise BadInput("no round of this run was judged: set evaluation.every to draw curves")
    return judged


def _line(
    x: Sequence[int], y: Sequence[float | None], name: str, colour: str, *, dash: str = "solid", width: int = 2
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "dash": dash, "width": width},
        "hovertemplate": "round %{x}: %{y:.4f}<extra>%{fullData.name}</extra>",
    }
