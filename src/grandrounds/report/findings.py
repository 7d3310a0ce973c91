"""Findings of a run in plain language: the sentences that `rounds run` and the report begin with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import NormalDist
from typing import Any

from grandrounds.data.event import Event, order_by_event
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.metrics.fairness import (
    MIN_PER_CLASS,
    MIN_ROWS,
    deployed_scores,
    describe_without_model,
    enough_rows,
    group_lines,
    is_defined,
    majority_class,
)
from grandrounds.metrics.names import metric_label
from grandrounds.metrics.statistics import share_interval
from grandrounds.metrics.within_hospitals import GAP, WITHIN
from grandrounds.report.calibration import calibration_findings
from grandrounds.report.deployed import harm_findings
from grandrounds.report.estimates import describe_differences, describe_effects, read_estimates
from grandrounds.report.fairness import describe_gaps, describe_mitigation
from grandrounds.report.hospitals import BETTER, BY_BENEFIT, WORSE, compare_hospitals, describe_pooled, headline_metric
from grandrounds.report.outcome import is_classification, outcome_findings, percent
from grandrounds.report.risk_card import read_card
from grandrounds.report.shapes import describe_shapes, read_shapes
from grandrounds.report.weights.agreement import demotion_sentences

Figures = Mapping[str, Any]
"""A summary, or the scores of all rows, a site or a subgroup, by name."""

_FEW_EVENTS = 10
"""Test rows of the rarer class below which the scores are called unreliable."""
_MAX_SITES, _MAX_GROUPS, _MAX_FEATURES = 3, 2, 3
"""Sites, subgroups and features that a sentence names at most."""
_MIN_NAMED = 10
"""Test rows of a site whose accuracy below the majority class is named although it may be chance."""
_CLOSE = 1e-9


@dataclass(frozen=True)
class Findings:
    """Findings of a run in plain language, by the question that they answer.

    Attributes:
        effects: The clearest effects of a regression, and those that differ between hospitals.
        event: The event and its share of test rows, or the classes.
        overall: The model against always answering the most common class, and its AUROC or other headline metric.
        calibration: Risks that are clearly too extreme or too close to the middle.
        sites: The worst site against the others.
        harm: Hospitals that are worse off with the model that they deploy.
        majority: Sites whose own most common class is right more often than the model.
        weights: Sites whose explanations cost them weight.
        subgroups: Subgroups that are clearly worse than all rows.
        gaps: Gaps between groups of patients, and a mitigation with its cost.
        features: The features, shapes or card terms that the model relies on most.
    """

    effects: tuple[str, ...] = ()
    event: tuple[str, ...] = ()
    overall: tuple[str, ...] = ()
    calibration: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    harm: tuple[str, ...] = ()
    majority: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    subgroups: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """All findings, in the order of the fields."""
        return [line for field in fields(self) for line in getattr(self, field.name)]


def make_findings(summary: Figures) -> Findings:
    """Describe in plain language what a finished run found.

    A run with estimates begins with its clearest effects and those that differ between hospitals. The other sentences answer,
    in this order: what is the event and how common is it, is the model better than each hospital's most common class, is
    it equally good at every site, is a hospital worse off with the model that it deploys, is that model worse than the majority
    class of a site, which sites lost weight for their explanations, which subgroups are served worse, and which
    features does the model rely on (of an additive model: its most important shapes).

    A run with a threshold other than 0.5 is compared with no model by net benefit at its threshold, since accuracy says little
    about such decisions; other runs by accuracy.

    Intervals are 95% intervals: those of `report.hospitals` for gains over no model, DeLong's for the AUROC.
    Where sites are compared, intervals are adjusted for the number of sites (Bonferroni), since the worst of many sites is low
    by chance alone.

    Where hospitals deploy models of their own, every sentence is of these models (`deployed_scores`).

    Args:
        summary: The summary of a finished run (`Run.summary`, or the object in summary.json).

    Returns:
        Sentences without markup, each a finding of its own. Empty where the run has neither estimates nor test rows.
    """
    final, effects = summary.get("final") or {}, tuple(_effects(summary))
    if not is_defined(final.get("count")) or final["count"] < 1:
        return Findings(
            effects, features=tuple(_shapes(summary)) if summary.get("shapes") or summary.get("card") else ()
        )
    shared = {
        "harm": tuple(harm_findings(summary)),
        "weights": tuple(demotion_sentences(summary.get("demoted") or {})),
        "gaps": tuple(_gaps(summary)),
        "features": tuple(_shapes(summary)),
    }
    deployed = deployed_scores(summary)
    if not is_classification(summary):
        return Findings(effects, overall=tuple(outcome_findings(deployed)), **shared)
    return Findings(
        effects,
        event=tuple(_event(deployed)),
        overall=tuple(_overall(deployed)),
        calibration=tuple(calibration_findings(deployed["final"])),
        sites=tuple(_compare_sites(deployed)),
        majority=tuple(_against_majority(summary)),
        subgroups=tuple(_subgroups(deployed)),
        **shared,
    )


def describe_findings(summary: Figures) -> list[str]:
    """Return the sentences of `make_findings` as one list."""
    return make_findings(summary).lines


def _gaps(summary: Figures) -> list[str]:
    """Describe the gaps between groups of patients, and a mitigation with its cost."""
    fairness = summary.get("fairness") or {}
    return [*describe_gaps(fairness), *describe_mitigation(fairness)]


def _effects(summary: Figures) -> Iterator[str]:
    """Describe the clearest effects of a regression, and those that differ between hospitals."""
    record = read_estimates(summary)
    if record is not None:
        yield from describe_effects(record, ColumnLabels.of_summary(summary))
        yield from describe_differences(record)


def _shapes(summary: Figures) -> Iterator[str]:
    """Describe a risk card or the most important shapes of an additive model; else name the features that the model relies on."""
    record, card = read_shapes(summary), read_card(summary)
    if card is not None:
        yield card.finding
    else:
        yield from _features(summary) if record is None else describe_shapes(record, ColumnLabels.of_summary(summary))


def _event(summary: Figures) -> Iterator[str]:
    """Name the event and its prevalence among test rows, or the classes where there are more than two."""
    final = summary["final"]
    count = round(final["count"])
    if not summary.get("event"):
        classes = [str(c) for c in summary.get("classes") or ()]
        if len(classes) > 2:
            yield f"The model predicts one of {len(classes)} classes; there are {count:,} test rows."
        return
    title = ColumnLabels.of_summary(summary).describe_event(Event.from_dict(summary["event"]))
    if not is_defined(final.get("events")):
        yield f"The event is {title}; there are {count:,} test rows."
        return
    events = round(final["events"])
    yield f"The event is {title}: {events:,} of {count:,} test rows have it ({events / count:.0%})."
    rarer = min(events, count - events)
    if rarer < _FEW_EVENTS:
        kind = "with the event" if events <= count - events else "without the event"
        yield f"Only {rarer} test {_plural(rarer, 'row')} {kind}: the scores below are not reliable."


def _at_threshold(summary: Figures) -> bool:
    """True if decisions are taken at a threshold other than 0.5: net benefit judges them, and accuracy does not."""
    return float(summary.get("threshold") or 0.5) != 0.5 and bool(summary.get("event"))


def _overall(summary: Figures) -> Iterator[str]:
    """Compare the decisions on all test rows with no model, and explain the AUROC."""
    final, compared = summary["final"], compare_hospitals(summary)
    overall = None if compared is None else compared.overall
    better = overall is not None and overall.verdict == BETTER
    benefit = None if overall is None or not _at_threshold(summary) else overall.benefit_gain
    gain = None if overall is None else overall.gain
    verdict = "not clearly better" if overall is None or overall.verdict not in (BETTER, WORSE) else overall.verdict
    if benefit is not None and benefit.low is not None and benefit.high is not None:
        where = " at each hospital" if overall is not None and overall.decisions and overall.decisions.hospitals else ""
        yield (
            f"At the run's threshold ({percent(summary['threshold'])}) the decisions are {verdict} than treating everyone or "
            f"nobody{where}: net benefit {benefit.value:+.4f} against the better of the two (95% CI {benefit.low:+.4f} to "
            f"{benefit.high:+.4f})."
        )
    elif gain is not None and gain.low is not None and gain.high is not None:
        constant = describe_without_model(summary.get("per_site") or {}, final, _class_names(summary))
        yield (
            f"The model is {verdict} than no model: its accuracy is {_percent(final['accuracy'])}, {constant} gives "
            f"{_percent(final['accuracy'] - gain.value)} (difference {_points(gain.value)} points, 95% CI "
            f"{_points(gain.low)} to {_points(gain.high)})."
        )
    yield from _ranks(summary, better)


def _ranks(summary: Figures, better: bool) -> Iterator[str]:
    """Explain the AUROC, within hospitals where there are several; `better`: the decisions are better than no model."""
    final, metric = summary["final"], headline_metric(summary)
    if not all(is_defined(final.get(key)) for key in (metric, f"{metric}_low", f"{metric}_high")):
        return
    pooled = describe_pooled(summary)
    ends = f"95% CI {final[f'{metric}_low']:.3f} to {final[f'{metric}_high']:.3f}"
    text = f"{metric_label(metric)} {final[metric]:.3f} ({'; '.join(note for note in (ends, pooled) if note)})"
    chance = final[f"{metric}_low"] <= 0.5
    if chance:
        whom = "patients of the same hospital" if metric == WITHIN else "patients"
        yield f"The model does not clearly rank {whom} better than chance: {text}."
    elif summary.get("event"):
        of = "pairs of patients of the same hospital" if metric == WITHIN else "pairs"
        pairs = f"in {_percent(final[metric])} of {of}, the patient with the event has the higher risk"
        yield f"{text}: {pairs}." if better else f"It does rank patients better than chance, {text}: {pairs}."
    else:
        yield f"{text}."
    low, high = final.get(f"{GAP}_low"), final.get(f"{GAP}_high")
    if low is not None and high is not None and low > 0:
        verdict = "The model ranks hospitals, not patients" if chance else "The model ranks hospitals as well as patients"
        yield (
            f"{verdict}: the AUROC of all patients pooled is {final[GAP]:.3f} above that within hospitals (95% CI {low:.3f} to "
            f"{high:.3f}), because it also tells hospitals with many events from those with few. That decides about no patient."
        )


@dataclass(frozen=True)
class _SiteScore:
    """A score of one site with its standard error."""

    site: str
    value: float
    error: float
    rows: float


def _compare_sites(summary: Figures) -> Iterator[str]:
    """Compare the worst site with the mean of the others; its difference may be chance."""
    per_site = {s: m for s, m in (summary.get("per_site") or {}).items() if _rows(m) > 0}
    if len(per_site) < 2:
        return
    metric, scores = _site_scores(per_site)
    needed = f"{MIN_ROWS} test rows with {MIN_PER_CLASS} outside the most common class"
    if len(scores) < 2:
        found = "No site has" if not scores else f"Only {scores[0].site} has"
        yield f"Sites cannot be compared: {found[0].lower()}{found[1:]} enough test rows ({needed})."
        return
    worst = min(scores, key=lambda s: (s.value, s.site))
    others = [s for s in scores if s is not worst]
    weights = [s.rows / sum(o.rows for o in others) for s in others]
    mean = sum(w * s.value for w, s in zip(weights, others, strict=True))
    error = math.hypot(worst.error, *(w * s.error for w, s in zip(weights, others, strict=True)))
    gap, half = mean - worst.value, _z(len(scores)) * error
    few = len(per_site) - len(scores)
    too_few = [f"{few} of {len(per_site)} sites {'have' if few > 1 else 'has'} too few test rows to be compared."] if few else []
    if f"{worst.value:.3f}" == f"{mean:.3f}":
        yield f"No difference between the {len(scores)} sites that can be compared: {metric} {mean:.3f}."
        yield from too_few
        return
    clear = gap - half > _CLOSE
    verdict = "The model is not equally good at every site" if clear else "No clear difference between sites"
    rest = f"{others[0].site} has" if len(others) == 1 else f"the mean of the other {len(others)} is"
    yield f"{verdict}: {worst.site} is worst with {metric} {worst.value:.3f}, {rest} {mean:.3f}."
    low, high = max(gap - half, mean - 1), min(gap + half, mean)  # a score is from 0 to 1
    adjusted = f"95% CI {low:.3f} to {high:.3f}, adjusted for {len(scores)} sites"
    chance = "is larger than chance explains" if clear else "may be chance"
    yield f"The difference of {gap:.3f} {chance} ({adjusted})."
    yield from too_few


def _site_scores(per_site: Mapping[str, Figures]) -> tuple[str, list[_SiteScore]]:
    """Return the AUROC of each site with enough rows; its accuracy where fewer than two have an interval of the AUROC."""
    ranked = {site: m for site, m in per_site.items() if enough_rows(m)}
    z = NormalDist().inv_cdf(0.975)
    areas = [
        _SiteScore(site, m["auroc"], max(m["auroc"] - m["auroc_low"], m["auroc_high"] - m["auroc"]) / z, _rows(m))
        for site, m in ranked.items()
        if all(is_defined(m.get(key)) for key in ("auroc", "auroc_low", "auroc_high"))
    ]
    if len(areas) > 1:
        return "AUROC", areas
    accuracies = []
    for site, m in ranked.items():
        if is_defined(m.get("accuracy")):
            low, high = share_interval(float(m["accuracy"]), _rows(m))
            accuracies.append(_SiteScore(site, float(m["accuracy"]), (high - low) / (2 * z), _rows(m)))
    return "accuracy", accuracies


@dataclass(frozen=True)
class MajorityComparison:
    """Accuracy of a model at each site against always answering the site's most common class.

    Attributes:
        tested: The sites with test rows.
        worse: Sites where the model is clearly worse (95% intervals, adjusted for the number of sites), the worst first.
        unclear: Sites with at least ten test rows where it is below the majority class, which may be chance.
        ends: The interval of the difference at each site below its majority class.
    """

    tested: tuple[str, ...] = ()
    worse: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    ends: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def compare_with_majority(summary: Figures) -> MajorityComparison:
    """Compare the model that each site deploys with the site's own majority class; empty for fewer than two sites."""
    per_site = {
        s: m
        for s, m in (deployed_scores(summary).get("per_site") or {}).items()
        if _rows(m) > 0 and is_defined(m.get("accuracy")) and is_defined(m.get("majority"))
    }
    if len(per_site) < 2:
        return MajorityComparison()
    z = _z(len(per_site))
    below = sorted(
        (s for s, m in per_site.items() if m["accuracy"] < m["majority"] - _CLOSE),
        key=lambda s: (per_site[s]["accuracy"] - per_site[s]["majority"], s),
    )
    ends = {s: _difference(per_site[s]["accuracy"], per_site[s]["majority"], _rows(per_site[s]), z) for s in below}
    worse = tuple(s for s in below if ends[s][1] < -_CLOSE)
    unclear = tuple(s for s in below if s not in worse and _rows(per_site[s]) >= _MIN_NAMED)
    return MajorityComparison(tuple(per_site), worse, unclear, ends)


