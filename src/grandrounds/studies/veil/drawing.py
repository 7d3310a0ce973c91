"""The figures of VEIL's studies: methods on six axes at once, and utility over epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from grandrounds.report import figures
from grandrounds.report.figure import Figure
from grandrounds.studies import charts
from grandrounds.studies.measures import AUPRC, AUROC, ECE
from grandrounds.studies.results import Results
from grandrounds.studies.study import Cell
from grandrounds.studies.veil.claims import Place, run_among
from grandrounds.studies.veil.measures import PAYLOAD, RECALL
from grandrounds.studies.veil.setting import NO_EPSILON

Drawn = tuple[str, Sequence[Figure]]
AXES = (AUROC.name, AUPRC.name, RECALL.name, "1 - ECE", "log(1 / MB)", "1 / epsilon")


def radars(results: Results, places: Sequence[Place]) -> list[Drawn]:
    """Fig. 1 as the paper draws it, by the epsilon that is claimed, and by the one that holds (0 for none)."""
    held = run_among(results, places)
    if len(held) < 2:
        return []
    claimed, kept = (
        {f"{arm}{'' if point == NO_EPSILON else f', {point}'}": _axes(results, (point, arm), holds=holds)
         for point, arm in held}
        for holds in (False, True)
    )  # fmt: skip
    return [
        ("Fig. 1 as the paper draws it: 1 / epsilon as claimed", [figures.radar(AXES, claimed)]),
        ("Fig. 1 with the epsilon that holds", [figures.radar(AXES, kept)]),
    ]


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
    """Fig. 2: AUROC and AUPRC over epsilon, a line an arm."""
    drawn = [f for m in (AUROC, AUPRC) for f in charts.lines(results, m.name, ["epsilon"], x="epsilon")]
    return [("Fig. 2: utility over epsilon", drawn)] if drawn else []
