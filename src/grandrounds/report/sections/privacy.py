"""Report sections on privacy: the guarantee, the budget spent, and attacks on the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from grandrounds.core.records import RoundRecord, RunSummary
from grandrounds.privacy.events import Event
from grandrounds.privacy.in_words import (
    beside,
    mechanism,
    odds,
    plain,
    promised,
    quote,
    release,
    rounded_up,
    secure_aggregation,
    simulated,
    trust,
    uncovered,
    whom,
)
from grandrounds.report import figures
from grandrounds.report.document import Charts, number, table, td
from grandrounds.report.figure import Figure


def privacy_section(summary: RunSummary, rounds: Sequence[RoundRecord], charts: Charts) -> list[str]:
    """Write the section on privacy: secure aggregation and a sentence to quote, and with a mechanism the guarantee."""
    privacy = summary.privacy
    out = [f"<p>{escape(line)}</p>" for line in (" ".join(secure_aggregation(summary)), quote(summary)) if line]
    if privacy["mechanism"] == "none" or "events" not in privacy:
        return out
    out.append("<h2>Privacy guarantee and budget spent</h2>")
    if not promised(privacy):
        raw = dict.fromkeys(e["what"] for e in privacy["events"] if e["kind"] == "raw")
        out.append(
            f"<p class='warn'>There is no privacy guarantee (epsilon = infinity): {escape(', '.join(raw))} left the sites "
            "without noise.</p>"
        )
    else:
        out += [f"<p>{escape(line)}</p>" for line in _promise_sentences(summary)]
        out.append(charts.place(spending_figure(privacy, rounds)))
    items = "".join(f"<li>{escape(release(Event.from_dict(e), str(privacy['unit'])))}</li>" for e in privacy["events"])
    gaps = "".join(f"<li>{escape(line)}</li>" for line in uncovered(privacy))
    return [*out, f"<h3>Releases covered by the guarantee</h3><ul>{items}</ul>", f"<h3>Not covered</h3><ul>{gaps}</ul>"]


def spending_figure(privacy: Mapping[str, Any], rounds: Sequence[RoundRecord]) -> Figure:
    """Draw epsilon so far, as the Decisions record it, and of each mechanism alone where there are several.

    Args:
        privacy: The summary's `privacy`.
        rounds: The record of each round.
    """
    spent = [(r.round, r.decision.privacy) for r in rounds]
    total = [float(p["epsilon_spent"]) for _, p in spent]
    released = [[Event.from_dict(e) for e in p["events"]] for _, p in spent]
    names = list(dict.fromkeys(e.what for events in released for e in events))
    alone = (
        {release_name: _epsilon_alone(released, release_name, privacy["delta"]) for release_name in names}
        if len(names) > 1
        else {}
    )
    return figures.epsilon_over_rounds([n for n, _ in spent], total, alone, privacy["budget"])


def _promise_sentences(summary: RunSummary) -> list[str]:
    privacy = summary.privacy
    epsilon, budget, unit = privacy["epsilon"], privacy["budget"], privacy["unit"]
    limit = "no budget was set" if budget is None else f"of a budget of {budget:g}"
    how = mechanism(privacy["mechanism"], summary.method, unit)
    return [
        f"Epsilon = {rounded_up(epsilon)} ({limit}), delta = {plain(privacy['delta'])}, to each {whom(privacy)}, by {how}.",
        *odds(epsilon, privacy["delta"], unit),
        *trust(summary),
        *beside(privacy),
        *simulated(summary),
    ]


def _epsilon_alone(released: Sequence[Sequence[Event]], release_name: str, delta: float) -> list[float]:
    """Compute the epsilon after each round of one mechanism's releases alone."""
    from grandrounds.privacy.accounting import epsilon_of

    matching: list[Event] = []
    out = []
    for events in released:
        matching += [e for e in events if e.what == release_name]
        out.append(epsilon_of(matching, delta))
    return out


_SITES = 12


def attack_sections(attacks: Mapping[str, Any] | None) -> list[str]:
    """Write the sections on attacks (`rounds attack`): what was tried, what it found, and what was not tried.

    Args:
        attacks: attacks.json; None where there is none.

    Returns:
        HTML elements; empty without attacks.
    """
    if attacks is None:
        return []
    out = membership_section(attacks) if attacks["attacks"] else []
    out += _attribute_section(attacks["attribute"])
    out += _reconstruction_section(attacks["reconstruction"])
    missing = "".join(f"<li>{escape(line)}</li>" for line in attacks["not_tried"])
    return [*out, f"<h2>Attacks that were not tried</h2><ul>{missing}</ul>"] if missing else out


