"""The model card: intended use, facts, scores with intervals, record and limits, for a governance board.

The facts follow TRIPOD+AI 2024: outcome, predictors, sample size with events, missing data, threshold, model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from grandrounds.core.plan_types import Plan
from grandrounds.core.records import RunSummary
from grandrounds.data.event import Event
from grandrounds.metrics.fairness import decision_key, deployed_scores, intervals, worst_site
from grandrounds.metrics.names import binning_note
from grandrounds.metrics.scores import BY_NAME, HEADLINE, Place, shown_in
from grandrounds.report.calibration import describe_calibration
from grandrounds.report.deployed import describe_scored
from grandrounds.report.document import (
    has_test_rows,
    is_from_sums,
    is_random,
    model_line,
    number,
    reads_columns,
    rounds_line,
    sites_line,
    span,
    table,
    td,
    text_cell,
)
from grandrounds.report.outcome import PREDICTIONS, format_score, is_classification, outcome_line, percent, task_of_run
from grandrounds.report.overview import NO_USE, Overview
from grandrounds.report.sections.outcome import outcome_metrics
from grandrounds.report.sections.summary import bullets
from grandrounds.report.style import words

if TYPE_CHECKING:
    from grandrounds.audit.verdict import AuditResult

__all__ = ["NO_USE", "BoardFile", "Signature", "card_part", "record_lines", "sign_off_part"]

ROLES = ("Clinical lead", "Data protection officer", "Governance board")
"""Roles of the signature lines of a model that is in no register."""


@dataclass(frozen=True)
class Signature:
    """A line of the sign-off block; name and date are empty until somebody has signed."""

    role: str
    name: str = ""
    date: str = ""


@dataclass(frozen=True)
class BoardFile:
    """Facts of a file for a governance board. They can change after the run ended, so report.html has none of them.

    Attributes:
        plan: The run's plan.
        audited: The result of checking the ledger just now; None for a run without one.
        use: The intended use of the model; empty where none was stated.
        date: The sentence that says when the file was made.
        signatures: The lines of the sign-off block.
        register: The model's state in the register, in one sentence; empty where it is in none.
    """

    plan: Plan
    audited: AuditResult | None = None
    use: str = ""
    date: str = ""
    signatures: tuple[Signature, ...] = tuple(Signature(role) for role in ROLES)
    register: str = ""


_DOSSIER = (
    "Developer, contact, prediction horizon and uses that are out of scope are not on this card: "
    "<code>rounds dossier RUN</code> writes them into a full model card, a TRIPOD+AI checklist and a data sheet."
)


def card_part(summary: RunSummary, view: Overview, plan: Plan | None = None) -> list[str]:
    """Write the model card: intended use, facts, scores with intervals, and known limits.

    Args:
        summary: The summary of a finished run.
        view: The overview of the run, with the intended use.
        plan: The run's plan, for settings that the summary does not repeat.

    Returns:
        HTML, part by part.
    """
    if not summary.parameters:
        return [_facts(summary, plan)]
    return [
        f"<h2>Intended use</h2><p{'' if view.has_use else ' class=warn'}>{escape(view.use)}</p>",
        "<h2>Model and data</h2>",
        _facts(summary, plan),
        f"<h2>Scores with intervals{describe_scored(summary)}</h2>",
        _metrics(deployed_scores(summary)),
        f"<h2>Known limits</h2>{_limits(summary)}",
        f"<p class='quiet'>{_DOSSIER}</p>",
    ]


def sign_off_part(board: BoardFile, view: Overview) -> list[str]:
    """Write the decision that is asked for, and the lines for names, roles, dates and signatures."""
    rows = [
        [text_cell(s.role), text_cell(s.name), text_cell(s.date), text_cell("by the register" if s.date else "")]
        for s in board.signatures
    ]
    heads = [f"<th class='text'>{h}</th>" for h in ("role", "name", "date", "signature")]
    return [
        f"<p>{escape(decision_asked(view))}</p>",
        f"<p><b>{escape(board.register)}</b></p>" if board.register else "",
        f"<div class='signoff keep'>{table(heads, rows)}</div>",
    ]


def decision_asked(view: Overview) -> str:
    """State the decision that a board is asked for, with the model it is about."""
    use = f" for this use: {view.use.rstrip('.')}" if view.has_use else ""
    model = f" The model file has SHA-256 {view.model_hash}." if view.model_hash else ""
    return f"Decision asked: approve, or refuse, the model of run {view.name}{use or ' (no intended use was stated)'}.{model}"


def _facts(summary: RunSummary, plan: Plan | None) -> str:
    rows = summary.rows.values()
    counts = {part: sum(r[part] for r in rows) for part in ("train", "val", "test")}
    inputs = " x ".join(map(str, summary.inputs))
    described = model_line(summary) if reads_columns(summary) else f"{model_line(summary)} from {inputs} inputs"
    facts = {
        **({"model": described} if summary.parameters else {}),
        **_training_facts(summary),
        "data": str(summary.data),
        **_outcome_facts(summary, plan),
        "sites": sites_line(summary),
        "rows": f"{counts['train']:,} for training, {counts['val']:,} for validation, {counts['test']:,} for test",
        **_event_counts(summary),
        **_missing_facts(summary, plan),
        **_decision_facts(deployed_scores(summary)),
    }
    return table(["", "<th class='text'></th>"], [[td(escape(name)), text_cell(text)] for name, text in facts.items()])


def _training_facts(summary: RunSummary) -> dict[str, str]:
    """Tell how the model was trained; a fit from sums has exchanges, and most have no seed."""
    seed = f", seed {summary.seed}" if is_random(summary) else ""
    if is_from_sums(summary):
        return {"fitted by": f"{summary.method}, from sums over all hospitals in {rounds_line(summary)}{seed}"}
    return {"trained by": f"{summary.method}, {rounds_line(summary)}{seed}"}


def _outcome_facts(summary: RunSummary, plan: Plan | None) -> dict[str, str]:
    """Name the outcome with its class, and its share of rows."""
    if not is_classification(summary):
        line = outcome_line(summary).removeprefix("outcome: ")
        return {**({"outcome": line} if line else {}), "prediction": PREDICTIONS[task_of_run(summary)]}
    label = "" if plan is None else str(plan.data.label or "the class of an image")
    if summary.event:
        event = Event.from_dict(summary.event)
        name = event.label or label
        outcome = f"{name} = {event.word}" if name else event.title
        return {"outcome": outcome, "event": event.describe("training rows")}
    if summary.classes:
        return {**({"outcome": label} if label else {}), "classes": ", ".join(summary.classes)}
    return {}


def _event_counts(summary: RunSummary) -> dict[str, str]:
    """Count events and other rows by use, where they are known."""
    known = {}
    for name, scores in (("training", summary.training), ("validation", summary.validation), ("test", summary.final)):
        events, count = scores.get("events"), scores.get("count")
        if events is not None and count is not None and count == count and events == events:
            known[name] = f"{round(events):,} of {round(count):,} {name} rows"
    return {"events": "; ".join(known.values())} if known else {}


_IMPUTE = {
    "median": "numbers that are missing are replaced by the consortium's median",
    "mean": "numbers that are missing are replaced by the consortium's mean",
}


def _missing_facts(summary: RunSummary, plan: Plan | None) -> dict[str, str]:
    """Describe how missing values are handled, and how many sites lack a column."""
    if plan is None or not plan.data.label or not summary.parameters:
        return {}
    if plan.data.complete:
        return {"missing data": "rows with a missing value are left out (data.complete)"}
    rule = str(plan.data.impute)
    lacking = sum(any("has no value here" in str(n) for n in notes) for notes in summary.notes.values())
    also = f"; {lacking} of {summary.sites['all']} sites have no value of a column" if lacking else ""
    return {"missing data": f"{_IMPUTE.get(rule, f'data.impute = {rule}')}{also}"}


def _decision_facts(summary: RunSummary) -> dict[str, str]:
    """Name the threshold of decisions; empty for a model that was not tested, or predicts no class."""
    if not has_test_rows(summary) or not is_classification(summary) or summary.threshold is None:
        return {}
    if not summary.event:
        return {"decision": "the class with the highest probability"}
    flagged = Event.from_dict(summary.event).title
    return {"decision": f"flagged as {flagged} at a risk of {percent(summary.threshold)} or more"}


def _metrics(summary: RunSummary) -> str:
    if not has_test_rows(summary):
        return "<p class='warn'>No row was set aside for a test: how well the model predicts is not known.</p>"
    if not is_classification(summary):
        return outcome_metrics(summary) + _worst_outcome(summary)
    final, rows = summary.final, []
    ends = intervals(final)
    for name in shown_in(Place.CARD):
        key = decision_key(name, final)
        both = f"decision_{name}" in BY_NAME
        if final.get(key) is None:
            continue
        two = final.get("sensitivity") is not None and (key != name or not both)
        decides = (both or BY_NAME[name].at_threshold) and two and summary.threshold is not None
        threshold = f" at {percent(summary.threshold or 0.5)}" if decides else ""
        note = "; ".join(text for text in (span(ends.get(key)), binning_note(final, name)) if text)
        rows.append([td(escape(words(name) + threshold)), td(number(final[key], 3)), td(note)])
    return table(["test rows of all sites", "value", "95% CI"], rows) + _worst(summary)


def _worst_outcome(summary: RunSummary) -> str:
    """Name the site with the lowest headline metric of a task that is no classification."""
    task = task_of_run(summary)
    worst, metric = worst_site(summary.per_site, task), HEADLINE[task]
    if not worst:
        return "<p>No site has enough test rows for a comparison of sites.</p>"
    value = format_score(metric, worst[metric])
    rows = f"{worst['count']:.0f} test rows"
    return f"<p>Lowest {escape(words(metric))} of a site: {escape(str(worst['site']))}, {value}, {rows}.</p>"


def _worst(summary: RunSummary) -> str:
    """Name the site with the lowest AUROC."""
    worst = worst_site(summary.per_site)
    if not worst:
        return "<p>No site has enough test rows for a comparison of sites.</p>"
    ends = span(intervals(worst).get("auroc"), 2)
    return (
        f"<p>Lowest AUROC of a site: {escape(str(worst['site']))}, {number(worst['auroc'], 3)}"
        f"{f' (95% CI {ends})' if ends else ''}, {worst['count']:.0f} test rows.</p>"
    )


def calibration_line(final: Mapping[str, float | None]) -> str:
    """Describe calibration: verdicts with slope and calibration in the large, and the expected error."""
    error = f"Expected calibration error {number(final.get('ece'), 3)}."
    return " ".join(text for text in (describe_calibration(final), error) if text)


def record_lines(audited: AuditResult | None) -> list[str]:
    """List the content of the ledger, the checks that passed, and those that were not made."""
    if audited is None:
        return [_paragraph("This run has no ledger: its figures and aggregation weights cannot be checked.", "warn")]
    from grandrounds.audit.entry import SIMULATED_KEYS  # needs what a machine without a ledger lacks

    out = [_paragraph(f"Ledger of {audited.entries} entries over {audited.rounds} rounds; its head is {audited.root}.")]
    if audited.findings:
        whose = "The run's files do NOT match the ledger" if audited.files else "The ledger does NOT verify"
        return [*out, *(_paragraph(f"{whose}: {f.where}: {f.what}", "warn bad") for f in audited.findings)]
    if audited.unfinished:
        return [*out, _paragraph(f"The ledger is UNFINISHED: {audited.unfinished}.", "warn bad")]
    if audited.simulated:
        warning = (
            "The keys are simulated: they are derived from the experiment's seed, and anyone who knows it can sign for any site."
        )
        out.append(_paragraph(f"{warning} This record detects accidents, not a dishonest owner of the seed.", "warn"))
    out += [_paragraph(f"Valid: {audited.close}.")] if audited.close else []
    out += ["<h2>Checked when this file was made</h2>", bullets(audited.checked)] if audited.checked else []
    unchecked = (*audited.unchecked, "the truth of the sites' reports about their data, which no ledger can verify")
    out += ["<h2>Not checked</h2>", bullets(unchecked)]
    notes = [note for note in audited.notes if note != SIMULATED_KEYS]
    return [*out, *(_paragraph(f"{note[:1].upper()}{note[1:]}.") for note in notes)]


def _paragraph(text: str, kind: str = "") -> str:
    return f"<p{f' class={kind!r}' if kind else ''}>{escape(text)}</p>"


def _limits(summary: RunSummary) -> str:
    lines: Sequence[str] = [
        *[str(w) for w in summary.warnings],
        *[f"Assumed to read the table: {note}." for note in summary.assumed],
        "Scores are from the sites of this run. They can be worse at another hospital: evaluate there first (rounds evaluate).",
        "An explanation shows which inputs the model relies on, not the cause of an outcome.",
    ]
    return bullets(lines)
