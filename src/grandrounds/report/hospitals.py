"""Hospitals compared fairly: discrimination, calibration, gain over the majority class and net benefit, each with an interval.

Raw accuracy is no basis of a comparison: it follows the share of events. Hospitals are ordered by AUROC, or by the gain of the
decisions over always answering the hospital's most common class. Hospitals that only trained have a row too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.records import RoundRecord
from grandrounds.methods.baselines import POOL
from grandrounds.metrics.confusion import Decisions, Estimate, majority_gain, observed_to_expected, read_decisions
from grandrounds.metrics.fairness import MIN_PER_CLASS, MIN_ROWS, can_rank, deployed_scores, is_defined, site_flags
from grandrounds.metrics.names import metric_label
from grandrounds.metrics.scores import HEADLINE
from grandrounds.metrics.within_hospitals import WITHIN
from grandrounds.report.outcome import percent, task_of_run

if TYPE_CHECKING:
    from grandrounds.metrics.site_auroc import SiteAUROC

Figures = Mapping[str, Any]
"""A summary, or the scores of all rows, a site or a subgroup, by name."""

BY_SCORE, BY_GAIN, BY_BENEFIT, BY_NAME, BY_ROWS = "auroc", "gain", "benefit", "name", "rows"
ORDERS = {
    BY_SCORE: "AUROC, lowest first",
    BY_GAIN: "gain over the majority class, lowest first",
    BY_BENEFIT: "net benefit over no model, lowest first",
    BY_NAME: "name",
    BY_ROWS: "test rows, most first",
}
"""Orders of hospitals; raw accuracy is none of them."""

_CLOSE = 1e-9
ONLY_TRAINED = "trained only: it has no test patients, so it has no test figures"
BETTER, WORSE, UNCLEAR = "better", "worse", "unclear"


@dataclass(frozen=True)
class Hospital:
    """Figures of one hospital, or of all together, on its own test patients.

    Attributes:
        name: The hospital.
        train_rows: Rows that it trained with.
        test_rows: Rows that it was tested with.
        events: Test rows with the event; None where there are no two classes.
        weight: Mean share in the common model over the rounds that weighed it; None where it was never weighed.
        score: AUROC (or the headline metric of the task) with its interval.
        gain: Accuracy of the decisions at the run's threshold less the share of the hospital's most common class (of all
            hospitals together: less that of each hospital's).
        accuracy: Accuracy of the decisions at the run's threshold.
        calibration: Observed over expected events; None where the run did not record the expected number.
        slope: Calibration slope with its interval.
        decisions: Counts of decisions at the run's threshold; None where there are no two classes.
        ranked: Whether it has the test rows to be ranked.
        notes: Remarks for people.
    """

    name: str
    train_rows: int
    test_rows: int
    events: int | None = None
    weight: float | None = None
    score: Estimate | None = None
    gain: Estimate | None = None
    accuracy: Estimate | None = None
    calibration: Estimate | None = None
    slope: Estimate | None = None
    decisions: Decisions | None = None
    ranked: bool = False
    notes: tuple[str, ...] = ()

    @property
    def net_benefit(self) -> Estimate | None:
        """Net benefit at the run's threshold."""
        return None if self.decisions is None else self.decisions.net_benefit

    @property
    def benefit_gain(self) -> Estimate | None:
        """Net benefit at the run's threshold less that of treating everyone or nobody, whichever is better here."""
        return None if self.decisions is None else self.decisions.benefit_gain

    @property
    def verdict(self) -> str:
        """Compare the decisions with no model: better, worse, unclear; "" without test rows.

        With two classes by net benefit, which is the gain over the majority class at a threshold of 0.5. At a lower threshold
        that gain counts a missed patient as much as a false alarm, which the threshold does not. Fewer than `MIN_ROWS` test
        patients prove nothing.
        """
        found = self.benefit_gain or self.gain
        if found is None:
            return ""
        if self.test_rows < MIN_ROWS or not found.excludes(0.0):
            return UNCLEAR
        return BETTER if found.value > 0 else WORSE

    @property
    def verdict_text(self) -> str:
        """State the verdict for people."""
        texts = {
            BETTER: "better than no model",
            WORSE: "worse than no model",
            UNCLEAR: "not clearly different from no model",
        }
        return texts.get(self.verdict, "")


@dataclass(frozen=True)
class HospitalComparison:
    """The hospitals of a run.

    Attributes:
        metric: Key of the metric that `score` holds.
        threshold: Threshold of all decisions; None where the run predicts no class.
        deployed: Whether figures are of the models that hospitals deploy; otherwise of the common model.
        common_threshold: Threshold of the common model.
        pooled_text: The AUROC of all patients pooled, beside the mean within hospitals; "" where there is no such mean.
        hospitals: All hospitals, by name.
        overall: All test patients together; its score is the mean within hospitals, where the run has one.
        unseen: Random-effects summary of the hospitals' AUROCs; None for other metrics.
    """

    metric: str
    threshold: float | None
    deployed: bool
    hospitals: tuple[Hospital, ...]
    overall: Hospital
    unseen: SiteAUROC | None = None
    common_threshold: float | None = None
    pooled_text: str = ""

    @property
    def label(self) -> str:
        """Name of the metric for people."""
        return metric_label(self.metric)

    @property
    def model_text(self) -> str:
        """Name the model that the figures are of."""
        return "the model that each hospital deploys" if self.deployed else "the common model"

    @property
    def threshold_text(self) -> str:
        """State the threshold that decisions are taken at; "" where there are none."""
        if self.threshold is None:
            return ""
        if self.overall.decisions is None:
            return "Decisions are the class with the highest probability."
        name = name_threshold(self.threshold, self.common_threshold)
        same = self.common_threshold is None or abs(self.threshold - self.common_threshold) < _CLOSE
        other = "" if same else f" (common model: {percent(self.common_threshold or 0.5)})"
        return f"Decisions are taken at {name}: a risk of {percent(self.threshold)} or more is called positive{other}."

    @property
    def reading(self) -> str:
        """Explain how to read gains at the run's threshold."""
        if self.threshold is None or self.overall.decisions is None:
            return ""
        if self.threshold == 0.5:
            return "No model means to answer the hospital's most common class for everyone: net benefit at 50% measures it."
        return (
            "No model means to treat everyone or nobody, whichever is better at this threshold (net benefit). The threshold "
            "trades accuracy for sensitivity or specificity, so a useful model can be less accurate than the majority class."
        )

    @cached_property
    def tested(self) -> tuple[Hospital, ...]:
        """Hospitals with test patients."""
        return tuple(h for h in self.hospitals if h.test_rows)

    @cached_property
    def trained_only(self) -> tuple[Hospital, ...]:
        """Hospitals without test patients."""
        return tuple(h for h in self.hospitals if not h.test_rows)

    def order(self, by: str = BY_SCORE) -> tuple[Hospital, ...]:
        """Order the hospitals; those that cannot be ranked come after the others, those that only trained last.

        Args:
            by: A key of `ORDERS`.
        """
        return tuple(sorted(self.hospitals, key=lambda h: (not h.test_rows, *_place(h, by))))

    def find(self, name: str) -> Hospital | None:
        """Return a hospital by name."""
        return next((h for h in self.hospitals if h.name == name), None)

    def sentences(self) -> list[str]:
        """Summarise the comparison: hospitals where the model is better than none, and the AUROC at an unseen hospital."""
        out = []
        judged = [h for h in self.tested if h.gain is not None]
        if judged:
            counts = {v: sum(h.verdict == v for h in judged) for v in (BETTER, WORSE, UNCLEAR)}
            out.append(
                f"The model's decisions are clearly better than no model at {counts[BETTER]} of {len(judged)} hospitals and "
                f"clearly worse at {counts[WORSE]}; at {counts[UNCLEAR]} this is not clear (95% intervals)."
            )
        found = self.unseen
        if found is not None and self.overall.score is not None and self.pooled_text:
            out.append(f"{_state('The AUROC within hospitals is', self.overall.score)}; {self.pooled_text}.")
        if found is not None and self.tested:
            out.append(found.sentence)
        if self.trained_only:
            n = len(self.trained_only)
            out.append(
                f"{n} {'hospital has' if n == 1 else 'hospitals have'} no test patients and no test figures: they only trained."
            )
        return out


def compare_hospitals(
    summary: Figures, rounds: Sequence[RoundRecord] = (), *, deployed: bool = True
) -> HospitalComparison | None:
    """Compare the hospitals of a finished run.

    Args:
        summary: The summary of the run.
        rounds: Its rounds, for the hospitals' weights.
        deployed: Use the models that hospitals deploy where they differ from the common one.

    Returns:
        The comparison; None for a run without scores of hospitals.
    """
    shown = deployed_scores(summary) if deployed else summary
    is_deployed = shown is not summary
    per_site: Mapping[str, Figures] = shown.get("per_site") or {}
    if not per_site and not summary.get("final"):
        return None
    task = task_of_run(summary)
    threshold = None
    if task == CLASSIFICATION:
        chosen = summary["personal"].get("threshold") if is_deployed else summary.get("threshold")
        threshold = 0.5 if chosen is None else float(chosen)
    rows: Mapping[str, Mapping[str, int]] = summary.get("rows") or {}
    weights = mean_weights(rounds)
    expected = expected_events(summary, deployed=is_deployed)
    names = sorted({*per_site, *rows} - {POOL})
    hospitals = tuple(
        _describe(n, per_site.get(n) or {}, rows.get(n) or {}, weights.get(n), threshold, task, expected.get(n))
        for n in names
    )
    total = {part: sum(r.get(part, 0) for r in rows.values()) for part in ("train", "test")}
    overall = _describe("all hospitals", shown.get("final") or {}, total, None, threshold, task, expected.get(""))
    by_hospital = tuple(h.decisions for h in hospitals if h.decisions is not None)
    if overall.decisions is not None and sum(d.rows for d in by_hospital) == overall.decisions.rows:
        decisions = replace(overall.decisions, hospitals=by_hospital)
        overall = replace(overall, decisions=decisions, gain=decisions.gain)
    overall = replace(overall, score=_read_score(shown.get("final") or {}, headline_metric(shown)))
    unseen = _combine(per_site, task)
    common = None if task != CLASSIFICATION else float(summary.get("threshold") or 0.5)
    return HospitalComparison(
        HEADLINE[task], threshold, is_deployed, hospitals, replace(overall, notes=()), unseen, common,
        describe_pooled(shown),
    )


def headline_metric(summary: Figures) -> str:
    """Return the metric that leads the text on a run: of classes the AUROC within hospitals, where the run has several."""
    known = is_defined((summary.get("final") or {}).get(WITHIN))
    return WITHIN if known else HEADLINE[task_of_run(summary)]


def describe_pooled(summary: Figures) -> str:
    """Name the AUROC of all patients pooled beside that within hospitals, or why the pooled one leads; "" for one hospital.

    Returns:
        "all patients pooled 0.919; 3 of 4 hospitals have 5 test patients of each outcome".
    """
    final = summary.get("final") or {}
    tested = [m for m in (summary.get("per_site") or {}).values() if is_defined(m.get("count")) and m["count"] > 0]
    known = sum(is_defined(m.get("auroc")) for m in tested)
    if len(tested) < 2 or not is_defined(final.get("auroc")) or not any(is_defined(m.get("events")) for m in tested):
        return ""
    has = f"{known} of {len(tested)} hospitals {'has' if known == 1 else 'have'} {MIN_PER_CLASS} test patients of each outcome"
    if is_defined(final.get(WITHIN)):
        pooled = f"all patients pooled {final['auroc']:.3f}"
        return pooled if known == len(tested) else f"{pooled}; {has}"
    return "" if known == len(tested) else f"all patients pooled; {has}"


def name_threshold(threshold: float, common: float | None) -> str:
    """Name a threshold: the run's, or that of the deployed models where it differs from that of the common model."""
    same = common is None or abs(threshold - common) < _CLOSE
    return "the run's threshold" if same else "the deployed models' threshold"


def _state(label: str, found: Estimate) -> str:
    interval = "" if found.low is None or found.high is None else f" (95% CI {found.low:.3f} to {found.high:.3f})"
    return f"{label} {found.value:.3f}{interval}"


def mean_weights(rounds: Sequence[RoundRecord]) -> dict[str, float]:
    """Compute the mean weight of each hospital over the rounds that weighed it."""
    shares: dict[str, list[float]] = {}
    for record in rounds:
        for site, weight in record.decision.weights.items():
            if weight is not None:
                shares.setdefault(site, []).append(float(weight))
    return {site: sum(each) / len(each) for site, each in shares.items()}


def expected_events(summary: Figures, *, deployed: bool = False) -> dict[str, float]:
    """Return the sum of predicted risks of test patients by hospital, "" for all together; empty where it is not recorded.

    Args:
        summary: The summary of a run.
        deployed: Of the models that hospitals deploy.
    """
    counts = (summary.get("personal") or {} if deployed else summary).get("score_counts") or {}
    out = {site: float(c["expected"]) for site, c in (counts.get("sites") or {}).items() if "expected" in c}
    if "expected" in (counts.get("all") or {}):
        out[""] = float(counts["all"]["expected"])
    bins = summary.get("reliability") or {}
    if "" not in out and not deployed and bins.get("of") == "positive class":
        pairs = zip(bins["count"], bins["confidence"], strict=True)
        out[""] = sum(n * p for n, p in pairs if n and is_defined(p))
    return out


def _describe(
    name: str,
    figures: Figures,
    rows: Mapping[str, int],
    weight: float | None,
    threshold: float | None,
    task: str,
    expected: float | None,
) -> Hospital:
    """Collect the figures of one hospital."""
    tested = round(float(figures["count"])) if is_defined(figures.get("count")) else 0
    trained = int(rows.get("train", 0))
    if not tested:
        return Hospital(name, trained, 0, weight=weight, notes=(ONLY_TRAINED,) if trained else ("no rows in this run",))
    decisions = None if threshold is None else read_decisions(figures, threshold)
    events = round(float(figures["events"])) if is_defined(figures.get("events")) else None
    calibration = None
    if expected is not None and events is not None:
        calibration = observed_to_expected(events, expected, tested)
    return Hospital(
        name,
        trained,
        tested,
        events,
        weight,
        _read_score(figures, HEADLINE[task]),
        None if threshold is None else majority_gain(figures, threshold),
        None if decisions is None else decisions.accuracy,
        calibration,
        _read_score(figures, "calibration_slope"),
        decisions,
        can_rank(figures, task),
        tuple(n for n in site_flags(figures, threshold=threshold or 0.5) if task == CLASSIFICATION),
    )


def _read_score(figures: Figures, metric: str) -> Estimate | None:
    value, low, high = (figures.get(metric), figures.get(f"{metric}_low"), figures.get(f"{metric}_high"))
    if value is None or not is_defined(value):
        return None
    if low is None or high is None or not is_defined(low) or not is_defined(high):
        return Estimate(float(value))
    return Estimate(float(value), float(low), float(high))


def _combine(per_site: Mapping[str, Figures], task: str) -> SiteAUROC | None:
    if task != CLASSIFICATION:
        return None
    from grandrounds.metrics.site_auroc import combine_auroc

    return combine_auroc({site: m for site, m in per_site.items() if is_defined(m.get("count")) and m["count"] > 0})


def _place(hospital: Hospital, by: str) -> tuple[Any, ...]:
    """Return the key that sorts a hospital; those that cannot be ranked come later."""
    if by == BY_NAME:
        return (hospital.name,)
    if by == BY_ROWS:
        return (-hospital.test_rows, -hospital.train_rows, hospital.name)
    found = {BY_GAIN: hospital.gain, BY_BENEFIT: hospital.benefit_gain}.get(by, hospital.score)
    if found is None or not hospital.ranked:
        return (1, 0.0, hospital.name)
    return (0, found.value, hospital.name)
