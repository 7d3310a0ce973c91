"""The overview of a run: one set of facts and sentences for the console, the HTML report, the PDF and the slide deck.

`make_overview` builds it from a summary. A run without a summary has an overview too: its state, its cause and the next command.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from grandrounds.core.ending import ENDINGS, FAILED, INTERRUPTED, STOPPED, Ending
from grandrounds.core.outcome import SURVIVAL
from grandrounds.core.records import RunSummary
from grandrounds.core.sources import AT_SITES
from grandrounds.data.event import Event
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.methods.guard.candidates import describe_base
from grandrounds.metrics.fairness import NO_MODEL, decision_key, deployed_scores, intervals, is_defined
from grandrounds.metrics.names import metric_label
from grandrounds.metrics.scores import HEADLINE
from grandrounds.report.document import has_test_rows, model_line, rounds_line, sites_line
from grandrounds.report.findings import Findings, make_findings
from grandrounds.report.hospitals import (
    BY_BENEFIT,
    HospitalComparison,
    compare_hospitals,
    describe_pooled,
    headline_metric,
)
from grandrounds.report.outcome import PREDICTIONS, format_score, is_classification, outcome_line, percent, task_of_run

if TYPE_CHECKING:  # a machine without the packages of the ledger runs without one
    from grandrounds.audit.verdict import AuditResult

FINISHED, RUNNING = "finished", "running"
STATES = (FINISHED, RUNNING, *ENDINGS)
"""States of a run."""

BETTER, MIXED, UNCLEAR, WORSE, UNTESTED = "better", "mixed", "unclear", "worse", "untested"
"""Verdicts: better than no model; better overall and worse at a hospital; not clearly better; worse; not tested."""

GOOD, FAIR, BAD = "good", "fair", "bad"
"""Colours of a verdict."""

NO_USE = (
    "None was stated (rounds models propose --purpose, or rounds report --use). Until one is, use the model for research only, "
    "not for decisions about patients."
)
"""The intended use where none was stated."""

_NAMED = 4
"""Hospitals that the verdict names."""


@dataclass(frozen=True)
class Score:
    """A score on the test rows of all sites, with its 95% interval where there is one."""

    key: str
    label: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def value_text(self) -> str:
        """The value as text."""
        return _format(self.key, self.value)

    @property
    def interval_text(self) -> str:
        """The interval, "95% CI 0.860 to 0.946"; "" where there is none."""
        if self.low is None or self.high is None:
            return ""
        return f"95% CI {_format(self.key, self.low)} to {_format(self.key, self.high)}"

    @property
    def text(self) -> str:
        """Label, value, interval and note: "AUROC 0.903 (95% CI 0.860 to 0.946)"."""
        return f"{self.label} {self.value_text}{f' ({self.beside_text})' if self.beside_text else ''}"

    @property
    def beside_text(self) -> str:
        """The interval and the note; "" where there is neither."""
        return "; ".join(text for text in (self.interval_text, self.note) if text)


@dataclass(frozen=True)
class LedgerCheck:
    """The state of a run's ledger, which the caller has verified.

    Attributes:
        state: "verifies", "fails", "unfinished", "running", "none" or "unknown" (not checked now).
        sentence: The result in one sentence.
        simulated: The keys follow from the experiment's seed.
    """

    state: str
    sentence: str
    simulated: bool = False

    @property
    def fails(self) -> bool:
        """True if the ledger, or a file that it names, was changed."""
        return self.state == "fails"

    @classmethod
    def from_audit(cls, result: AuditResult | None) -> LedgerCheck:
        """Describe the result of an audit; None is a run without a ledger."""
        if result is None:
            return NO_LEDGER
        if result.findings:
            first = result.findings[0]
            whose = "The run's files do NOT match the ledger" if result.files else "The ledger does NOT verify"
            more = f"; {len(result.findings) - 1} more" if len(result.findings) > 1 else ""
            return cls("fails", f"{whose}: {first.where}: {first.what}{more}.", result.simulated)
        if result.unfinished:
            return cls("unfinished", f"The ledger is UNFINISHED: {result.unfinished}.", result.simulated)
        entries = f"{result.entries} {_plural(result.entries, 'entry', 'entries')}"
        if result.running:
            return cls(
                "running", f"The ledger of {entries} verifies so far; the run is not finished.", result.simulated
            )
        keys = " Its keys are simulated: anyone who knows the seed can sign it." if result.simulated else ""
        return cls("verifies", f"The ledger of {entries} verifies.{keys}", result.simulated)


NO_LEDGER = LedgerCheck("none", "This run has no ledger: its figures and aggregation weights cannot be checked.")
NOT_CHECKED = LedgerCheck("unknown", "The ledger was not checked for this page.")


@dataclass(frozen=True)
class Overview:
    """The facts about a run that everybody is shown first.

    Attributes:
        name: The run's name.
        state: One of `STATES`.
        ending: The end of a run that did not finish; None for a finished or running one.
        outcome: The outcome that the model predicts: "disease = yes", "time to death, follow-up in days"; "" where not known.
        prediction: The kind of number that the model gives: "risk of disease = yes".
        data: The data set, or the file name of a table.
        model: The model and its size.
        method: The method and its rounds.
        task: The type of the outcome.
        use: The intended use; `NO_USE` where none was stated.
        has_use: An intended use was stated.
        verdict: BETTER, MIXED, UNCLEAR, WORSE or UNTESTED.
        verdict_title: The verdict in one sentence.
        verdict_lines: The sentences behind it: overall, by site, harm.
        worse_sites: Hospitals where decisions are clearly worse than without a model (`report.hospitals`), the worst first.
        unclear_sites: Hospitals where the 95% interval includes no difference, or with too few test rows to judge.
        tested_sites: Hospitals with test rows.
        headline: The score that ranks runs of this task, of the models that hospitals deploy; None without test rows.
        basis_line: The models that the scores are of, with the headline of the common one; "" where hospitals deploy that.
        scores: Further scores: sensitivity, specificity, PPV and accuracy at the threshold, calibration slope.
        threshold: Risk from which on a patient is flagged; None for other tasks.
        threshold_text: The rule of decisions in one sentence; "" for other tasks.
        test_rows, train_rows, events: Counts over all sites; None where not known.
        sites, training_sites: Hospitals, and those that train.
        sites_text: Hospitals in one phrase.
        subgroups: Sentences on groups of patients that are served worse.
        relies_on: Sentences on the features that the model relies on.
        privacy: The privacy statement.
        epsilon: The privacy loss per unit; None without differential privacy.
        cost: Data sent, messages and training time in one sentence; "" where not known.
        ledger: The ledger's state.
        model_hash: SHA-256 of the model file; "" where there is none.
        warnings: Warnings of the run.
        rounds, of: Rounds that are done, and planned.
        next_command: The command that continues an unfinished run; "" for others.
        findings: All findings, by question.
    """

    name: str
    state: str = FINISHED
    ending: Ending | None = None
    outcome: str = ""
    prediction: str = ""
    data: str = ""
    model: str = ""
    method: str = ""
    task: str = ""
    use: str = NO_USE
    has_use: bool = False
    verdict: str = UNTESTED
    verdict_title: str = ""
    verdict_lines: tuple[str, ...] = ()
    worse_sites: tuple[str, ...] = ()
    unclear_sites: tuple[str, ...] = ()
    tested_sites: tuple[str, ...] = ()
    headline: Score | None = None
    basis_line: str = ""
    scores: tuple[Score, ...] = ()
    threshold: float | None = None
    threshold_text: str = ""
    test_rows: int | None = None
    train_rows: int | None = None
    events: int | None = None
    sites: int | None = None
    training_sites: int | None = None
    sites_text: str = ""
    subgroups: tuple[str, ...] = ()
    relies_on: tuple[str, ...] = ()
    privacy: str = ""
    epsilon: float | None = None
    cost: str = ""
    ledger: LedgerCheck = NOT_CHECKED
    model_hash: str = ""
    warnings: tuple[str, ...] = ()
    rounds: int = 0
    of: int | None = None
    next_command: str = ""
    findings: Findings = field(default_factory=Findings)

    @property
    def is_finished(self) -> bool:
        """True if the run has a summary."""
        return self.state == FINISHED

    @property
    def tone(self) -> str:
        """The verdict as a colour: GOOD, FAIR or BAD; GOOD only where the model is better at every hospital."""
        if self.verdict == BETTER:
            return FAIR if self.unclear_sites else GOOD
        return BAD if self.verdict in (MIXED, WORSE) else FAIR

    @property
    def privacy_title(self) -> str:
        """The first sentence of the privacy statement."""
        first, stop, _ = self.privacy.partition(". ")
        return f"{first}." if stop else first

    @property
    def page_header(self) -> tuple[str, str]:
        """The run, and the hash of its model, for the top of each page of a file."""
        changed = ", which does NOT match its ledger" if self.ledger.fails else ""
        return f"Run {self.name}{changed}", f"model SHA-256 {self.model_hash}" if self.model_hash else "no model file"

    @property
    def tested_text(self) -> str:
        """Test rows and events: "185 test rows, 97 with the event"; "" without test rows."""
        if not self.test_rows:
            return ""
        events = f", {self.events:,} with the event" if self.events is not None else ""
        return f"{self.test_rows:,} test {_plural(self.test_rows, 'row')}{events}"

    @property
    def rounds_text(self) -> str:
        """Rounds that are done, of those planned."""
        return f"{self.rounds} of {self.of} rounds" if self.of is not None else f"{self.rounds} rounds"

    @property
    def state_text(self) -> str:
        """The state in one sentence, with the cause of a run that did not finish."""
        if self.state == FINISHED:
            return "Finished."
        if self.state == RUNNING:
            return f"Running: {self.rounds_text} done."
        cause = "" if self.ending is None else f" {self.ending.sentence}"
        word = {FAILED: "Failed", STOPPED: "Stopped", INTERRUPTED: "Interrupted"}[self.state]
        return f"{word} after {self.rounds_text}.{cause}"


def make_overview(
    summary: RunSummary | None,
    *,
    name: str = "",
    state: str = "",
    ending: Ending | None = None,
    plan: Mapping[str, Any] | None = None,
    rounds: int = 0,
    folder: str = "",
    use: str = "",
    ledger: LedgerCheck = NOT_CHECKED,
    model_hash: str = "",
) -> Overview:
    """Collect the facts of a run.

    Args:
        summary: The summary of a finished run; None for a run that is not finished.
        name: The run's name; by default that of the summary.
        state: The state of a run without a summary; by default that of `ending`, else RUNNING.
        ending: The end of a run that did not finish.
        plan: The run's plan; needed for a run without a summary only.
        rounds: Finished rounds of a run without a summary.
        folder: The folder that the next command names; by default `name`.
        use: The intended use; empty where none was stated.
        ledger: The state of the ledger, as the caller has verified it.
        model_hash: SHA-256 of the model file.

    Returns:
        The overview.
    """
    stated: dict[str, Any] = {"use": use or NO_USE, "has_use": bool(use), "ledger": ledger, "model_hash": model_hash}
    if summary is None:
        where = folder or name
        planned = _planned(plan) if plan is not None else {}
        now = state or (RUNNING if ending is None else ending.state)
        command = "" if now == RUNNING or not where else _resume(where, plan or {})
        return Overview(name, state=now, ending=ending, rounds=rounds, next_command=command, **planned, **stated)
    findings = make_findings(summary)
    return Overview(
        name or str(summary.name),
        outcome=describe_outcome(summary),
        prediction=_prediction(summary),
        data=str(summary.data),
        model=model_line(summary) if summary.parameters else "",
        method=f"{summary.method}, {rounds_line(summary)}",
        task=task_of_run(summary),
        sites=summary.sites.get("all"),
        training_sites=summary.sites.get("training"),
        sites_text=sites_line(summary),
        subgroups=(*findings.subgroups, *findings.gaps),
        relies_on=(*findings.effects, *findings.features),
        privacy=str(summary.privacy["statement"]),
        epsilon=_number(summary.privacy.get("epsilon")),
        cost=describe_cost(summary.cost),
        warnings=tuple(str(w) for w in summary.warnings),
        rounds=summary.rounds,
        of=summary.rounds,
        findings=findings,
        train_rows=sum(r.get("train", 0) for r in summary.rows.values()),
        **_tested(summary, deployed_scores(summary), findings),
        **stated,
    )


def describe_outcome(summary: RunSummary) -> str:
    """Name the outcome: "disease = yes", "one of 10 classes", "time to death, follow-up in days"; "" where it is not known."""
    if not is_classification(summary):
        return outcome_line(summary).removeprefix("outcome: ")
    if summary.event:
        return Event.from_dict(summary.event).title
    return f"one of {len(summary.classes)} classes" if len(summary.classes) > 2 else ""


def describe_cost(cost: Mapping[str, Any]) -> str:
    """Describe the cost of a run: data sent, messages and training time; "" where they are not known."""
    if not all(is_defined(cost.get(key)) for key in ("bytes_down", "bytes_up", "messages", "seconds")):
        return ""
    sent = f"{cost['bytes_down'] / 1e6:,.2f} MB to sites, {cost['bytes_up'] / 1e6:,.2f} MB from them"
    return f"{sent}, in {cost['messages']:,.0f} messages with setup and final evaluation; {cost['seconds']:,.2f} s training time"


def _prediction(summary: RunSummary) -> str:
    """Name the number that the model gives for a patient; "" for a run without a model."""
    if not summary.parameters:
        return ""
    if is_classification(summary):
        return f"risk of {_event_name(summary)}" if summary.event else "probability of each class"
    return PREDICTIONS[task_of_run(summary)]


def _tested(common: RunSummary, deployed: RunSummary, findings: Findings) -> dict[str, Any]:
    """Collect verdict, scores and counts of test rows, of the models that hospitals deploy."""
    if not has_test_rows(common):
        no_model = "This run describes patients; it has no model."
        return {"verdict_title": "Not tested: no row was set aside for a test." if common.parameters else no_model}
    compared = compare_hospitals(common) if is_classification(common) else None
    worse, unclear = _judge_hospitals(compared)
    verdict, title = _judge(deployed, compared, worse, unclear)
    events = deployed.final.get("events")
    return {
        "verdict": verdict,
        "verdict_title": title,
        "verdict_lines": (
            *findings.overall, *findings.calibration, *findings.sites, *findings.harm, *findings.majority, *findings.weights,
        ),
        "worse_sites": worse,
        "unclear_sites": unclear,
        "tested_sites": tuple(s for s, m in deployed.per_site.items() if (_number(m.get("count")) or 0) > 0),
        "headline": _headline(deployed),
        "basis_line": _basis(common, deployed),
        "scores": tuple(_scores(deployed)),
        "threshold": deployed.threshold if is_classification(deployed) and deployed.event else None,
        "threshold_text": describe_threshold(deployed),
        "test_rows": round(deployed.final["count"] or 0),
        "events": round(events) if events is not None and is_defined(events) else None,
    }


def _basis(common: RunSummary, deployed: RunSummary) -> str:
    """Name the models that the scores are of, with a score of the common one; "" where hospitals deploy that."""
    headline = _headline(common)
    if deployed is common or headline is None:
        return ""
    return f"Scores are of the models that hospitals deploy; {describe_base(str(common.personal['part']))}: {headline.text}."


def describe_threshold(summary: RunSummary) -> str:
    """State the rule of decisions, "Flagged as died at a risk of 17.0% or more."; "" where the run makes none."""
    if not is_classification(summary) or not summary.event or summary.threshold is None:
        return ""
    return f"Flagged as {_event_name(summary)} at a risk of {percent(summary.threshold)} or more."


def _event_name(summary: RunSummary) -> str:
    return ColumnLabels.of_summary(summary).describe_event(Event.from_dict(summary.event or {}))


def _judge_hospitals(compared: HospitalComparison | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the hospitals where decisions are worse than no model, and those where it is not clear (`report.hospitals`)."""
    if compared is None:
        return (), ()
    found = [(hospital.name, hospital.verdict) for hospital in compared.order(BY_BENEFIT) if hospital.test_rows]
    return tuple(n for n, v in found if v == WORSE), tuple(n for n, v in found if v == UNCLEAR)


