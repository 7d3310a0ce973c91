"""What trust came to in a run, for its summary: who is trusted how far in the end, who was alarmed, who refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from grandrounds.core.plan_types import Plan
from grandrounds.explain.trust import DOUBTS, TrustRule
from grandrounds.methods.fedxchain.server import TRUST

Decision = Mapping[str, Any]


def trust_decisions(records: Sequence[Mapping[str, Any]]) -> list[Decision]:
    """The Decisions that keep trust of sites; FLTrust and FoolsGold call a number of theirs so too, and know no NSDS."""
    decisions = [r["decision"] for r in records]
    return [d for d in decisions if "trust" in d["signals"] and "nsds" in d["signals"]]


def trust_summary(plan: Plan, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The summary's `trust`; nothing for a run that keeps none."""
    told = trust_decisions(records)
    if not told:
        return {}
    t, last = plan.method.trust, told[-1]["signals"]
    found = {
        "rule": asdict(TrustRule.from_settings(t)),
        "weighs": plan.method.weigh.rule == TRUST,
        "accuracy_at": t.accuracy_at,
        "explained": t.explained,
        "secure": bool(plan.privacy.secure),
        "alarm": t.alarm,
        "last": latest_by_site(told, "trust"),
        "mean_trust": _mean(last["trust"]),
        "mean_nsds": _mean(last["nsds"]),
        "alarmed": alarm_rounds(told, t.alarm),
        "refused": rejection_rounds([r["decision"] for r in records]),
        "reward_correlation": reward_correlation(told),
    }
    return {"trust": found}


def latest_by_site(told: Sequence[Decision], signal: str) -> dict[str, float]:
    """Site -> its newest value: that of a site which was away at the end is the one that it will come back with."""
    return {s: v for d in told for s, v in d["signals"].get(signal, {}).items() if v is not None}


def alarm_rounds(told: Sequence[Decision], alarm: float) -> dict[str, list[int]]:
    """Site -> the rounds in which its reasons diverged by more than is allowed."""
    out: dict[str, list[int]] = {}
    for d in told:
        for site, nsds in d["signals"]["nsds"].items():
            if nsds is not None and nsds > alarm:
                out.setdefault(site, []).append(int(d["round"]))
    return out


def rejection_rounds(decisions: Sequence[Decision]) -> dict[str, list[int]]:
    """Site -> the rounds whose weights it did not go along with."""
    out: dict[str, list[int]] = {}
    for d in decisions:
        for site, why in d["missing"].items():
            if rejection_code(why):
                out.setdefault(site, []).append(int(d["round"]))
    return out


def rejection_code(why: str) -> str:
    """The code by which a site refused a round's weights, out of what the Decision says of a missing site; else nothing."""
    return next((code for code in DOUBTS if f"({code})" in why), "")


def reward_correlation(told: Sequence[Decision]) -> float | None:
    """Pearson's r over sites of mean trust and mean reward; None where rewards or trust do not differ."""
    rewards = _mean_by_site(told, "reward")
    trust = _mean_by_site(told, "trust")
    sites = [s for s in rewards if s in trust]
    x, y = np.array([trust[s] for s in sites]), np.array([rewards[s] for s in sites])
    if len(sites) < 3 or not x.std() or not y.std():
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _mean_by_site(told: Sequence[Decision], signal: str) -> dict[str, float]:
    held: dict[str, list[float]] = {}
    for d in told:
        for site, value in d["signals"].get(signal, {}).items():
            if value is not None:
                held.setdefault(site, []).append(float(value))
    return {s: float(np.mean(values)) for s, values in held.items()}


def _mean(values: Mapping[str, float | None]) -> float | None:
    known = [v for v in values.values() if v is not None and np.isfinite(v)]
    return float(np.mean(known)) if known else None
