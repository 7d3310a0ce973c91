"""Report sections on personal models: the models that hospitals deploy, and hospitals that differ from the common model."""

from __future__ import annotations

from html import escape

from grandrounds.core.records import RunSummary
from grandrounds.report import figures
from grandrounds.report.deployed import deployed_table, read_deployed
from grandrounds.report.differences import differences_table, overview_sentences, read_differences
from grandrounds.report.document import Charts
from grandrounds.report.figures.differences import differences_forest


def deployed_section(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the section on deployed models; empty for a run without personal models."""
    found = read_deployed(summary)
    if found is None:
        return []
    drawn = figures.deployed_losses(found)
    return [deployed_table(found).html(heading="h2"), "" if drawn is None else charts.place(drawn, wide=True)]


def differences_section(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the section on features that differ; empty for a run without personal parts, or whose findings stay at hospitals."""
    found, sentences = differences_table(summary), overview_sentences(summary)
    if found is None:
        return [f"<h2>Why hospitals differ</h2><p>{escape(' '.join(sentences))}</p>"] if sentences else []
    drawn = differences_forest(list(read_differences(summary).values()))
    return [found.html(heading="h2"), charts.place(drawn, wide=True) if drawn is not None else ""]
