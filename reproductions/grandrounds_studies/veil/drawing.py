"""The figures of VEIL's studies: methods on six axes at once, utility over epsilon, and utility against traffic."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

from grandrounds.report import figures
from grandrounds.report.figure import Figure
from grandrounds.report.figures.comparison import arm_colour
from grandrounds.report.style import INK, heading, safe, words
from grandrounds_studies import charts
from grandrounds_studies.measures import AUPRC, AUROC, ECE
from grandrounds_studies.results import Results
from grandrounds_studies.study import Cell
from grandrounds_studies.veil.claims import Place, run_among
from grandrounds_studies.veil.measures import PAYLOAD, RECALL
from grandrounds_studies.veil.setting import FEDAVG, NO_EPSILON

Drawn = tuple[str, Sequence[Figure]]
AXES = (AUROC.name, AUPRC.name, RECALL.name, "1 - ECE", "log(1 / MB)", "1 / epsilon")
_DASHES = ("solid", "dot")
_FEW, _LINE = 5, 22
"""Arms whose legend a figure has room for, and pixels for each one more."""


def radars(results: Results, places: Sequence[Place]) -> list[Drawn]:
    """Fig. 1 as the paper draws it, by the epsilon that is claimed, and by the one that holds (0 for none)."""
    arms = list(dict.fromkeys(arm for _, arm in places))
    held = sorted(run_among(results, places), key=lambda place: arms.index(place[1]))
    if len(held) < 2:
        return []
    claimed, kept = (
        {f"{arm}{'' if point == NO_EPSILON else f', {point}'}": _axes(results, (point, arm), holds=holds)
         for point, arm in held}
        for holds in (False, True)
    )  # fmt: skip
    return [
        ("Fig. 1 as the paper draws it: 1 / epsilon as claimed", [_by_arm(figures.radar(AXES, claimed), held)]),
        ("Fig. 1 with the epsilon that holds", [_by_arm(figures.radar(AXES, kept), held)]),
    ]


def _by_arm(drawn: Figure, held: Sequence[Place]) -> Figure:
    """A colour for each arm, and its budgets told apart by dashes; larger, since several lie close together."""
    points, arms = (list(dict.fromkeys(place[k] for place in held)) for k in (0, 1))
    for trace, (point, arm) in zip(drawn["data"], held, strict=True):
        dash = "dash" if point == NO_EPSILON else _DASHES[points.index(point) % len(_DASHES)]
        trace["line"] |= {"color": arm_colour(arms.index(arm)), "dash": dash}
    drawn["layout"]["height"] = 640
    return drawn


def _axes(results: Results, place: Place, *, holds: bool) -> dict[str, float | None]:
    """The six figures of one method; payload both ways in MB."""
    found = {m.name: _mean(results, place, m.name) for m in (AUROC, AUPRC, RECALL)}
    ece, sent = (_mean(results, place, m.name) for m in (ECE, PAYLOAD))
    epsilon = _kept(results, place) if holds else results.study.point(place[0]).x
    return {
        **found,
        "1 - ECE": None if ece is None else 1 - ece,
        "log(1 / MB)": None if not sent else log(1e3 / sent),
        "1 / epsilon": 1 / epsilon if epsilon else 0.0,
    }


def _mean(results: Results, place: Place, measure: str) -> float | None:
    value = results.summary(*place, measure).mean
    return value if value == value else None


def _kept(results: Results, place: Place) -> float | None:
    """The epsilon that the first run of a place kept."""
    reading = results.readings.get(Cell(*place, 0))
    return None if reading is None else reading.kept.get("epsilon")


def curves(results: Results) -> list[Drawn]:
    """Fig. 2: AUROC and AUPRC over epsilon, a line an arm; FedAvg, which has none, is level."""
    drawn = []
    for measure in (AUROC.name, AUPRC.name):
        for figure in charts.lines(results, measure, ["epsilon"], x="epsilon"):
            note = f"mean over {results.study.repeats.word}s, with its 95% interval"
            figure["layout"]["title"] = heading(f"{words(measure)} over epsilon", note)
            figure["data"] += _level(results, measure)
            figure["layout"]["height"] += _LINE * max(0, len(figure["data"]) - _FEW)
            drawn.append(figure)
    return [("Fig. 2: utility over epsilon", drawn)] if drawn else []


def _level(results: Results, measure: str) -> list[dict[str, Any]]:
    """FedAvg's mean as a line across all budgets, where it was run."""
    held = run_among(results, [(NO_EPSILON, FEDAVG.label)])
    budgets = [p.x for p in results.study.points if p.group == "epsilon"]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": safe(arm),
            "x": [min(budgets), max(budgets)],
            "y": [_mean(results, (point, arm), measure)] * 2,
            "line": {"color": INK, "width": 1.5, "dash": "dash"},
            "hovertemplate": "%{y:.4f}<extra>%{fullData.name}</extra>",
        }
        for point, arm in held
    ]


def fronts(results: Results) -> list[Drawn]:
    """AUROC against payload at each point; payloads lie from one kB to a hundred MB, so their axis is logarithmic."""
    drawn: list[Drawn] = []
    for point in results.points:
        for figure in charts.fronts(results, [point], x=PAYLOAD.name, y=AUROC.name):
            figure["layout"]["xaxis"] |= {"type": "log", "title": {"text": "payload both ways, kB (less is better)"}}
            drawn.append((f"AUROC against payload: {point}", [figure]))
    return drawn
