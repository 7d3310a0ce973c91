"""Pages of case and site explanations, self-contained, in light, in dark and on paper: waterfall, tables and near misses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from grandrounds.analysis.case.attributions import EXPLAINERS, LOG_ODDS
from grandrounds.analysis.case.near_misses import NEAR, NearMisses
from grandrounds.analysis.case.table import Attribution, CaseExplanation
from grandrounds.analysis.case.values import WHY, quality_lines, share_text, short
from grandrounds.report import figures
from grandrounds.report.document import document, table, td, text_cell
from grandrounds.report.figure import Figure
from grandrounds.report.style import heading

PARTS = {"train": "training row", "val": "validation row", "test": "test row", "reference": "reference row"}
_VISIBLE = 0.005


def case_title(case: CaseExplanation) -> str:
    """Write the title: which patient, at which site."""
    where = f" at {case.site}" if case.site else ""
    return f"Row {case.number} of {case.source}{where}"


def case_figure(case: CaseExplanation, *, top: int) -> Figure:
    """Draw the patient's score as a waterfall, from the background's to the patient's own."""
    names = [r.column for r in case.attributions]
    parts = [r.contribution for r in case.attributions]
    end = case.base + sum(parts) if is_complete(case) else case.score
    drawn = figures.waterfall(names, parts, case.base, end, [value_text(r) for r in case.attributions], top=top)
    shown = f"from {case.baseline:.1%} at the start (dotted) to {case.probability:.1%} for this patient"
    drawn["layout"]["title"] = heading(f"Why {escape(case.event)}: row {case.number}", shown)
    drawn["layout"]["xaxis"]["title"] = {"text": escape(score_description(case))}
    drawn["layout"]["margin"] = {"t": 72}
    if case.unit != LOG_ODDS or len(case.classes) > 2:  # the figure's own hover takes every score for log-odds of two
        drawn["data"][0]["hovertemplate"] = "%{y}: %{text}<br>so far %{customdata[0]:.3f}<extra></extra>"
    return drawn


def is_complete(case: CaseExplanation) -> bool:
    """Tell that the attributions add up, to the digits that are shown."""
    return abs(case.remainder) < _VISIBLE


def score_description(case: CaseExplanation) -> str:
    """Describe the score that contributions add up to."""
    if case.unit != LOG_ODDS:
        return f"probability of {case.event}"
    return f"log-odds of {case.event}" + (" against the mean of the other classes" if len(case.classes) > 2 else "")


def risk_name(case: CaseExplanation) -> str:
    """Name the probability: "risk" for two classes."""
    return "risk" if len(case.classes) == 2 else "probability"


def value_text(attribution: Attribution) -> str:
    """Write the patient's value as a person does."""
    if attribution.value is None:
        return "missing"
    return short(attribution.value) if isinstance(attribution.value, float) else str(attribution.value)


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
        return "" if attribution.margin is None else f"not told: noise of ± {attribution.margin:.0f} points"
    return f"{'missing in' if attribution.value is None else 'the same in'} {share_text(attribution.share)}{noise}"


def tiles_html(tiles: Iterable[tuple[str, str, str]], *, html: bool = False) -> str:
    """Write boxes of a name, a figure and a note; with `html` these are escaped already."""
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

_RISKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
_APART = 0.085  # of the width: labels closer than this would run into each other


@dataclass(frozen=True)
class _Scale:
    """An axis: scores from low to high as places from 0 to 1."""

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
    change: float | None  # None: no change, but the base or the score itself

    @property
    def kind(self) -> str:
        return "total" if self.change is None else "up" if self.change > 0 else "down"


