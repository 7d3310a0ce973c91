"""Privacy of runs: the guarantee to patients, the budget spent by run and by site, and disclosures that no guarantee covers.

A run's epsilon is that of the site that took part most often. A Decision names a round's releases as they are at every site
that was asked, so what a site's own releases add up to is worked out from its rounds alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from grandrounds.analysis.membership.attack import FILE as ATTACKS
from grandrounds.analysis.privacy.account import Account, load_account
from grandrounds.console.cache import Working, cache_of, hide_root, read_checked, stamp_of
from grandrounds.console.run_index import FINISHED, UNREADABLE, NotFound, RunEntry, RunIndex, Unreadable, is_plain
from grandrounds.core.arrays import plain
from grandrounds.core.errors import BadInput
from grandrounds.core.records import RoundRecord
from grandrounds.privacy.events import Event
from grandrounds.privacy.in_words import beside, mechanism, odds, release, rounded_up, simulated, trust, uncovered, whom
from grandrounds.privacy.in_words import plain as said
from grandrounds.privacy.in_words import promised as is_promised
from grandrounds.report.figure import Figure
from grandrounds.report.figures.privacy import attack_areas, epsilon_by_site
from grandrounds.report.sections.privacy import spending_figure
from grandrounds.runs.privacy_recompute import released
from grandrounds.runs.run import Run

PAGE_WAIT, LIMIT = 1.0, 25.0
"""Seconds that a page, and the API, wait for an account; it goes on, and whoever asks again finds it."""
_FILES = (ATTACKS, "ledger.db", "ledger.db-wal", "summary.json", "round_logs.json", "model.safetensors")
_NOTHING = 1e-6
"""What is left of a budget below this is rounding."""
SPENDING, SITES, ATTACKED = "epsilon", "sites", "attacks"


class PrivacyLine(BaseModel):
    """A run in the list. `epsilon`: None where nothing is promised; of a run at work, what was spent so far."""

    run: str
    state: str
    mechanism: str = ""
    promised: bool = False
    epsilon: float | None = None
    shown: str = ""
    budget: float | None = None
    delta: float | None = None
    delta_shown: str = ""
    unit: str = ""
    secure: bool = False
    attacked: bool = False
    wrong: str = ""


class Spent(BaseModel):
    """A round's releases, and epsilon so far."""

    round: int
    releases: int
    epsilon: float | None


class Attack(BaseModel):
    """An attack on who was trained on."""

    attack: str
    members: int
    nonmembers: int
    auc: float | None
    low: float | None
    high: float | None
    tpr: float | None


class Bound(BaseModel):
    """The most that epsilon allows any attack. `broken`: one did clearly better."""

    epsilon: float
    auc: float
    tpr: float
    broken: bool


class Attacked(BaseModel):
    """What `rounds attack` found."""

    attacks: list[Attack]
    sites: dict[str, Attack]
    separate: bool
    bound: Bound | None
    sentences: list[str]
    notes: list[str]


class Promise(BaseModel):
    """A run's account. `findings`: where its record does not agree with what it says; `left_out`: what left as it is;
    `others`: attacks are there, and of other models than the run has now."""

    run: str
    promised: bool
    mechanism: str
    how: str
    epsilon: float | None
    shown: str
    budget: float | None
    remaining: float | None
    remaining_shown: str
    delta: float | None
    delta_shown: str
    unit: str
    secure: bool
    statement: str
    sentences: list[str]
    spent: dict[str, float | None]
    released: list[str]
    raw: list[str]
    uncovered: list[str]
    left_out: list[str]
    rounds: list[Spent]
    sites: list[SiteSpent]
    mechanisms: dict[str, float | None]
    attacked: Attacked | None
    others: bool
    ledger: bool
    findings: list[str]
    figures: list[str]


def privacy_lines(run_index: RunIndex) -> list[PrivacyLine]:
    """All runs, the newest first."""
    return [_line(run_index, found) for found in run_index.runs()]


def promise(run_index: RunIndex, run: str, *, wait: float = LIMIT) -> Promise:
    """The account of a finished run, as `rounds privacy` gives it; `Working` while it is worked out still."""
    return _load_account(run_index, run, wait=wait)[0]


def figure(run_index: RunIndex, run: str, which: str) -> Figure:
    """A figure of a run's account."""
    try:
        told, account = _load_account(run_index, run, wait=LIMIT)
    except Working:
        raise BadInput("the account is being worked out still: ask again in a moment") from None
    if which not in told.figures:
        raise NotFound(f"run '{run}' has no figure '{which[:80]}'; it has: {', '.join(told.figures) or 'none'}")
    if which == SPENDING:
        return spending_figure(account.privacy, run_index.run(run).rounds)
    if which == SITES:
        return epsilon_by_site(epsilons(told.sites), told.budget, together=TOGETHER)
    assert told.attacked is not None
    bound = None if told.attacked.bound is None else told.attacked.bound.auc
    return attack_areas([a.model_dump() for a in told.attacked.attacks], bound)


