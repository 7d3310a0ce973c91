"""The report's section on privacy: what was promised to whom, what was spent on it, what it does not cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from grandrounds.privacy.events import Event
from grandrounds.privacy.in_words import (
    beside,
    mechanism,
    odds,
    plain,
    promised,
    release,
    rounded_up,
    simulated,
    trust,
    uncovered,
    whom,
)
from grandrounds.report import figures
from grandrounds.report.document import Charts
from grandrounds.report.figure import Figure


def privacy_section(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], charts: Charts) -> list[str]:
    """The section, if the run had any mechanism; one without is told in a line at the end of the page."""
    told = summary["privacy"]
    if told["mechanism"] == "none" or "events" not in told:
        return []
    out = ["<h2>Privacy: what was promised and spent</h2>"]
    if not promised(told):
        raw = dict.fromkeys(e["what"] for e in told["events"] if e["kind"] == "raw")
        out.append(
            f"<p class='warn'>Nothing is promised (epsilon = infinity): {escape(', '.join(raw))} left the sites without "
            "noise.</p>"
        )
    else:
        out += [f"<p>{escape(line)}</p>" for line in _promise(summary)]
        out.append(charts.place(spending_figure(told, rounds)))
    items = "".join(f"<li>{escape(release(Event.from_dict(e), str(told['unit'])))}</li>" for e in told["events"])
    gaps = "".join(f"<li>{escape(line)}</li>" for line in uncovered(told))
    return [*out, f"<h3>What left under it</h3><ul>{items}</ul>", f"<h3>What it does not cover</h3><ul>{gaps}</ul>"]


def spending_figure(told: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Epsilon so far, as the Decisions have it, and of each mechanism alone where there are several."""
    spent = [(r["round"], r["decision"]["privacy"]) for r in rounds]
    total = [float(p["epsilon_spent"]) for _, p in spent]
    released = [[Event.from_dict(e) for e in p["events"]] for _, p in spent]
    names = list(dict.fromkeys(e.what for events in released for e in events))
    alone = {what: _alone(released, what, told["delta"]) for what in names} if len(names) > 1 else {}
    return figures.epsilon_over_rounds([n for n, _ in spent], total, alone, told["budget"])


def _promise(summary: Mapping[str, Any]) -> list[str]:
    told = summary["privacy"]
    epsilon, budget, unit = told["epsilon"], told["budget"], told["unit"]
    limit = "no budget was set" if budget is None else f"of a budget of {budget:g}"
    how = mechanism(told["mechanism"], summary["method"], unit)
    return [
        f"Epsilon = {rounded_up(epsilon)} ({limit}), delta = {plain(told['delta'])}, to each {whom(told)}, by {how}.",
        *odds(epsilon, told["delta"], unit),
        *trust(summary),
        *beside(told),
        *simulated(summary),
    ]


def _alone(released: Sequence[Sequence[Event]], what: str, delta: float) -> list[float]:
    """What one mechanism's releases would have spent, were there no others."""
    from grandrounds.privacy.accounting import epsilon_of

    held: list[Event] = []
    out = []
    for events in released:
        held += [e for e in events if e.what == what]
        out.append(epsilon_of(held, delta))
    return out
