"""Scores and words of runs that predict a number, a count or the time to an event, for report, console and terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grandrounds.core.outcome import CLASSIFICATION, COUNT, REGRESSION, SURVIVAL
from grandrounds.metrics.fairness import MIN_ROWS, is_defined
from grandrounds.metrics.names import metric_label
from grandrounds.metrics.scores import BY_NAME, HIGHER_IS_BETTER

Figures = Mapping[str, Any]
"""A summary, or the scores of all rows, a site or a subgroup, by name."""


@dataclass(frozen=True)
class OutcomeWords:
    """Words and metrics of a task.

    Attributes:
        prediction: Name of a prediction.
        main: The metric by which sites are ranked.
        metrics: Metrics that pages show, in order.
        meaning: The main metric in words.
    """

    prediction: str
    main: str
    metrics: tuple[str, ...]
    meaning: str


OUTCOMES = {
    REGRESSION: OutcomeWords(
        "predicted value", "rmse", ("rmse", "mae", "r2", "bias"),
        "the root of the mean squared error, in units of the outcome",
    ),
    COUNT: OutcomeWords(
        "expected count", "deviance", ("deviance", "d2", "rmse", "mae", "bias"),
        "the mean Poisson deviance; lower is better",
    ),
    SURVIVAL: OutcomeWords(
        "risk score", "c_index", ("c_index", "brier", "ibs"),
        "the share of comparable pairs in which the patient with the earlier event has the higher risk score",
    ),
}  # fmt: skip


def task_of(summary: Figures) -> str:
    """Return the task of a run; runs of earlier versions are of classification."""
    return str(summary.get("task") or CLASSIFICATION)


def words_of(summary: Figures) -> OutcomeWords | None:
    """Return the words and metrics of a run; None for classification, whose pages have their own."""
    return OUTCOMES.get(task_of(summary))


def shown_metrics(summary: Figures) -> tuple[str, ...]:
    """List the metrics of a run that pages show: those of its task that it has."""
    outcome, final = words_of(summary), summary.get("final") or {}
    assert outcome is not None
    return tuple(m for m in outcome.metrics if is_defined(final.get(m)))


def format_score(metric: str, value: Any) -> str:
    """Format a score with the digits of its metric; "–" where it is not defined."""
    if not is_defined(value):
        return "–"
    digits = BY_NAME[metric].digits if metric in BY_NAME else 3
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3e}"


def score_interval(metric: str, figures: Figures) -> str:
    """Format the 95% interval of a score, '0.71 to 0.79'; "" where there is none."""
    low, high = figures.get(f"{metric}_low"), figures.get(f"{metric}_high")
    return f"{format_score(metric, low)} to {format_score(metric, high)}" if is_defined(low) and is_defined(high) else ""


def rank_by_task(summary: Figures) -> list[str]:
    """List the sites with test rows, the worst by the task's main metric first; sites with few rows come last, by name."""
    outcome = words_of(summary)
    assert outcome is not None
    per_site, metric = summary.get("per_site") or {}, outcome.main
    tested = [s for s, m in per_site.items() if is_defined(m.get("count")) and m["count"] > 0]
    ranked = [s for s in tested if per_site[s]["count"] >= MIN_ROWS and is_defined(per_site[s].get(metric))]
    sign = 1 if HIGHER_IS_BETTER.get(metric, metric == "c_index") else -1
    return [*sorted(ranked, key=lambda s: (sign * per_site[s][metric], s)), *sorted(set(tested) - set(ranked))]


def outcome_findings(summary: Figures) -> Iterator[str]:
    """Describe the scores of a run that predicts no class."""
    outcome, final = words_of(summary), summary["final"]
    assert outcome is not None
    rows, value = round(final["count"]), final.get(outcome.main)
    if not is_defined(value):
        yield f"There are {rows:,} test rows; {metric_label(outcome.main)} is not defined for them."
        return
    ends = score_interval(outcome.main, final)
    within = f" (95% CI {ends})" if ends else ""
    yield (
        f"On {rows:,} test rows of all sites {metric_label(outcome.main)} is {format_score(outcome.main, value)}{within}: "
        f"{outcome.meaning}."
    )
    if is_defined(final.get("r2")):
        yield _explained(float(final["r2"]))
    if outcome.main == "c_index":
        low = final.get("c_index_low")
        if is_defined(low) and low <= 0.5:
            yield "The model does not clearly rank patients better than chance."
    sites = [s for s in rank_by_task(summary) if summary["per_site"][s]["count"] >= MIN_ROWS]
    if len(sites) > 1:
        yield _worst_site(summary, sites, outcome.main)


def _explained(r2: float) -> str:
    if r2 <= 0:
        return f"R-squared is {r2:.3f}: predictions are no better than the mean of the outcome."
    return f"R-squared is {r2:.3f}: predictions explain {r2:.0%} of the variance of the outcome."


def _worst_site(summary: Figures, sites: Sequence[str], metric: str) -> str:
    per_site = summary["per_site"]
    worst, best = sites[0], [s for s in sites if is_defined(per_site[s].get(metric))][-1]
    ends = score_interval(metric, per_site[worst])
    within = f" (95% CI {ends})" if ends else ""
    return (
        f"{metric_label(metric)} is worst at {worst}, {format_score(metric, per_site[worst].get(metric))}{within}, and best at "
        f"{best}, {format_score(metric, per_site[best].get(metric))}; sites also differ in how much their outcomes vary."
    )
