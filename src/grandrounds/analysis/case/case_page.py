"""Case and site explanations on self-contained pages, in light, in dark and on paper: waterfall, tables and near misses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from grandrounds.analysis.case.attributions import EXPLAINERS, LOG_ODDS
from grandrounds.analysis.case.near_misses import NEAR, NearMisses
from grandrounds.analysis.case.site import SiteReasons
from grandrounds.analysis.case.table import Reason, TableCase
from grandrounds.analysis.case.values import WHY, quality_lines, share_text, short
from grandrounds.report import figures
from grandrounds.report.document import Charts, document, number, table, td, text_cell
from grandrounds.report.figure import Figure, packed_script
from grandrounds.report.style import COLOURS, QUIET, category, heading, labels, layout

PARTS = {"train": "training row", "val": "validation row", "test": "test row", "reference": "reference row"}
_SEEN = 0.005


def case_title(case: TableCase) -> str:
    """Which patient, at which site."""
    where = f" at {case.site}" if case.site else ""
    return f"Row {case.number} of {case.source}{where}"


def case_figure(case: TableCase, *, top: int) -> Figure:
    """The patient's score as a waterfall, from the background's to the patient's own."""
    names = [r.column for r in case.reasons]
    parts = [r.contribution for r in case.reasons]
    end = case.base + sum(parts) if accounted(case) else case.score
    drawn = figures.waterfall(names, parts, case.base, end, [value_text(r) for r in case.reasons], top=top)
    shown = f"from {case.baseline:.1%} at the start (dotted) to {case.probability:.1%} for this patient"
    drawn["layout"]["title"] = heading(f"Why {escape(case.event)}: row {case.number}", shown)
    drawn["layout"]["xaxis"]["title"] = {"text": escape(score_words(case))}
    drawn["layout"]["margin"] = {"t": 72}
    if case.unit != LOG_ODDS or len(case.classes) > 2:  # the figure's own hover takes every score for log-odds of two
        drawn["data"][0]["hovertemplate"] = "%{y}: %{text}<br>so far %{customdata[0]:.3f}<extra></extra>"
    return drawn


def accounted(case: TableCase) -> bool:
    """Whether the reasons add up, to the digits that are shown."""
    return abs(case.remainder) < _SEEN


def score_words(case: TableCase) -> str:
    """What the contributions add up to."""
    if case.unit != LOG_ODDS:
        return f"probability of {case.event}"
    return f"log-odds of {case.event}" + (" against the mean of the other classes" if len(case.classes) > 2 else "")


def risk_word(case: TableCase) -> str:
    """What a probability is called: of two classes the second is a risk."""
    return "risk" if len(case.classes) == 2 else "probability"


def value_text(reason: Reason) -> str:
    """The patient's value as a person writes it."""
    if reason.value is None:
        return "missing"
    return short(reason.value) if isinstance(reason.value, float) else str(reason.value)


def breakable(name: str) -> str:
    """A name as HTML that may be broken after an underscore, so that long ones do not widen a table."""
    return escape(name).replace("_", "_<wbr>")


def standing(reason: Reason) -> str:
    """Where the value stands among the training patients of all sites."""
    noise = "" if reason.margin is None else f" ± {max(1.0, reason.margin):.0f} (noised)"
    if reason.percentile is not None:
        p = reason.percentile
        return f"percentile {'<1' if p < 1 else '>99' if p > 99 else f'{p:.0f}'}{noise}"
    if reason.share is None:
        return "" if reason.margin is None else f"not told: noise of ± {reason.margin:.0f} points"
    return f"{'missing in' if reason.value is None else 'the same in'} {share_text(reason.share)}{noise}"


