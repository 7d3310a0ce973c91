"""Plans of the corpus: every pair of method, kind of data, model, secure sums and kind of privacy that a run accepts.

`plans.json` lists them. It was drawn once from 626 tried runs, so that it stays the same while code changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.capabilities.hospital.keeper.plans import PUBLIC

FILE = Path(__file__).with_name("plans.json")
SMALL = {
    "split": {"val": 0.2, "test": 0.2},
    "train": {"steps": 3, "batch": 16, "lr": 0.1},
}
STAYS = {"table": "stays.csv", "site": "hospital"}
KINDS: dict[str, dict[str, Any]] = {
    "binary": {"data": {"table": "patients.csv", "label": "died", "site": "hospital"}},
    "classes": {"data": {"table": "wards.csv", "label": "died", "site": "hospital"}},
    "number": {"data": {**STAYS, "label": "los", "drop": ["visits", "days", "died"]}},
    "count": {"data": {**STAYS, "label": "visits", "task": "count", "drop": ["los", "days", "died"]}},
    "survival": {
        "data": {**STAYS, "label": "died", "duration": "days", "task": "survival", "drop": ["los", "visits"]},
    },
    "images": {"data": {"table": "squares.npz"}, "engine": {"device": "cpu"}},
}
SIZES: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [6]},
    "forest": {"trees": 3, "depth": 3},
    "lightgbm": {"trees": 5},
}
METHODS: dict[str, dict[str, Any]] = {
    "sse-agg": {"reference": {"rows": {"rows": 20}}},
    "fedxchain": {"reference": {"rows": {"rows": 20}}},
    "trees": {"method": {"rounds": 20, "trees": {"rounds": 2, "depth": 2, "least": 5}}},
    "glm": {"method": {"rounds": 30, "exact": {"ridge": 1.0}}},
    "cox": {"method": {"rounds": 30, "exact": {"ridge": 1.0}}},
    "gam": {"method": {"rounds": 30}},
    "card": {"method": {"rounds": 40}},
    "private-gam": {"privacy": {"epsilon": 5.0}, "data": PUBLIC},
    "table1": {"method": {"rounds": 30}},
    "survival": {"method": {"rounds": 30}},
    "fedbn": {"model": {"norm": "batch"}},
}
PRIVACY: dict[str, dict[str, Any]] = {
    "none": {},
    "dp-sgd": {"privacy": {"mechanism": "dp-sgd", "epsilon": 8.0, "delta": 1e-3, "sampling_rate": 0.2, "min_rows": 10}},
    "client": {"privacy": {"mechanism": "client", "epsilon": 8.0}},
}
SECURE: dict[str, dict[str, Any]] = {"plain": {}, "secure": {"privacy": {"secure": True}}}

Point = tuple[str, str, str, str, str]
"""Method, kind of data, model, secure sums, kind of privacy."""


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Sections laid over each other, the last on top."""
    out: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            out[key] = merged(out.get(key, {}), value) if isinstance(value, Mapping) else value
    return out


def settings_of(point: Point) -> dict[str, Any]:
    """The experiment of a point, at its smallest size."""
    method, kind, model, secure, privacy = point
    rounds = {"method": {"name": method, "rounds": 2}}
    sized = {"model": {"name": model, **SIZES.get(model, {})}}
    name = {"name": "-".join((method, kind, model)), "seed": 3}
    return merged(SMALL, KINDS[kind], name, rounds, sized, METHODS.get(method, {}), PRIVACY[privacy], SECURE[secure])


def read_plans() -> dict[str, dict[str, Any]]:
    """The drawn plans, by name."""
    return {" ".join(point): settings_of(tuple(point)) for point in json.loads(FILE.read_text())}
