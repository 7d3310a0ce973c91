"""Statements about explanations: features that the model relies on, and their agreement between sites."""

from __future__ import annotations

from collections.abc import Iterator

from grandrounds.capabilities.dossier.building.evidence import SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Statement, Table, say
from grandrounds.metrics.fairness import is_defined

NO_EXPLANATION = "the run has no feature attributions (explain.sketch)"


def tabulate_features(facts: Facts) -> Table:
    """Tabulate the features with the largest share of the attributions."""
    top = facts.get(SUMMARY, "explanation", "top", default=[])
    if not top:
        raise MissingFact(NO_EXPLANATION)
    path = ("explanation", "top")
    rows = tuple(
        (facts.value(SUMMARY, *path, k, "feature"), facts.value(SUMMARY, *path, k, "share", show=".1%"))
        for k in range(len(top))
    )
    return Table("Features that the model relies on most", ("feature", "share of attributions"), rows)


def state_agreement(facts: Facts) -> Iterator[Statement]:
    """State how much feature attributions differ between sites, beside the difference that chance alone gives."""
    path = ("explanation", "deployed")
    if not is_defined(facts.get(SUMMARY, *path, "drift")):
        raise MissingFact("attributions of single sites are not in the summary, or there is one site")
    drift = facts.value(SUMMARY, *path, "drift", show=".2f")
    if is_defined(facts.get(SUMMARY, *path, "sampling")):
        sampling = facts.value(SUMMARY, *path, "sampling", show=".2f")
        yield say(
            "Attributions of two sites differ by {drift} on average (0 to 2); chance alone gives {sampling}.",
            drift=drift,
            sampling=sampling,
        )
    else:
        yield say("Attributions of two sites differ by {drift} on average (0 to 2).", drift=drift)


def state_meaning(facts: Facts) -> Statement:
    """State what an attribution does not tell."""
    if not facts.has(SUMMARY, "explanation", "explainer"):
        raise MissingFact(NO_EXPLANATION)
    return say(
        "A share shows what the model relies on, not the cause of the outcome.",
        facts.source(SUMMARY, "explanation", "explainer"),
    )
