"""SSE-AGG's own numbers: drift of explanations (eq. 13), and the sites whose explanations cost them weight."""

from __future__ import annotations

from collections.abc import Sequence

from grandrounds.core.method_facts import MethodFact
from grandrounds.core.records import Part, RoundRecord, RunSummary

KEEPS_ALL = 0.9995
"""Share of its rows' weight from which a site keeps all of it."""


def demotion_summary(records: Sequence[RoundRecord]) -> dict[str, dict[str, dict[str, float]]]:
    """Find sites that are outliers in their explanations when the run ends.

    Args:
        records: The records of the rounds.

    Returns:
        `demoted`: by site the round since when it had less weight than its rows give (`since`), and of the last round its
        share of the rows (`by_rows`) and its weight (`weight`), the least first. Empty where no site lost weight.
    """
    since: dict[str, int] = {}
    last: dict[str, dict[str, float]] = {}
    for decision in (r.decision for r in records):
        weights = next((s.weights for s in decision.stages if s.part == "weigh" and s.weights), decision.weights)
        rows = {s: n for s, n in decision.signals.get("data_size", {}).items() if s in weights}
        total = sum(rows.values())
        for site, share in decision.signals.get("in_line", {}).items():
            if site not in rows or not total:
                continue
            by_rows, weight = rows[site] / total, float(weights[site])
            if share >= KEEPS_ALL or weight >= by_rows:
                since.pop(site, None)
                continue
            last[site] = {"since": since.setdefault(site, decision.round), "by_rows": by_rows, "weight": weight}
    found = {site: last[site] for site in sorted(since, key=lambda s: (last[s]["weight"] / last[s]["by_rows"], s))}
    return {"demoted": found} if found else {}


def describe_run(summary: RunSummary) -> tuple[MethodFact, ...]:
    """Describe drift, cohorts and temperature, and the sites that lost weight for their explanations."""
    facts = [*drift_facts(summary.explanation)]
    if (summary.cohorts or {}).get("consistency") is not None:
        rand = f"{summary.cohorts['consistency']:.2f}"
        facts.append(MethodFact("cohorts from round to round", rand, "adjusted Rand index: 1 the same, 0 by chance"))
    if summary.temperature is not None:
        facts.append(MethodFact("temperature", f"{summary.temperature:.2f}", "1: probabilities are left as they are"))
    lost = [
        f"{site} since round {of['since']:.0f}: {of['weight']:.1%} of the weight, not {of['by_rows']:.1%} as by rows"
        for site, of in summary.demoted.items()
    ]
    return (*facts, MethodFact("sites that lost weight for their explanations", "; ".join(lost) or "none"))


def drift_facts(explanation: Part) -> list[MethodFact]:
    """Describe how much explanations differ between sites while they train, and of the deployed model (eq. 13 and 15)."""
    what = {
        "training": ("training drift", "attributions of local models on the reference rows, scale 0 to 2"),
        "deployed": ("deployed divergence", "attributions at sites' own patients, scale 0 to 2"),
    }
    facts = []
    for kind, (label, note) in what.items():
        if kind in explanation:
            block = explanation[kind]
            chance = "" if block["sampling"] is None else f"; by chance {block['sampling']:.3f}"
            value = f"{block['drift']:.3f}, Jaccard@{block['k']} {block['jaccard']:.2f}"
            facts.append(MethodFact(label, value, note + chance))
    return facts