def _load_account(run_index: RunIndex, run: str, *, wait: float) -> tuple[Promise, Account]:
    found = run_index.get(run)
    if found.state != FINISHED:
        raise BadInput(f"run '{run}' is not finished: its account is made at its end")
    run_index.run(run)  # its own files are looked at first
    stamp = (found.stamp(), stamp_of(found.folder, _FILES))
    make = lambda: read_checked(run_index, f"run '{run}'", lambda: _made(run_index, found))  # noqa: E731
    return cache_of(run_index).compute(("privacy", run), stamp, make, wait=wait)


def _made(run_index: RunIndex, found: RunEntry) -> tuple[Promise, Account]:
    file, run = found.folder / ATTACKS, Run(found.folder, trust_code=None)
    if not is_plain(file):
        raise Unreadable(f"{ATTACKS} of run '{found.name}' is a link, no plain file, or too large: it is not read")
    account = load_account(run)
    attacked = None if account.attacks is None else _attack_results(account.attacks)
    told = account.privacy
    holds = account.promised
    events = [Event.from_dict(e) for e in told.get("events", ())]
    sites = by_site(told, run.rounds, account.summary["rows"]) if holds else []
    figures = [SPENDING] * bool(events and holds) + [SITES] * bool(sites) + [ATTACKED] * (attacked is not None)
    shown = Promise(
        run=found.name,
        promised=holds,
        mechanism=str(told["mechanism"]),
        how=mechanism(str(told["mechanism"]), str(account.summary["method"]), str(told["unit"])) if holds else "",
        epsilon=_finite(account.recomputed.epsilon) if holds else None,
        shown=rounded_up(account.recomputed.epsilon) if holds else "",
        budget=told.get("budget"),
        remaining=account.remaining if holds else None,
        remaining_shown=_down(account.remaining) if holds and account.remaining is not None else "",
        delta=told.get("delta"),
        delta_shown=said(told["delta"]) if told.get("delta") is not None else "",
        unit=whom(told) if told.get("unit") else "patient",
        secure=bool(told.get("secure")),
        statement=str(told["statement"]),
        sentences=_sentences(account) if holds else [],
        spent={rows: _finite(value) for rows, value in (told.get("spent") or {}).items()},
        released=[release(e, str(told["unit"])) for e in events],
        raw=list(dict.fromkeys(e.what for e in events if e.kind == "raw")),
        uncovered=list(uncovered(told)) if "not_covered" in told else [],
        left_out=list(account.disclosures),
        rounds=[Spent(round=r.round, releases=r.releases, epsilon=_finite(r.epsilon)) for r in account.recomputed.rounds],
        sites=sites,
        mechanisms=_mechanisms(sites),
        attacked=attacked,
        others=file.exists() and attacked is None,
        ledger=account.ledger,
        findings=[hide_root(run_index, f) for f in account.findings],
        figures=figures,
    )
    return shown, account


def _line(run_index: RunIndex, found: RunEntry) -> PrivacyLine:
    def make() -> PrivacyLine:
        return read_checked(run_index, f"run '{found.name}'", lambda: _read(run_index, found))

    try:
        line = cache_of(run_index).get_or_make("privacy", found.name, (found.stamp(), found.state), make)
    except Unreadable as e:
        return PrivacyLine(run=found.name, state=UNREADABLE, wrong=str(e))
    return line.model_copy(update={"attacked": (found.folder / ATTACKS).exists()})


def _read(run_index: RunIndex, found: RunEntry) -> PrivacyLine:
    """From the summary; of a run that has not finished, from its newest Decision."""
    line = PrivacyLine(run=found.name, state=found.state)
    if found.state == FINISHED:
        told = run_index.run(found.name).summary["privacy"]
        line.promised, line.epsilon = is_promised(told), _finite(told["epsilon"])
    else:
        rounds = run_index.run(found.name).rounds
        told = (rounds[-1]["decision"].get("privacy") if rounds else None) or {"mechanism": "none"}
        line.promised, line.epsilon = told["mechanism"] != "none", _finite(told.get("epsilon_spent"))
    line.mechanism = str(told["mechanism"])
    line.budget, line.delta = _finite(told.get("budget")), _finite(told.get("delta"))
    line.delta_shown = "" if line.delta is None else said(line.delta)
    line.unit, line.secure = whom(told) if told.get("unit") else "", bool(told.get("secure"))
    line.shown = rounded_up(line.epsilon) if line.promised and line.epsilon is not None else ""
    return line