def _against_majority(summary: Figures) -> Iterator[str]:
    """Name the sites whose own majority class is right more often than the model they deploy, and say which may be chance."""
    if _at_threshold(summary):
        yield from _against_no_model(summary)
        return
    model = "the model" if deployed_scores(summary) is summary else "the deployed model"
    compared, summary = compare_with_majority(summary), deployed_scores(summary)
    clear, unclear, sites = compared.worse, compared.unclear, len(compared.tested)
    if not sites:
        return
    for site in clear[:_MAX_SITES]:
        accuracy = _site_accuracy(summary, site, compared.ends[site], sites)
        yield f"At {site} {model} is worse than the majority class: {accuracy}."
    if len(clear) > _MAX_SITES:
        yield f"The same is true at {len(clear) - _MAX_SITES} more {_plural(len(clear) - _MAX_SITES, 'site')}."
    if unclear:
        site = unclear[0]
        accuracy = _site_accuracy(summary, site, compared.ends[site], sites)
        yield f"At {site} {model} is below the majority class, which may be chance: {accuracy}."
        if len(unclear) > 1:
            yield f"The same is true at {len(unclear) - 1} more {_plural(len(unclear) - 1, 'site')}."
    if not clear and not unclear and any(_rows(summary["per_site"][s]) >= _MIN_NAMED for s in compared.tested):
        whose = "" if model == "the model" else " with the model that it deploys"
        yield f"No site with {_MIN_NAMED} test rows or more has an accuracy below its own majority class{whose}."


