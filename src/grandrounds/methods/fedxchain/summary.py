"""Summary of trust in a run: final trust, alarms and rejected weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from grandrounds.core.method_facts import MethodFact
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import Decision, Part, RoundRecord
from grandrounds.explain.trust import DOUBTS, TrustRule
from grandrounds.methods.fedxchain.server import TRUST

_LEAST, _NAMED, _LISTED = 3, 8, 6
"""Sites trusted least, sites and rounds that a fact names."""


def trust_summary(
    plan: Plan, records: Sequence[RoundRecord], count_ledger: Callable[[], Mapping[str, int]]
) -> dict[str, dict[str, object]]:
    """Build the summary's `trust`; empty for a run without trust.

    Args:
        plan: The experiment's plan.
        records: The records of the rounds.
        count_ledger: Counts entries and countersignatures of the rounds; empty for a run without a ledger.
    """
    decisions = [r.decision for r in records if r.decision.has_trust]
    if not decisions:
        return {}
    t, last = plan.method.trust, decisions[-1]["signals"]
    values = {
        "rule": asdict(TrustRule.from_settings(t)),
        "weighs": plan.method.weigh.rule == TRUST,
        "accuracy_at": t.accuracy_at,
        "explained": t.explained,
        "secure": bool(plan.privacy.secure),
        "alarm": t.alarm,
        "last": latest_by_site(decisions, "trust"),
        "mean_trust": _mean(last["trust"]),
        "mean_nsds": _mean(last["nsds"]),
        "alarmed": alarm_rounds(decisions, t.alarm),
        "refused": rejection_rounds([r["decision"] for r in records]),
        "reward_correlation": reward_correlation(decisions),
        "accepted": [len(d.weights) for d in decisions] if plan.method.weigh.rule == TRUST else [],
        "ledger": dict(count_ledger()),
    }
    return {"trust": values}


def trust_facts(trust: Part) -> tuple[MethodFact, ...]:
    """Describe the summary's `trust`: the sites trusted least, their divergence, alarms, rejections and rewards."""
    if not trust:
        return ()
    last: Mapping[str, float] = trust["last"]
    least = ", ".join(f"{s} {last[s]:.3f}" for s in sorted(last, key=lambda s: (last[s], s))[:_LEAST])
    unused = "" if trust["weighs"] else "; recorded only, the weights do not use it"
    facts = [
        MethodFact("trust in the last round", f"mean {_figure(trust['mean_trust'])}", f"least: {least}{unused}"),
        MethodFact("NSDS in the last round", f"mean {_figure(trust['mean_nsds'])}", "0: every site explains as the consortium"),
    ]
    if trust["alarmed"]:
        above = f"NSDS above method.trust.alarm = {trust['alarm']:g}"
        facts.append(MethodFact("alarms", _rounds_by_site(trust["alarmed"]), above))
    if trust["refused"]:
        facts.append(MethodFact("weights rejected", _rounds_by_site(trust["refused"]), "by sites that recomputed them"))
    if trust["reward_correlation"] is not None:
        r = f"r = {trust['reward_correlation']:.2f}"
        facts.append(MethodFact("rewards and trust over sites", r, "a reward is contribution x trust"))
    return (*facts, *_chain_facts(trust.get("accepted", ()), trust.get("ledger", {})))


def _chain_facts(accepted: Sequence[int], ledger: Mapping[str, int]) -> list[MethodFact]:
    """Describe who checked the weights (eq. 8), the hash chain (eq. 9), and the command that anchors it on a blockchain."""
    facts = []
    if accepted:
        sites = f"{min(accepted)} sites" if min(accepted) == max(accepted) else f"{min(accepted)} to {max(accepted)} sites"
        where = f"by {sites} in each of {len(accepted)} rounds"
        facts.append(MethodFact("weights recomputed and accepted", where, "each site recomputes all weights from all signals"))
    if ledger:
        size = f"{ledger['entries']} entries, {ledger['countersignatures']} countersignatures by sites"
        facts.append(MethodFact("ledger", size, "before the closing entry; to verify it: rounds audit verify RUN"))
        anchor = "rounds audit anchor RUN --rpc URL --contract ADDRESS"
        facts.append(MethodFact("blockchain", "not anchored during the run", f"to anchor the ledger: {anchor}"))
    return facts


def _rounds_by_site(rounds_by_site: Mapping[str, Sequence[int]]) -> str:
    """Format rounds by site: 'site-03 (rounds 1, 2, 3), site-05 (rounds 1 to 12, 10 of them)', the most rounds first."""
    order = sorted(rounds_by_site, key=lambda s: (-len(rounds_by_site[s]), s))
    parts = []
    for site in order[:_NAMED]:
        rounds = rounds_by_site[site]
        few = len(rounds) <= _LISTED
        several = ", ".join(map(str, rounds)) if few else f"{rounds[0]} to {rounds[-1]}, {len(rounds)} of them"
        parts.append(f"{site} (round{'s' * (len(rounds) > 1)} {several})")
    return ", ".join(parts) + (f" and {len(order) - _NAMED} more" if len(order) > _NAMED else "")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def latest_by_site(decisions: Sequence[Decision], signal: str) -> dict[str, float]:
    """Return the latest value of a signal at each site, including absent ones."""
    return {s: v for d in decisions for s, v in d["signals"].get(signal, {}).items() if v is not None}


def alarm_rounds(decisions: Sequence[Decision], alarm: float) -> dict[str, list[int]]:
    """Return, by site, the rounds in which its attributions diverged by more than `alarm`."""
    out: dict[str, list[int]] = {}
    for d in decisions:
        for site, nsds in d["signals"]["nsds"].items():
            if nsds is not None and nsds > alarm:
                out.setdefault(site, []).append(int(d["round"]))
    return out


def rejection_rounds(decisions: Sequence[Decision]) -> dict[str, list[int]]:
    """Return, by site, the rounds whose weights it rejected."""
    out: dict[str, list[int]] = {}
    for d in decisions:
        for site, why in d["missing"].items():
            if rejection_code(why):
                out.setdefault(site, []).append(int(d["round"]))
    return out


def rejection_code(why: str) -> str:
    """Read the code by which a site refused a round's weights from the Decision's entry of a missing site; "" for another
    cause."""
    return next((code for code in DOUBTS if f"({code})" in why), "")


def reward_correlation(decisions: Sequence[Decision]) -> float | None:
    """Compute Pearson's r of mean trust and mean reward over sites; None where either does not vary."""
    rewards = _mean_by_site(decisions, "reward")
    trust = _mean_by_site(decisions, "trust")
    sites = [s for s in rewards if s in trust]
    x, y = np.array([trust[s] for s in sites]), np.array([rewards[s] for s in sites])
    if len(sites) < 3 or not x.std() or not y.std():
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _mean_by_site(decisions: Sequence[Decision], signal: str) -> dict[str, float]:
    by_site: dict[str, list[float]] = {}
    for d in decisions:
        for site, value in d["signals"].get(signal, {}).items():
            if value is not None:
                by_site.setdefault(site, []).append(float(value))
    return {s: float(np.mean(values)) for s, values in by_site.items()}


def _mean(values: Mapping[str, float | None]) -> float | None:
    finite = [v for v in values.values() if v is not None and np.isfinite(v)]
    return float(np.mean(finite)) if finite else None
