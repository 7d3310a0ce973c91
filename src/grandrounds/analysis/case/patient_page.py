"""One patient's record on a self-contained page, in light, in dark and on paper; and the list of near misses."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from grandrounds.analysis.case.attributions import EXPLAINERS, LOG_ODDS
from grandrounds.analysis.case.case_page import (
    PARTS,
    accounted,
    breakable,
    case_title,
    notes_html,
    risk_word,
    score_words,
    standing,
    tiles_html,
    value_text,
)
from grandrounds.analysis.case.near_misses import NEAR, NearMisses
from grandrounds.analysis.case.protected import WHY
from grandrounds.analysis.case.quality import quality_lines
from grandrounds.analysis.case.table import Reason, TableCase
from grandrounds.analysis.case.waterfall import STYLE, waterfall
from grandrounds.report.document import document, said, table, td

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
        [td(str(m.case)), said(m.site), td(f"{m.risk:.1%}"), td(f"{100 * (found.threshold - m.risk):.1f}")]
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
        row = [td(breakable(r.column)), td(value), *([said(standing(r))] if known else [])]
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
