"""Statements of runs that describe patients: Table 1 and Kaplan-Meier curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grandrounds.capabilities.dossier.building.evidence import SUMMARY
from grandrounds.capabilities.dossier.building.facts import Facts
from grandrounds.capabilities.dossier.building.statement import Statement, Table, Value, say
from grandrounds.metrics.fairness import is_defined

_MOST_VARIABLES = 200
_MOST_LEVELS = 8


def tabulate_table_one(facts: Facts) -> Iterator[Table]:
    """Tabulate the Table 1 of a run, overall; nothing for other runs."""
    variables = facts.get(SUMMARY, "table1", "variables", default=[])
    rows: list[tuple[str | Value, ...]] = []
    for k, variable in enumerate(variables[:_MOST_VARIABLES]):
        source = facts.source(SUMMARY, "table1", "variables", k, "cells", 0)
        cell = (variable.get("cells") or [{}])[0]
        text = _describe_cell(variable, cell)
        missing = cell.get("missing")
        rows.append(
            (
                facts.value(SUMMARY, "table1", "variables", k, "name"),
                facts.derive(cell, "first column of Table 1", source, text=text),
                facts.value(SUMMARY, "table1", "variables", k, "cells", 0, "missing") if is_defined(missing) else "-",
            )
        )
    if rows:
        yield Table(
            "Table 1, all sites", ("variable", "mean (SD), median (quartiles), or counts", "missing"), tuple(rows)
        )


def _describe_cell(variable: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    """Describe a cell of Table 1; small counts are hidden there already."""
    if cell.get("hidden"):
        return "hidden (few patients)"
    if len(cell.get("quartiles") or ()) == 3:
        low, middle, high = cell["quartiles"]
        return f"{middle:.4g} ({low:.4g} to {high:.4g})"
    if is_defined(cell.get("mean")):
        return f"{cell['mean']:.4g} ({cell['sd']:.3g})" if is_defined(cell.get("sd")) else f"{cell['mean']:.4g}"
    levels, counts = variable.get("levels") or [], cell.get("counts") or []
    shown = [
        f"{level} {count:,.0f}" if is_defined(count) else f"{level} -"
        for level, count in zip(levels, counts, strict=False)
    ]
    more = f", {len(shown) - _MOST_LEVELS} more" if len(shown) > _MOST_LEVELS else ""
    return ", ".join(shown[:_MOST_LEVELS]) + more or "-"


def state_survival_curve(facts: Facts) -> Iterator[Statement]:
    """State rows, events and median of the Kaplan-Meier curve; nothing for other runs."""
    if not facts.has(SUMMARY, "survival", "overall", "rows"):
        return
    path = ("survival", "overall")
    rows, events = facts.value(SUMMARY, *path, "rows"), facts.value(SUMMARY, *path, "events")
    yield say("The Kaplan-Meier curve is of {rows} rows with {events} events.", rows=rows, events=events)
    if is_defined(facts.get(SUMMARY, *path, "median", "value")):
        median = facts.value(SUMMARY, *path, "median", "value", show=".4g")
        low, high = facts.get(SUMMARY, *path, "median", "low"), facts.get(SUMMARY, *path, "median", "high")
        text = (
            f"{median.text} (95% CI {low:.4g} to {high:.4g})" if is_defined(low) and is_defined(high) else median.text
        )
        shown = facts.derive(
            median.value, "median with its 95% interval", facts.source(SUMMARY, *path, "median"), text=text
        )
        yield say("Median survival is {median}, in the units of the follow-up time.", median=shown)
