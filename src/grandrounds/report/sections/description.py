"""Report sections of runs that describe patients: Table 1, survival curves, quality of data, a watch across hospitals."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from grandrounds.core.records import RunSummary
from grandrounds.report import figures
from grandrounds.report.document import Charts
from grandrounds.report.estimates import disclosure_sentence
from grandrounds.report.quality import quality_tables
from grandrounds.report.tables import (
    has_curve,
    read_survival,
    read_table_one,
    selection_table,
    survival_table,
    table_one,
)
from grandrounds.report.watch import watch_tables


def cohort_section(summary: RunSummary) -> list[str]:
    """Write the section on the selection of a cohort's patients; empty for a run without a cohort."""
    found = selection_table(summary)
    return [] if found is None else [found.html(heading="h2")]


def table_one_section(summary: RunSummary) -> list[str]:
    """Write the section with Table 1; empty for a run without it."""
    found = read_table_one(summary)
    return [] if found is None else [table_one(found).html(heading="h2"), *_disclosed(summary)]


def survival_section(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the section on survival curves; empty for a run without them."""
    found = read_survival(summary)
    if found is None:
        return []
    drawn = charts.place(figures.survival_curves(found), wide=True) if has_curve(found) else ""
    return [survival_table(found).html(heading="h2"), drawn, *_disclosed(summary)]


def watch_section(summary: Mapping[str, Any]) -> list[str]:
    """Write the section on a watch across hospitals; empty for another run."""
    tables = watch_tables(summary)
    if not tables:
        return []
    watch = summary["watch"]
    model = f"Watched model: {watch['model'][:16]} of {watch['run']}."
    return [tables[0].html(heading="h2"), *(t.html() for t in tables[1:]), f"<p class='quiet'>{escape(model)}</p>"]


def quality_section(summary: RunSummary) -> list[str]:
    """Write the section on the quality of the sites' data; empty for another run."""
    tables = quality_tables(summary)
    return [tables[0].html(heading="h2"), *(t.html() for t in tables[1:]), *_disclosed(summary)] if tables else []


def _disclosed(summary: RunSummary) -> list[str]:
    """State how much the hospitals sent, where the run recorded it."""
    sent = (summary.get("statistic") or {}).get("exchanges") or {}
    line = disclosure_sentence(sent)
    return [f"<p>{escape(line)}</p>"] if line else []