def waterfall(case: CaseExplanation, *, top: int) -> str:
    """Draw the way from the baseline to the patient's risk: the `top` strongest columns each way, the rest together."""
    steps = _steps(case, top)
    reached = [z for s in steps for z in (s.before, s.after) if s.change is not None] or [case.base, case.score]
    cut = _score(case.threshold) if case.threshold is not None and case.unit == LOG_ODDS else case.threshold
    low, high = min([*reached, case.base, case.score]), max([*reached, case.base, case.score])
    if cut is not None and abs(cut - case.score) < max(2.0 if case.unit == LOG_ODDS else 0.5, high - low):
        low, high = min(low, cut), max(high, cut)  # a threshold far away would flatten everything else
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
    named = [(f"{r.column} = {value_text(r)}" + (" (imputed)" if r.imputed else ""), r.contribution) for r in shown]
    named += [(f"{len(rest)} others together", sum(r.contribution for r in rest))] if rest else []
    named += [] if is_complete(case) else [("not accounted for", case.remainder)]
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
    if step.change is None:  # said with the digits of the model's own answer
        risk = case.baseline if step.name == "baseline" else case.probability
    last = " class='last'" if step.change is None and step.name != "baseline" else ""
    return [
        f"<td{last}>{breakable(step.name)}</td>",
        f"<td><div class='track'>{lines}{bar}</div></td>",
        f"<td>{number}</td>",
        f"<td>{f'{step.after:.3f}' if risk is None else f'{risk:.1%}'}</td>",
    ]


def _ticks(case: CaseExplanation, scale: _Scale) -> list[tuple[float, str]]:
    """Choose round risks, or round scores where a score is no risk, that lie far enough apart to be read."""
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
    words = "log-odds, marked with the risk they are" if case.unit == LOG_ODDS else "risk"
    if case.unit == LOG_ODDS and len(case.classes) > 2:
        words = "log-odds against the mean of the other classes"
    return words + ("; dashed: the threshold" if cut else "")


def _score(risk: float) -> float:
    """Convert a risk to log-odds."""
    return float(np.log(risk / (1 - risk))) if 0 < risk < 1 else float(np.sign(risk - 0.5)) * 1e3


PRIVATE = "This page shows one patient's values: treat it as part of that patient's record."

