"""Self-contained page, figure and sentences for the explanation of a predicted number, count or time to an event."""

from __future__ import annotations

from html import escape

from grandrounds.capabilities.cases.attributions import EXPLAINERS
from grandrounds.capabilities.cases.case_page import (
    INTERVALS,
    PAGE_STYLE,
    PARTS,
    PRIVATE,
    breakable,
    case_title,
    has_intervals,
    interval_text,
    missing_lines,
    notes_html,
    patient_name,
    percentile_text,
    tiles_html,
    value_with_unit,
)
from grandrounds.capabilities.cases.outcome import RATIOS, OutcomeExplanation
from grandrounds.capabilities.cases.table import Attribution
from grandrounds.capabilities.cases.values import quality_lines
from grandrounds.core.outcome import REGRESSION, SURVIVAL
from grandrounds.report import figures
from grandrounds.report.document import document, table, td, text_cell
from grandrounds.report.figure import Figure
from grandrounds.report.style import heading


def prediction_title(case: OutcomeExplanation) -> str:
    """Name the prediction: 'prediction of days', 'expected count of visits', 'relative hazard of died'."""
    return f"{case.name} of {case.label}"


def format_prediction(case: OutcomeExplanation, value: float) -> str:
    """Format a prediction: a number with four digits, a relative hazard as a factor."""
    return f"{value:.2f} times" if case.task == SURVIVAL else f"{value:.4g}"


def prediction_interval_text(case: OutcomeExplanation) -> str:
    """Write the 95% interval of the prediction; "" where the model has no standard errors."""
    ends = case.prediction_interval
    if ends is None:
        return ""
    digits = ".2f" if case.task == SURVIVAL else ".4g"
    return f"{ends[0]:{digits}} to {ends[1]:{digits}}"


def outcome_figure(case: OutcomeExplanation, *, top: int) -> Figure:
    """Draw the score as a waterfall, from the starting point to the patient.

    Args:
        case: The explanation.
        top: Columns that are shown; the rest is one bar.
    """
    names = [case.labels.find(r.column).name for r in case.attributions]
    values = [value_with_unit(r, case.labels) for r in case.attributions]
    drawn = figures.waterfall(
        names, [r.contribution for r in case.attributions], case.base, case.score, values, top=top
    )
    note = f"from {case.base:.4g} ({escape(case.start)}) to {case.score:.4g}"
    drawn["layout"]["title"] = heading(f"Contributions to the {escape(prediction_title(case))}", note)
    drawn["layout"]["xaxis"]["title"] = {"text": escape(case.unit)}
    drawn["data"][0]["hovertemplate"] = "%{y}: %{text}<br>so far %{customdata[0]:.4g}<extra></extra>"
    return drawn


def outcome_page(case: OutcomeExplanation) -> str:
    """Write the page of one patient. All names from data are escaped."""
    kind, ends = PARTS.get(case.part or "", "new patient"), prediction_interval_text(case)
    start = "1 time" if case.task == SURVIVAL else format_prediction(case, case.baseline)
    tiles = [
        (
            prediction_title(case),
            format_prediction(case, case.prediction),
            f"95% CI {ends}; {case.model_owner}" if ends else case.model_owner,
        ),
        ("starting point", start, case.start),
        ("outcome", case.outcome or "not known", kind),
    ]
    body = [
        f"<h1>{escape(patient_name(case))}</h1>",
        f"<p class='quiet'>{escape(case_title(case))}. {PRIVATE}</p>",
        tiles_html(tiles),
        *notes_html([*missing_lines(case), *case.notes]),
        "<h2>From the starting point to this patient</h2>",
        contribution_table(case),
        *_quality(case),
        *_unused(case),
        "<h2>How to read this</h2>",
        *[f"<p>{escape(line)}</p>" for line in outcome_guide(case)],
    ]
    return document(patient_name(case), body, None, style=PAGE_STYLE)


