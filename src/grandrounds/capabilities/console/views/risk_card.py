"""The page of a risk card: terms to tick, and the risk of each total of points."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from grandrounds.capabilities.console.run_index import NotFound, RunIndex
from grandrounds.capabilities.console.views.run import load_record
from grandrounds.models.risk_card import ABOVE, AT_MOST, LEVEL, MISSING, Card, RiskRange, Term, show_risk
from grandrounds.report.estimates import disclosure_sentence
from grandrounds.report.figures.card import nomogram
from grandrounds.report.risk_card import CardRecord, interval_text, read_card, total_text
from grandrounds.report.trees import exchange_facts


class TermView(BaseModel):
    """A line of the card. `implies`: places of the lines that hold as well; `excludes`: of those that cannot hold with it."""

    text: str
    column: str
    points: int
    implies: list[int]
    excludes: list[int]


class TotalView(BaseModel):
    """A range of totals. `shown`: the printed risk; `interval`: its 95% interval."""

    first: int
    last: int
    total: str
    risk: float
    shown: str
    interval: str
    rows: int
    events: int


class RiskCardView(BaseModel):
    """The risk card of a run. `source`: where it comes from; `facts`: label and text."""

    source: str
    terms: list[TermView]
    totals: list[TotalView]
    facts: list[tuple[str, str]]
    disclosure: str
    notes: list[str]


def risk_card(run_index: RunIndex, name: str) -> RiskCardView | None:
    """Return the risk card of a finished run; None for a run without one."""
    return run_index.get_cached(name, "risk card", lambda f: _view(run_index, f.name))


def _view(run_index: RunIndex, name: str) -> RiskCardView | None:
    record = _record(run_index, name)
    if record is None:
        return None
    return RiskCardView(
        source=record.source,
        terms=[_term(record.card.terms, k) for k in range(len(record.card.terms))],
        totals=[_total(t, record.card) for t in record.card.totals],
        facts=exchange_facts(record.exchanges),
        disclosure=disclosure_sentence(record.exchanges),
        notes=list(record.notes),
    )


def _record(run_index: RunIndex, name: str) -> CardRecord | None:
    summary = load_record(run_index, name).summary
    return None if summary is None else read_card(summary)


def drawing(run_index: RunIndex, name: str) -> str:
    """Draw the nomogram of a run's risk card as SVG."""
    record = _record(run_index, name)
    if record is None:
        raise NotFound(f"run '{name}' has no risk card", code="unknown-figure")
    return nomogram(record.card)


def _term(terms: Sequence[Term], k: int) -> TermView:
    others = [j for j in range(len(terms)) if j != k]
    return TermView(
        text=terms[k].text,
        column=terms[k].column,
        points=terms[k].points,
        implies=[j for j in others if implies(terms[k], terms[j])],
        excludes=[j for j in others if excludes(terms[k], terms[j])],
    )


def implies(a: Term, b: Term) -> bool:
    """Tell whether a patient who meets term a meets term b as well."""
    if a.column != b.column or a.kind != b.kind or a.kind not in (AT_MOST, ABOVE):
        return False
    low, high = float(a.value or 0), float(b.value or 0)
    return low <= high if a.kind == AT_MOST else low >= high


def excludes(a: Term, b: Term) -> bool:
    """Tell whether no patient can meet both terms."""
    if a.column != b.column:
        return False
    if (a.kind == MISSING) != (b.kind == MISSING):
        return True
    if a.kind == b.kind == LEVEL:
        return a.value != b.value
    if {a.kind, b.kind} != {AT_MOST, ABOVE}:
        return False
    top, bottom = (a, b) if a.kind == AT_MOST else (b, a)
    return float(top.value or 0) <= float(bottom.value or 0)


def _total(found: RiskRange, card: Card) -> TotalView:
    return TotalView(
        first=found.first,
        last=found.last,
        total=total_text(found, card),
        risk=found.risk,
        shown=show_risk(found.risk),
        interval=interval_text(found),
        rows=found.rows,
        events=found.events,
    )
