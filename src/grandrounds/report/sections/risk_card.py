"""Report section on a risk card: points, risks of totals, nomogram, and calibration by hospital."""

from __future__ import annotations

from html import escape

from grandrounds.core.records import RunSummary
from grandrounds.metrics.fairness import rank_sites
from grandrounds.report import figures
from grandrounds.report.document import Charts, number, table, td, text_cell
from grandrounds.report.estimates import disclosure_sentence
from grandrounds.report.figures.card import nomogram
from grandrounds.report.risk_card import NOT_MEASURED, CardRecord, interval_text, read_card, risk_text, total_text
from grandrounds.report.trees import exchange_facts

IS_THE_MODEL = "The card is the model: the program's risk of a patient is the printed risk of the sum of points."


def risk_card_section(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the section on a risk card; empty for a run without one."""
    record = read_card(summary)
    if record is None:
        return []
    sentence = disclosure_sentence(record.exchanges)
    facts = exchange_facts(record.exchanges)
    return [
        "<h2>Risk card</h2>",
        f"<p>{escape(record.source)} {IS_THE_MODEL} {escape(NOT_MEASURED)}</p>",
        *[f"<p>{escape(note)}</p>" for note in record.remarks],
        f"<div class='charts'><section>{_points(record)}</section><section>{_risks(record)}</section></div>",
        f"<figure class='nomogram'>{nomogram(record.card)}</figure>",
        charts.place(figures.risk_by_total(record), wide=True),
        *_calibration_by_site(summary),
        "<h3>The fit</h3>" if facts else "",
        table(["", "<th class='text'></th>"], [[td(escape(k)), text_cell(v)] for k, v in facts]) if facts else "",
        f"<p>{escape(sentence)}</p>" if sentence else "",
    ]


def _points(record: CardRecord) -> str:
    rows = [[td(escape(t.text)), td(f"{t.points:+d}")] for t in record.card.terms]
    return f"<h3>Points</h3>{table(['applies to the patient', 'points'], rows)}"


def _risks(record: CardRecord) -> str:
    rows = [
        [
            *(_unbroken(total_text(t, record.card)), td(risk_text(t)), _unbroken(interval_text(t))),
            *(td(f"{t.rows:,}"), td(f"{t.events:,}")),
        ]
        for t in record.card.totals
    ]
    return f"<h3>Risk by total</h3>{table(['total', 'risk', '95% CI', 'patients', 'events'], rows)}"


def _unbroken(text: str) -> str:
    """Write a cell whose text stays on one line, on paper too."""
    return td(text.replace(" ", "&nbsp;"))


def _calibration_by_site(summary: RunSummary) -> list[str]:
    """Tabulate calibration on the test rows of each hospital; empty without test rows."""
    sites = [s for s in rank_sites(summary.per_site) if summary.per_site[s].get("count")]
    if not any(summary.per_site[s].get("ece") is not None for s in sites):
        return []
    rows = []
    for site in sites:
        m = summary.per_site[site]
        slope, start = number(m.get("calibration_slope"), 2), number(m.get("calibration_in_the_large"), 2)
        shown = [td(escape(site)), td(f"{m['count']:.0f}"), td(number(m.get("events"), 0)), td(number(m.get("ece"), 3))]
        rows.append([*shown, td(start), td(slope), td(number(m.get("brier"), 3))])
    head = ["hospital", "test rows", "events", "ECE", "calibration in the large", "calibration slope", "Brier score"]
    return [
        "<h3>Calibration by hospital</h3>",
        "<p>Ideal: calibration in the large 0 (below 0 risks are too high on average) and slope 1 (below 1 risks are "
        "too extreme). Before a hospital uses the card, it should look at its own line. With few events the values are "
        "uncertain.</p>",
        table(head, rows),
    ]
