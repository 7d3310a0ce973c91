"""Self-contained pages of case explanations and near misses, for light and dark screens and for paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

import numpy as np

from grandrounds.capabilities.cases.attributions import EXPLAINERS, LOG_ODDS
from grandrounds.capabilities.cases.near_misses import NEAR, NearMisses
from grandrounds.capabilities.cases.outcome import OutcomeExplanation
from grandrounds.capabilities.cases.table import Attribution, CaseExplanation
from grandrounds.capabilities.cases.values import WHY, Flag, quality_lines, share_text, short
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.report import figures
from grandrounds.report.document import document, table, td, text_cell
from grandrounds.report.figure import Figure
from grandrounds.report.style import INK, QUIET, heading

PARTS = {"train": "training row", "val": "validation row", "test": "test row", "reference": "reference row"}
_VISIBLE = 0.005
NAMED_MISSING = 4
"""Missing columns that a sentence names."""

Scale = Literal["risk", "log-odds"]
"""The axis of a waterfall."""


def case_title(case: CaseExplanation | OutcomeExplanation) -> str:
    """Write the line below a patient's heading: the row, its table and its site."""
    where = f" at {case.site}" if case.site else ""
    return f"Row {case.number} of {case.source}{where}"


def patient_name(case: CaseExplanation | OutcomeExplanation) -> str:
    """Name the patient for a heading: the row number and the hospital."""
    return f"Patient {case.number}" + (f", {case.site}" if case.site else "")


def event_name(case: CaseExplanation) -> str:
    """Name the event that the risk is of: "coronary disease" where the catalog knows the outcome, else "died = 1"."""
    return case.labels.name_event(case.label, case.target_class)


def event_phrase(case: CaseExplanation) -> str:
    """Name the event as the object of "had": "coronary disease", "the event died = 1"."""
    name = event_name(case)
    return f"the event {name}" if name == case.event else name


def outcome_text(case: CaseExplanation) -> str:
    """Write the patient's outcome: "coronary disease", "no coronary disease", "died = 1", or "not known"."""
    if case.outcome is None:
        return "not known"
    name = event_name(case)
    if name == case.event or len(case.classes) != 2:
        return f"{case.label} = {case.outcome}"
    return name if case.outcome == case.target_class else f"no {name}"


def case_figure(case: CaseExplanation, *, top: int, scale: Scale = "risk") -> Figure:
    """Draw the patient's score as a waterfall, from the baseline to the patient.

    Bars are as long as contributions in log-odds, which add up. With two classes the axis and the bars are labelled with
    risks all the same, unless `scale` asks for log-odds.

    Args:
        case: The explanation.
        top: Columns that are shown; the rest is one bar.
        scale: "risk" or "log-odds". More than two classes, whose score is no risk, always have log-odds.
    """
    names = [case.labels.find(r.column).name for r in case.attributions]
    parts = [r.contribution for r in case.attributions]
    end = case.base + sum(parts) if is_complete(case) else case.score
    values = [value_with_unit(r, case.labels) for r in case.attributions]
    drawn = figures.waterfall(names, parts, case.base, end, values, top=top)
    shown = f"from a baseline of {case.baseline:.1%} (dotted) to {case.probability:.1%} for this patient"
    if scale == "risk" and len(case.classes) == 2:
        shown += "; numbers: the risk so far"
        _label_with_risks(drawn, case)
    else:
        drawn["layout"]["xaxis"]["title"] = {"text": escape(score_description(case))}
    drawn["layout"]["title"] = heading(f"Contributions to the {risk_name(case)} of {escape(event_name(case))}", shown)
    drawn["layout"]["margin"] = {"t": 72}
    if case.unit != LOG_ODDS or len(case.classes) > 2:  # the figure's own hover text is for log-odds of two classes
        drawn["data"][0]["hovertemplate"] = "%{y}: %{text}<br>so far %{customdata[0]:.3f}<extra></extra>"
    return drawn


