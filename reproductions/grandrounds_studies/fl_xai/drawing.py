"""The figures of the FL-XAI study: accuracy by round, sites' own models by round, arms side by side, and sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.core.records import RoundRecord
from grandrounds.report import figures
from grandrounds.report.figure import Figure
from grandrounds.report.style import heading, safe
from grandrounds_studies import charts
from grandrounds_studies.fedxchain.drawing import Drawn, bars, over_rounds
from grandrounds_studies.results import Results
from grandrounds_studies.study import Cell, Measure


def round_record(values: Mapping[str, Any]) -> RoundRecord:
    """Read a round that a study kept: scores, without the Decision."""
    return RoundRecord.from_dict({"decision": {}, **values})


def accuracy(results: Results, where: str) -> list[Drawn]:
    """The common model's accuracy by round, one line an arm."""
    return over_rounds(results, "accuracy", f"{where}: accuracy on the test images")


def sites(results: Results, where: str, *, seed: int = 0) -> list[Drawn]:
    """Each site's own model on its own training images by round, beside the common one: a figure an arm, of one seed."""
    drawn = []
    for point in results.points:
        for arm in results.arms_at(point):
            reading = results.readings.get(Cell(point, arm, seed))
            told = None if reading is None else reading.kept.get("rounds")
            if told:
                figure = figures.local_curves([round_record(record) for record in told])
                figure["layout"]["title"] = heading(safe(arm), f"seed {seed}; the worst sites in colour")
                figure["layout"]["yaxis"]["range"] = [0, 1]
                drawn.append(figure)
    return [(f"{where}: sites' own models on their own training images", drawn)] if drawn else []


def side_by_side(results: Results, measures: Sequence[Measure], where: str) -> list[Drawn]:
    """Means with 95% intervals, a panel a measure."""
    return bars(results, [m.name for m in measures], where)


def over(results: Results, at: str, measure: Measure, values: Mapping[str, float], *, x: str) -> list[Figure]:
    """A measure over the number that an arm stands for, on a logarithmic axis."""
    found = {
        value: charts.triple(results, at, arm, measure.name)
        for arm, value in values.items()
        if arm in results.arms_at(at)
    }
    return [figures.setting_curves({"FedAvg": found}, measure.name, x=x, title=at)] if found else []
