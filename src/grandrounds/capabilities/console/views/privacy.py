"""Privacy of runs: the guarantee to patients, the budget spent by run and by site, and disclosures that no guarantee covers.

A run's epsilon is that of the site that took part most often. A Decision names a round's releases as they are at every site
that was asked, so what a site's own releases add up to is computed from its rounds alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from grandrounds.analysis.membership.attack import FILE as ATTACKS
from grandrounds.analysis.privacy.account import Account, load_account
from grandrounds.capabilities.console.cache import StillComputing, get_cache, hide_root, read_checked, stamp_files
from grandrounds.capabilities.console.run_index import (
    FINISHED,
    UNREADABLE,
    NotFound,
    RunEntry,
    RunIndex,
    Unreadable,
    refuse_file,
)
from grandrounds.core.arrays import plain
from grandrounds.core.errors import BadInput
from grandrounds.core.records import RoundRecord
from grandrounds.privacy.events import Event
from grandrounds.privacy.in_words import (
    beside,
    mechanism,
    odds,
    quote,
    release,
    rounded_down,
    rounded_up,
    secure_aggregation,
    simulated,
    trust,
    uncovered,
    whom,
)
from grandrounds.privacy.in_words import plain as format_delta
from grandrounds.privacy.in_words import promised as is_promised
from grandrounds.report.figure import Figure
from grandrounds.report.figures.privacy import attack_areas, epsilon_by_site
from grandrounds.report.sections.privacy import spending_figure
from grandrounds.runs.privacy_recompute import released
from grandrounds.runs.run import Run

PAGE_WAIT, LIMIT = 1.0, 25.0
"""Seconds that a page and the API wait for an account; it continues in the background."""
_FILES = (ATTACKS, "ledger.db", "ledger.db-wal", "summary.json", "round_logs.json", "model.safetensors")
SPENDING, SITES, ATTACKED = "epsilon", "sites", "attacks"


class PrivacyLine(BaseModel):
    """A run in the list. `epsilon`: None without a guarantee; for a running run, the budget spent so far."""

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


class RoundSpending(BaseModel):
    """A round's releases, and epsilon so far."""

    round: int
    releases: int
    epsilon: float | None


class Attack(BaseModel):
    """One membership attack."""

    attack: str
    members: int
    nonmembers: int
    auc: float | None
    low: float | None
    high: float | None
    tpr: float | None


class Bound(BaseModel):
    """The bound that epsilon sets on any attack. `broken`: an attack did clearly better."""

    epsilon: float
    auc: float
    tpr: float
    broken: bool


class ColumnGuess(BaseModel):
    """Attribute inference on one column."""

    column: str
    accuracy_members: float
    accuracy_nonmembers: float
    advantage: float
    low: float
    high: float
    low_all: float
    high_all: float
    imputation: float


class AttributeResults(BaseModel):
    """Attribute inference, the worst column first."""

    columns: list[ColumnGuess]
    leaking: list[str]
    sentences: list[str]
    notes: list[str]


class StatisticResult(BaseModel):
    """A disclosed statistic with its attack. `attacked`: False where none was made."""

    kind: str
    statistic: str
    attacked: bool
    attack: str
    finding: str
    exposed: int | None
    total: int | None
    share: float | None
    low: float | None
    high: float | None
    unit: str


class ReconstructionResults(BaseModel):
    """Reconstruction attacks by disclosed statistic."""

    statistics: list[StatisticResult]
    notes: list[str]


class AttackResults(BaseModel):
    """Results of `rounds attack`."""

    attacks: list[Attack]
    sites: dict[str, Attack]
    separate: bool
    bound: Bound | None
    sentences: list[str]
    notes: list[str]
    not_tried: list[str]
    attribute: AttributeResults | None
    reconstruction: ReconstructionResults | None


class Promise(BaseModel):
    """A run's account. `findings`: differences between record and statement; `disclosed`: data that left each site, with their
    protection; `quote`: a line with a sentence for a paper, empty where there are findings; `others`: stored attacks are of
    other models than the current ones."""

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
    quote: str
    spent: dict[str, float | None]
    released: list[str]
    raw: list[str]
    uncovered: list[str]
    disclosed: list[str]
    rounds: list[RoundSpending]
    sites: list[SiteSpending]
    mechanisms: dict[str, float | None]
    attacked: AttackResults | None
    others: bool
    ledger: bool
    findings: list[str]
    figures: list[str]


def privacy_lines(run_index: RunIndex) -> list[PrivacyLine]:
    """List all runs with their guarantees, the newest first."""
    return [_line(run_index, entry) for entry in run_index.runs()]


def promise(run_index: RunIndex, run: str, *, wait: float = LIMIT) -> Promise:
    """Return the account of a finished run, as `rounds privacy` gives it.

    Raises:
        StillComputing: It takes longer than `wait` seconds; a later call finds it.
    """
    return _load_account(run_index, run, wait=wait)[0]