def _against_no_model(summary: Figures) -> Iterator[str]:
    """Name the hospitals whose decisions at the run's threshold are worse than treating everyone or nobody."""
    compared = compare_hospitals(summary)
    if compared is None or len(compared.tested) < 2:
        return
    worse = [h for h in compared.order(BY_BENEFIT) if h.verdict == WORSE]
    for hospital in worse[:_MAX_SITES]:
        gain = hospital.benefit_gain
        assert gain is not None  # the verdict is by it
        yield (
            f"At {hospital.name} the decisions are worse than treating everyone or nobody: net benefit {gain.value:+.4f} on "
            f"{hospital.test_rows:,} test rows (95% CI {gain.low:+.4f} to {gain.high:+.4f})."
        )
    yield from compared.sentences()[:1]


def _site_accuracy(summary: Figures, site: str, ends: tuple[float, float], sites: int) -> str:
    """Describe a site's accuracy, the accuracy of its majority class, and the interval of the difference."""
    figures = summary["per_site"][site]
    constant = _constant(majority_class(figures, _class_names(summary)))
    difference = _points(figures["accuracy"] - figures["majority"])
    interval = f"95% CI {_points(ends[0])} to {_points(ends[1])}, adjusted for {sites} sites"
    return (
        f"accuracy {_percent(figures['accuracy'])} on {round(_rows(figures))} test rows, {constant} gives "
        f"{_percent(figures['majority'])} (difference {difference} points, {interval})"
    )


