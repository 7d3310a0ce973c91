"""Statements about performance: figures with intervals, by site and by subgroup, and heterogeneity across sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grandrounds.capabilities.dossier.building.evidence import PLAN, SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import MissingFact, Statement, Table, Value, say
from grandrounds.capabilities.dossier.building.statements.data import list_names
from grandrounds.capabilities.dossier.building.statements.run_kind import (
    classifies,
    defined,
    has_event,
    has_test_rows,
    task_of,
)
from grandrounds.metrics.fairness import NO_MODEL, decision_key, intervals, is_defined
from grandrounds.metrics.names import metric_label
from grandrounds.metrics.scores import BY_NAME, HEADLINE, Place, shown_in
from grandrounds.metrics.within_hospitals import WITHIN

NO_TEST = "no row was set aside for a test, so performance is not known"


_FEW_EVENTS = 10


def read_interval(facts: Facts, path: Sequence[str], metric: str, *, digits: int = 3) -> Value:
    """Read a figure of summary.json with its 95% interval.

    The interval of the AUROC and the C-index is in the summary; shares have Wilson's interval from their rows.

    Args:
        facts: The facts.
        path: Place of the figures, such as ("per_site", "north").
        metric: The metric.
        digits: Digits after the point.

    Returns:
        The figure; its text has the interval where there is one.

    Raises:
        MissingFact: The figure is not defined.
    """
    figure = defined(facts, *path, metric, show=f".{digits}f")
    figures = facts.raw(SUMMARY, *path)
    ends = _ends(figures, metric)
    if ends is None:
        return figure
    text = f"{figure.text} (95% CI {ends[0]:.{digits}f} to {ends[1]:.{digits}f})"
    return facts.derive(
        figure.value, "the figure with its 95% interval", figure, facts.source(SUMMARY, *path), text=text
    )


def _ends(figures: Mapping[str, Any], metric: str) -> tuple[float, float] | None:
    low, high = figures.get(f"{metric}_low"), figures.get(f"{metric}_high")
    if is_defined(low) and is_defined(high):
        return float(low), float(high)  # type: ignore[arg-type]
    return intervals(figures).get(metric)


def state_headline(facts: Facts) -> Iterator[Statement]:
    """State the main figure on test rows: AUROC within hospitals, C-index, R2 or D2; and the model that it is of."""
    if not has_test_rows(facts):
        raise MissingFact(NO_TEST)
    within = is_defined(facts.get(SUMMARY, "final", WITHIN))
    metric = WITHIN if within else HEADLINE[task_of(facts)]
    values = {
        "count": facts.value(SUMMARY, "final", "count", show=",.0f"),
        "metric": facts.derive(
            metric, "headline metric of the task", facts.source(SUMMARY, "final"), text=metric_label(metric)
        ),
        "value": read_interval(facts, ("final",), metric),
    }
    if is_defined(facts.get(SUMMARY, "final", "events")):
        events = facts.value(SUMMARY, "final", "events", show=",.0f")
        yield say("On {count} test rows with {events} events, {metric} is {value}.", events=events, **values)
    else:
        yield say("On {count} test rows, {metric} is {value}.", **values)
    if within:
        yield say("Over all patients pooled, AUROC is {value}.", value=read_interval(facts, ("final",), "auroc"))
    if facts.has(SUMMARY, "personal", "per_site"):
        yield say(
            "Figures are of the common model; those of the models that hospitals deploy are with the updates of the model.",
            facts.source(SUMMARY, "personal"),
        )


def state_calibration_figures(facts: Facts) -> Iterator[Statement]:
    """State calibration on test rows."""
    if not classifies(facts):
        if is_defined(facts.get(SUMMARY, "final", "bias")):
            yield say(
                "The mean error of predictions is {bias}.", bias=facts.value(SUMMARY, "final", "bias", show=".3g")
            )
        return
    if is_defined(facts.get(SUMMARY, "final", "calibration_slope")):
        yield say(
            "The calibration slope is {slope} (ideal 1), and calibration in the large {intercept} (ideal 0).",
            slope=read_interval(facts, ("final",), "calibration_slope", digits=2),
            intercept=read_interval(facts, ("final",), "calibration_in_the_large", digits=2),
        )
    if is_defined(facts.get(SUMMARY, "final", "ece")):
        yield say("The expected calibration error is {ece}.", ece=facts.value(SUMMARY, "final", "ece", show=".3f"))


def state_decisions(facts: Facts) -> Iterator[Statement]:
    """State sensitivity, specificity and predictive values at the threshold, and the accuracy of the most common class."""
    if not has_test_rows(facts):
        raise MissingFact(NO_TEST)
    if not classifies(facts):
        return
    if has_event(facts) and is_defined(facts.get(SUMMARY, "final", "sensitivity")):
        threshold = facts.value(SUMMARY, "threshold", show=".3g")
        first = read_interval(facts, ("final",), "sensitivity"), read_interval(facts, ("final",), "specificity")
        yield say(
            "At a threshold of {threshold}, sensitivity is {sensitivity} and specificity {specificity}.",
            threshold=threshold,
            sensitivity=first[0],
            specificity=first[1],
        )
        if is_defined(facts.get(SUMMARY, "final", "ppv")) and is_defined(facts.get(SUMMARY, "final", "npv")):
            yield say(
                "The positive predictive value is {ppv} and the negative predictive value {npv}.",
                ppv=read_interval(facts, ("final",), "ppv"),
                npv=read_interval(facts, ("final",), "npv"),
            )
    key = decision_key("accuracy", facts.raw(SUMMARY, "final"))
    if is_defined(facts.get(SUMMARY, "final", key)) and is_defined(facts.get(SUMMARY, "final", "majority")):
        yield say(
            f"Decisions have an accuracy of {{accuracy}}; always answering {NO_MODEL} has {{majority}}.",
            accuracy=read_interval(facts, ("final",), key),
            majority=facts.value(SUMMARY, "final", "majority", show=".3f"),
        )


def state_net_benefit(facts: Facts) -> Iterator[Statement]:
    """State the net benefit near the threshold of decisions, of the model and of treating everybody; nothing without a curve."""
    curve, threshold = facts.get(SUMMARY, "decision_curve", default={}), facts.get(SUMMARY, "threshold")
    if not curve.get("thresholds") or not is_defined(threshold):
        return
    k = min(range(len(curve["thresholds"])), key=lambda i: abs(curve["thresholds"][i] - threshold))
    if not all(is_defined(curve[name][k]) for name in ("model", "treat_all")):
        return
    yield say(
        "At a threshold of {threshold} the net benefit for each patient is {model}; treating all patients has {all}.",
        threshold=facts.value(SUMMARY, "decision_curve", "thresholds", k, show=".2f"),
        model=facts.value(SUMMARY, "decision_curve", "model", k, show=".3f"),
        all=facts.value(SUMMARY, "decision_curve", "treat_all", k, show=".3f"),
    )


def list_metrics(facts: Facts) -> tuple[str, ...]:
    """List the metrics of the documents' table that the run has."""
    final = facts.get(SUMMARY, "final", default={})
    chosen = shown_in(Place.CARD, task_of(facts))
    keys = [decision_key(m, final) if f"decision_{m}" in BY_NAME else m for m in chosen]
    return tuple(m for m in dict.fromkeys(keys) if is_defined(final.get(m)) and m not in ("count", "events"))


