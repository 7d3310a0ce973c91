"""The estimates of a run: the table of coefficients, the facts of the fit, and notes."""

from __future__ import annotations

from pydantic import BaseModel

from grandrounds.console.run_index import RunIndex
from grandrounds.console.views.run import load_record
from grandrounds.report.estimates import disclosure_sentence, fact_rows, read_estimates, table_head, table_rows
from grandrounds.report.sections.estimates import intro


class EstimatesView(BaseModel):
    """Estimates as text. `rows`: one for each column, in the order of `head`; `facts`: label and text."""

    intro: str
    head: list[str]
    rows: list[list[str]]
    facts: list[tuple[str, str]]
    disclosure: str
    notes: list[str]


def estimates(run_index: RunIndex, name: str) -> EstimatesView | None:
    """Return the estimates of a finished run; None for a run without them."""
    summary = load_record(run_index, name).summary
    record = None if summary is None else read_estimates(summary)
    if summary is None or record is None:
        return None
    return EstimatesView(
        intro=intro(record),
        head=list(table_head(record.original)),
        rows=[list(row) for row in table_rows(record.original, summary.data)],
        facts=fact_rows(record, int(summary.sites["all"])),
        disclosure=disclosure_sentence(record.exchanges),
        notes=list(record.all_notes),
    )