def _attack_results(told: Mapping[str, Any]) -> Attacked:
    """What attacks.json says, checked: a file that says something else is damaged."""
    try:
        return Attacked.model_validate(plain(told))
    except ValueError:
        raise BadInput(f"{ATTACKS} is damaged: `rounds attack` makes it again") from None


def _sentences(account: Account) -> list[str]:
    """What the promise means, for those who answer for it."""
    told = account.privacy
    own = [*odds(account.recomputed.epsilon, told["delta"], told["unit"]), *trust(account.summary), *beside(told)]
    return [*own, *simulated(account.summary)]


def _mechanisms(sites: Sequence[SiteSpent]) -> dict[str, float | None]:
    """The most that any site spent on each mechanism alone."""
    out: dict[str, float | None] = {}
    for site in sites:
        for what, value in site.alone.items():
            known = out.get(what, 0.0)
            out[what] = None if value is None or known is None else max(known, value)
    return out


def _down(value: float) -> str:
    """What is left of a budget, never said larger than it is."""
    if value < _NOTHING:
        return "nothing"
    scale = 10.0 ** (1 - math.floor(math.log10(value)))
    return f"{math.floor(value * scale + 1e-9) / scale:.2g}"


def _finite(value: Any) -> float | None:
    found = plain(value)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


TOGETHER = "all together"
Counts = frozenset[tuple[Event, int]]


class SiteSpent(BaseModel):
    """A site. `epsilon`: of all its releases; `alone`: of each mechanism by itself; None: infinite."""

    site: str
    train_rows: int | None
    rounds: int
    releases: int
    epsilon: float | None
    alone: dict[str, float | None]


def by_site(
    privacy: Mapping[str, Any], rounds: Sequence[RoundRecord], rows: Mapping[str, Mapping[str, Any]]
) -> list[SiteSpent]:
    """Every site, who spent most first."""
    own = {record["round"]: _count_releases(released(record)) for record in rounds}
    in_rounds: Counter[Event] = sum(own.values(), Counter())
    told = _count_releases([Event.from_dict(e) for e in privacy["events"]])
    later = Counter(
        {e: n for e, n in (told - in_rounds).items() if e.of != "training"}
    )  # calibration, after all rounds
    asked: dict[str, list[int]] = {site: [] for site in rows}
    for record in rounds:
        for site in record["decision"]["asked"]:
            asked.setdefault(site, []).append(record["round"])
    account = _Accountant(float(privacy["delta"]))
    out = []
    for site, took_part in asked.items():
        events: Counter[Event] = sum((own[r] for r in took_part), Counter()) + later
        out.append(
            SiteSpent(
                site=site, train_rows=rows.get(site, {}).get("train"), rounds=len(took_part),
                releases=sum(events.values()), epsilon=account.of(events),
                alone={what: account.of(_only(events, what)) for what in dict.fromkeys(e.what for e in events)},
            )
        )  # fmt: skip
    return sorted(out, key=lambda s: (s.epsilon is not None, -(s.epsilon or 0.0), s.site))


def epsilons(sites: Sequence[SiteSpent]) -> dict[str, dict[str, float]]:
    """Site -> mechanism -> epsilon, for a figure: of sites that released something, and finite ones alone."""
    out = {}
    for site in sites:
        own = {what: value for what, value in site.alone.items() if value is not None}
        if site.releases and site.epsilon is not None:
            out[site.site] = {**own, TOGETHER: site.epsilon}
    return out


class _Accountant:
    """Epsilon of counted releases, each sum worked out once: most sites released the same."""

    def __init__(self, delta: float) -> None:
        self._delta = delta
        self._known: dict[Counts, float | None] = {}

    def of(self, events: Counter[Event]) -> float | None:
        from grandrounds.privacy.accounting import epsilon_of

        key = frozenset(events.items())
        if key not in self._known:
            counted = [replace(e, count=n) for e, n in events.items()]
            self._known[key] = plain(float(epsilon_of(counted, self._delta))) if counted else 0.0
        return self._known[key]


def _only(events: Counter[Event], what: str) -> Counter[Event]:
    return Counter({e: n for e, n in events.items() if e.what == what})


def _count_releases(events: Sequence[Event]) -> Counter[Event]:
    counts: Counter[Event] = Counter()
    for e in events:
        counts[replace(e, count=1)] += e.count
    return counts