def tabulate_metrics(facts: Facts) -> Table:
    """Tabulate all figures on test rows with their intervals."""
    if not has_test_rows(facts):
        raise MissingFact(NO_TEST)
    rows = tuple((metric_label(m), read_interval(facts, ("final",), m)) for m in list_metrics(facts))
    return Table(
        "Performance on test rows of all sites", ("measure", "value (95% CI)"), rows, (facts.source(SUMMARY, "final"),)
    )


def require_intervals(facts: Facts) -> Iterator[Statement]:
    """Ask for an interval of each figure.

    Raises:
        MissingFact: There are such figures.
    """
    figures = facts.get(SUMMARY, "final", default={})
    bare = [metric_label(m) for m in list_metrics(facts) if _ends(figures, m) is None]
    if bare:
        raise MissingFact(f"the summary has no interval of: {', '.join(bare)}")
    return iter(())


def tabulate_measures(facts: Facts) -> Table:
    """Tabulate the measures with their definitions."""
    names = list_metrics(facts)
    if not names:
        raise MissingFact(NO_TEST)
    rows = tuple(
        (facts.derive(m, "metric of the summary", facts.source(SUMMARY, "final", m), text=metric_label(m)), _define(m))
        for m in names
    )
    return Table("Measures of performance", ("measure", "definition"), rows)


