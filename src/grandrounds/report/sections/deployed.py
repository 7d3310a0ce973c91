"""Report section on the models that hospitals deploy."""

from __future__ import annotations

from grandrounds.core.records import RunSummary
from grandrounds.report import figures
from grandrounds.report.deployed import deployed_table, read_deployed
from grandrounds.report.document import Charts


def deployed_section(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the section on deployed models; empty for a run without personal models."""
    found = read_deployed(summary)
    if found is None:
        return []
    drawn = figures.deployed_losses(found)
    return [deployed_table(found).html(heading="h2"), "" if drawn is None else charts.place(drawn, wide=True)]