def _label_with_risks(drawn: Figure, case: CaseExplanation) -> None:
    """Label the axis and the bars of a waterfall with risks, and mark the threshold."""
    bars, layout = drawn["data"][0], drawn["layout"]
    reached = [case.risk_at(z) for z, _ in bars["customdata"][:-1]]
    bars["text"] = [f"{risk:.1%}" if risk is not None else "" for risk in (*reached, case.probability)]
    low, high = layout["xaxis"]["range"]
    cut = _score(case.threshold) if case.threshold is not None and case.unit == LOG_ODDS else case.threshold
    if cut is not None and low - (high - low) < cut < high + (high - low):  # a distant threshold would flatten the bars
        low, high = min(low, cut - 0.05 * (high - low)), max(high, cut + 0.05 * (high - low))
        line = {"color": INK, "width": 2, "dash": "dash"}
        layout["shapes"].append({"type": "line", "x0": cut, "x1": cut, "yref": "paper", "y0": 0, "y1": 1, "line": line})
        layout["annotations"] = [
            {"x": cut, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False,
             "text": f"threshold {case.threshold:.1%}", "font": {"size": 11, "color": QUIET}}
        ]  # fmt: skip
    ticks = _ticks(case, _Scale(low, high))
    layout["xaxis"] |= {
        "range": [low, high],
        "tickvals": [z for z, _ in ticks],
        "ticktext": [text for _, text in ticks],
        "title": {"text": escape(f"risk of {event_name(case)}")},
    }
    bars["hovertemplate"] = "%{y}<br>risk so far %{text}<extra></extra>"


def is_complete(case: CaseExplanation) -> bool:
    """Tell that the attributions add up, to the digits that are shown."""
    return abs(case.remainder) < _VISIBLE


def score_description(case: CaseExplanation) -> str:
    """Describe the score that contributions add up to."""
    if case.unit != LOG_ODDS:
        return f"probability of {event_name(case)}"
    return f"log-odds of {event_name(case)}" + (" against the mean of the other classes" if len(case.classes) > 2 else "")


def risk_name(case: CaseExplanation) -> str:
    """Name the probability: "risk" for two classes."""
    return "risk" if len(case.classes) == 2 else "probability"


def value_text(attribution: Attribution) -> str:
    """Write the patient's value as text."""
    if attribution.value is None:
        return "missing"
    return short(attribution.value) if isinstance(attribution.value, float) else str(attribution.value)


def value_with_unit(attribution: Attribution, labels: ColumnLabels) -> str:
    """Write the patient's value with its unit, where the column has one.

    Args:
        attribution: The column and its value.
        labels: Names and units of the columns.
    """
    text = value_text(attribution)
    return labels.find(attribution.column).with_unit(text) if isinstance(attribution.value, float) else text


def column_value(attribution: Attribution, labels: ColumnLabels) -> str:
    """Write a column and the patient's value as "age = 54 years", by the column's clinical name."""
    return f"{labels.find(attribution.column).name} = {value_with_unit(attribution, labels)}"


def verdict_text(case: CaseExplanation) -> str:
    """Write the verdict for people: a decision that the outcome confirms is "correct"."""
    return "correct" if case.verdict == "right" else case.verdict or ""


def breakable(name: str) -> str:
    """Write a name as HTML that may break after an underscore, so that long ones do not widen a table."""
    return escape(name).replace("_", "_<wbr>")


def percentile_text(attribution: Attribution) -> str:
    """Write the percentile of the value, or the share of patients with it, among the training patients of all sites."""
    noise = "" if attribution.margin is None else f" ± {max(1.0, attribution.margin):.0f} (noised)"
    if attribution.percentile is not None:
        p = attribution.percentile
        return f"percentile {'<1' if p < 1 else '>99' if p > 99 else f'{p:.0f}'}{noise}"
    if attribution.share is None:
        return "" if attribution.margin is None else f"withheld: noise of ± {attribution.margin:.0f} points"
    return f"{'missing for' if attribution.value is None else 'shared by'} {share_text(attribution.share)}{noise}"


def tiles_html(tiles: Iterable[tuple[str, str, str]], *, html: bool = False) -> str:
    """Write boxes of a name, a figure and a note; with `html` they are already escaped."""
    safe = str if html else escape
    inner = [
        f"<div class='tile'>{safe(n)}<b>{safe(v)}</b><span class='quiet'>{safe(t)}</span></div>" for n, v, t in tiles
    ]
    return f"<div class='tiles'>{''.join(inner)}</div>"