_STYLE = f"""
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
.lists table {{ width: 100% }}
.lists td, .lists th {{ padding: .22rem .35rem }}
.lists th, .lists td:first-child {{ white-space: normal }}
.lists td.text {{ white-space: nowrap }}
h3.raises {{ color: var(--up) }} h3.lowers {{ color: var(--down) }}
.mark {{ font-size: .8em; border: 1px solid var(--box); border-radius: 4px; padding: 0 .3em; color: var(--quiet);
  white-space: nowrap }}
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
    """Write the page of one patient. Every name that came from data is escaped."""
    kind = PARTS.get(case.part or "", "new patient")
    decided = "" if case.threshold is None else f"{case.target_class} from {case.threshold:.1%} on"
    outcome = case.outcome or "not known"
    tiles = [
        (f"{risk_name(case)} of {case.event}", f"{case.probability:.1%}", case.model_owner),
        ("baseline", f"{case.baseline:.1%}", case.start),
        ("decision", case.decision, decided),
        ("outcome", outcome, kind if case.verdict is None else f"{case.verdict}; {kind}"),
    ]
    body = [
        f"<h1>{escape(case_title(case))}</h1>",
        f"<p class='quiet'>{PRIVATE}</p>",
        tiles_html(tiles),
        *notes_html([*verdict_lines(case), *case.notes]),
        "<h2>From the baseline to this patient</h2>",
        waterfall(case, top=top),
        *_bias(case),
        *_quality(case),
        "<h2>Reasons</h2>",
        "<div class='lists'>",
        _list(case, case.amplifiers, "Amplifiers: what raises it", "raises"),
        _list(case, case.mitigators, "Mitigators: what lowers it", "lowers"),
        "</div>",
        *_unused(case),
        "<h2>How to read this</h2>",
        *[f"<p>{escape(line)}</p>" for line in reading_guide(case)],
    ]
    return document(case_title(case), body, None, style=_STYLE)


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
    lines = [
        f"Explained by {case.explainer}: {EXPLAINERS[case.explainer]}.",
        f"Contributions are in {score_description(case)}. They start from {case.base:.3f} ({case.start}) and lead to "
        f"{case.score:.3f}, which is {case.probability:.1%}.",
        "Points are what the risk would change by without this reason, the others as they are; they do not add up. "
        "An odds ratio is what it multiplies the odds by.",
        _population_text(case),
        "An attribution shows what the model relies on, not what made the patient ill. "
        "An imputed value was not measured: what counts is "
        "what stands in for it.",
    ]
    if not is_complete(case):
        lines.insert(2, f"{case.remainder:+.3f} of it is not accounted for by this explainer.")
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
        "<p class='quiet'>This page says of single patients what became of them: treat it as part of their records.</p>",
        f"<p>{escape(near_misses_text(misses))}</p>",
        table(["case", "<th class='text'>site</th>", "risk", "points below the threshold"], rows),
        "<p class='quiet'>rounds explain RUN --case N says why, for each of them.</p>",
    ]
    return document(title, body, None, style=_STYLE)


def near_misses_title(misses: NearMisses) -> str:
    """Write the title of the near misses."""
    return f"Near misses: {misses.event}" + (f" at {misses.site}" if misses.site else "")


def near_misses_text(misses: NearMisses) -> str:
    """Count the near misses and the events in a sentence."""
    return (
        f"Of {misses.rows} test patients {misses.events} had the event; the model put {misses.missed} of them below its "
        f"threshold of {misses.threshold:.1%}, and {misses.near} of these near it (from {NEAR * misses.threshold:.1%} on)."
    )


def points_text(attribution: Attribution) -> str:
    """Write percentage points with their sign; those that round to zero have none."""
    return (
        "" if attribution.points is None else f"{attribution.points:+.1f}" if abs(attribution.points) >= 0.05 else "0.0"
    )


def _population_text(case: CaseExplanation) -> str:
    if case.population.summary is None:
        return f"{case.population.missing[:1].upper()}{case.population.missing[1:]}."
    return f"Percentiles and shares are among {case.population.words}: no row of theirs was read for them."


def _bias(case: CaseExplanation) -> list[str]:
    """List the attributes that should not move a risk by themselves, with their effect on this one."""
    flags = [
        f"<div class='flag'><b>{escape(f.column)} = {escape(_flag_value(f.value))}</b>{escape(f.words)}. "
        f"<span class='mark'>{escape(f.kind)}</span></div>"
        for f in case.bias
    ]
    return ["<h2>Possible bias</h2>", *flags, f"<p class='quiet'>{escape(WHY)}</p>"] if flags else []


def _quality(case: CaseExplanation) -> list[str]:
    lines = [
        f"<div>{escape(text)} <span class='mark'>{escape(kind)}</span></div>"
        for text, kind in quality_lines(case.quality, case.zero_weight_columns)
    ]
    return ["<h2>Data quality</h2>", f"<div class='warn'>{''.join(lines)}</div>"] if lines else []


def _list(case: CaseExplanation, attributions: Sequence[Attribution], title: str, kind: str) -> str:
    has_percentiles = any(percentile_text(r) for r in case.attributions)
    head = ["column", "value", *(["<th class='text'>among patients</th>"] if has_percentiles else []), case.unit]
    head += ["<th class='ratio'>odds ratio</th>"] if case.unit == LOG_ODDS else []
    head += ["points"] if len(case.classes) == 2 else []
    rows = []
    for r in attributions:
        value = "<span class='mark'>imputed</span>" if r.imputed else escape(value_text(r))
        row = [td(breakable(r.column)), td(value), *([text_cell(percentile_text(r))] if has_percentiles else [])]
        row += [td(f"{r.contribution:+.3f}")]
        row += [f"<td class='ratio'>{r.odds_ratio:.2f}</td>"] if r.odds_ratio is not None else []
        row += [td(points_text(r))] if r.points is not None else []
        rows.append(row)
    listing = table(head, rows) if rows else "<p class='quiet'>none</p>"
    return f"<section><h3 class='{kind}'>{escape(title)}</h3>{listing}</section>"


def _unused(case: CaseExplanation) -> list[str]:
    names = [r.column for r in case.attributions if not r.contribution]
    if not names:
        return []
    return [f"<p class='quiet'>{len(names)} columns do nothing to this risk: {escape(', '.join(names))}.</p>"]


def _flag_value(value: float | str | None) -> str:
    return "missing" if value is None else f"{value:g}" if isinstance(value, float) else value