def _judge(
    summary: RunSummary, compared: HospitalComparison | None, worse_sites: Sequence[str], unclear_sites: Sequence[str]
) -> tuple[str, str]:
    """Judge whether the model is better than no model: on all test rows together, and at each hospital."""
    overall = _compare_headline(summary) if compared is None else compared.overall.verdict
    where = _listed(worse_sites)
    if overall == WORSE:
        return WORSE, "Worse than no model on all test rows together."
    if overall != BETTER:
        low = _number(summary.final.get(f"{headline_metric(summary)}_low"))
        ranks = "; it ranks patients better than chance" if low is not None and low > 0.5 else ""
        at = f"; clearly worse at {where}" if where else ""
        return UNCLEAR, f"Not clearly better than no model on all test rows together{at}{ranks}."
    if where:
        return MIXED, f"Better than no model overall, but clearly worse at {where}."
    if unclear_sites:
        return BETTER, f"Better than no model overall; at {_listed(unclear_sites)} this is not clear."
    rest = " and at every hospital" if len(summary.per_site) > 1 and is_classification(summary) else ""
    return BETTER, f"Better than no model overall{rest}."


def _compare_headline(summary: RunSummary) -> str:
    """Compare the headline metric of a task without classes, by its interval, with that of a constant prediction."""
    final, task = summary.final, task_of_run(summary)
    metric, chance = HEADLINE[task], 0.5 if task == SURVIVAL else 0.0
    value, low, high = (_number(final.get(key)) for key in (metric, f"{metric}_low", f"{metric}_high"))
    if value is None:
        return UNCLEAR
    if (value if low is None else low) > chance:
        return BETTER
    return WORSE if (value if high is None else high) < chance else UNCLEAR


