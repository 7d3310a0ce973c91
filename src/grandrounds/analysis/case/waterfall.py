"""A patient's waterfall as plain HTML: a table that is read as well as seen, on any screen, on paper, without a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.analysis.case.attributions import LOG_ODDS
from grandrounds.analysis.case.case_page import accounted, breakable, value_text
from grandrounds.analysis.case.table import TableCase
from grandrounds.report.document import table

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
