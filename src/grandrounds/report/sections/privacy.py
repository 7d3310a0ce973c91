"""Report sections on privacy: the promise, the budget spent, and membership attacks on the model."""

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
from grandrounds.report.document import Charts, number, table, td
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


_SITES = 12


def membership_section(attacks: Mapping[str, Any] | None) -> list[str]:
    """The section, if the run was attacked (`rounds attack`); attacks.json has every site."""
    if attacks is None:
        return []
    head = ["attack", "members", "non-members", "AUC", "95% CI", "TPR at 1% FPR"]
    rows = [_row(escape(a["attack"]), a) for a in attacks["attacks"]]
    bound = attacks["bound"]
    if bound is not None:
        most = [number(bound["auc"], 3), "", number(bound["tpr"], 3)]
        rows.append([td(f"most that epsilon = {bound['epsilon']:.3g} allows"), td(""), td(""), *map(td, most)])
    words = [f"<p>{escape(s)}</p>" for s in attacks["sentences"]]
    if bound is not None and bound["broken"]:
        words[-1] = f"<p class='warn'>{escape(attacks['sentences'][-1])}</p>"
    words += [f"<p class='quiet'>{escape(note)}</p>" for note in attacks["notes"]]
    out = ["<h2>Who was trained on?</h2>", *words, table(head, rows)]
    if attacks["separate"]:
        sites = sorted(attacks["sites"].items(), key=lambda item: (-(item[1]["auc"] or 0), item[0]))[:_SITES]
        head[0] = "site, most exposed first"
        out += ["<h3>Each site's own model</h3>", table(head, [_row(escape(site), a) for site, a in sites])]
    return out


def _row(name: str, a: Mapping[str, Any]) -> list[str]:
    interval = f"{number(a['low'], 3)} to {number(a['high'], 3)}"
    cells = [str(a["members"]), str(a["nonmembers"]), number(a["auc"], 3), interval, number(a["tpr"], 3)]
    return [td(name), *map(td, cells)]
