"""Compare sites and subgroups: rank sites, name the worst, and flag those that the model serves badly.

Functions take the figures of `scores` by name, from a run (floats, NaN where undefined) or from summary.json (None there).
Rounds have no figures of decisions; functions use what is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.records import RunSummary
from grandrounds.metrics.scores import HEADLINE, Place, shown_in
from grandrounds.metrics.statistics import share_interval

Figures = Mapping[str, Any]
Summary = TypeVar("Summary", bound=Mapping[str, Any])

MIN_ROWS = 20
"""Test rows that a site needs before it is ranked or called the worst."""
MIN_PER_CLASS = 5
"""Test rows outside its most common class that a site needs for the same: with two classes, events and non-events."""

_MAX_LISTED = 6
"""Sites below their majority class that are named one by one."""
_CLOSE = 1e-9


@dataclass(frozen=True)
class BelowMajority:
    """A site where always answering its most common class is right more often than the model's decisions.

    `answer`: that class; empty where it is not known (three classes or more).
    """

    site: str
    rows: int
    accuracy: float
    majority: float
    answer: str = ""

    def __str__(self) -> str:
        return self.sentence()

    def sentence(self, threshold_text: str = "") -> str:
        """Return one sentence; `threshold_text`: the threshold as text, where it is not that of the run."""
        constant = f"always answering '{self.answer}'" if self.answer else "always answering its most common class"
        measured = f"accuracy {self.accuracy:.2f}{threshold_text} ({self.rows} test rows)"
        return f"{self.site}: {measured}, {constant} gives {self.majority:.2f}"


def is_defined(value: Any) -> bool:
    """Tell whether a figure is defined: neither None nor NaN."""
    return value is not None and value == value


def decision_key(metric: str, figures: Figures) -> str:
    """Return the key of a metric of the model's decisions; `metric` itself (at 0.5) where these are not counted."""
    key = f"decision_{metric}"
    return key if is_defined(figures.get(key)) else metric


def decision_metric(metric: str, figures: Figures) -> float | None:
    """Return a metric of the model's decisions, None where it is undefined."""
    value = figures.get(decision_key(metric, figures))
    return float(value) if value is not None and is_defined(value) else None


def enough_rows(figures: Figures) -> bool:
    """Tell whether a site has the rows to be ranked: `MIN_ROWS`, and `MIN_PER_CLASS` outside its most common class."""
    count, majority = figures.get("count"), figures.get("majority")
    if not is_defined(count) or not is_defined(majority):
        return False
    return float(count) >= MIN_ROWS and (1 - float(majority)) * float(count) >= MIN_PER_CLASS - 1e-6  # type: ignore[arg-type]


def can_rank(figures: Figures, task: str = CLASSIFICATION) -> bool:
    """Tell whether a site can be ranked by the headline metric of its task: it is defined, and rests on enough rows."""
    if not is_defined(figures.get(HEADLINE[task])):
        return False
    if task == CLASSIFICATION:
        return enough_rows(figures)
    events = figures.get("events", MIN_PER_CLASS)
    return float(figures["count"]) >= MIN_ROWS and is_defined(events) and float(events) >= MIN_PER_CLASS


def rank_sites(per_site: Mapping[str, Figures], task: str = CLASSIFICATION) -> list[str]:
    """Sites with test rows, the lowest AUROC (or other headline metric) first; those with too few rows come last, by name."""
    metric = HEADLINE[task]
    tested = [s for s, m in per_site.items() if is_defined(m.get("count")) and m["count"] > 0]
    ranked = [s for s in tested if can_rank(per_site[s], task)]
    rest = sorted(set(tested) - set(ranked))
    return [*sorted(ranked, key=lambda s: (per_site[s][metric], s)), *rest]


def worst_site(per_site: Mapping[str, Figures], task: str = CLASSIFICATION) -> Figures:
    """Return the site with the lowest AUROC (or other headline metric) among those with enough rows; empty where none has."""
    ranked = [s for s in rank_sites(per_site, task) if can_rank(per_site[s], task)]
    if not ranked:
        return {}
    figures = per_site[ranked[0]]
    return {"site": ranked[0], **{key: figures[key] for key in shown_in(Place.WORST_SITE, task) if key in figures}}


def lowest_accuracy(per_site: Mapping[str, Figures]) -> float | None:
    """Return the lowest accuracy (by the largest probability) of a site with `MIN_ROWS` test rows; None without such a site."""
    accuracies = [m["accuracy"] for m in per_site.values() if is_defined(m.get("accuracy")) and m["count"] >= MIN_ROWS]
    return min(accuracies, default=None)