def _define(metric: str) -> str:
    return BY_NAME[metric].text or metric_label(metric)


def state_plots(facts: Facts) -> Iterator[Statement]:
    """State the plots of the report."""
    if facts.get(SUMMARY, "reliability", "count"):
        yield say("report.html has a reliability diagram.", facts.source(SUMMARY, "reliability"))
    if facts.get(SUMMARY, "decision_curve", "thresholds"):
        yield say(
            "report.html has a decision curve, which shows clinical utility.", facts.source(SUMMARY, "decision_curve")
        )
    if has_test_rows(facts):
        yield say(
            "Intervals of the AUROC are DeLong's; intervals of shares are Wilson's; all have a level of 95%."
            if classifies(facts)
            else "Figures are shown with 95% intervals where the summary has them.",
            facts.source(SUMMARY, "final"),
        )


def state_overfitting(facts: Facts) -> Iterator[Statement]:
    """State figures of training rows beside those of test rows."""
    metric = HEADLINE[task_of(facts)]
    if not is_defined(facts.get(SUMMARY, "training", metric)) or not is_defined(facts.get(SUMMARY, "final", metric)):
        raise MissingFact("training rows were not scored, so optimism is not known")
    yield say(
        "{metric} is {training} on training rows and {test} on test rows.",
        metric=facts.derive(
            metric, "headline metric of the task", facts.source(SUMMARY, "training"), text=metric_label(metric)
        ),
        training=read_interval(facts, ("training",), metric),
        test=read_interval(facts, ("final",), metric),
    )


def state_simulated_faults(facts: Facts) -> Iterator[Statement]:
    """State attacks, shortcuts and shifts that the run simulated for research; nothing where it simulated none."""
    attacked = facts.get(SUMMARY, "attacks", "sites", default={})
    if attacked:
        names = [f"{site} ({kind})" for site, kind in attacked.items()]
        sites = list_names(facts, names, "sites that simulated an attack", facts.value(SUMMARY, "attacks", "sites"))
        yield say("The run simulated attacks by sites: {sites}. Its model is for research alone.", sites=sites)
    if facts.get(PLAN, "data", "shortcut", "p", default=0):
        share = facts.value(PLAN, "data", "shortcut", "p", show=".0%")
        yield say("A patch was planted in {share} of images of chosen classes, for research on shortcuts.", share=share)
    if facts.get(PLAN, "data", "shift", "strength", default=0):
        strength = facts.value(PLAN, "data", "shift", "strength", show="g")
        yield say("Images of sites were changed to simulate scanners (strength {strength}).", strength=strength)


def state_limits(facts: Facts) -> Iterator[Statement]:
    """State limits of the evaluation that the run knows: few events, sites of the evaluation, decisions."""
    events, count = facts.get(SUMMARY, "final", "events"), facts.get(SUMMARY, "final", "count")
    if has_event(facts) and is_defined(events) and is_defined(count) and min(events, count - events) < _FEW_EVENTS:
        fewest = facts.derive(
            min(events, count - events),
            "fewer of events and other rows",
            facts.source(SUMMARY, "final", "events"),
            show=",.0f",
        )
        yield say("Only {fewest} test rows are of the rarer class: figures have little certainty.", fewest=fewest)
    if facts.get(PLAN, "split", "scheme", default="within") == "within":
        yield say(
            "Test rows are of the sites that trained the model. No other hospital has evaluated it in this run.",
            facts.source(PLAN, "split", "scheme"),
        )
    below = facts.get(SUMMARY, "below_majority", default=())
    if below:
        source = facts.value(SUMMARY, "below_majority")
        names = list_names(facts, [str(b["site"]) for b in below], "sites in below_majority", source)
        yield say("Decisions are less accurate than the most common class at: {names}.", names=names)
