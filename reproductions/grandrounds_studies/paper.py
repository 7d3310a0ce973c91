"""One report of a paper: its claims and published figures beside ours, readings chosen, and what else was tried.

The selection is shared by the HTML report (`rounds reproduce --all SYSTEM`) and by the pages of docs/results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from grandrounds.report.document import document, table, td, text_cell
from grandrounds_studies.machine import machine_words
from grandrounds_studies.study import FAILS, HOLDS, UNTESTED
from grandrounds_studies.tally import Answer, Tally, Told, answers, papers
from grandrounds_studies.wording import (
    QUICK,
    VERDICTS,
    cell_words,
    published_words,
    repeats_range,
    seeds_words,
    shown_figures,
)

Values = Mapping[str, Any]
"""Values of a results.json."""

_ON_A_LINE = 3
"""Measures whose published figure and ours fit on one line."""

FIGURES = 3
"""Measures that are shown of a study without published figures."""

_SHADE = {HOLDS: "good", FAILS: "bad"}


@dataclass(frozen=True)
class Finding:
    """A claim with its verdict, and the study that tested it."""

    answer: Answer
    study: str
    repeat: str  # "seed" or "fold"

    @property
    def why(self) -> str:
        """The numbers behind the verdict, and how many seeds would decide it."""
        return "; ".join(filter(None, (self.answer.why, seeds_words(self.answer.seeds, self.repeat))))


def findings(results: Sequence[Values]) -> list[Finding]:
    """Return every claim of a system's studies once, with its verdict."""
    first: dict[str, Values] = {}
    told: list[Told] = []
    for values in results:
        for claim in values["claims"]:
            first.setdefault(claim["claim"], values)
            told.append(Told.of(claim))
    return [Finding(a, first[a.claim]["study"], first[a.claim]["repeats"]) for a in answers(told)]


