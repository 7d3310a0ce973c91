"""Write the report of a reproduction: published figures, our figures, and the verdict on each claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from grandrounds.report.document import Charts, document, table, td, text_cell
from grandrounds.report.figure import Figure, packed_script
from grandrounds_studies.study import FAILS, HOLDS
from grandrounds_studies.wording import (
    QUICK,
    cell_words,
    published_words,
    repeats_words,
    shown_claims,
    shown_figures,
    why_words,
)

_SHADE = {HOLDS: "good", FAILS: "bad"}


def study_page(values: Mapping[str, Any], charts: Sequence[tuple[str, Sequence[Figure]]]) -> str:
    """Return the whole page from the values of results.json and the study's charts."""
    placed = Charts(packed_script())
    name = str(values["study"])
    claims, others = shown_claims(values)
    body = [
        f"<h1>{escape(values['title'])}</h1>",
        f"<p class='quiet'>{escape(name)}; {escape(values['source'])}; ours: {repeats_words(values)}, means with 95% "
        f"intervals, under them the difference to {escape(values['first'])}, paired by {values['repeats']}</p>",
        *([f"<p class='warn'><b>{escape(QUICK)}</b></p>"] if values["quick"] else []),
        *[f"<p class='warn'>Left out: {escape(p)}, because {escape(why)}</p>" for p, why in values["left_out"].items()],
        placed.note,
        "<h2>Claims and verdicts</h2>",
        *([_claims(claims, values["repeats"])] if claims else []),
        *_sentences([others] if others else []),
        *_sentences(values["remarks"]),
        *[part for heading, drawn in charts for part in _drawn(heading, drawn, placed)],
        "<h2>Published and ours</h2>",
        *([f"<p>Published: {escape(values['unpublished'])}.</p>"] if values["unpublished"] else []),
        *[_point(values, point) for point in dict.fromkeys(f["point"] for f in values["figures"])],
        *_failed(values["failed"]),
        "<h2>Details that the paper leaves open, and our choices</h2>",
        *_sentences(values["settled"]),
    ]
    return document(f"{name}: {values['title']}", body, placed.script)


def _claims(claims: Sequence[Mapping[str, Any]], repeat: str) -> str:
    """Return the table of claims, with a line for each tested arm."""
    left = [f"<th class='text'>{words}</th>" for words in ("claim", "of", "our numbers")]
    rows, before = [], ""
    for c in claims:
        again = c["claim"] == before
        before = c["claim"]
        first = [text_cell(""), td("")] if again else [text_cell(c["claim"]), td(escape(c["where"]))]
        word, why = str(c["verdict"]), why_words(c, repeat)
        verdict = f"<td class='{_SHADE.get(word, 'quiet')}'>{escape(word)}</td>"
        rows.append([*first, text_cell(c["arm"]), verdict, text_cell(why)])
    return table([left[0], "where", left[1], "verdict", left[2]], rows)


def _point(values: Mapping[str, Any], point: str) -> str:
    """Return the table of one point, one arm per row: our figure, the published one, and the difference to the first arm."""
    by = {(f["arm"], f["measure"]): f for f in shown_figures(values, point)}
    measures = list(dict.fromkeys(m for _, m in by))
    head = ["", *(escape(values["measures"][m]["words"]) for m in measures)]
    rows = [
        [td(escape(arm)), *(_cell(by[arm, m], values["measures"][m]) for m in measures)]
        for arm in dict.fromkeys(a for a, _ in by)
    ]
    return f"<section><h3>{escape(point)}</h3>{table(head, rows)}</section>"


def _cell(figure: Mapping[str, Any], measure: Mapping[str, Any]) -> str:
    lines = [escape(cell_words(figure, measure["digits"]))]
    if figure["published"] is not None:
        lines.append(f"<span class='quiet'>published {published_words(figure['published'])}</span>")
    pair = figure["paired_to_first"]
    if measure["lower"] is not None and pair is not None and pair["difference"] is not None:
        lines.append(_difference(pair, measure))
    return td("<br>".join(lines))


def _difference(pair: Mapping[str, Any], measure: Mapping[str, Any]) -> str:
    """Format the paired difference to the first arm, in colour if its interval excludes zero."""
    clear = pair["low"] is not None and (pair["low"] > 0 or pair["high"] < 0)
    shade = ("good" if (pair["difference"] < 0) == measure["lower"] else "bad") if clear else "quiet"
    return f"<span class='{shade}'>{pair['difference']:+.{measure['digits']}f}</span>"


def _drawn(heading: str, drawn: Sequence[Figure], charts: Charts) -> list[str]:
    return [f"<h2>{escape(heading)}</h2>", charts.place(*drawn, wide=len(drawn) == 1)] if drawn else []


def _sentences(lines: Sequence[str]) -> list[str]:
    return [f"<p>{escape(line)}</p>" for line in lines]


def _failed(failed: Mapping[str, str]) -> list[str]:
    if not failed:
        return []
    items = "".join(f"<li>{escape(why)}</li>" for why in failed.values())
    return [
        f"<h2>Runs that failed</h2><p>Their figures are undefined, and so are the means over them.</p><ul>{items}</ul>"
    ]
