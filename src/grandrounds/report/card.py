"""The model card at the start of the PDF, for a governance board."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from grandrounds.core.plan_types import DataSettings, Plan
from grandrounds.core.records import RunSummary
from grandrounds.data.event import Event
from grandrounds.metrics.fairness import decision_key, group_lines, intervals, worst_site
from grandrounds.metrics.names import binning_note
from grandrounds.metrics.scores import BY_NAME, HEADLINE, Place, shown_in
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
from grandrounds.report.estimates import read_estimates
from grandrounds.report.fairness import describe_gaps, describe_mitigation, short_group_table
from grandrounds.report.outcome import PREDICTIONS, format_score, is_classification, task_of_run
from grandrounds.report.page import findings_section, subgroup_table
from grandrounds.report.sections.estimates import estimates_table
from grandrounds.report.sections.outcome import outcome_groups, outcome_metrics
from grandrounds.report.style import words

if TYPE_CHECKING:
    from grandrounds.audit.verdict import AuditResult

NO_USE = (
    "None was stated when this file was made (rounds report --use). Until one is, use the model for research only, not for "
    "decisions about patients."
)


def model_card(
    summary: RunSummary,
    plan: Plan,
    audited: AuditResult | None,
    *,
    use: str = "",
    date: str = "",
) -> list[str]:
    """Write the sections of the model card.

    Args:
        summary: The summary of a finished run.
        plan: The run's plan.
        audited: The result of checking the ledger just now; None for a run without one.
        use: The intended use of the model; empty where none was stated.
        date: The sentence that says when the card was made.

    Returns:
        HTML, part by part.
    """
    return [
        "<h1>Model card</h1>",
        f"<p class='quiet'>{escape(str(summary.name))}, {escape(date)}</p>",
        *findings_section(summary),
        "<h2>Intended use</h2>",
        f"<p{'' if use else ' class=warn'}>{escape(use or NO_USE)}</p>",
        "<h2>Model and data</h2>",
        _facts(summary, plan),
        *_estimates(summary),
        "<h2>Performance</h2>",
        _metrics(summary),
        *_tested(summary),
        "<h2>Privacy</h2>",
        f"<p>{escape(summary.privacy['statement'])}</p>",
        "<h2>Record</h2>",
        *_record(audited),
        "<h2>Known limits</h2>",
        _limits(summary),
        "<div class='newpage'></div>",
    ]


def _estimates(summary: RunSummary) -> list[str]:
    """Tabulate the estimates with their intervals; empty for a model without them."""
    record = read_estimates(summary)
    return [] if record is None else ["<h2>Estimates</h2>", estimates_table(record, summary.data)]


def _tested(summary: RunSummary) -> list[str]:
    """Write the sections on subgroups and calibration of test rows; empty without any."""
    if not has_test_rows(summary):
        return []
    calibration = ["<h2>Calibration</h2>", f"<p>{_calibration(summary)}</p>"] if is_classification(summary) else []
    return ["<h2>Subgroups</h2>", _subgroups(summary), *calibration]


def _facts(summary: RunSummary, plan: Plan) -> str:
    rows = summary.rows.values()
    counts = {part: sum(r[part] for r in rows) for part in ("train", "val", "test")}
    data, inputs = plan.data, " x ".join(map(str, summary.inputs))
    facts = {
        "model": model_line(summary) if reads_columns(summary) else f"{model_line(summary)} from {inputs} inputs",
        **_training_facts(summary),
        "data": str(summary.data),
        "outcome": str(data.label or "the class of an image"),
        **_event_facts(summary, data),
        "sites": sites_line(summary),
        "rows": f"{counts['train']:,} for training, {counts['val']:,} for validation, {counts['test']:,} for test",
        **_decision_facts(summary),
    }
    return table(["", "<th class='text'></th>"], [[td(escape(name)), text_cell(text)] for name, text in facts.items()])


def _training_facts(summary: RunSummary) -> dict[str, str]:
    """Tell how the model was trained; a fit from sums has exchanges, and most have no seed."""
    seed = f", seed {summary.seed}" if is_random(summary) else ""
    if is_from_sums(summary):
        return {"fitted by": f"{summary.method}, from sums over all hospitals in {rounds_line(summary)}{seed}"}
    return {"trained by": f"{summary.method}, {rounds_line(summary)}{seed}"}


def _decision_facts(summary: RunSummary) -> dict[str, str]:
    """Name the threshold of decisions; empty for a model that was not tested, or predicts no class."""
    if not has_test_rows(summary) or not is_classification(summary):
        return {}
    return {"decision": f"flagged as {_decision_class(summary)} from a probability of {summary.threshold:g}"}


def _event_facts(summary: RunSummary, data: DataSettings) -> dict[str, str]:
    """Name the event and its share of rows; for a run of version 0.1 read them from its plan."""
    event = summary.event
    if not is_classification(summary):
        return {"prediction": PREDICTIONS[task_of_run(summary)]}
    if event:
        return {"event": Event.from_dict(event).line.removeprefix("event: ")}
    if summary.classes:
        return {"classes": ", ".join(summary.classes)}
    if summary.final.get("sensitivity") is None:
        return {}
    return {"event": str(data.positive or "the last of two classes, as version 0.1 chose it")}


def _decision_class(summary: RunSummary) -> str:
    event = summary.event
    return Event.from_dict(event).title if event else "an event"


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
        threshold = f" at {summary.threshold:.3g}" if (both or BY_NAME[name].at_threshold) and two else ""
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
    text = "<p>No site has enough test rows for a comparison of sites.</p>"
    if worst:
        ends = span(intervals(worst).get("auroc"), 2)
        text = (
            f"<p>Lowest AUROC of a site: {escape(str(worst['site']))}, {number(worst['auroc'], 3)}"
            f"{f' (95% CI {ends})' if ends else ''}, {worst['count']:.0f} test rows.</p>"
        )
    return text


def _subgroups(summary: RunSummary) -> str:
    if summary.fairness:
        sentences = [*describe_gaps(summary.fairness), *describe_mitigation(summary.fairness)]
        heads, rows = short_group_table(summary.fairness)
        return table([*map(escape, heads)], [[td(escape(cell)) for cell in row] for row in rows]) + "".join(
            f"<p>{escape(sentence)}</p>" for sentence in sentences
        )
    if not summary.subgroups:
        return (
            "<p class='warn'>No subgroup was evaluated. Set evaluation.subgroups to columns before this model is used.</p>"
        )
    if not is_classification(summary):
        head, groups = outcome_groups(summary)
        return table([*map(escape, head)], [[td(escape(cell)) for cell in row] for row in groups])
    lines = [f"<p class='warn'>{escape(line)}.</p>" for line in group_lines(summary)]
    return subgroup_table(summary) + "".join(lines)


def _calibration(summary: RunSummary) -> str:
    final = summary.final
    sentences = [f"Expected calibration error {number(final.get('ece'), 3)}."]
    if final.get("calibration_slope") is not None:
        sentences.append(
            f"Slope {number(final['calibration_slope'], 3)} (ideal: 1; below 1 risks are too extreme), intercept "
            f"{number(final.get('calibration_intercept'), 3)} (ideal: 0)."
        )
    sentences.append("See the reliability diagram below." if summary.reliability else "")
    return " ".join(t for t in sentences if t)


def _record(audited: AuditResult | None) -> list[str]:
    """List the content of the ledger, the checks that passed, and those that were not made."""
    if audited is None:
        return [_paragraph("This run has no ledger: its figures and aggregation weights cannot be checked.", "warn")]
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
    out += ["<h3>Checked when this file was made</h3>", _bullet_list(audited.checked)] if audited.checked else []
    unchecked = (*audited.unchecked, "the truth of the sites' reports about their data, which no ledger can verify")
    out += ["<h3>Not checked</h3>", _bullet_list(unchecked)]
    notes = [note for note in audited.notes if not note.startswith("keys are simulated")]
    return [*out, *(_paragraph(f"{note[:1].upper()}{note[1:]}.") for note in notes)]


def _paragraph(text: str, kind: str = "") -> str:
    return f"<p{f' class={kind!r}' if kind else ''}>{escape(text)}</p>"


def _bullet_list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _limits(summary: RunSummary) -> str:
    lines: Sequence[str] = [
        *[str(w) for w in summary.warnings],
        *[f"Assumed to read the table: {note}." for note in summary.assumed],
        "Scores are from the sites of this run. They can be worse at another hospital: evaluate there first (rounds evaluate).",
        "An explanation shows which inputs the model relies on, not the cause of an outcome.",
    ]
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