def below_majority(per_site: Mapping[str, Figures], *, classes: Sequence[str] = ()) -> list[BelowMajority]:
    """Sites whose decisions are right less often than their most common class is true, the largest gap first.

    `classes`: the names of the negative and of the positive class, where there are two.
    """
    below = []
    for site, m in per_site.items():
        right = decision_metric("accuracy", m)
        if right is not None and is_defined(m.get("majority")) and right < m["majority"] - _CLOSE:
            below.append(
                BelowMajority(site, round(m["count"]), right, float(m["majority"]), majority_class(m, classes))
            )
    return sorted(below, key=lambda b: (b.accuracy - b.majority, b.site))


def majority_class(figures: Figures, classes: Sequence[str]) -> str:
    """Return the more common of two classes (negative, positive) in these rows; empty where it is not known."""
    if len(classes) != 2 or not is_defined(figures.get("events")):
        return ""
    return classes[int(2 * figures["events"] > figures["count"])]


NO_MODEL = "each hospital's most common class"
"""The answer without a model, on the test rows of several hospitals."""


def accuracy_without_model(per_site: Mapping[str, Figures], total: Figures) -> float:
    """Compute the accuracy of always answering the most common class of each hospital.

    Args:
        per_site: `count` and `majority` of each hospital's test rows.
        total: The same of all test rows: their `majority` is the answer where rows of a hospital are not known.
    """
    known = _known_hospitals(per_site, total)
    if not known:
        return float(total["majority"])
    return sum(float(m["count"]) * float(m["majority"]) for m in known) / sum(float(m["count"]) for m in known)


def describe_without_model(per_site: Mapping[str, Figures], total: Figures, classes: Sequence[str] = ()) -> str:
    """Name the constant answer that a model is compared with on all test rows.

    Args:
        per_site: Figures of each hospital.
        total: Figures of all test rows.
        classes: The names of the negative and of the positive class, where there are two.
    """
    if len(_known_hospitals(per_site, total)) > 1:
        return f"always answering {NO_MODEL}"
    answer = majority_class(total, classes)
    return f"always answering '{answer}'" if answer else "always answering the most common class"


def _known_hospitals(per_site: Mapping[str, Figures], total: Figures) -> list[Figures]:
    """Return the figures of hospitals with test rows; none where these are not all test rows."""
    known = [m for m in per_site.values() if is_defined(m.get("count")) and m["count"] > 0 and is_defined(m.get("majority"))]
    rows = sum(float(m["count"]) for m in known)
    return known if rows and is_defined(total.get("count")) and abs(rows - float(total["count"])) < 0.5 else []


DEPLOYED_SCORES = (
    "threshold", "final", "per_site", "worst_site", "below_majority", "subgroups", "decision_curve", "reliability",
    "score_counts",
)  # fmt: skip
"""Keys of a summary that `personal` has too, of the models that sites deploy."""


def deployed_scores(summary: Summary) -> Summary:
    """Return a summary with the scores of the models that sites deploy in place of those of the common model.

    Args:
        summary: The summary of a run.

    Returns:
        The summary with `DEPLOYED_SCORES` of the deployed models and without scores of training and validation rows, which
        are of the common model; the summary itself where sites deploy the common model, or where these scores stay at the sites.
    """
    personal = summary.get("personal") or {}
    if "per_site" not in personal:
        return summary
    theirs = {key: personal[key] for key in DEPLOYED_SCORES if key in personal}
    shown: Any = {**summary, **theirs, "training": {}, "validation": {}, "generalisation_gap": {}}
    if isinstance(summary, RunSummary):
        shown = RunSummary.from_dict(shown)
    out: Summary = shown
    return out