def figure(run_index: RunIndex, run: str, figure_name: str) -> Figure:
    """Draw a figure of a run's account, by its name."""
    try:
        promise_view, account = _load_account(run_index, run, wait=LIMIT)
    except StillComputing:
        raise BadInput("the account is still being computed: try again in a moment", code="still-computing") from None
    if figure_name not in promise_view.figures:
        raise NotFound(
            f"run '{run}' has no figure '{figure_name[:80]}'; it has: {', '.join(promise_view.figures) or 'none'}",
            code="unknown-figure",
        )
    if figure_name == SPENDING:
        return spending_figure(account.privacy, run_index.run(run).rounds)
    if figure_name == SITES:
        return epsilon_by_site(epsilons(promise_view.sites), promise_view.budget, together=TOGETHER)
    assert promise_view.attacked is not None
    bound = None if promise_view.attacked.bound is None else promise_view.attacked.bound.auc
    return attack_areas([a.model_dump() for a in promise_view.attacked.attacks], bound)


def _load_account(run_index: RunIndex, run: str, *, wait: float) -> tuple[Promise, Account]:
    entry = run_index.get(run)
    if entry.state != FINISHED:
        raise BadInput(f"run '{run}' is not finished: its account is computed at the end", code="run-not-finished")
    run_index.run(run)  # its own files are looked at first
    stamp = (entry.stamp(), stamp_files(entry.folder, _FILES))
    make = lambda: read_checked(run_index, f"run '{run}'", lambda: _compute_account(run_index, entry))  # noqa: E731
    return get_cache(run_index).compute(("privacy", run), stamp, make, wait=wait)


def _compute_account(run_index: RunIndex, entry: RunEntry) -> tuple[Promise, Account]:
    file, run = entry.folder / ATTACKS, Run(entry.folder, trust_code=None)
    refuse_file(file, f"{ATTACKS} of run '{entry.name}'")
    account = load_account(run)
    attacked = None if account.attacks is None else _attack_results(account.attacks)
    statement = account.privacy
    holds = account.promised
    events = [Event.from_dict(e) for e in statement.get("events", ())]
    sites = spend_by_site(statement, run.rounds, account.summary["rows"]) if holds else []
    figures = [SPENDING] * bool(events and holds) + [SITES] * bool(sites) + [ATTACKED] * bool(attacked and attacked.attacks)
    shown = Promise(
        run=entry.name,
        promised=holds,
        mechanism=str(statement["mechanism"]),
        how=mechanism(str(statement["mechanism"]), str(account.summary["method"]), str(statement["unit"]))
        if holds
        else "",
        epsilon=_finite(account.recomputed.epsilon) if holds else None,
        shown=rounded_up(account.recomputed.epsilon) if holds else "",
        budget=statement.get("budget"),
        remaining=account.remaining if holds else None,
        remaining_shown=rounded_down(account.remaining) if holds and account.remaining is not None else "",
        delta=statement.get("delta"),
        delta_shown=format_delta(statement["delta"]) if statement.get("delta") is not None else "",
        unit=whom(statement) if statement.get("unit") else "patient",
        secure=bool(statement.get("secure")),
        statement=str(statement["statement"]),
        sentences=_sentences(account) if holds else secure_aggregation(account.summary),
        quote="" if account.findings else quote(account.summary),
        spent={rows: _finite(value) for rows, value in (statement.get("spent") or {}).items()},
        released=[release(e, str(statement["unit"])) for e in events],
        raw=list(dict.fromkeys(e.what for e in events if e.kind == "raw")),
        uncovered=list(uncovered(statement)) if "not_covered" in statement else [],
        disclosed=list(account.disclosures),
        rounds=[
            RoundSpending(round=r.round, releases=r.releases, epsilon=_finite(r.epsilon))
            for r in account.recomputed.rounds
        ],
        sites=sites,
        mechanisms=_mechanisms(sites),
        attacked=attacked,
        others=file.exists() and attacked is None,
        ledger=account.ledger,
        findings=[hide_root(run_index, f) for f in account.findings],
        figures=figures,
    )
    return shown, account


def _line(run_index: RunIndex, entry: RunEntry) -> PrivacyLine:
    def make() -> PrivacyLine:
        return read_checked(run_index, f"run '{entry.name}'", lambda: _read(run_index, entry))

    try:
        line = get_cache(run_index).get_or_make("privacy", entry.name, (entry.stamp(), entry.state), make)
    except Unreadable as e:
        return PrivacyLine(run=entry.name, state=UNREADABLE, wrong=str(e))
    return line.model_copy(update={"attacked": (entry.folder / ATTACKS).exists()})


def _read(run_index: RunIndex, entry: RunEntry) -> PrivacyLine:
    """Read a line from the summary; of a run that has not finished, from its newest Decision."""
    line = PrivacyLine(run=entry.name, state=entry.state)
    if entry.state == FINISHED:
        statement = run_index.run(entry.name).summary["privacy"]
        line.promised, line.epsilon = is_promised(statement), _finite(statement["epsilon"])
    else:
        rounds = run_index.run(entry.name).rounds
        statement = (rounds[-1]["decision"].get("privacy") if rounds else None) or {"mechanism": "none"}
        line.promised, line.epsilon = statement["mechanism"] != "none", _finite(statement.get("epsilon_spent"))
    line.mechanism = str(statement["mechanism"])
    line.budget, line.delta = _finite(statement.get("budget")), _finite(statement.get("delta"))
    line.delta_shown = "" if line.delta is None else format_delta(line.delta)
    line.unit, line.secure = whom(statement) if statement.get("unit") else "", bool(statement.get("secure"))
    line.shown = rounded_up(line.epsilon) if line.promised and line.epsilon is not None else ""
    return line


