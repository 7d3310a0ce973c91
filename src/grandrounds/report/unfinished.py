"""The report of a run without a summary: its state, the cause of its end, the next command, and the rounds so far."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from grandrounds.core.records import RoundRecord
from grandrounds.report import figures
from grandrounds.report.document import Charts, document, table, td, text_cell
from grandrounds.report.figure import packed_script
from grandrounds.report.overview import RUNNING, Overview
from grandrounds.report.sections.training import missing_sites


def unfinished_page(view: Overview, rounds: Sequence[RoundRecord]) -> str:
    """Write the page of a run that is running, or ended without a summary. All names from data are escaped.

    Args:
        view: The overview of the run.
        rounds: The rounds that are finished.

    Returns:
        HTML.
    """
    charts = Charts(packed_script())
    title = f"{view.name}: {view.state}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p class='quiet'>{escape(', '.join(text for text in (view.data, view.method, view.model) if text))}</p>",
        f"<p class='verdict{'' if view.state == RUNNING else ' failed'}'>{escape(view.state_text)}</p>",
        *_next(view),
        charts.note,
        *_rounds(rounds, charts),
    ]
    return document(title, body, charts.script, dark=True)


def _next(view: Overview) -> list[str]:
    """Write the suggested fix, the command that continues the run, and the record of its end."""
    if view.ending is None:
        return []
    ending = view.ending
    facts = {"error code": ending.code, "ended": ending.time, "rounds": view.rounds_text, "version": ending.version}
    rows = [[td(escape(name)), text_cell(text)] for name, text in facts.items() if text]
    return [
        f"<p>{escape(ending.fix)}</p>" if ending.fix else "",
        f"<p>Continue it with <code>{escape(view.next_command)}</code></p>" if view.next_command else "",
        table(["", "<th class='text'></th>"], rows),
    ]


def _rounds(rounds: Sequence[RoundRecord], charts: Charts) -> list[str]:
    """Draw test scores and weights of the rounds so far; list the sites that did not answer."""
    if not rounds:
        return ["<p>No round is finished.</p>"]
    out = ["<h2>Rounds so far</h2>", "<p class='quiet'>Scores of a run that is not finished are not its result.</p>"]
    if any(r.test is not None and (r.sites or {}).get("accuracy") for r in rounds):
        out.append(charts.place(figures.site_curves(rounds), wide=True))
    if any(r.decision.weights for r in rounds):
        out.append(charts.place(figures.weights(rounds), wide=True))
    return [*out, "<h2>Sites that did not answer</h2>", missing_sites(rounds)]