def notes_html(notes: Sequence[str]) -> list[str]:
    """Write the warnings in one box."""
    lines = [f"<div>{escape(note)}</div>" for note in notes]
    return [f"<div class='warn'>{''.join(lines)}</div>"] if lines else []


STYLE = """
.waterfall { width: 100%; table-layout: auto }
.waterfall td { border: 0; padding-top: .1rem; padding-bottom: .1rem; vertical-align: middle }
.waterfall td:first-child { max-width: 22rem; overflow: hidden; text-overflow: ellipsis }
.waterfall th:nth-child(2), .waterfall td:nth-child(2) { width: 55%; min-width: 14rem; padding: 0 }
.waterfall tr:first-child td, .waterfall tr.end td { font-weight: 600 }
.track { position: relative; height: 1.7rem }
.track span { position: absolute; top: 0; bottom: 0 }
.tick { border-left: 1px solid var(--line) }
.cut { border-left: 2px dashed var(--ink) }
.bar { margin: .28rem 0; border-radius: 2px; min-width: 2px; print-color-adjust: exact; -webkit-print-color-adjust: exact }
.up { background: var(--up) } .down { background: var(--down) } .total { background: var(--quiet) }
.axis { position: relative; height: 1.5rem; color: var(--quiet); font-size: .85em; font-weight: 400 }
.axis span { position: absolute; transform: translateX(-50%); white-space: nowrap }
@media screen and (max-width: 760px) {
  .waterfall th, .waterfall td:first-child { white-space: normal }
  .waterfall th, .waterfall td { padding-left: .2rem; padding-right: .2rem }
  .waterfall th:nth-child(2), .waterfall td:nth-child(2) { width: 40%; min-width: 7rem }
  .waterfall th:nth-child(2) { text-align: left }
  .axis span:not(:nth-child(3n + 1)) { display: none }
}
@media screen and (max-width: 520px) { .waterfall th:nth-child(3), .waterfall td:nth-child(3) { display: none } }
"""

_RISKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
_APART = 0.085  # share of the width; labels closer than this would overlap