def _attack_results(content: Mapping[str, object]) -> AttackResults:
    """Check the content of attacks.json: any other content is damage."""
    try:
        return AttackResults.model_validate(plain(content))
    except ValueError:
        raise BadInput(f"{ATTACKS} is damaged: repeat `rounds attack`", code="damaged-file") from None


def _sentences(account: Account) -> list[str]:
    """Explain the guarantee, and secure aggregation, in sentences."""
    statement = account.privacy
    sentences = [
        *odds(account.recomputed.epsilon, statement["delta"], statement["unit"]),
        *trust(account.summary),
        *secure_aggregation(account.summary),
        *beside(statement),
    ]
    return [*sentences, *simulated(account.summary)]


def _mechanisms(sites: Sequence[SiteSpending]) -> dict[str, float | None]:
    """Return the largest spending of a site on each mechanism alone."""
    out: dict[str, float | None] = {}
    for site in sites:
        for release_name, value in site.alone.items():
            largest = out.get(release_name, 0.0)
            out[release_name] = None if value is None or largest is None else max(largest, value)
    return out


def _finite(value: Any) -> float | None:
    number = plain(value)
    return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None


TOGETHER = "all together"
Counts = frozenset[tuple[Event, int]]


class SiteSpending(BaseModel):
    """A site. `epsilon`: of all its releases; `alone`: of each mechanism by itself; None: infinite."""

    site: str
    train_rows: int | None
    rounds: int
    releases: int
    epsilon: float | None
    alone: dict[str, float | None]


def spend_by_site(
    privacy: Mapping[str, Any], rounds: Sequence[RoundRecord], rows: Mapping[str, Mapping[str, int]]
) -> list[SiteSpending]:
    """Compute what each site spent, the largest first.

    Args:
        privacy: The privacy statement of the run.
        rounds: The records of the rounds.
        rows: Rows of each site by use.

    Returns:
        The spending of each site.
    """
    releases_by_round = {record.round: _count_releases(released(record)) for record in rounds}
    in_rounds: Counter[Event] = sum(releases_by_round.values(), Counter())
    all_releases = _count_releases([Event.from_dict(e) for e in privacy["events"]])
    later = Counter(
        {e: n for e, n in (all_releases - in_rounds).items() if e.of != "training"}
    )  # calibration, after all rounds
    rounds_by_site: dict[str, list[int]] = {site: [] for site in rows}
    for record in rounds:
        for site in record.decision.asked:
            rounds_by_site.setdefault(site, []).append(record.round)
    accountant = _Accountant(float(privacy["delta"]))
    out = []
    for site, took_part in rounds_by_site.items():
        events: Counter[Event] = sum((releases_by_round[r] for r in took_part), Counter()) + later
        names = dict.fromkeys(e.what for e in events)
        out.append(
            SiteSpending(
                site=site,
                train_rows=rows.get(site, {}).get("train"),
                rounds=len(took_part),
                releases=sum(events.values()),
                epsilon=accountant.epsilon(events),
                alone={name: accountant.epsilon(_select(events, name)) for name in names},
            )
        )
    return sorted(out, key=lambda s: (s.epsilon is not None, -(s.epsilon or 0.0), s.site))


def epsilons(sites: Sequence[SiteSpending]) -> dict[str, dict[str, float]]:
    """Return epsilon by site and mechanism for a figure: of sites that released something, and finite ones alone."""
    out = {}
    for site in sites:
        alone = {release_name: value for release_name, value in site.alone.items() if value is not None}
        if site.releases and site.epsilon is not None:
            out[site.site] = {**alone, TOGETHER: site.epsilon}
    return out


class _Accountant:
    """An accountant of counted releases that computes each sum once: most sites released the same."""

    def __init__(self, delta: float) -> None:
        self._delta = delta
        self._known: dict[Counts, float | None] = {}

    def epsilon(self, events: Counter[Event]) -> float | None:
        from grandrounds.privacy.accounting import epsilon_of

        key = frozenset(events.items())
        if key not in self._known:
            counted = [replace(e, count=n) for e, n in events.items()]
            self._known[key] = plain(float(epsilon_of(counted, self._delta))) if counted else 0.0
        return self._known[key]


def _select(events: Counter[Event], release_name: str) -> Counter[Event]:
    return Counter({e: n for e, n in events.items() if e.what == release_name})


def _count_releases(events: Sequence[Event]) -> Counter[Event]:
    counts: Counter[Event] = Counter()
    for e in events:
        counts[replace(e, count=1)] += e.count
    return counts