def site_figure(reasons: SiteReasons, *, top: int) -> Figure:
    """The columns that count most at the site, beside what they count elsewhere."""
    shown = reasons.columns[:top]
    names = labels([c.column for c in shown], width=34)
    bars = {
        "type": "bar",
        "orientation": "h",
        "name": f"at {escape(reasons.site)}",
        "x": [c.share for c in shown],
        "y": names,
        "error_x": {"type": "data", "array": [c.error for c in shown], "color": QUIET, "thickness": 1.2},
        "marker": {"color": COLOURS[5]},
        "hovertemplate": "%{y}: %{x:.1%}<extra></extra>",
    }
    dots = {
        "type": "scatter",
        "mode": "markers",
        "name": "the other sites, on average",
        "x": [c.others for c in shown],
        "y": names,
        "marker": {"color": COLOURS[1], "symbol": "line-ns-open", "size": 14, "line": {"width": 3}},
        "hovertemplate": "%{y}: %{x:.1%}<extra>other sites</extra>",
    }
    rest = len(reasons.columns) - len(shown)
    return Figure(
        [bars, dots],
        layout(
            f"What counts at {escape(reasons.site)}",
            note=f"{rest} less important columns are not shown" if rest else "bars with one standard error",
            x="share of importance",
            height=190 + 26 * max(3, len(shown)),
            xaxis={"tickformat": ".0%", "rangemode": "tozero"},
            yaxis=category(names, autorange="reversed", showgrid=False),
            legend={"y": -0.16},
        ),
    )


def site_page(reasons: SiteReasons, *, top: int) -> str:
    """The whole page of one site."""
    charts = Charts(packed_script())
    figures_ = reasons.performance
    tiles = [
        ("from the consensus", f"{reasons.divergence:.2f}", f"of at most 2; sampling alone: {reasons.sampling:.2f}"),
        ("place", f"{reasons.rank} of {reasons.sites}", "1 is the site farthest from the consensus"),
        ("accuracy", number(figures_["accuracy"], 3), f"{figures_['count'] or 0:.0f} test rows, {escape(reasons.by)}"),
        ("AUROC", number(figures_["auroc"], 3), f"log loss {number(figures_['log_loss'], 3)}"),
    ]
    chart = charts.place(site_figure(reasons, top=top), wide=True)
    rows = [
        [
            td(escape(c.column)),
            td(f"{c.share:.1%}"),
            td(f"{c.error:.1%}"),
            td(f"{c.others:.1%}"),
            td(f"{c.consensus:.1%}"),
            td(f"{100 * c.difference:+.1f}"),
            text_cell(("more here" if c.difference > 0 else "less here") if c.sure else "within sampling error"),
        ]
        for c in reasons.columns
    ]
    head = ["column", "here", "standard error", "other sites", "consensus", "difference, points", ""]
    title = f"How {reasons.by} reasons at {reasons.site}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p class='quiet'>{escape(reasons.source)}; {escape(reasons.explainer)} importance, {escape(reasons.measured)}</p>",
        tiles_html(tiles, html=True),
        *notes_html(reasons.notes),
        f"<p>{escape(compared(reasons))}</p>",
        charts.note,
        chart,
        "<h2>Columns</h2>",
        table(head, rows),
    ]
    return document(title, body, charts.script)


def compared(reasons: SiteReasons) -> str:
    """Which columns count more and less here than elsewhere, in a sentence."""
    if reasons.flat:
        return "No column counts for the model on this site's patients: its reasons there are flat."
    parts = []
    for word, columns in (("more", reasons.more), ("less", reasons.less)):
        named = ", ".join(f"{c.column} ({100 * c.difference:+.1f} points)" for c in columns[:5])
        parts += [f"Counts {word} here than at the other sites: {named}."] if named else []
    text = " ".join(parts) or "No column counts more or less here than at the other sites, beyond sampling error."
    if reasons.divergence <= reasons.sampling:
        text += " The distance to the consensus is no larger than sampling error alone would make it."
    return text


def tiles_html(tiles: Iterable[tuple[str, str, str]], *, html: bool = False) -> str:
    """Boxes of a name, a figure and a note; with `html` these are escaped already."""
    safe = str if html else escape
    inner = [
        f"<div class='tile'>{safe(n)}<b>{safe(v)}</b><span class='quiet'>{safe(t)}</span></div>" for n, v, t in tiles
    ]
    return f"<div class='tiles'>{''.join(inner)}</div>"


