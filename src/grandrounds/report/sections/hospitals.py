"""Section of a report that compares hospitals: sentences, and a forest plot with intervals."""

from __future__ import annotations

from html import escape

from grandrounds.core.records import RunSummary
from grandrounds.report.document import Charts
from grandrounds.report.figures.hospitals import hospital_forest
from grandrounds.report.hospitals import compare_hospitals


def hospitals_section(summary: RunSummary, charts: Charts) -> list[str]:
    """Write the section; empty for a run with fewer than two hospitals that have scores."""
    found = compare_hospitals(summary)
    drawn = None if found is None else hospital_forest(found)
    if found is None or drawn is None or len(found.tested) < 2:
        return []
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in found.sentences())
    note = f"Figures are of {found.model_text}, on each hospital's own test patients. {found.threshold_text} {found.reading}"
    figure = charts.place(drawn, wide=True)
    return ["<h2>Hospitals compared</h2>", f"<ul>{items}</ul>", figure, f"<p class='quiet'>{escape(note)}</p>"]
