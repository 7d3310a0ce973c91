"""What to do about a halted secure sum: try again, or change what would halt it again.

A simulation repeats to the bit. Faults that it injects, and refusals that follow from its settings, are the same after a
resume; a site that was away may be back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grandrounds.engine.faults import DROPPED, LATE

_SHOWN = 10


def way_out(plan: Any, run: Path, missing: Mapping[str, str]) -> str:
    """The last words of the error; `missing`: every site that failed the round, with the reason."""
    ways = _ways(plan, f"rounds resume {run}")
    groups = {sign: sorted(s for s, why in missing.items() if sign in why) for sign in ways}
    known = {s for sites in groups.values() for s in sites}
    said = [f"{_named(sites)} {ways[sign]}" for sign, sites in groups.items() if sites]
    if not said or missing.keys() - known:
        said.append(f"`rounds resume {run}` tries the round again")
        return "; ".join(said)
    return f"a resume with nothing changed would halt again: {'; '.join(said)}"


def _ways(plan: Any, resume: str) -> dict[str, str]:
    """By a sign in a site's reason: what brought it about, and what must change."""
    p, faults = plan.privacy, plan.engine.faults
    retry = "" if p.on_halt == "retry" else ", or start a new run with privacy.on_halt = 'retry'"
    return {
        DROPPED: (
            f"dropped out because engine.faults.drop = {faults.drop:g} has sites do so: "
            f"`{resume} --set engine.faults.drop=0` goes on without{retry}"
        ),
        LATE: f"came after engine.deadline = {plan.engine.deadline}: `{resume} --set engine.deadline=SECONDS` allows more",
        "(beyond-bound)": (
            f"trained to a model beyond privacy.range = {p.range:g}: "
            "start a new run with a larger range (4096 at most) or a lower train.lr"
        ),
        "(not-finite)": "trained to a model that is no finite number: start a new run with a lower train.lr",
        "(weight)": (
            f"refused a sum in which too few count, or one for more than privacy.largest_weight = {p.largest_weight:g}: "
            "start a new run with a larger one or with method.weigh = 'uniform'"
        ),
    }


def _named(sites: Iterable[str]) -> str:
    names = list(sites)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
