"""Scores and words of runs that predict a number, a count or the time to an event, for report, console and terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grandrounds.core.outcome import CLASSIFICATION, COUNT, REGRESSION, SURVIVAL
from grandrounds.metrics.fairness import can_rank, is_defined, rank_sites
from grandrounds.metrics.names import metric_label
from grandrounds.metrics.scores import BY_NAME, HEADLINE, Place, shown_in

Figures = Mapping[str, Any]
"""A summary, or the scores of all rows, a site or a subgroup, by name."""

PREDICTIONS = {REGRESSION: "predicted number", COUNT: "expected count", SURVIVAL: "risk score (log hazard)"}
"""Names of a prediction, by task."""


def task_of_run(summary: Figures) -> str:
    """Return the task of a run."""
    return str(summary.get("task") or CLASSIFICATION)


def is_classification(summary: Figures) -> bool:
    """Tell whether a run predicts classes."""
    return task_of_run(summary) == CLASSIFICATION


def outcome_line(summary: Figures) -> str:
    """Describe the outcome of a run that predicts no class: 'outcome: days in hospital, a number'; "" where it is not known."""
    outcome, task = summary.get("outcome") or {}, task_of_run(summary)
    label = outcome.get("label")
    if not label or task == CLASSIFICATION:
        return ""
    if task == SURVIVAL:
        event = f" = {outcome['event']}" if outcome.get("event") not in (None, "") else ""
        return f"outcome: time to {label}{event}, follow-up in {outcome.get('duration')}"
    return f"outcome: {label}, {'a count' if task == COUNT else 'a number'}"


def format_score(metric: str, value: Any) -> str:
    """Format a score with the digits of its metric; "–" where it is not defined."""
    if not is_defined(value):
        return "–"
    digits = BY_NAME[metric].digits if metric in BY_NAME else 3
    return f"{value:,.{digits}f}" if abs(value) < 1e6 else f"{value:.3e}"


def percent(share: float) -> str:
    """Write a share in percent with three digits: "50%", "16.7%", "0.87%"."""
    return f"{100 * share:.3g}%"


def score_interval(metric: str, figures: Figures) -> str:
    """Format the 95% interval of a score, '0.71 to 0.79'; "" where there is none."""
    low, high = figures.get(f"{metric}_low"), figures.get(f"{metric}_high")
    return (
        f"{format_score(metric, low)} to {format_score(metric, high)}" if is_defined(low) and is_defined(high) else ""
    )


def outcome_findings(summary: Figures) -> Iterator[str]:
    """Describe the scores of a run that predicts no class."""
    task, final = task_of_run(summary), summary["final"]
    metric, rows = HEADLINE[task], round(final["count"])
    value = final.get(metric)
    if not is_defined(value):
        yield f"{metric_label(metric)} is not defined for the {rows:,} test rows of all sites."
        return
    yield {REGRESSION: _explained_number, COUNT: _explained_count, SURVIVAL: _ranked}[task](summary, float(value), rows)
    sites = [s for s in rank_sites(summary["per_site"], task) if can_rank(summary["per_site"][s], task)]
    if len(sites) > 1:
        yield _compare_sites(summary, sites, metric)


def _explained_number(summary: Figures, r2: float, rows: int) -> str:
    label, error = (summary.get("outcome") or {}).get("label") or "the outcome", summary["final"].get("rmse")
    size = f"; the root of the mean squared error is {format_score('rmse', error)}" if is_defined(error) else ""
    if r2 <= 0:
        return f"On {rows:,} test rows predictions of {label} are no better than its mean (R2 {r2:.3f}){size}."
    return f"On {rows:,} test rows predictions explain {r2:.0%} of the variance of {label} (R2 {r2:.3f}){size}."


def _explained_count(summary: Figures, d2: float, rows: int) -> str:
    label = (summary.get("outcome") or {}).get("label") or "the count"
    if d2 <= 0:
        return f"On {rows:,} test rows expected counts of {label} are no better than its mean (D2 {d2:.3f})."
    return f"On {rows:,} test rows expected counts explain {d2:.0%} of the Poisson deviance of {label} (D2 {d2:.3f})."


def _ranked(summary: Figures, c: float, rows: int) -> str:
    events = summary["final"].get("events")
    many = f" with {round(events):,} events" if is_defined(events) else ""
    ends = score_interval("c_index", summary["final"])
    within = f" (95% CI {ends})" if ends else ""
    return (
        f"On {rows:,} test rows{many} the C-index is {c:.3f}{within}: in {c:.0%} of comparable pairs of one site, the patient "
        "with the earlier event has the higher risk score."
    )


def _compare_sites(summary: Figures, sites: Sequence[str], metric: str) -> str:
    per_site = summary["per_site"]
    low, high = sites[0], sites[-1]
    return (
        f"{metric_label(metric)} is lowest at {low} ({format_score(metric, per_site[low][metric])}) and highest at {high} "
        f"({format_score(metric, per_site[high][metric])}); part of the difference may be chance."
    )


def shown_scores(place: Place, summary: Figures) -> tuple[str, ...]:
    """List the metrics that a place shows and the run has."""
    final = summary.get("final") or {}
    return tuple(
        m for m in shown_in(place, task_of_run(summary)) if is_defined(final.get(m)) and m not in ("count", "events")
    )
