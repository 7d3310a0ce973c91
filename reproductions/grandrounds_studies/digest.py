"""Digests of plans: which experiment a reading is of.

A digest leaves out sections of [method] that belong to other methods than the plan's, and every setting that is as usual. The
usual values are those of usual.json, which was written once and is not written again: a setting whose default changes later is
no longer as usual, so the digests of plans that have it change, as their experiments do. A setting that came in later is as
usual at the default that it came in with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from grandrounds.methods import is_exact, is_variant_of

DIGESTS = 2
"""Version of `digest`; digests of different versions are not compared."""

REFERENCE = {"data": {"name": "heart"}}
"""The experiment whose plan usual.json holds."""

Plan = Mapping[str, Any]


def _of(*names: str) -> Callable[[Plan], bool]:
    return lambda plan: any(is_variant_of(plan["method"]["name"], name) for name in names)


SECTIONS: dict[str, Callable[[Plan], bool]] = {
    "veil": _of("veil"),
    "trust": _of("fedxchain"),
    "xfed": lambda plan: _of("xfed")(plan) or plan["evaluation"]["rationale_set"] is not None,
    "watch": _of("watch"),
    "quality": _of("quality"),
} | dict.fromkeys(("exact", "gam", "trees", "card"), lambda plan: is_exact(plan["method"]["name"]))
"""Sections of [method] that a plan may not use, and whether it does."""


def digest(plan: Plan) -> str:
    """Which experiment a plan is of: all of it but what a run fills in about its data, and what is as usual.

    Weights that a model starts from are known by their file's name, wherever the checkout lies.
    """
    data = {k: v for k, v in plan["data"].items() if k not in ("kinds", "sha256")}
    method = {k: v for k, v in plan["method"].items() if k not in SECTIONS or SECTIONS[k](plan)}
    weights = plan["model"].get("weights")
    model = {**plan["model"], **({"weights": Path(weights).name} if weights else {})}
    asked = _unusual({**plan, "data": data, "method": method, "model": model}, usual())
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def nameless(plan: Plan) -> str:
    """The digest of a plan by whatever name: the studies of a table and of its figures name the same run differently."""
    return digest({**plan, "name": ""})


def _unusual(values: Plan, known: Plan, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the settings that are not as usual."""
    out = {}
    for key, value in values.items():
        ordinary = known[key] if key in known else _later((*path, key))
        if isinstance(value, Mapping) and isinstance(ordinary, Mapping):
            if inner := _unusual(value, ordinary, (*path, key)):
                out[key] = inner
        elif json.dumps(value) != json.dumps(ordinary):
            out[key] = value
    return out


_NOWHERE = "no such setting"


def _later(path: tuple[str, ...]) -> Any:
    """The default of a setting that came in after usual.json; names of data and of reference sets are no settings."""
    value: Any = today()
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return _NOWHERE
        value = value[key]
    return value if path not in (("name",), ("data", "name")) else _NOWHERE


@cache
def usual() -> dict[str, Any]:
    """The plan of `REFERENCE` on 19 November 2026."""
    held: dict[str, Any] = json.loads(files(__package__).joinpath("usual.json").read_text(encoding="utf-8"))
    return held


_brought: list[dict[str, Any]] = []


def bring_defaults(plan: Plan) -> None:
    """Use this plan of `REFERENCE` as today's: it came with the plans, for a machine without pydantic."""
    _brought[:] = [dict(plan)]


def today() -> dict[str, Any]:
    """The plan of `REFERENCE` with this version."""
    return _brought[0] if _brought else _today_here()


@cache
def _today_here() -> dict[str, Any]:
    from grandrounds.experiment.experiment import Experiment

    held: dict[str, Any] = json.loads(json.dumps(Experiment.parse(REFERENCE).plan()))
    return held