def majority_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each site of a run below its own majority class; of fewer than `MIN_ROWS` rows it says nothing.

    Scores are those of the models that sites deploy, where they have personal ones. A threshold chosen for sensitivity costs
    accuracy everywhere. Where all sites together are below their majority classes, one sentence says so, and only sites that are
    below it at 0.5 as well are named.
    """
    summary = deployed_scores(summary)
    final, per_site, threshold = summary["final"], summary["per_site"], float(summary["threshold"] or 0.5)
    answers = {b["site"]: str(b["answer"]) for b in summary.get("below_majority") or ()}
    below = [replace(b, answer=answers.get(b.site, "")) for b in below_majority(per_site) if b.rows >= MIN_ROWS]
    overall = decision_metric("accuracy", final)
    lines, threshold_text = [], ""
    if below and overall is not None and overall < final["majority"] - _CLOSE:
        tested = sum(is_defined(m["count"]) and m["count"] >= MIN_ROWS for m in per_site.values())
        lines.append(
            f"all sites together: accuracy {overall:.2f} at a threshold of {threshold:.3g}, always answering {NO_MODEL} "
            f"gives {final['majority']:.2f}; so it is at {len(below)} of {tested} sites with {MIN_ROWS} test rows or more"
        )
        if threshold != 0.5:
            lines[0] += (
                ". The threshold trades accuracy for sensitivity or specificity: judge the model by these and AUROC"
            )
            threshold_text = " at 0.5"
            below = [replace(b, accuracy=float(per_site[b.site]["accuracy"])) for b in below]
            below = sorted(
                (b for b in below if b.accuracy < b.majority - _CLOSE), key=lambda b: b.accuracy - b.majority
            )
    lines += [b.sentence(threshold_text) for b in below[:_MAX_LISTED]]
    if len(below) > _MAX_LISTED:
        lines.append(f"and {len(below) - _MAX_LISTED} more sites below their most common class")
    return lines


def site_flags(figures: Figures, *, threshold: float = 0.5) -> list[str]:
    """Return remarks on one site for a table: below its majority class, too few rows to rank.

    Args:
        figures: The site's scores.
        threshold: The threshold of its decisions. Only at 0.5 is an accuracy below the majority class a fault: another
            threshold trades accuracy for sensitivity or specificity.
    """
    right = decision_metric("accuracy", figures) if threshold == 0.5 else None
    below = right is not None and is_defined(figures.get("majority")) and right < figures["majority"] - _CLOSE
    few = not enough_rows(figures)
    return [*(["below its majority class"] if below else []), *(["too few rows to rank"] if few else [])]


def intervals(figures: Figures) -> dict[str, tuple[float, float]]:
    """Return 95% intervals by metric: DeLong's of the AUROC, Wilson's of the shares whose rows are known."""
    out: dict[str, tuple[float, float]] = {}
    for metric in ("auroc", "auroc_within"):
        low, high = figures.get(f"{metric}_low"), figures.get(f"{metric}_high")
        if is_defined(low) and is_defined(high):
            out[metric] = (float(low), float(high))  # type: ignore[arg-type]
    for metric, rows in _rows_by_metric(figures).items():
        if is_defined(figures.get(metric)) and rows >= 1:
            out[metric] = share_interval(float(figures[metric]), rows)
    return out


def _rows_by_metric(figures: Figures) -> dict[str, float]:
    """Return the rows that each share is taken of."""
    count = float(figures["count"]) if is_defined(figures.get("count")) else 0.0
    out = {"decision_accuracy": count, "accuracy": count}
    if is_defined(figures.get("events")):
        events = float(figures["events"])
        out |= {"sensitivity": events, "specificity": count - events}
        caught = events * (figures["sensitivity"] if is_defined(figures.get("sensitivity")) else 0.0)
        spared = (count - events) * (figures["specificity"] if is_defined(figures.get("specificity")) else 0.0)
        flagged = caught + (count - events) - spared
        out |= {"ppv": flagged, "npv": count - flagged}
    return out


def clearly_worse(figures: Figures, overall: Figures) -> list[str]:
    """Metrics in which a site or subgroup is clearly worse: the 95% interval lies below the figure of all rows."""
    ends = intervals(figures)
    return [
        metric
        for metric in shown_in(Place.SUBGROUPS)
        if metric in ends and is_defined(overall.get(metric)) and ends[metric][1] < overall[metric] - _CLOSE
    ]


def group_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each subgroup that is clearly worse than all rows, or has too few events to tell."""
    from grandrounds.metrics.names import metric_label

    lines = []
    for name, m in summary["subgroups"].items():
        ends = intervals(m)
        for metric in clearly_worse(m, summary["final"]):
            (low, high), overall = ends[metric], summary["final"][metric]
            interval = f"(95% CI {low:.2f} to {high:.2f})"
            lines.append(f"{name}: {metric_label(metric)} {m[metric]:.2f} {interval}, all rows {overall:.2f}")
        if is_defined(m.get("events")) and min(m["events"], m["count"] - m["events"]) < MIN_PER_CLASS:
            fewer = "events" if m["events"] <= m["count"] - m["events"] else "rows without the event"
            least = min(m["events"], m["count"] - m["events"])
            lines.append(f"{name}: {least:.0f} {fewer} among {m['count']:.0f} test rows, too few to judge")
    return lines
