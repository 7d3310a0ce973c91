"""Statements about differences between sites: figures of each site, and heterogeneity of AUROC and coefficients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grandrounds.capabilities.dossier.building.evidence import SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Statement, Table, Value, say
from grandrounds.capabilities.dossier.building.statements.data import MOST_SITES, list_names, tabulate_range
from grandrounds.capabilities.dossier.building.statements.performance import NO_TEST, read_interval
from grandrounds.capabilities.dossier.building.statements.run_kind import classifies, has_event, has_test_rows, task_of
from grandrounds.core.outcome import SURVIVAL
from grandrounds.metrics.fairness import is_defined
from grandrounds.metrics.names import metric_label
from grandrounds.metrics.scores import HEADLINE, Place, shown_in

_SITE_METRICS = ("auroc", "sensitivity", "specificity", "ppv", "brier")
_FEW = 10
"""Test rows of the rarer class below which an AUROC is called uncertain."""


def tabulate_per_site(facts: Facts) -> Table:
    """Tabulate figures of each site on its own test rows, with intervals."""
    if not has_test_rows(facts):
        raise MissingFact(NO_TEST)
    per_site = facts.get(SUMMARY, "per_site", default={})
    sites = [site for site, figures in per_site.items() if is_defined(figures.get("count")) and figures["count"] > 0]
    if not sites:
        raise MissingFact("the run has no figures of single sites")
    task = task_of(facts)
    first = (
        _SITE_METRICS
        if has_event(facts)
        else ("auroc", "accuracy", "brier")
        if classifies(facts)
        else shown_in(Place.CARD, task)
    )
    metrics = [m for m in first if m not in ("count", "events") and any(is_defined(per_site[s].get(m)) for s in sites)]
    if len(sites) > MOST_SITES:
        ranges = {metric_label(m): [float(per_site[s][m]) for s in sites if is_defined(per_site[s].get(m))] for m in metrics}
        title = f"Performance over {len(sites):,} sites"
        return tabulate_range(facts, title, ranges, facts.value(SUMMARY, "per_site"), show=".2f")
    counted = has_event(facts) or task == SURVIVAL
    rows: list[tuple[str | Value, ...]] = []
    for site in sites:
        cells: list[str | Value] = [site, facts.value(SUMMARY, "per_site", site, "count", show=",.0f")]
        if counted:
            known = is_defined(per_site[site].get("events"))
            cells.append(facts.value(SUMMARY, "per_site", site, "events", show=",.0f") if known else "-")
        for m in metrics:
            known = is_defined(per_site[site].get(m))
            cells.append(read_interval(facts, ("per_site", site), m, digits=2) if known else "-")
        rows.append(tuple(cells))
    heads = ("site", "test rows", *(("events",) if counted else ()), *map(metric_label, metrics))
    return Table("Performance at each site", heads, tuple(rows), (facts.source(SUMMARY, "per_site"),))


def state_heterogeneity_methods(facts: Facts) -> Iterator[Statement]:
    """State how heterogeneity across sites was handled in the model, and how it was quantified."""
    if has_test_rows(facts):
        yield say("The model was scored at each site on the site's own test rows.", facts.source(SUMMARY, "per_site"))
    if has_event(facts) and has_test_rows(facts):
        yield say(
            "AUROCs of sites were combined by a random-effects meta-analysis of their logits (DerSimonian and Laird).",
            facts.source(SUMMARY, "per_site"),
        )
        yield say(
            "It gives I-squared, and a prediction interval for the AUROC at a new site.",
            facts.source(SUMMARY, "per_site"),
        )
    if facts.get(SUMMARY, "personal", "part", default="none") != "none":
        part = facts.value(SUMMARY, "personal", "part")
        yield say("Each site has a part of the model for itself ({part}).", part=part)
    if facts.has(SUMMARY, "estimates", "fitted", "facts", "intercept"):
        intercept = facts.value(SUMMARY, "estimates", "fitted", "facts", "intercept")
        yield say("The regression has intercepts of sites of the kind '{intercept}'.", intercept=intercept)
    if facts.has(SUMMARY, "estimates", "heterogeneity"):
        yield say(
            "Coefficients were estimated at every site and combined, with Q, I-squared and prediction interval of each.",
            facts.source(SUMMARY, "estimates", "heterogeneity"),
        )
    if facts.get(SUMMARY, "personal", "differences"):
        yield say(
            "Each site tested whether columns have another effect there than in the common model.",
            facts.source(SUMMARY, "personal", "differences"),
        )
    if facts.get(SUMMARY, "cohorts", "count", default=1) > 1:
        yield say("Sites were grouped into {count} cohorts.", count=facts.value(SUMMARY, "cohorts", "count"))


def state_heterogeneity(facts: Facts) -> Iterator[Statement]:
    """State I-squared and the prediction interval of the AUROC across sites."""
    if not has_test_rows(facts):
        raise MissingFact(NO_TEST)
    if not classifies(facts):
        raise MissingFact(
            "I-squared is given for the AUROC, and the outcome has no classes: sites have no intervals of their figures"
        )
    if not has_event(facts):
        raise MissingFact(
            "with three or more classes the AUROC of a site has no interval, so I-squared is not computed"
        )
    from grandrounds.metrics.site_auroc import combine_auroc

    source = facts.value(SUMMARY, "per_site")
    per_site = {
        site: figures
        for site, figures in source.value.items()
        if is_defined(figures.get("count")) and figures["count"] > 0
    }
    found = combine_auroc(per_site)
    if found.i2 is None or found.estimate is None:
        raise MissingFact(
            f"{len(found.sites)} of {len(per_site)} sites have an AUROC with an interval; I-squared needs three"
        )
    rule = "random-effects meta-analysis of logit AUROCs (grandrounds.metrics.site_auroc)"
    mean = f"{found.estimate:.3f} (95% CI {found.low:.3f} to {found.high:.3f})"
    yield say(
        "Over {sites} sites the mean AUROC is {mean}.",
        sites=facts.derive(len(found.sites), "sites in the meta-analysis", source),
        mean=facts.derive(found.estimate, rule, source, text=mean),
    )
    yield say(
        "I-squared is {i2}: that share of the variation between sites is more than chance (Q {q}, p {p}).",
        i2=facts.derive(found.i2, rule, source, show=".0%"),
        q=facts.derive(found.q, rule, source, show=".2f"),
        p=facts.derive(found.q_p, rule, source, show=".3f"),
    )
    yield say(
        "{unseen}",
        unseen=facts.derive([found.prediction_low, found.prediction_high], rule, source, text=found.sentence),
    )
    few = [site for site in found.sites if _count_rarer(per_site[site]) < _FEW]
    if few:
        yield say(
            "The AUROC of {few} has little certainty: fewer than {least} test rows of the rarer class.",
            few=list_names(facts, few, rule, source),
            least=facts.derive(_FEW, "limit of this document", source),
        )
    if found.left_out:
        names = list_names(facts, [f"{site} ({cause})" for site, cause in found.left_out.items()], rule, source)
        yield say("Not in the meta-analysis: {names}.", names=names)


def _count_rarer(figures: Mapping[str, Any]) -> float:
    """Count the test rows of the rarer class; infinite where events are not counted."""
    events, count = figures.get("events"), figures.get("count")
    if not is_defined(events) or not is_defined(count):
        return float("inf")
    return min(float(events), float(count) - float(events))  # type: ignore[arg-type]


def tabulate_heterogeneity(facts: Facts) -> Iterator[Table]:
    """Tabulate the heterogeneity of coefficients across sites; nothing for other models than exact regressions."""
    coefficients = facts.get(SUMMARY, "estimates", "heterogeneity", "coefficients", default=[])
    rows: list[tuple[str | Value, ...]] = []
    for k, c in enumerate(coefficients):
        path = ("estimates", "heterogeneity", "coefficients", k)
        if not is_defined(c.get("i2")) or not is_defined(c.get("prediction_low")):
            continue
        interval = f"{c['prediction_low']:.3g} to {c['prediction_high']:.3g}"
        rows.append(
            (
                facts.value(SUMMARY, *path, "name"),
                facts.value(SUMMARY, *path, "sites"),
                facts.value(SUMMARY, *path, "i2", show=".0%"),
                facts.derive(
                    [c["prediction_low"], c["prediction_high"]],
                    "prediction interval",
                    facts.source(SUMMARY, *path),
                    text=interval,
                ),
            )
        )
    if rows:
        heads = ("coefficient", "sites", "I-squared", "95% prediction interval at a new site")
        yield Table("Heterogeneity of coefficients across sites", heads, tuple(rows))


def state_worst_site(facts: Facts) -> Iterator[Statement]:
    """Name the site with the lowest headline metric among those with enough test rows."""
    if not facts.get(SUMMARY, "worst_site"):
        yield say("No site has enough test rows to be called the lowest.", facts.source(SUMMARY, "worst_site"))
        return
    metric = HEADLINE[task_of(facts)]
    yield say(
        "The lowest {metric} of a site with enough test rows is {value}, at {site} ({count} test rows).",
        metric=facts.derive(
            metric, "headline metric of the task", facts.source(SUMMARY, "worst_site"), text=metric_label(metric)
        ),
        value=read_interval(facts, ("worst_site",), metric),
        site=facts.value(SUMMARY, "worst_site", "site"),
        count=facts.value(SUMMARY, "worst_site", "count", show=",.0f"),
    )