def _headline(summary: RunSummary) -> Score | None:
    metric = headline_metric(summary)
    found = _score(summary, metric, metric_label(metric))
    return None if found is None else replace(found, note=describe_pooled(summary))


def _scores(summary: RunSummary) -> list[Score]:
    """List further scores, those at the threshold with it."""
    if not is_classification(summary):
        return []
    threshold = summary.threshold
    found = []
    for metric in (
        "sensitivity",
        "specificity",
        "ppv",
        "npv",
        "accuracy",
        "majority",
        "calibration_slope",
        "calibration_in_the_large",
        "calibration_intercept",
    ):
        key = decision_key(metric, summary.final)
        decides = threshold is not None and summary.event and not metric.startswith("calibration")
        at = f" at {percent(threshold)}" if decides and threshold is not None else ""
        at = " at 50%" if at and metric == "accuracy" and key == metric else at
        label = f"accuracy of {NO_MODEL}" if metric == "majority" else f"{metric_label(metric)}{at}"
        found.append(_score(summary, key, label))
    return [score for score in found if score is not None]


def _score(summary: RunSummary, key: str, label: str) -> Score | None:
    value = _number(summary.final.get(key))
    if value is None:
        return None
    ends = intervals(summary.final).get(key)
    if ends is None:
        low, high = _number(summary.final.get(f"{key}_low")), _number(summary.final.get(f"{key}_high"))
        ends = (low, high) if low is not None and high is not None else None
    return Score(key, label, value, *(ends or (None, None)))