@dataclass(frozen=True)
class _Scale:
    """An axis that maps scores from low to high to positions from 0 to 1."""

    low: float
    high: float

    def at(self, score: float) -> float:
        return (score - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class _Step:
    """One bar of the waterfall, from the score before a column to the score after it."""

    name: str
    before: float
    after: float
    change: float | None  # None for the base and the score itself

    @property
    def kind(self) -> str:
        return "total" if self.change is None else "up" if self.change > 0 else "down"


def waterfall(case: CaseExplanation, *, top: int) -> str:
    """Draw a waterfall from the baseline to the patient's risk: the `top` strongest columns each way, the rest as one bar."""
    steps = _steps(case, top)
    reached = [z for s in steps for z in (s.before, s.after) if s.change is not None] or [case.base, case.score]
    cut = _score(case.threshold) if case.threshold is not None and case.unit == LOG_ODDS else case.threshold
    low, high = min([*reached, case.base, case.score]), max([*reached, case.base, case.score])
    if cut is not None and abs(cut - case.score) < max(2.0 if case.unit == LOG_ODDS else 0.5, high - low):
        low, high = min(low, cut), max(high, cut)  # a distant threshold would flatten the bars
    room = 0.06 * (high - low or 1.0)
    scale = _Scale(low - room, high + room)
    shown_cut = cut if cut is not None and scale.low < cut < scale.high else None
    ticks = _ticks(case, scale)
    rows = [_row(case, s, scale, [z for z, _ in ticks], shown_cut) for s in steps]
    labels = "".join(f"<span style='left:{100 * scale.at(z):.2f}%'>{text}</span>" for z, text in ticks)
    axis = ["<td></td>", f"<td><div class='axis'>{labels}</div></td>", "<td></td>", "<td></td>"]
    head = [
        "",
        _axis_words(case, shown_cut is not None),
        case.unit,
        "risk so far" if len(case.classes) == 2 else "so far",
    ]
    html = table(head, [*rows, axis]).replace("<table>", "<table class='waterfall'>", 1)
    return html.replace("<tr><td class='last'>", "<tr class='end'><td>")


def _steps(case: CaseExplanation, top: int) -> list[_Step]:
    first = {r.column for r in (*case.amplifiers[:top], *case.mitigators[:top])}
    shown = [r for r in case.attributions if r.column in first]
    rest = [r for r in case.attributions if r.contribution and r.column not in first]
    named = [
        (
            f"{case.labels.find(r.column).name} = {value_with_unit(r, case.labels)}"
            + (" (imputed)" if r.imputed else ""),
            r.contribution,
        )
        for r in shown
    ]
    named += [(f"{len(rest)} others together", sum(r.contribution for r in rest))] if rest else []
    named += [] if is_complete(case) else [("not explained", case.remainder)]
    out, z = [_Step("baseline", case.base, case.base, None)], case.base
    for name, change in named:
        out.append(_Step(name, z, z + change, change))
        z += change
    return [*out, _Step("this patient", case.base, case.score, None)]


def _row(case: CaseExplanation, step: _Step, scale: _Scale, ticks: Sequence[float], cut: float | None) -> list[str]:
    lines = "".join(f"<span class='tick' style='left:{100 * scale.at(z):.2f}%'></span>" for z in ticks)
    if cut is not None:
        lines += f"<span class='cut' style='left:{100 * scale.at(cut):.2f}%'></span>"
    start, end = sorted((scale.at(step.before), scale.at(step.after)))
    place = f"left:{100 * start:.2f}%;width:{100 * (end - start):.2f}%"
    bar = f"<span class='bar {step.kind}' style='{place}'></span>"
    number = f"{step.after:.3f}" if step.change is None else f"{step.change:+.3f}"
    risk = case.risk_at(step.after)
    if step.change is None:  # with the digits of the model's prediction
        risk = case.baseline if step.name == "baseline" else case.probability
    last = " class='last'" if step.change is None and step.name != "baseline" else ""
    return [
        f"<td{last}>{breakable(step.name)}</td>",
        f"<td><div class='track'>{lines}{bar}</div></td>",
        f"<td>{number}</td>",
        f"<td>{f'{step.after:.3f}' if risk is None else f'{risk:.1%}'}</td>",
    ]


def _ticks(case: CaseExplanation, scale: _Scale) -> list[tuple[float, str]]:
    """Choose round risks (or round scores for more than two classes) whose labels do not overlap."""
    if case.unit != LOG_ODDS:
        marks = [(r, f"{r:.0%}") for r in np.linspace(0, 1, 21).tolist()]
    elif len(case.classes) == 2:
        marks = [(_score(r), f"{100 * r:g}%") for r in (*_RISKS, *(1 - r for r in reversed(_RISKS[:-1])))]
    else:
        marks = [(float(z), f"{z:+g}" if z else "0") for z in range(-20, 21)]
    out: list[tuple[float, str]] = []
    for z, text in marks:
        if scale.low < z < scale.high and (not out or scale.at(z) - scale.at(out[-1][0]) >= _APART):
            out.append((z, text))
    return out


def _axis_words(case: CaseExplanation, cut: bool) -> str:
    words = "log-odds, labelled with the risk" if case.unit == LOG_ODDS else "risk"
    if case.unit == LOG_ODDS and len(case.classes) > 2:
        words = "log-odds against the mean of the other classes"
    return words + ("; dashed: the threshold" if cut else "")


def _score(risk: float) -> float:
    """Convert a risk to log-odds."""
    return float(np.log(risk / (1 - risk))) if 0 < risk < 1 else float(np.sign(risk - 0.5)) * 1e3


INTERVALS = (
    "95% intervals follow from the covariance of the estimates. They show how far the coefficients are known, not how much "
    "patients with the same values differ."
)

PRIVATE = "Patient data. Treat this page as part of the medical record."

PAGE_STYLE = f"""
:root {{ color-scheme: light dark; --ink: #1b1f24; --quiet: #57606a; --line: #e5e8eb; --up: #d55e00; --down: #0072b2;
  --paper: #fff; --box: #d0d7de; --warn: #fff8c5; --flag: #fdebe0 }}
body {{ color: var(--ink); background: var(--paper) }}
h2, .tile {{ border-color: var(--box) }}
th, td {{ border-color: var(--line) }}
th, td.text, .quiet {{ color: var(--quiet) }}
.warn {{ background: var(--warn); margin: .6rem 0 }}
.flag {{ background: var(--flag); border-left: 4px solid var(--up); padding: .4rem .8rem; border-radius: 6px; margin: .6rem 0;
  print-color-adjust: exact; -webkit-print-color-adjust: exact }}
.flag b, .warn b {{ margin-right: .3em }}
.lists {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: 0 2rem }}
.lists.one {{ grid-template-columns: minmax(0, 1fr) }}
.lists table {{ width: 100% }}
.lists td, .lists th {{ padding: .22rem .35rem }}
.lists th, .lists td:first-child {{ white-space: normal }}
.lists td.text {{ white-space: nowrap }}
h3.raises {{ color: var(--up) }} h3.lowers {{ color: var(--down) }}
.mark {{ font-size: .8em; border: 1px solid var(--box); border-radius: 4px; padding: 0 .3em; color: var(--quiet);
  white-space: nowrap }}
body:has(#log-odds:not(:checked)) :is(.odds, .waterfall th:nth-child(3), .waterfall td:nth-child(3)) {{ display: none }}
{STYLE}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6edf3; --quiet: #9aa5b1; --line: #2b323b; --up: #f0883e; --down: #58a6ff; --paper: #0f1419;
    --box: #39424d; --warn: #3a3113; --flag: #3a2416 }}
}}
@media screen and (max-width: 760px) {{
  .lists td.text {{ white-space: normal }} .lists td, .lists th {{ padding: .22rem .2rem }}
}}
@media screen and (max-width: 520px) {{ .ratio {{ display: none }} .lists table {{ font-size: .84rem }} }}
@media print {{ .lists {{ grid-template-columns: 1fr }} .lists section {{ break-inside: auto }} }}
"""


def case_page(case: CaseExplanation, *, top: int) -> str:
    """Write the page of one patient. All names from data are escaped."""
    kind = PARTS.get(case.part or "", "new patient")
    decided = "" if case.threshold is None else f"flagged at {case.threshold:.1%} or more"
    outcome = outcome_text(case)
    tiles = [
        (f"{risk_name(case)} of {event_name(case)}", f"{case.probability:.1%}", _risk_note(case)),
        ("baseline", f"{case.baseline:.1%}", case.start),
        ("decision", decision_text(case), decided),
        ("outcome", outcome, kind if case.verdict is None else f"{verdict_text(case)}; {kind}"),
    ]
    body = [
        f"<h1>{escape(patient_name(case))}</h1>",
        f"<p class='quiet'>{escape(case_title(case))}. {PRIVATE}</p>",
        tiles_html(tiles),
        *notes_html([*verdict_lines(case), *missing_lines(case), *case.notes]),
        "<h2>From the baseline to this patient</h2>",
        *_log_odds_switch(case),
        waterfall(case, top=top),
        *_bias(case),
        *_quality(case),
        "<h2>Contributions of columns</h2>",
        f"<div class='lists{' one' if has_intervals(case) else ''}'>",
        _list(case, case.amplifiers, f"Raises the {risk_name(case)}", "raises"),
        _list(case, case.mitigators, f"Lowers the {risk_name(case)}", "lowers"),
        "</div>",
        *_unused(case),
        "<h2>How to read this</h2>",
        *[f"<p>{escape(line)}</p>" for line in reading_guide(case)],
    ]
    return document(patient_name(case), body, None, style=PAGE_STYLE)


def _log_odds_switch(case: CaseExplanation) -> list[str]:
    """Write the check box that shows log-odds; other scores than log-odds of two classes have nothing to hide."""
    if case.unit != LOG_ODDS or len(case.classes) != 2:
        return []
    return ["<p><label><input type='checkbox' id='log-odds'> Show log-odds</label></p>"]


def _risk_note(case: CaseExplanation) -> str:
    ends = risk_interval_text(case)
    return f"95% CI {ends}; {case.model_owner}" if ends else case.model_owner


def risk_interval_text(case: CaseExplanation) -> str:
    """Write the 95% interval of the risk, '31.2% to 40.5%'; "" where the model has no standard errors."""
    ends = case.risk_interval
    return "" if ends is None else f"{ends[0]:.1%} to {ends[1]:.1%}"


def has_intervals(case: CaseExplanation | OutcomeExplanation) -> bool:
    """Tell whether contributions have 95% intervals."""
    return any(r.low is not None for r in case.attributions)


def interval_text(attribution: Attribution) -> str:
    """Write the 95% interval of a contribution, '+0.120 to +0.341'; "" where there is none."""
    if attribution.low is None or attribution.high is None:
        return ""
    return f"{attribution.low:+.3f} to {attribution.high:+.3f}"


def decision_text(case: CaseExplanation) -> str:
    """Write the decision: flagged or not with two classes, else the predicted class."""
    return decision_of(case, case.decision)


def decision_of(case: CaseExplanation, decision: str) -> str:
    """Write any decision of this patient's model as `decision_text` writes the patient's own.

    Args:
        case: The explanation.
        decision: The class decided on.
    """
    if case.threshold is None:
        return decision
    return "flagged" if decision == case.target_class else "not flagged"


def missing_lines(case: CaseExplanation | OutcomeExplanation) -> list[str]:
    """Count and name the missing inputs in a sentence; empty where there are none."""
    missing = [r for r in case.attributions if r.value is None]
    if not missing:
        return []
    verb = "input is missing" if len(missing) == 1 else "inputs are missing"
    imputed = sum(r.imputed for r in missing)
    if imputed == len(missing):
        verb += f" and {'was' if imputed == 1 else 'were'} replaced by typical values of the consortium"
    elif not imputed:
        verb += "; the model reads missing as a value of its own"
    names = [case.labels.find(r.column).name for r in missing[:NAMED_MISSING]]
    rest = f" and {len(missing) - NAMED_MISSING} more" if len(missing) > NAMED_MISSING else ""
    return [f"{len(missing)} of {len(case.attributions)} {verb}: {', '.join(names)}{rest}."]


def verdict_lines(case: CaseExplanation) -> list[str]:
    """Write the warning of a near miss; empty for other verdicts."""
    if case.verdict != "near miss" or case.threshold is None:
        return []
    return [
        f"Near miss: the event happened at a risk of {case.probability:.1%}, "
        f"{100 * (case.threshold - case.probability):.1f} points below the threshold of {case.threshold:.1%}."
    ]


def reading_guide(case: CaseExplanation) -> list[str]:
    """Explain the numbers in a few sentences."""
    imputed = any(a.imputed for a in case.attributions)
    lines = [
        "Explained by SHAP values."
        if case.explainer == "shap"
        else f"Explained by {case.explainer}: {EXPLAINERS[case.explainer]}.",
        f"Contributions in {score_description(case)} add up from {case.base:.3f} ({case.start}) to "
        f"{case.score:.3f}, a probability of {case.probability:.1%}.",
        "Points: the change in risk, in percentage points, if this column made no contribution and the others stayed. "
        "Points do not add up; log-odds do.",
        _population_text(case),
        "An attribution shows how the model responds. It is not a cause of illness and not a treatment effect."
        + (" An imputed value was not measured; its contribution is that of the value used instead." if imputed else ""),
    ]
    if has_intervals(case):
        lines.insert(2, INTERVALS)
    if not is_complete(case):
        lines.insert(2, f"{case.remainder:+.3f} of it is not explained by this explainer.")
    return lines


def near_misses_page(misses: NearMisses) -> str:
    """Write the page of near misses."""
    title = near_misses_title(misses)
    rows = [
        [td(str(m.case)), text_cell(m.site), td(f"{m.risk:.1%}"), td(f"{100 * (misses.threshold - m.risk):.1f}")]
        for m in misses.cases
    ]
    body = [
        f"<h1>{escape(title)}</h1>",
        "<p class='quiet'>Patient data: risks and outcomes. Treat this page as part of the medical record.</p>",
        f"<p>{escape(near_misses_text(misses))}</p>",
        table(["case", "<th class='text'>site</th>", "risk", "points below the threshold"], rows),
        "<p class='quiet'>Explain each of them with rounds explain RUN --case N.</p>",
    ]
    return document(title, body, None, style=PAGE_STYLE)


def near_misses_title(misses: NearMisses) -> str:
    """Write the title of the near misses."""
    return f"Near misses: {misses.event}" + (f" at {misses.site}" if misses.site else "")


def near_misses_text(misses: NearMisses) -> str:
    """Count the near misses and the events in a sentence."""
    return (
        f"Of {misses.rows} test patients {misses.events} had the event; the model missed {misses.missed} of them (risk below "
        f"{misses.threshold:.1%}), {misses.near} narrowly (risk of {NEAR * misses.threshold:.1%} or more)."
    )


def points_text(attribution: Attribution) -> str:
    """Write percentage points with their sign; those that round to zero have none."""
    return (
        "" if attribution.points is None else f"{attribution.points:+.1f}" if abs(attribution.points) >= 0.05 else "0.0"
    )


def _population_text(case: CaseExplanation) -> str:
    if case.population.summary is None:
        return f"{case.population.missing[:1].upper()}{case.population.missing[1:]}."
    return f"Percentiles and shares are among {case.population.words}: no patient's row was read for this."


def _bias(case: CaseExplanation) -> list[str]:
    """List protected and administrative attributes with their effect on this risk."""
    flags = [
        f"<div class='flag'><b>{escape(_flag_text(f, case.labels))}</b>{escape(f.words)}. "
        f"<span class='mark'>{escape(f.kind)}</span></div>"
        for f in case.bias
    ]
    return (
        ["<h2>Non-clinical factors that affect this risk</h2>", *flags, f"<p class='quiet'>{escape(WHY)}</p>"]
        if flags
        else []
    )


def _quality(case: CaseExplanation) -> list[str]:
    lines = [
        f"<div>{escape(text)} <span class='mark'>{escape(kind)}</span></div>"
        for text, kind in quality_lines(case.quality, case.zero_weight_columns, case.labels)
    ]
    return ["<h2>Data quality</h2>", f"<div class='warn'>{''.join(lines)}</div>"] if lines else []


def _list(case: CaseExplanation, attributions: Sequence[Attribution], title: str, kind: str) -> str:
    has_percentiles = any(percentile_text(r) for r in case.attributions)
    head = ["column", "value", *(["<th class='text'>among patients</th>"] if has_percentiles else [])]
    head += ["points"] if len(case.classes) == 2 else []
    known = has_intervals(case)
    odds = "" if known else " class='odds'"  # an interval is of the contribution in log-odds, so both are shown
    head += [f"<th{odds}>{case.unit}</th>", *(["95% CI"] if known else [])]
    head += ["<th class='ratio odds'>odds ratio</th>"] if case.unit == LOG_ODDS else []
    rows = []
    for r in attributions:
        value = "<span class='mark'>imputed</span>" if r.imputed else escape(value_with_unit(r, case.labels))
        label = case.labels.find(r.column).name
        row = [td(breakable(label)), td(value), *([text_cell(percentile_text(r))] if has_percentiles else [])]
        row += [td(points_text(r))] if r.points is not None else []
        row += [f"<td{odds}>{r.contribution:+.3f}</td>", *([td(interval_text(r))] if known else [])]
        row += [f"<td class='ratio odds'>{r.odds_ratio:.2f}</td>"] if r.odds_ratio is not None else []
        rows.append(row)
    listing = table(head, rows) if rows else "<p class='quiet'>none</p>"
    return f"<section><h3 class='{kind}'>{escape(title)}</h3>{listing}</section>"


def _unused(case: CaseExplanation) -> list[str]:
    names = [case.labels.find(r.column).name for r in case.attributions if not r.contribution]
    if not names:
        return []
    return [f"<p class='quiet'>{len(names)} columns do not affect this risk: {escape(', '.join(names))}.</p>"]


def _flag_text(flag: Flag, labels: ColumnLabels) -> str:
    label, value = labels.find(flag.column), flag.value
    text = label.with_unit(f"{value:g}") if isinstance(value, float) else "missing" if value is None else value
    return f"{label.name} = {text}"