def _difference(accuracy: float, majority: float, rows: float, z: float) -> tuple[float, float]:
    """Compute Newcombe's interval of accuracy minus majority, from Wilson's intervals of both.

    It takes the two shares as independent. They are of the same rows, so the interval is wide rather than narrow.
    """
    low, high = share_interval(accuracy, rows, z)
    majority_low, majority_high = share_interval(majority, rows, z)
    gap = accuracy - majority
    return (
        gap - math.hypot(accuracy - low, majority_high - majority),
        gap + math.hypot(high - accuracy, majority - majority_low),
    )


def _subgroups(summary: Figures) -> Iterator[str]:
    """Name the subgroups that are clearly worse than all rows, or too small to judge."""
    lines = group_lines(summary) if summary.get("subgroups") else []
    for line in lines[:_MAX_GROUPS]:
        yield f"Subgroup {line}."
    if len(lines) > _MAX_GROUPS:
        n = len(lines) - _MAX_GROUPS
        yield f"{n} more {'remark on subgroups is' if n == 1 else 'remarks on subgroups are'} in the table of subgroups."


def _features(summary: Figures) -> Iterator[str]:
    """Name the features with the largest share of the attributions."""
    top: Sequence[Figures] = (summary.get("explanation") or {}).get("top") or ()
    labels = ColumnLabels.of_summary(summary)
    named = [f"{labels.find(str(t['feature'])).name} ({t['share']:.0%})" for t in top[:_MAX_FEATURES]]
    if named:
        listed = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
        yield f"The model relies most on {listed}."


def _class_names(summary: Figures) -> tuple[str, ...]:
    """Return the negative and the positive class; all classes where there are more than two."""
    event = summary.get("event")
    return order_by_event([str(c) for c in summary.get("classes") or ()], event["class"] if event else None)


def _constant(answer: str) -> str:
    return f"always answering '{answer}'" if answer else "always answering the most common class"


def _rows(figures: Figures) -> float:
    count = figures.get("count")
    return float(count) if count is not None and is_defined(count) else 0.0


def _percent(share: Any) -> str:
    return f"{float(share):.0%}"


def _points(difference: float) -> str:
    """Format a difference of shares in percentage points, with its sign."""
    rounded = round(100 * difference)
    return f"{rounded:+d}" if rounded else "0"


def _plural(number: int, noun: str) -> str:
    return noun if number == 1 else f"{noun}s"


def _z(comparisons: int) -> float:
    """Return the normal quantile of a 95% interval that is adjusted for so many comparisons."""
    return NormalDist().inv_cdf(1 - 0.025 / max(1, comparisons))
