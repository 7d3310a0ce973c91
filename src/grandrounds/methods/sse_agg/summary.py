"""SSE-AGG's own numbers: drift of explanations (eq. 13), and the sites whose explanations cost them weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from grandrounds.core.method_facts import MethodFact
from grandrounds.core.records import Part, RoundRecord, RunSummary

KEEPS_ALL = 0.9995
"""Share of its rows' weight from which a site keeps all of it."""

_NAMED = 3
"""Sites that a fact names."""


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
    return (*facts, _weight_fact(summary))


def weight_numbers(records: Sequence[RoundRecord]) -> dict[str, dict[str, float]]:
    """Compare the weights of the last round with explanations with the shares of rows.

    Returns:
        By site: `weight`, `by_rows` (its share of the rows) and `distance` of its explanations from the consensus, the greatest
        loss first. Empty where no round had explanations.
    """
    explained = [r.decision for r in records if r.decision.signals.get("disagreement")]
    if not explained:
        return {}
    last = explained[-1]
    weights = next((s.weights for s in last.stages if s.part == "weigh" and s.weights), last.weights)
    distance = last.signals["disagreement"]
    rows = {s: n for s, n in last.signals.get("data_size", {}).items() if s in weights and s in distance}
    found = {
        s: {"weight": float(weights[s]), "by_rows": n / sum(rows.values()), "distance": float(distance[s])}
        for s, n in rows.items()
    }
    return {s: found[s] for s in sorted(found, key=lambda s: (found[s]["weight"] - found[s]["by_rows"], s))}


def _weight_fact(summary: RunSummary) -> MethodFact:
    """Name the sites that lost most weight, and how far their explanations lie from the consensus."""
    numbers: Mapping[str, Mapping[str, float]] = summary.method_numbers.get("weights", {})
    lost = {s: n for s, n in numbers.items() if n["weight"] < n["by_rows"] * KEEPS_ALL}
    named = [
        f"{s} {n['weight']:.1%}, not {n['by_rows']:.1%} by rows, at distance {n['distance']:.2f}"
        for s, n in list(lost.items())[:_NAMED]
    ]
    more = f"; {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    usual = median(n["distance"] for n in numbers.values()) if numbers else 0.0
    note = f"distance of explanations from the consensus; median of all sites {usual:.2f}" if lost else ""
    return MethodFact("weight lost for explanations", "; ".join(named) + more or "no site", note)


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
