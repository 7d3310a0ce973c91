"""Report sections on personal models: the models that hospitals deploy, and hospitals that differ from the common model."""

from __future__ import annotations

from dataclasses import replace
from html import escape

from grandrounds.core.records import RunSummary
from grandrounds.methods.guard.candidates import COMMON
from grandrounds.report import figures
from grandrounds.report.deployed import deployed_table, read_deployed
from grandrounds.report.differences import ALIKE, DIFFER, differences_table, overview_sentences, read_differences
from grandrounds.report.document import Charts
from grandrounds.report.figures.differences import differences_forest

_MOST_ALIKE = 20
"""Rows from which on hospitals without a difference are not listed one by one."""


def deployed_section(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the section on deployed models; empty for a run without personal models."""
    found = read_deployed(summary)
    if found is None:
        return []
    shown = deployed_table(found)
    if found.sites and all(site.choice == COMMON for site in found.sites):  # its figures are those of the table of sites
        return [replace(shown, head=(), rows=(), before=shown.before[:-1]).html(heading="h2")]
    drawn = figures.deployed_losses(found)
    return [shown.html(heading="h2"), "" if drawn is None else charts.place(drawn, wide=True)]


def differences_section(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the section on features that differ; empty for a run without personal parts, or whose findings stay at hospitals."""
    found, sentences = differences_table(summary), overview_sentences(summary)
    if found is None:
        return [f"<h2>{escape(DIFFER)}</h2><p>{escape(' '.join(sentences))}</p>"] if sentences else []
    if len(found.rows) > _MOST_ALIKE:  # the sentences count those without a difference
        found = replace(found, rows=tuple(row for row in found.rows if row[1] not in ALIKE), notes=found.notes[:1])
    drawn = differences_forest(list(read_differences(summary).values()))
    return [found.html(heading="h2"), charts.place(drawn, wide=True) if drawn is not None else ""]
