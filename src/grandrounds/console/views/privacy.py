"""What runs promised to patients, what they spent of it and what no promise covers: the words and figures of `rounds privacy`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from grandrounds.analysis.membership.attack import FILE as ATTACKS
from grandrounds.analysis.privacy.account import Account, account_of
from grandrounds.console.held import Working, held_by, inside, readable, stamp_of
from grandrounds.console.library import FINISHED, UNREADABLE, Found, Library, NotFound, Unreadable, is_plain
from grandrounds.console.views.site_spending import TOGETHER, SiteSpent, by_site, epsilons
from grandrounds.core.arrays import plain
from grandrounds.core.errors import BadInput
from grandrounds.privacy.events import Event
from grandrounds.privacy.in_words import beside, mechanism, odds, release, rounded_up, simulated, trust, uncovered, whom
from grandrounds.privacy.in_words import plain as said
from grandrounds.privacy.in_words import promised as is_promised
from grandrounds.report.figure import Figure
from grandrounds.report.figures.privacy import attack_areas, epsilon_by_site
from grandrounds.report.sections.privacy import spending_figure
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


def privacy_lines(library: Library) -> list[PrivacyLine]:
    """All runs, the newest first."""
    return [_line(library, found) for found in library.runs()]


def promise(library: Library, run: str, *, wait: float = LIMIT) -> Promise:
    """The account of a finished run, as `rounds privacy` gives it; `Working` while it is worked out still."""
    return _accounted(library, run, wait=wait)[0]


def figure(library: Library, run: str, which: str) -> Figure:
    """A figure of a run's account."""
    try:
        told, account = _accounted(library, run, wait=LIMIT)
    except Working:
        raise BadInput("the account is being worked out still: ask again in a moment") from None
    if which not in told.figures:
        raise NotFound(f"run '{run}' has no figure '{which[:80]}'; it has: {', '.join(told.figures) or 'none'}")
    if which == SPENDING:
        return spending_figure(account.privacy, library.run(run).rounds)
    if which == SITES:
        return epsilon_by_site(epsilons(told.sites), told.budget, together=TOGETHER)
    assert told.attacked is not None
    bound = None if told.attacked.bound is None else told.attacked.bound.auc
    return attack_areas([a.model_dump() for a in told.attacked.attacks], bound)


def _accounted(library: Library, run: str, *, wait: float) -> tuple[Promise, Account]:
    found = library.get(run)
    if found.state != FINISHED:
        raise BadInput(f"run '{run}' is not finished: its account is made at its end")
    library.run(run)  # its own files are looked at first
    stamp = (found.stamp(), stamp_of(found.folder, _FILES))
    make = lambda: readable(library, f"run '{run}'", lambda: _made(library, found))  # noqa: E731
    return held_by(library).worked_out(("privacy", run), stamp, make, wait=wait)


def _made(library: Library, found: Found) -> tuple[Promise, Account]:
    file, run = found.folder / ATTACKS, Run(found.folder, trust_code=None)
    if not is_plain(file):
        raise Unreadable(f"{ATTACKS} of run '{found.name}' is a link, no plain file, or too large: it is not read")
    account = account_of(run)
    attacked = None if account.attacks is None else _attacked(account.attacks)
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
        epsilon=_finite(account.again.epsilon) if holds else None,
        shown=rounded_up(account.again.epsilon) if holds else "",
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
        left_out=list(account.left),
        rounds=[Spent(round=r.round, releases=r.releases, epsilon=_finite(r.epsilon)) for r in account.again.rounds],
        sites=sites,
        mechanisms=_mechanisms(sites),
        attacked=attacked,
        others=file.exists() and attacked is None,
        ledger=account.ledger,
        findings=[inside(library, f) for f in account.findings],
        figures=figures,
    )
    return shown, account


def _line(library: Library, found: Found) -> PrivacyLine:
    def make() -> PrivacyLine:
        return readable(library, f"run '{found.name}'", lambda: _read(library, found))

    try:
        line = held_by(library).made("privacy", found.name, (found.stamp(), found.state), make)
    except Unreadable as e:
        return PrivacyLine(run=found.name, state=UNREADABLE, wrong=str(e))
    return line.model_copy(update={"attacked": (found.folder / ATTACKS).exists()})


def _read(library: Library, found: Found) -> PrivacyLine:
    """From the summary; of a run that has not finished, from its newest Decision."""
    line = PrivacyLine(run=found.name, state=found.state)
    if found.state == FINISHED:
        told = library.run(found.name).summary["privacy"]
        line.promised, line.epsilon = is_promised(told), _finite(told["epsilon"])
    else:
        rounds = library.run(found.name).rounds
        told = (rounds[-1]["decision"].get("privacy") if rounds else None) or {"mechanism": "none"}
        line.promised, line.epsilon = told["mechanism"] != "none", _finite(told.get("epsilon_spent"))
    line.mechanism = str(told["mechanism"])
    line.budget, line.delta = _finite(told.get("budget")), _finite(told.get("delta"))
    line.delta_shown = "" if line.delta is None else said(line.delta)
    line.unit, line.secure = whom(told) if told.get("unit") else "", bool(told.get("secure"))
    line.shown = rounded_up(line.epsilon) if line.promised and line.epsilon is not None else ""
    return line


def _attacked(told: Mapping[str, Any]) -> Attacked:
    """What attacks.json says, checked: a file that says something else is damaged."""
    try:
        return Attacked.model_validate(plain(told))
    except ValueError:
        raise BadInput(f"{ATTACKS} is damaged: `rounds attack` makes it again") from None


def _sentences(account: Account) -> list[str]:
    """What the promise means, for those who answer for it."""
    told = account.privacy
    own = [*odds(account.again.epsilon, told["delta"], told["unit"]), *trust(account.summary), *beside(told)]
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
