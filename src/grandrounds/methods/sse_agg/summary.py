"""Summary of the weights by explanations: sites whose explanations cost them weight until the end of the run."""

from __future__ import annotations

from collections.abc import Sequence

from grandrounds.core.records import RoundRecord

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
