"""Estimates and tables of a run: coefficients with intervals, the facts of the fit, Table 1, survival, groups of patients."""

from __future__ import annotations

from pydantic import BaseModel

from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views.run import load_record
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.report.deployed import deployed_table, read_deployed
from grandrounds.report.differences import differences_table
from grandrounds.report.estimates import disclosure_sentence, fact_rows, read_estimates, table_head, table_rows
from grandrounds.report.fairness import (
    describe_gaps,
    describe_merged,
    describe_mitigation,
    gap_table,
    group_tables,
    has_correction,
    mitigation_table,
)
from grandrounds.report.quality import quality_tables
from grandrounds.report.sections.estimates import intro
from grandrounds.report.sections.fairness import CAVEAT, MOST_GAPS
from grandrounds.report.tables import (
    heterogeneity_table,
    read_survival,
    read_table_one,
    selection_table,
    survival_table,
    table_one,
)
from grandrounds.report.watch import watch_tables


class EstimatesView(BaseModel):
    """Estimates as text. `rows`: one for each column, in the order of `head`; `facts`: label and text."""

    intro: str
    head: list[str]
    rows: list[list[str]]
    facts: list[tuple[str, str]]
    disclosure: str
    notes: list[str]


class TableView(BaseModel):
    """A table as text. `names`: columns at the left that hold names; `before` and `notes`: sentences around it."""

    title: str
    head: list[str]
    rows: list[list[str]]
    names: int
    before: list[str]
    notes: list[str]


def tables(run_index: RunIndex, name: str) -> list[TableView]:
    """Return the tables of a finished run: differences of hospitals, cohort, Table 1, survival curves, deployed models, a
    watch, quality of data.
    """
    summary = load_record(run_index, name).summary
    if summary is None:
        return []
    record, first, survival = read_estimates(summary), read_table_one(summary), read_survival(summary)
    found = [] if record is None or record.heterogeneity is None else [heterogeneity_table(record.heterogeneity)]
    deployed, differences = read_deployed(summary), differences_table(summary)
    found += [*([] if deployed is None else [deployed_table(deployed)]), *([] if differences is None else [differences])]
    selection = selection_table(summary)
    found += [] if selection is None else [selection]
    found += [*([] if first is None else [table_one(first)]), *([] if survival is None else [survival_table(survival)])]
    found += [*watch_tables(summary), *quality_tables(summary)]
    return [
        TableView(
            title=t.title,
            head=list(t.head),
            rows=[list(row) for row in t.rows],
            names=t.names,
            before=list(t.before),
            notes=list(t.notes),
        )
        for t in found
    ]


def groups(run_index: RunIndex, name: str) -> list[TableView]:
    """Return the tables of groups of patients of a finished run: a column each, the gaps, and a correction with its cost."""
    summary = load_record(run_index, name).summary
    fairness = {} if summary is None else summary.fairness
    if not fairness:
        return []
    shown = [
        TableView(title=f"Groups by {column}, 95% intervals", head=heads, rows=rows, names=1, before=[], notes=[])
        for column, heads, rows in group_tables(fairness)
    ]
    shown[-1].notes.extend(describe_merged(fairness))
    heads, rows = gap_table(fairness, MOST_GAPS)
    if rows:
        before = describe_gaps(fairness)
        shown.append(TableView(title="Gaps between groups", head=heads, rows=rows, names=3, before=before, notes=[]))
    if has_correction(fairness):
        heads, rows = mitigation_table(fairness)
        before, title = describe_mitigation(fairness), "Correction by group, test rows before → after"
        shown.append(TableView(title=title, head=heads, rows=rows, names=2, before=before, notes=[CAVEAT]))
    return shown


def estimates(run_index: RunIndex, name: str) -> EstimatesView | None:
    """Return the estimates of a finished run; None for a run without them."""
    summary = load_record(run_index, name).summary
    record = None if summary is None else read_estimates(summary)
    if summary is None or record is None:
        return None
    return EstimatesView(
        intro=intro(record),
        head=list(table_head(record.original)),
        rows=[list(row) for row in table_rows(record.original, ColumnLabels.of_summary(summary))],
        facts=fact_rows(record, int(summary.sites["all"])),
        disclosure=disclosure_sentence(record.exchanges),
        notes=list(record.all_notes),
    )
