"""Report section on estimates: coefficients with intervals, the facts of the fit, and differences between hospitals."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from grandrounds.core.records import RunSummary
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.report import figures
from grandrounds.report.document import Charts, table, td, text_cell
from grandrounds.report.estimates import (
    EstimatesRecord,
    common_estimate,
    disclosure_sentence,
    fact_rows,
    forest_names,
    read_estimates,
    score_rows,
    slopes,
    table_head,
    table_rows,
)
from grandrounds.report.tables import heterogeneity_table


def estimates_section(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the section on estimates; empty for a run without them."""
    record = read_estimates(summary)
    if record is None:
        return []
    return [
        "<h2>Estimates</h2>",
        f"<p>{escape(intro(record))}</p>",
        estimates_table(record, ColumnLabels.of_summary(summary)),
        *_notes(record),
        charts.place(figures.coefficients(record.fitted, record.original), wide=True) if has_figure(record) else "",
        "<h3>The fit</h3>",
        table(
            ["", "<th class='text'></th>"],
            [[td(escape(k)), text_cell(v)] for k, v in fact_rows(record, _hospitals(summary))],
        ),
        *_paragraphs([disclosure_sentence(record.exchanges)]),
        *_differences(record, charts),
        *_scores(record, charts),
    ]


def _scores(record: EstimatesRecord, charts: Charts) -> list[str]:
    """Write the scores of a survival model: C-index, Brier score and calibration; empty without them."""
    found = record.scores
    if found is None:
        return []
    drawn = [figures.survival_calibration(found)] if found.calibration else []
    drawn += [figures.brier_over_time(found)] if found.brier is not None else []
    return [
        "<h3>Discrimination and calibration</h3>",
        table(["", "<th class='text'></th>"], [[td(escape(k)), text_cell(v)] for k, v in score_rows(found)]),
        charts.place(*drawn, wide=True) if drawn else "",
        *_paragraphs(found.notes),
    ]


def _differences(record: EstimatesRecord, charts: Charts) -> list[str]:
    """Write the part on differences between hospitals; empty without a test of them."""
    found = record.heterogeneity
    if found is None:
        return []
    drawn = [figures.forest(found, name, common_estimate(record, name)) for name in forest_names(record)]
    return [heterogeneity_table(found).html(), charts.place(*drawn, wide=True)]


def intro(record: EstimatesRecord) -> str:
    """Describe the table in a few sentences."""
    ratio = record.ratio_name
    changed = "linear predictor" if ratio else "outcome"
    what = (
        f"Coefficients are in original units: the change of the {changed} for one unit of a number, or for a level in place "
        "of the reference level."
    )
    of = {
        "odds ratio": "the odds of the event",
        "rate ratio": "the expected count",
        "hazard ratio": "the rate of the event at any time",
    }
    meaning = f" The {ratio} is the factor on {of[ratio]}." if ratio else ""
    shift = "close to" if record.original.facts.get("baseline") == "grid" else "equal to"
    return (
        f"{what}{meaning} They come from sums over the rows of all hospitals, and are {shift} those of the pooled rows. "
        "Intervals are 95% confidence intervals. A coefficient describes an association, not a cause."
    )


def estimates_table(record: EstimatesRecord, labels: ColumnLabels) -> str:
    """Tabulate the coefficients in original units."""
    head = [escape(h) for h in table_head(record.original)]
    head[-1] = f"<th class='text'>{head[-1]}</th>"
    rows = [[*(td(escape(cell)) for cell in row[:-1]), text_cell(row[-1])] for row in table_rows(record.original, labels)]
    return table(head, rows)


def has_figure(record: EstimatesRecord) -> bool:
    """Tell whether a coefficient besides the intercept was estimated."""
    return bool(slopes(record.fitted))


def _hospitals(summary: RunSummary) -> int:
    return int(summary.sites["all"])


def _notes(record: EstimatesRecord) -> list[str]:
    return [f"<p class='warn'>{escape(note)}</p>" for note in record.all_notes]


def _paragraphs(lines: Sequence[str]) -> list[str]:
    return [f"<p>{escape(line)}</p>" for line in lines if line]
