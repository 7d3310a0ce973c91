"""The page of a risk card: terms to tick, and the risk of each total of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from grandrounds.console.run_index import RunIndex
from grandrounds.console.views.run import load_record
from grandrounds.models.card import ABOVE, AT_MOST, LEVEL, MISSING, Card, RiskRange, Term, show_risk
from grandrounds.report.estimates import disclosure_sentence
from grandrounds.report.trees import exchange_facts

_ROUTES = {
    "distilled": "fitted to the scores of an additive model",
    "direct": "fitted to outcomes",
}


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
    """The risk card of a run. `facts`: label and text."""

    terms: list[TermView]
    totals: list[TotalView]
    facts: list[tuple[str, str]]
    disclosure: str
    notes: list[str]


def risk_card(run_index: RunIndex, name: str) -> RiskCardView | None:
    """Return the risk card of a finished run; None for a run without one."""
    return run_index.get_cached(name, "risk card", lambda f: _view(run_index, f.name))


def _view(run_index: RunIndex, name: str) -> RiskCardView | None:
    summary = load_record(run_index, name).summary
    values = None if summary is None else summary.get("card")
    if not values:
        return None
    card, sent = Card.from_dict(values), values.get("exchanges") or {}
    return RiskCardView(
        terms=[_term(card.terms, k) for k in range(len(card.terms))],
        totals=[_total(t, first=k == 0, last=k == len(card.totals) - 1) for k, t in enumerate(card.totals)],
        facts=_facts(values),
        disclosure=disclosure_sentence(sent),
        notes=[str(n) for n in values.get("notes") or ()],
    )


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


def _total(found: RiskRange, *, first: bool, last: bool) -> TotalView:
    return TotalView(
        first=found.first,
        last=found.last,
        total=_range_text(found, first=first, last=last),
        risk=found.risk,
        shown=show_risk(found.risk),
        interval=f"{100 * found.low:.1f}% to {100 * found.high:.1f}%",
        rows=found.rows,
        events=found.events,
    )


def _range_text(found: RiskRange, *, first: bool, last: bool) -> str:
    """Write a range of totals: '3', '4 to 5', 'up to -2', '9 or more'."""
    if first and last:
        return "any"
    if first:
        return f"up to {found.last}"
    if last:
        return f"{found.first} or more"
    return str(found.first) if found.first == found.last else f"{found.first} to {found.last}"


def _facts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    route = str(values.get("route") or "")
    rows = [("route", _ROUTES.get(route, route))] if route else []
    rows += [("rows", f"{int(values['rows']):,}")] if values.get("rows") else []
    rows += [("hospitals", str(len(values["sites"])))] if values.get("sites") else []
    return rows + exchange_facts(values.get("exchanges") or {})