def contribution_table(case: OutcomeExplanation) -> str:
    """Tabulate the contributions of all columns, the strongest first, with the score so far."""
    head, rows = contribution_rows(case)
    texts = {"", "among patients"}
    cells = [
        [text_cell(cell) if name in texts and k else td(breakable(cell) if k == 0 else escape(cell))
         for k, (name, cell) in enumerate(zip(head, row, strict=True))]
        for row in rows
    ]  # fmt: skip
    return table([f"<th class='text'>{h}</th>" if h in texts else escape(h) for h in head], cells)


def contribution_rows(case: OutcomeExplanation) -> tuple[list[str], list[list[str]]]:
    """Return the table of contributions as text: heads, and a row for each column that contributes."""
    people = any(percentile_text(r) for r in case.attributions)
    known, ratio = has_intervals(case), RATIOS.get(case.task)
    head = ["column", "value", *(["among patients"] if people else []), case.unit, *(["95% CI"] if known else [])]
    head += [*([ratio] if ratio else []), "so far"]
    blank = [""] * (1 + people)
    rows = [["starting point", *blank, "", *([""] if known else []), *([""] if ratio else []), f"{case.base:.4g}"]]
    reached = case.base
    for r in (r for r in case.attributions if r.contribution):
        reached += r.contribution
        rows.append(_row(case, r, reached, people=people, known=known))
    if abs(case.remainder) > 1e-9 * max(1.0, abs(case.score)):
        more = [*([""] if known else []), *([""] if ratio else [])]
        rows.append(["not explained", *blank, f"{case.remainder:+.4g}", *more, f"{case.score:.4g}"])
    return head, rows


def _row(case: OutcomeExplanation, r: Attribution, reached: float, *, people: bool, known: bool) -> list[str]:
    value = "imputed" if r.imputed else value_with_unit(r, case.labels)
    row = [case.labels.find(r.column).name, value, *([percentile_text(r)] if people else [])]
    row += [f"{r.contribution:+.4g}", *([interval_text(r)] if known else [])]
    factor = case.ratio(r)
    row += [] if factor is None else [f"{factor:.2f}"]
    return [*row, f"{reached:.4g}"]


def outcome_guide(case: OutcomeExplanation) -> list[str]:
    """Explain the numbers in a few sentences."""
    how = "SHAP values" if case.explainer == "shap" else f"{case.explainer}: {EXPLAINERS[case.explainer]}"
    scale = {
        REGRESSION: f"Contributions are in units of {case.label}; they add up to the prediction.",
        SURVIVAL: "Contributions are in log hazard; they add up to the risk score. The relative hazard is the factor on the rate "
        "of the event, at any time, against the starting point. The model has no baseline hazard, so there is no probability.",
    }.get(case.task, f"Contributions are in the log of the expected count of {case.label}; a rate ratio is the factor on it.")
    lines = [f"Explained by {how}.", f"{scale} The starting point is {case.start}."]
    lines += [INTERVALS] if has_intervals(case) else []
    people = case.population
    lines.append(
        f"{people.missing[:1].upper()}{people.missing[1:]}."
        if people.summary is None
        else f"Percentiles and shares are among {people.words}: no patient's row was read for this."
    )
    return [*lines, "An attribution shows how the model responds. It is not a cause and not a treatment effect."]


def _quality(case: OutcomeExplanation) -> list[str]:
    lines = [
        f"<div>{escape(text)} <span class='mark'>{escape(kind)}</span></div>"
        for text, kind in quality_lines(case.quality, case.zero_weight_columns, case.labels)
    ]
    return ["<h2>Data quality</h2>", f"<div class='warn'>{''.join(lines)}</div>"] if lines else []


def _unused(case: OutcomeExplanation) -> list[str]:
    names = [case.labels.find(r.column).name for r in case.attributions if not r.contribution]
    if not names:
        return []
    return [f"<p class='quiet'>{len(names)} columns do not affect this prediction: {escape(', '.join(names))}.</p>"]