def membership_section(attacks: Mapping[str, Any]) -> list[str]:
    """Write the section on membership attacks; attacks.json has every site."""
    head = ["attack", "members", "non-members", "AUC", "95% CI", "TPR at 1% FPR"]
    rows = [_attack_row(escape(a["attack"]), a) for a in attacks["attacks"]]
    bound = attacks["bound"]
    if bound is not None:
        most = [number(bound["auc"], 3), "", number(bound["tpr"], 3)]
        rows.append([td(f"maximum that epsilon = {bound['epsilon']:.3g} allows"), td(""), td(""), *map(td, most)])
    words = [f"<p>{escape(s)}</p>" for s in attacks["sentences"]]
    if bound is not None and bound["broken"]:
        words[-1] = f"<p class='warn'>{escape(attacks['sentences'][-1])}</p>"
    words += [f"<p class='quiet'>{escape(note)}</p>" for note in attacks["notes"]]
    out = ["<h2>Membership attacks</h2>", *words, table(head, rows)]
    if attacks["separate"]:
        sites = sorted(attacks["sites"].items(), key=lambda item: (-(item[1]["auc"] or 0), item[0]))[:_SITES]
        head[0] = "site, most exposed first"
        out += ["<h3>Each site's own model</h3>", table(head, [_attack_row(escape(site), a) for site, a in sites])]
    return out


_COLUMNS = 12


def _attribute_section(attribute: Mapping[str, Any] | None) -> list[str]:
    """Write the section on attribute inference; attacks.json has every column."""
    if attribute is None:
        return []
    head = ["column", "right, members", "right, non-members", "advantage", "95% CI", "CI over all columns", "without the model"]
    rows = []
    for a in attribute["columns"][:_COLUMNS]:
        intervals = [f"{a[low]:+.3f} to {a[high]:+.3f}" for low, high in (("low", "high"), ("low_all", "high_all"))]
        cells = [number(a["accuracy_members"], 3), number(a["accuracy_nonmembers"], 3), f"{a['advantage']:+.3f}", *intervals]
        rows.append([td(escape(a["column"])), *map(td, [*cells, number(a["imputation"], 3)])])
    words = [f"<p>{escape(s)}</p>" for s in attribute["sentences"]]
    words += [f"<p class='quiet'>{escape(note)}</p>" for note in attribute["notes"]]
    return ["<h2>Attribute inference</h2>", *words, *([table(head, rows)] if rows else [])]


def _reconstruction_section(reconstruction: Mapping[str, Any] | None) -> list[str]:
    """Write the section on reconstruction: a line for each disclosed statistic, and updates by number of rows."""
    if reconstruction is None:
        return []
    rows = []
    for s in reconstruction["statistics"]:
        share = f"{s['exposed']:,} of {s['total']:,} {s['unit']}" if s["share"] is not None else ""
        share += f" ({s['low']:.1%} to {s['high']:.1%})" if share else ""
        attack = escape(s["attack"]) if s["attacked"] else "<b>not attacked</b>"
        rows.append([td(escape(s["statistic"])), td(attack), td(share), td(escape(s["finding"]))])
    tried = sum(s["attacked"] for s in reconstruction["statistics"])
    out = [
        "<h2>Reconstruction of disclosed statistics</h2>",
        f"<p>{tried} of {len(rows)} statistics were attacked. Exposed are units of which something was read.</p>",
        table(["statistic", "attack", "exposed (95% CI)", "finding"], rows),
    ]
    if reconstruction["updates"]:
        head = ["training rows of a site", "rows rebuilt", "95% CI", "median error (1: guessing the mean)"]
        lines = []
        for u in reconstruction["updates"]:
            size = f"{u['rows']} (smallest site)" if u["own"] else str(u["rows"])
            lines.append([size, f"{u['rebuilt']:.1%}", f"{u['low']:.1%} to {u['high']:.1%}", f"{u['error']:.2g}"])
        seen = f"<p>The server sees {escape(reconstruction['protection'])}.</p>"
        out += ["<h3>Rows rebuilt from one update</h3>", seen, table(head, [[td(cell) for cell in line] for line in lines])]
    return out


def _attack_row(name: str, a: Mapping[str, Any]) -> list[str]:
    interval = f"{number(a['low'], 3)} to {number(a['high'], 3)}"
    cells = [str(a["members"]), str(a["nonmembers"]), number(a["auc"], 3), interval, number(a["tpr"], 3)]
    return [td(name), *map(td, cells)]
