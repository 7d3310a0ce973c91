"""Figures that papers print of the very experiment that a run is of, for the console."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Any

from grandrounds.core.errors import BadInput
from grandrounds.runs.run import Run
from grandrounds_studies import studies
from grandrounds_studies.digest import nameless
from grandrounds_studies.study import Cell, Study


def printed_figures(run: Run) -> list[dict[str, Any]]:
    """List what is printed of a run that was made by hand and is, but for its name, a run of a study.

    Args:
        run: The run.

    Returns:
        Fields of the console's `Published`, a dict a figure; empty where the run is of no study.
    """
    try:
        plan = run.plan
        same = nameless(plan)
        cells = _cells(str(plan["data"]["name"]), int(plan["seed"]), int(plan["split"]["fold"])).get(same, ())
    except (KeyError, TypeError, ValueError):
        return []
    return [figure for cell in cells for figure in _figures(run, plan, *cell)]


def _figures(run: Run, plan: Mapping[str, Any], name: str, point: str, arm: str) -> list[dict[str, Any]]:
    study = studies()[name]
    out = []
    for key, printed in study.published[point, arm].items():
        measure = study.measure(key)
        try:
            value = float(measure.read(run))
        except Exception:  # a measure may ask a run for anything; where it is not there is no figure of ours
            value = float("nan")
        out.append(
            {
                "study": study.name, "source": study.source, "point": point, "arm": arm, "measure": measure.words,
                "lower": measure.lower, "digits": measure.digits, "published": printed,
                "mean": value if isfinite(value) else None, "low": None, "high": None, "n": 1,
                "over": f"{study.repeats.word} {_number(study, plan)}", "quick": False,
            }
        )  # fmt: skip
    return out


def _number(study: Study, plan: Mapping[str, Any]) -> int:
    return int(plan["split"]["fold"] if study.repeats.word == "fold" else plan["seed"])


@lru_cache(maxsize=64)
def _cells(data: str, seed: int, fold: int) -> dict[str, list[tuple[str, str, str]]]:
    """Map the digest of a plan to study, point and arm with printed figures, for the runs of one data set and repeat."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for study in studies().values():
        points = {p.label for p in study.points}
        for point, arm in study.published:
            if point not in points or arm not in {a.label for a in study.arms_at(point)}:
                continue
            number = fold if study.repeats.word == "fold" else seed
            cell = Cell(point, arm, number, study.repeats.word)
            try:
                if study.data(cell) == data:
                    found.setdefault(nameless(study.plan(cell)), []).append((study.name, point, arm))
            except BadInput:
                continue  # an experiment that this machine cannot make
    return found
