"""How a budget was spent, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grandrounds.report.figure import Figure
from grandrounds.report.paint import COLOURS, INK, QUIET, layout, safe


def epsilon_over_rounds(
    rounds: Sequence[int], total: Sequence[float], alone: Mapping[str, Sequence[float]], budget: float | None
) -> Figure:
    """Epsilon so far after each round, of all releases and of each kind of them alone, under the budget if there is one.

    Parts do not add up to the whole: several releases together tell less than the sum of what each tells.
    """
    lines = [_line(rounds, total, "all together", INK, width=3)]
    if len(alone) > 1:
        for colour, (name, values) in zip(COLOURS, alone.items(), strict=False):
            lines.append(_line(rounds, values, f"{safe(name)} alone", colour, width=2))
    if budget is not None:
        lines.append(_line(rounds, [budget] * len(rounds), "budget", QUIET, width=1, dash="dot"))
    note = "parts do not add up: together they tell less" if len(alone) > 1 else ""
    shape = layout("Epsilon so far", note=note, x="round", y="epsilon", height=320)
    shape["yaxis"]["rangemode"] = "tozero"
    return Figure(lines, shape)


def _line(
    x: Sequence[int], y: Sequence[float], name: str, colour: str, *, width: int, dash: str = "solid"
) -> dict[str, object]:
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": width, "dash": dash},
        "hovertemplate": "round %{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
    }
