"""A study whose arms have tuned settings for each point and fold: tuned.json, which `tuning.py` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grandrounds_studies.study import Cell, Settings, Study, merged

FILE = Path(__file__).with_name("tuned.json")

Chosen = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]
"""Point -> arm -> fold -> settings by name, with their score."""


def load_tuned() -> Chosen:
    """Read tuned.json; empty where there is none yet."""
    return dict(json.loads(FILE.read_text(encoding="utf-8"))["settings"]) if FILE.exists() else {}


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn {"train.lr": 0.1} into {"train": {"lr": 0.1}}."""
    out: dict[str, Any] = {}
    for name, value in settings.items():
        for key in reversed(name.split(".")):
            value = {key: value}
        out = merged(out, value)
    return out


@dataclass(frozen=True)
class TunedStudy(Study):
    """A study whose arms have the tuned settings of their point and fold; where there are none, their own."""

    def plan(self, cell: Cell) -> dict[str, Any]:
        entry = load_tuned().get(cell.point, {}).get(cell.arm, {}).get(str(cell.seed), {})
        return self.plan_with(cell, nested(entry.get("settings", {})))

    def plan_with(self, cell: Cell, settings: Settings) -> dict[str, Any]:
        """Return the plan of a cell with these settings over the arm's and the point's."""
        point = self.point(cell.point)
        own = merged(point.of.get(cell.arm, {}), settings)
        points = tuple(replace(p, of={**p.of, cell.arm: own}) if p is point else p for p in self.points)
        return super(TunedStudy, replace(self, points=points)).plan(cell)
