"""Statements on hazards that the figures of a run show, with the measure that the product has for each."""

from __future__ import annotations

from collections.abc import Iterator

from grandrounds.capabilities.dossier.building.evidence import SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Statement, Table, Value, say
from grandrounds.capabilities.dossier.building.statements.attacks import show_interval

_Hazard = tuple[str, Value, str]


def tabulate_hazards(facts: Facts) -> Table:
    """List hazards that the figures show, each with its figure and a measure."""
    if not facts.get(SUMMARY, "final"):
        raise MissingFact("the run has no figures of a model on test rows to find hazards in")
    rows = tuple(_list_hazards(facts))
    if not rows:
        raise MissingFact("the run has no figures by site, subgroup or calibration to find hazards in")
    return Table("Hazards in the figures of this run", ("hazard", "figure", "measure"), rows, (facts.source(SUMMARY, "final"),))


def _list_hazards(facts: Facts) -> Iterator[_Hazard]:
    if facts.has(SUMMARY, "worst_site", "auroc"):
        figure = show_interval(facts, SUMMARY, "worst_site", name="auroc", low="auroc_low", high="auroc_high")
        site = facts.get(SUMMARY, "worst_site", "site")
        yield f"the model ranks patients worse at {site}", figure, "retrain with more patients of the site, or a personal model"
    if facts.get(SUMMARY, "task", default="classification") == "classification" and facts.has(SUMMARY, "below_majority"):
        yield (
            "decisions are less accurate than always naming the commoner class",
            _count(facts, "sites", "below_majority"),
            "choose the threshold by costs, and read sensitivity and specificity",
        )
    groups = {
        name: float(scores["auroc"])
        for name, scores in facts.get(SUMMARY, "subgroups", default={}).items()
        if scores.get("auroc") is not None
    }
    if len(groups) > 1:
        low, high = min(groups, key=groups.__getitem__), max(groups, key=groups.__getitem__)
        gap = groups[high] - groups[low]
        sources = [facts.source(SUMMARY, "subgroups", name, "auroc") for name in (low, high)]
        text = f"{gap:.3f} ({low} {groups[low]:.3f}, {high} {groups[high]:.3f})"
        figure = facts.derive(gap, "largest minus smallest AUROC of subgroups", *sources, text=text)
        yield "the model is worse for a subgroup (AUROC gap)", figure, "more patients of the subgroup, evaluation.mitigation"
    if facts.has(SUMMARY, "final", "calibration_slope"):
        figure = facts.value(SUMMARY, "final", "calibration_slope", show=".2f")
        yield "risks are too extreme or too timid (calibration slope, 1 is right)", figure, "recalibrate at the site"
    if facts.has(SUMMARY, "generalisation_gap", "auroc"):
        figure = facts.value(SUMMARY, "generalisation_gap", "auroc", show=".3f")
        yield "the model learnt its training rows by heart (AUROC, training minus test)", figure, "fewer epochs, a penalty"
    if facts.has(SUMMARY, "personal", "harmed"):
        hazard = "the deployed model has a clearly worse log loss than a hospital's own model or most common class"
        yield hazard, _count_harmed(facts), "personal.guard"
    if facts.has(SUMMARY, "explanation", "deployed", "drift"):
        figure = facts.value(SUMMARY, "explanation", "deployed", "drift", show=".2f")
        yield "the model relies on other features at other sites (drift of attributions)", figure, "pages of sites"
    if facts.has(SUMMARY, "shortcut", "spurious_gap"):
        figure = facts.value(SUMMARY, "shortcut", "spurious_gap", show=".3f")
        yield "the model uses a mark on images (gap without it)", figure, "heat maps (explain.maps)"


def _count(facts: Facts, unit: str, *path: str) -> Value:
    count = len(facts.raw(SUMMARY, *path))
    return facts.derive(count, f"number of {unit} listed", facts.source(SUMMARY, *path), text=f"{count} {unit}")


def _count_harmed(facts: Facts) -> Value:
    harmed = _count(facts, "sites", "personal", "harmed")
    if not facts.has(SUMMARY, "personal", "tested"):
        return harmed
    tested = _count(facts, "sites", "personal", "tested")
    text = f"{harmed.value} of {tested.value} tested sites"
    return facts.derive(harmed.value, "sites in personal.harmed", harmed, tested, text=text)


def state_warnings(facts: Facts) -> Iterator[Statement]:
    """State the warnings of the run, and notes of sites on replaced values."""
    warnings = facts.raw(SUMMARY, "warnings")
    source = facts.source(SUMMARY, "warnings")
    if not warnings:
        yield say("The run has no warnings.", source)
    for k in range(len(warnings)):
        yield say("Warning of the run: {warning}.", warning=_without_stop(facts, k))
    notes = facts.get(SUMMARY, "notes", default={})
    if notes:
        noted = facts.derive(len(notes), "number of sites in notes", facts.source(SUMMARY, "notes"))
        yield say("Sites with notes on values that were replaced: {sites}.", sites=noted)


def _without_stop(facts: Facts, k: int) -> Value:
    value = facts.value(SUMMARY, "warnings", k)
    return facts.derive(value.value, "the warning", value, text=str(value.value).rstrip("."))


def state_small_sites(facts: Facts) -> Iterator[Statement]:
    """State the smallest number of test rows of a site, since figures there have wide intervals."""
    rows = {site: int(parts.get("test", 0)) for site, parts in facts.raw(SUMMARY, "rows").items()}
    if not rows:
        raise MissingFact("the run has no rows by site")
    smallest = min(rows, key=rows.__getitem__)
    source = facts.source(SUMMARY, "rows", smallest, "test")
    yield say(
        "The smallest test set is that of site {site} with {rows} rows. Figures of few rows have wide intervals.",
        site=facts.derive(smallest, "site with the fewest test rows", source),
        rows=facts.value(SUMMARY, "rows", smallest, "test"),
    )
