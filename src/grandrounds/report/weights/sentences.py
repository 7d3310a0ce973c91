"""Sentences that explain the weight of a site in a round.

Every number is read from the round's record, and for features from the explanations; no decision of
a method is recomputed. Missing parts of a record are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds.core.records import Decision, RoundRecord
from grandrounds.report.explanations import Explanations
from grandrounds.report.weights.agreement import cohort_sentences, explanation_sentences
from grandrounds.report.weights.record import SiteView, as_sentence, join_names, percent, percent_parts
from grandrounds.report.weights.signals import (
    custom_signal_sentences,
    lateness_sentences,
    missing_reason,
    refusal_sentences,
    robust_sentences,
    score_sentences,
    selection_sentences,
    trust_sentences,
    uses_trust,
)

STAGES = {
    "select": "Selection",
    "weigh": "Weighting",
    "cohorts": "Cohorts",
    "robust": "Robust aggregation",
    "secure": "Secure aggregation",
    "stability": "Local regularisation",
}
"""Parts of a method and their labels."""

_AFTER = {"weigh": "weighting", "cohorts": "joining cohorts", "robust": "the robust rule", "secure": "secure aggregation"}
_SAME_WEIGHT = 1e-12


def weight_sentences(
    record: RoundRecord,
    site: str,
    *,
    explanations: Explanations | None = None,
    plan: Mapping[str, Any] | None = None,
) -> list[str]:
    """Explain the weight of a site in a round.

    Args:
        record: The record of the round.
        site: The site.
        explanations: explanations.json, which adds the features that the site's model relies on differently.
        plan: The run's plan, which adds the settings of the rules.

    Returns:
        Sentences; the first has the weight itself.
    """
    view = SiteView(record.decision, site, (plan or {}).get("method", {}))
    where = f"round {view.decision.round}, {site}"
    if site not in view.weights:
        return [f"{where}: no weight, because it {_absence_reason(view)}.", *selection_sentences(view)]
    return [
        f"{where}: {_weight_clause(view)}.",
        *selection_sentences(view),
        *_row_sentences(view),
        *cohort_sentences(view),
        *([] if uses_trust(view) else explanation_sentences(view, explanations)),
        *trust_sentences(view),
        *score_sentences(view),
        *_part_sentences(view),
        *_floor_sentences(view),
        *robust_sentences(view),
        *lateness_sentences(view),
        *custom_signal_sentences(view),
        *_stage_weight_sentences(view),
        *_rule_sentences(view),
        *refusal_sentences(view),
        *_note_sentences(view),
        *_model_sentences(view),
    ]


def _absence_reason(view: SiteView) -> str:
    decision, site = view.decision, view.site
    if site in decision.missing:
        return missing_reason(str(decision.missing[site]))
    if view.value("loss") is not None:
        return "was asked for its loss only"
    if (place := view.value("place")) is not None:
        return f"trained and was ranked number {place:.0f}, and was not asked for its model"
    if "staleness" in decision.signals:
        return "had sent no answer by then"
    return "was not asked to take part"


def _weight_clause(view: SiteView) -> str:
    """Give its weight, and its rank among the sites that share with it."""
    peers = view.weight_peers or list(view.weights)
    rest = [view.weights[s] for s in peers if s != view.site]
    cluster = view.value("cluster")
    weight = f"weight {percent(view.weight)}" + (f" in cluster {cluster:.0f}" if cluster is not None else "")
    if not rest:
        return f"{weight}, the only answer" + (" there" if cluster is not None else "")
    level = sum(abs(w - view.weight) <= _SAME_WEIGHT for w in rest)
    if level == len(rest):
        return f"{weight}, as every site that answered" + (" there" if cluster is not None else "")
    rank = 1 + sum(w > view.weight + _SAME_WEIGHT for w in rest)
    ties = f", tied with {level} other{'s' if level > 1 else ''}" if level else ""
    return f"{weight}, number {rank} of {len(peers)}{ties}"


def _row_sentences(view: SiteView) -> list[str]:
    """Give the weight by its rows alone (FedAvg)."""
    rows = {s: n for s, n in view.values("data_size").items() if s in view.weight_peers}
    if view.site not in rows or len(rows) < 2:
        return []
    share = rows[view.site] / sum(rows.values())
    fraction = f"{rows[view.site]:,.0f} of {sum(rows.values()):,.0f}"
    if percent(share) == percent(view.weight):
        return [f"That is its share of the training rows: {fraction}."]
    return [f"By its rows alone ({fraction}) it would have had {percent(share)}."]


def _model_sentences(view: SiteView) -> list[str]:
    """Say which model the explanations are of: `rounds explain --site` tells of the common model."""
    explained = view.value("nsds" if uses_trust(view) else "disagreement") is not None
    return ["Its explanations are of the model that it trained in this round, not of the common model."] if explained else []


def _part_sentences(view: SiteView) -> list[str]:
    """Give the contribution of each signal to its weight."""
    if not view.shares:
        return []
    words = {
        "data": "data size",
        "agreement": "agreement"
        if view.value("in_line") is None
        else "its rows x agreement of explanations",
        "worst_site": "its validation loss",
        "calibration": "its calibration error",
    }
    percents = percent_parts(view.shares)
    if len(percents) == 1:
        only = next(iter(percents))
        return [f"All of its weight comes from {words.get(only, only.replace('_', ' '))}."]
    names = [(words.get(name, name.replace("_", " ")), value) for name, value in percents.items()]
    (first, most), *remaining = names
    rest = join_names([f"{value}% from {name}" for name, value in remaining])
    return [f"Of its weight, {most}% comes from {first}{', ' if len(remaining) > 1 else ' and '}{rest}."]


def _floor_sentences(view: SiteView) -> list[str]:
    """Tell that the minimum weight raised it: after normalisation such a site has the smallest weight of all."""
    floor = view.setting("weigh", "floor")
    blended: Mapping[str, float] = next((s["weights"] for s in view.stages if s["part"] == "weigh"), {})
    if not floor or not set(view.decision.shares or ()) - {"data"} or view.site not in blended:
        return []
    least = min(blended.values())
    if blended[view.site] > least + _SAME_WEIGHT or least >= floor:
        return []
    return [f"It was raised to the minimum weight, {floor:g}, before normalisation."]


def _stage_weight_sentences(view: SiteView) -> list[str]:
    """Give its weight after each part of the method, where a later part changed it."""
    stages = [(_AFTER.get(s["part"], s["part"]), s["weights"].get(view.site)) for s in view.stages if s.get("weights")]
    steps = [(part, percent(weight)) for part, weight in stages if weight is not None]
    if len({weight for _, weight in steps}) < 2:
        return []
    return [f"Its weight was {join_names([f'{weight} after {part}' for part, weight in steps])}."]


def stage_reasons(decision: Decision) -> list[tuple[str, str]]:
    """List the reasons that the parts of the method give for a round.

    Returns:
        (part, reason) in order; last the reasons of no part.
    """
    stages = [s for s in decision.stages or () if s["why"]]
    rest = decision.why
    for stage in stages:
        rest = rest.replace(stage["why"], "")
    rest = "; ".join(words for words in rest.split("; ") if words.strip())
    return [*((STAGES.get(s["part"], s["part"]), s["why"]) for s in stages), *([("Why", rest)] if rest else [])]


def _rule_sentences(view: SiteView) -> list[str]:
    return [as_sentence(f"{part}: {why}") for part, why in stage_reasons(view.decision) if part != STAGES["select"]]


def _note_sentences(view: SiteView) -> list[str]:
    """Repeat the notes of the round, without those on other sites and on flat explanations."""
    theirs = tuple(f"{s}: " for s in view.decision.asked if s != view.site or view.value("flat"))
    return [as_sentence(f"Note: {note}") for note in view.decision.notes if not note.startswith(theirs)]