def _planned(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Read from the plan what is known of a run without a summary."""
    data, method, model = plan.get("data", {}), plan.get("method", {}), plan.get("model", {})
    name = str(data.get("name") or data.get("table") or data.get("pictures") or "")
    event = f" = {data['event']}" if data.get("event") else ""
    return {
        "outcome": f"{data['label']}{event}" if data.get("label") else "",
        "data": name.rstrip("/").rpartition("/")[2],
        "model": str(model.get("name", "")).rpartition("/")[2],
        "method": str(method.get("name", "")).rpartition("/")[2],
        "task": str(data.get("task") or ""),
        "of": int(method["rounds"]) if "rounds" in method else None,
    }


def _resume(folder: str, plan: Mapping[str, Any]) -> str:
    """Write the command that continues a run; a run at hospitals is continued by its server."""
    if (plan.get("data") or {}).get("table") == AT_SITES:
        return f"rounds server submit --resume {shlex.quote(folder.rstrip('/').rpartition('/')[2])}"
    return f"rounds resume {shlex.quote(folder)}"


def _format(key: str, value: float) -> str:
    """Format a score with three digits after the point, or fewer where its metric has fewer."""
    return f"{value:.3f}" if abs(value) < 10 else format_score(key.removeprefix("decision_"), value)


def _listed(sites: Sequence[str]) -> str:
    if len(sites) > _NAMED:
        return f"{len(sites)} hospitals ({', '.join(sites[:_NAMED])} and {len(sites) - _NAMED} more)"
    return f"{', '.join(sites[:-1])} and {sites[-1]}" if len(sites) > 1 else "".join(sites)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value == value else None


def _plural(number: int, noun: str, many: str = "") -> str:
    return noun if number == 1 else many or f"{noun}s"
