"""The numbers of a method's own paper about a run, as a list and as the report's section on the method."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from grandrounds.core.method_facts import MethodFact
from grandrounds.core.records import RoundRecord, RunSummary
from grandrounds.methods import METHODS
from grandrounds.methods.fedxchain.summary import trust_facts
from grandrounds.methods.xfed.server import XFed
from grandrounds.recipes import recipe_departure
from grandrounds.report.document import Charts, table, text_cell, value_cell
from grandrounds.report.figure import Figure
from grandrounds.report.figures.selection import selection_over_rounds
from grandrounds.report.sections.images import map_facts, rationale_facts
from grandrounds.report.sections.local_models import local_facts


def method_facts(summary: RunSummary) -> tuple[MethodFact, ...]:
    """List the numbers of the method's paper, then those that a run of any method may record: trust, heat maps, local models.

    A method of one's own is not asked: a run folder names it, and its code may be anyone's.
    """
    method = METHODS.get(summary.method)
    own = method.describe(summary) if method is not None else ()
    departure, system = recipe_departure(summary.name), summary.name.partition("/")[0]
    departs = [MethodFact("departs from the paper", departure, f"as printed: rounds run {system}/printed")] if departure else []
    images = (*rationale_facts(summary.reasons), *map_facts(summary.maps))
    return (*own, *trust_facts(summary.trust), *images, *local_facts(summary), *_cost(summary), *departs)


def _cost(summary: RunSummary) -> list[MethodFact]:
    """Describe the cost of a run with heat maps or local models, as FL-XAI's Table 4.12 does."""
    if not (summary.maps or summary.local):
        return []
    cost = summary.cost
    sent = (cost["bytes_down"] + cost["bytes_up"]) / 1e6
    value = f"{sent:.2f} MB in {cost['messages']:,.0f} messages, {cost['seconds']:.1f} s of rounds"
    note = f"{cost['evaluation_bytes'] / 1e6:.2f} MB of it for evaluation; {summary.parameters:,} parameters"
    return [MethodFact("cost", value, note)]


def method_section(summary: RunSummary, rounds: Sequence[RoundRecord], charts: Charts) -> list[str]:
    """Write the numbers of the method's paper as a table, with XFed's selection as a figure; empty where there are none."""
    rows = [text_cell(fact.label) + value_cell(fact.value) + text_cell(fact.note) for fact in method_facts(summary)]
    if not rows:
        return []
    title = METHODS[summary.method].title if summary.method in METHODS else summary.method
    drawn = selection_figure(summary, rounds)
    return [
        f"<p>{escape(title)}.</p>",
        table(("number", "<th class='text'>value</th>", "<th class='text'>compared with</th>"), rows),
        *([] if drawn is None else [charts.place(drawn, wide=True)]),
    ]


def selection_figure(summary: RunSummary, rounds: Sequence[RoundRecord]) -> Figure | None:
    """Draw the scores by which XFed selected sites; None for a run without a selection."""
    numbers = summary.method_numbers if summary.method in METHODS and issubclass(METHODS[summary.method], XFed) else {}
    return selection_over_rounds(rounds, numbers["keep"]) if numbers else None