def notes_html(notes: Sequence[str]) -> list[str]:
    """What to be careful about, in one box."""
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
    """Scores from low to high as places from 0 to 1."""

    low: float
    high: float

    def at(self, score: float) -> float:
        return (score - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class _Step:
    """One bar, from where the score stood to where it stands."""

    name: str
    before: float
    after: float
    change: float | None  # None: no change, but the base or the score itself

    @property
    def kind(self) -> str:
        return "total" if self.change is None else "up" if self.change > 0 else "down"


def waterfall(case: TableCase, *, top: int) -> str:
    """From the baseline to the patient's risk: the `top` strongest columns of each direction, the others together."""
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
    made = table(head, [*rows, axis]).replace("<table>", "<table class='waterfall'>", 1)
    return made.replace("<tr><td class='last'>", "<tr class='end'><td>")


def _steps(case: TableCase, top: int) -> list[_Step]:
    first = {r.column for r in (*case.amplifiers[:top], *case.mitigators[:top])}
    shown = [r for r in case.reasons if r.column in first]
    rest = [r for r in case.reasons if r.contribution and r.column not in first]
    named = [(f"{r.column} = {value_text(r)}" + (" (imputed)" if r.imputed else ""), r.contribution) for r in shown]
    named += [(f"{len(rest)} others together", sum(r.contribution for r in rest))] if rest else []
    named += [] if accounted(case) else [("not accounted for", case.remainder)]
    out, z = [_Step("baseline", case.base, case.base, None)], case.base
    for name, change in named:
        out.append(_Step(name, z, z + change, change))
        z += change
    return [*out, _Step("this patient", case.base, case.score, None)]


def _row(case: TableCase, step: _Step, scale: _Scale, ticks: Sequence[float], cut: float | None) -> list[str]:
    lines = "".join(f"<span class='tick' style='left:{100 * scale.at(z):.2f}%'></span>" for z in ticks)
    if cut is not None:
        lines += f"<span class='cut' style='left:{100 * scale.at(cut):.2f}%'></span>"
    left, right = sorted((scale.at(step.before), scale.at(step.after)))
    place = f"left:{100 * left:.2f}%;width:{100 * (right - left):.2f}%"
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


def _ticks(case: TableCase, scale: _Scale) -> list[tuple[float, str]]:
    """Round risks, or round scores where a score is no risk, that lie apart enough to be read."""
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


def _axis_words(case: TableCase, cut: bool) -> str:
    words = "log-odds, marked with the risk they are" if case.unit == LOG_ODDS else "risk"
    if case.unit == LOG_ODDS and len(case.classes) > 2:
        words = "log-odds against the mean of the other classes"
    return words + ("; dashed: the threshold" if cut else "")


def _score(risk: float) -> float:
    """Log-odds."""
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


def case_page(case: TableCase, *, top: int) -> str:
    """The whole page of one patient. Every name that came from data is escaped."""
    of = PARTS.get(case.part or "", "new patient")
    decided = "" if case.threshold is None else f"{case.explained} from {case.threshold:.1%} on"
    known = case.outcome or "not known"
    tiles = [
        (f"{risk_word(case)} of {case.event}", f"{case.probability:.1%}", case.by),
        ("baseline", f"{case.baseline:.1%}", case.start),
        ("decision", case.decision, decided),
        ("outcome", known, of if case.verdict is None else f"{case.verdict}; {of}"),
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
        *[f"<p>{escape(line)}</p>" for line in reading(case)],
    ]
    return document(case_title(case), body, None, style=_STYLE)


def verdict_lines(case: TableCase) -> list[str]:
    """What is to be said first where the decision was wrong and the event happened."""
    if case.verdict != "near miss" or case.threshold is None:
        return []
    return [
        f"Near miss: the event happened at a risk of {case.probability:.1%}, "
        f"{100 * (case.threshold - case.probability):.1f} points below the threshold of {case.threshold:.1%}."
    ]


def reading(case: TableCase) -> list[str]:
    """What the numbers mean, in a few sentences."""
    lines = [
        f"Explained by {case.explainer}: {EXPLAINERS[case.explainer]}.",
        f"Contributions are in {score_words(case)}. They start from {case.base:.3f} ({case.start}) and lead to "
        f"{case.score:.3f}, which is {case.probability:.1%}.",
        "Points are what the risk would change by without this reason, the others as they are; they do not add up. "
        "An odds ratio is what it multiplies the odds by.",
        _among_words(case),
        "A reason is what the model goes by, not what made the patient ill. An imputed value was not measured: what counts is "
        "what stands in for it.",
    ]
    if not accounted(case):
        lines.insert(2, f"{case.remainder:+.3f} of it is not accounted for by this explainer.")
    return lines


def near_misses_page(found: NearMisses) -> str:
    """The list of near misses."""
    title = near_misses_title(found)
    rows = [
        [td(str(m.case)), text_cell(m.site), td(f"{m.risk:.1%}"), td(f"{100 * (found.threshold - m.risk):.1f}")]
        for m in found.cases
    ]
    body = [
        f"<h1>{escape(title)}</h1>",
        "<p class='quiet'>This page says of single patients what became of them: treat it as part of their records.</p>",
        f"<p>{escape(near_misses_words(found))}</p>",
        table(["case", "<th class='text'>site</th>", "risk", "points below the threshold"], rows),
        "<p class='quiet'>rounds explain RUN --case N says why, for each of them.</p>",
    ]
    return document(title, body, None, style=_STYLE)


def near_misses_title(found: NearMisses) -> str:
    return f"Near misses: {found.event}" + (f" at {found.site}" if found.site else "")


def near_misses_words(found: NearMisses) -> str:
    """How many there are, of how many events."""
    return (
        f"Of {found.rows} test patients {found.events} had the event; the model put {found.missed} of them below its "
        f"threshold of {found.threshold:.1%}, and {found.near} of these near it (from {NEAR * found.threshold:.1%} on)."
    )


def points_text(reason: Reason) -> str:
    """Percentage points with their sign; what rounds to nothing has none."""
    return "" if reason.points is None else f"{reason.points:+.1f}" if abs(reason.points) >= 0.05 else "0.0"


def _among_words(case: TableCase) -> str:
    if case.among.population is None:
        return f"{case.among.missing[:1].upper()}{case.among.missing[1:]}."
    return f"Percentiles and shares are among {case.among.words}: no row of theirs was read for them."


def _bias(case: TableCase) -> list[str]:
    """Attributes that should not move a risk by themselves, and what they do to this one."""
    flags = [
        f"<div class='flag'><b>{escape(f.column)} = {escape(_flag_value(f.value))}</b>{escape(f.words)}. "
        f"<span class='mark'>{escape(f.kind)}</span></div>"
        for f in case.bias
    ]
    return ["<h2>Possible bias</h2>", *flags, f"<p class='quiet'>{escape(WHY)}</p>"] if flags else []


def _quality(case: TableCase) -> list[str]:
    lines = [
        f"<div>{escape(text)} <span class='mark'>{escape(kind)}</span></div>"
        for text, kind in quality_lines(case.quality, case.unread)
    ]
    return ["<h2>Data quality</h2>", f"<div class='warn'>{''.join(lines)}</div>"] if lines else []


def _list(case: TableCase, reasons: Sequence[Reason], title: str, kind: str) -> str:
    known = any(standing(r) for r in case.reasons)
    head = ["column", "value", *(["<th class='text'>among patients</th>"] if known else []), case.unit]
    head += ["<th class='ratio'>odds ratio</th>"] if case.unit == LOG_ODDS else []
    head += ["points"] if len(case.classes) == 2 else []
    rows = []
    for r in reasons:
        value = "<span class='mark'>imputed</span>" if r.imputed else escape(value_text(r))
        row = [td(breakable(r.column)), td(value), *([text_cell(standing(r))] if known else [])]
        row += [td(f"{r.contribution:+.3f}")]
        row += [f"<td class='ratio'>{r.odds_ratio:.2f}</td>"] if r.odds_ratio is not None else []
        row += [td(points_text(r))] if r.points is not None else []
        rows.append(row)
    made = table(head, rows) if rows else "<p class='quiet'>none</p>"
    return f"<section><h3 class='{kind}'>{escape(title)}</h3>{made}</section>"


def _unused(case: TableCase) -> list[str]:
    names = [r.column for r in case.reasons if not r.contribution]
    if not names:
        return []
    return [f"<p class='quiet'>{len(names)} columns do nothing to this risk: {escape(', '.join(names))}.</p>"]


def _flag_value(value: float | str | None) -> str:
    return "missing" if value is None else f"{value:g}" if isinstance(value, float) else value