def of_paper(found: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return the claims of the paper, and our own questions."""
    return [f for f in found if not f.answer.ours], [f for f in found if f.answer.ours]


def short(study: str) -> str:
    """Return a study's name within its system: "table-1"."""
    return study.split("/")[1]


def shown_measures(values: Values) -> list[str]:
    """Return the measures with a published figure; without any, the first ones."""
    published = {f["measure"] for f in values["figures"] if f["published"] is not None}
    shown = [m for m, about in values["measures"].items() if about["shown"]]
    return [m for m in shown if m in published] or [m for m in shown if m != "majority"][:FIGURES]


def figure_rows(values: Values) -> Iterator[tuple[str, str, list[str]]]:
    """Yield point, arm and a cell for each of `shown_measures`: "0.523 → 0.511 ± 0.010", published and ours.

    Accuracy has the share of the majority class behind it, without which it says nothing.
    """
    measures = shown_measures(values)
    for point in dict.fromkeys(f["point"] for f in values["figures"]):
        by = {(f["arm"], f["measure"]): f for f in shown_figures(values, point)}
        for arm in dict.fromkeys(arm for arm, _ in by):
            held = {m: by[arm, m] for m in measures if (arm, m) in by}
            majority = by.get((arm, "majority"))
            yield point, arm, [_cell(values, held.get(m), majority) for m in measures]


def _cell(values: Values, figure: Values | None, majority: Values | None) -> str:
    if figure is None:
        return "–"
    digits = values["measures"][figure["measure"]]["digits"]
    text = cell_words(figure, digits)
    if figure["published"] is not None:
        text = f"{published_words(figure['published'])} → {text}"
    if figure["measure"] == "accuracy" and majority is not None and majority["mean"] is not None:
        text += f" (majority {majority['mean']:.{digits}f})"
    return text


def figure_head(values: Values) -> list[str]:
    """Return the heads of `figure_rows`' columns."""
    return ["", "", *(str(values["measures"][m]["words"]) for m in shown_measures(values))]


def arrow_words(values: Values) -> str:
    """Return the sentence that explains the cells of `figure_rows`."""
    ours = f"ours: mean ± half of the 95% interval over {repeats_range(values)}"
    return f"Published → {ours}" if any(f["published"] is not None for f in values["figures"]) else ours.capitalize()


def also_run(values: Values) -> list[str]:
    """Return the arms that are neither published nor in the paper's own form: what else was tried."""
    theirs = {f["arm"] for f in values["figures"] if f["published"] is not None} | {values["first"]}
    by: dict[str, list[Told]] = {}
    for claim in values["claims"]:
        if not claim["where"].startswith("our "):
            by.setdefault(claim["claim"], []).append(Told.of(claim))
    theirs |= {t.arm for told in by.values() for t in papers(told)}
    return [arm for arm in dict.fromkeys(f["arm"] for f in values["figures"]) if arm not in theirs]


def left_out_words(values: Values) -> list[str]:
    """Return a sentence for each point that was not run and each run that failed."""
    lost = [f"Left out: {what}: {why.rstrip('.')}." for what, why in values["left_out"].items()]
    return lost + [f"Failed: {why.rstrip('.')}." for why in values["failed"].values()]


_STYLE = """
.tile.good b { color: var(--good) } .tile.bad b { color: var(--bad) }
.study { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: .2rem }
td.word { font-weight: 600; text-align: left } td.why, td.says { white-space: normal; text-align: left }
td.text.says { min-width: 18rem; color: var(--ink) } td.word.quiet { color: var(--ink) }
td.why { color: var(--quiet); min-width: 20rem }
tbody tr:target { background: var(--warn) }
.bar { display: flex; height: .8rem; border-radius: 4px; overflow: hidden; margin: .4rem 0 1.2rem }
.bar i { display: block } .bar .good { background: var(--good) } .bar .bad { background: var(--bad) }
.bar .open { background: #b0b8c0 } .bar .none { background: var(--faint) }
.study code { background: var(--faint); padding: 0 .3rem; border-radius: 4px }
.study td.arm { white-space: normal; min-width: 9rem; text-align: left }
"""
_BAR = dict(zip(VERDICTS, ("good", "bad", "open", "none"), strict=True))


def paper_page(name: str, results: Sequence[Values], missing: Mapping[str, str], reports: Mapping[str, Path]) -> str:
    """Return the report of a paper.

    Args:
        name: What people call the system.
        results: Values of results.json of each study that was run, in order.
        missing: Studies without results, and why.
        reports: Study -> its own report, by a path from this page.
    """
    paper, ours = of_paper(findings(results))
    quick = any(values["quick"] for values in results)
    theirs = [v for v in results if v["of_paper"]]
    more = [v for v in results if not v["of_paper"]]
    source = theirs[0]["source"].split(", sec.")[0] if theirs else results[0]["source"]
    body = [
        f"<h1>{escape(name)}: the paper's claims and figures, and ours</h1>",
        f"<p class='quiet'>{escape(source)}. {len(results)} reproductions of {len(results) + len(missing)} were run.</p>",
        *([f"<p class='warn'><b>{escape(QUICK)}</b></p>"] if quick else []),
        *[f"<p class='warn'>{escape(study)} was not run: {escape(why)}</p>" for study, why in missing.items()],
        *_verdicts("The paper's claims", paper, quick=quick),
        *(["<h2>Figures of the paper</h2>"] if theirs else []),
        *[part for values in theirs for part in _study(values, reports)],
    ]
    if more or ours:
        body += ["<h2>What else was tried</h2>", "<p>These questions and settings are ours, not the paper's.</p>"]
        body += _verdicts("", ours, quick=quick)
        body += [part for values in more for part in _study(values, reports)]
    return document(f"{name}: reproduction", body, None, style=_STYLE)


def _verdicts(heading: str, found: Sequence[Finding], *, quick: bool) -> list[str]:
    if not found:
        return []
    counts = Tally.of(f.answer for f in found)
    numbers = dict(zip(VERDICTS, (counts.reproduced, counts.refuted, counts.inconclusive, counts.untested), strict=True))
    tiles = "".join(f"<div class='tile {_SHADE.get(w, '')}'><b>{n}</b>{w}</div>" for w, n in numbers.items())
    bar = "".join(f"<i class='{_BAR[w]}' style='flex:{n}' title='{n} {w}'></i>" for w, n in numbers.items() if n)
    shown = [f for f in found if not quick or f.answer.verdict != UNTESTED]
    hidden = len(found) - len(shown)
    heads = [f"<th class='text'>{w}</th>" for w in ("claim", "verdict", "our numbers", "study")]
    rows = [
        [
            f"<td class='text says'>{escape(f.answer.claim)}<br><span class='quiet'>{escape(f.answer.where)}</span></td>",
            f"<td class='word {_SHADE.get(f.answer.verdict, 'quiet')}'>{f.answer.verdict}</td>",
            f"<td class='why'>{escape(f.why)}</td>",
            f"<td><a href='#{short(f.study)}'>{escape(short(f.study))}</a></td>",
        ]
        for f in shown
    ]
    return [
        *([f"<h2>{heading}</h2>"] if heading else []),
        f"<div class='tiles'>{tiles}</div><div class='bar'>{bar}</div>",
        table(heads, rows) if rows else "",
        *([f"<p class='quiet'>{hidden} claims cannot be tested by the quick version.</p>"] if hidden else []),
    ]


def _study(values: Values, reports: Mapping[str, Path]) -> list[str]:
    name = values["study"]
    heads = [escape(head) for head in figure_head(values)[2:]]
    broken = len(heads) > _ON_A_LINE
    rows, before = [], ""
    lone = len({f["point"] for f in values["figures"]}) == 1
    for point, arm, cells in figure_rows(values):
        first = [] if lone else [text_cell("" if point == before else point)]
        before = point
        shown = (escape(cell).replace(" → ", " →<br>" if broken else " → ").replace(" (maj", "<br>(maj") for cell in cells)
        rows.append([*first, f"<td class='arm'>{escape(arm)}</td>", *(td(cell) for cell in shown)])
    at = f" at {before}" if lone else ""
    link = f" <a href='{escape(str(reports[name]))}'>All figures and charts</a>" if name in reports else ""
    other = also_run(values) if values["of_paper"] else []
    return [
        f"<section class='study' id='{escape(short(name))}'><h3>{escape(short(name))}: {escape(values['title'])}</h3>",
        f"<p class='quiet'>{escape(values['source'])}. <code>rounds reproduce {escape(name)}</code>{link}</p>",
        *[f"<p class='warn'>{escape(line)}</p>" for line in left_out_words(values)],
        *([f"<p>Published: {escape(values['unpublished'])}.</p>"] if values["unpublished"] else []),
        f"<p class='quiet'>{escape(arrow_words(values) + at)}. Run on: {escape(machine_words(values['machines']))}.</p>",
        table(["<th class='text'></th>"] * (1 if lone else 2) + heads, rows),
        *_details("Readings chosen where the paper leaves it open", values["settled"]),
        *_details("Other forms that were tried here", other),
        *_details("Remarks", values["remarks"]),
        "</section>",
    ]


def _details(heading: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return [f"<details><summary>{heading}</summary><ul>{items}</ul></details>"]
