"""Ledgers: the very checks of `rounds audit verify`, made in a thread and kept while the files stay as they are.

Nothing of a ledger is believed before it was checked: a page shows what was found beside each entry, and no proof is made
from one that does not verify.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from grandrounds.analysis.audit.report import audit
from grandrounds.audit.book import Book
from grandrounds.audit.head import SignedHead
from grandrounds.audit.ledger import ledger_at
from grandrounds.audit.verdict import FAILS, RED, AuditResult
from grandrounds.console.cache import Stamp, Working, cache_of, hide_root, read_checked, stamp_of
from grandrounds.console.run_index import LARGEST, RunEntry, RunIndex, Unreadable, check_files, is_plain
from grandrounds.core.errors import BadInput

WORKING, NONE, UNCHECKED = "is being checked", "has no ledger", "not checked yet"
PAGE_WAIT, LIMIT = 1.0, 25.0
"""Seconds that a page, and the API, wait for a check; it goes on, and whoever asks again finds it."""
_FILES = ("ledger.db", "ledger.db-wal", "ledger.head.json", "server.pub")
_LONG = 4000
_BOOKS = 2
T = TypeVar("T")


class Wrong(BaseModel):
    """One thing that is wrong: what kind of thing, where, and in words."""

    name: str
    where: str
    what: str


class Check(BaseModel):
    """The result of a check.

    `state` and `colour` are those of `rounds audit verify`; `says`: its last line; `fails`: something was found, or the ledger
    has no end; `close`: the closing entry that is valid; `at`: when the check was made.
    """

    state: str
    says: str = ""
    colour: str = ""
    fails: bool = False
    simulated: bool = False
    unfinished: str = ""
    close: str = ""
    checked: list[str] = []
    deep: bool = False
    findings: list[Wrong] = []
    unchecked: list[str] = []
    notes: list[str] = []
    entries: int = 0
    rounds: int = 0
    root: str = ""
    at: float | None = None


class LedgerLine(BaseModel):
    """A run in the list of ledgers. `covered`: entries under the newest head that lies beside the ledger."""

    run: str
    run_state: str
    ledger: bool
    state: str
    colour: str = ""
    simulated: bool = False
    findings: int = 0
    covered: int | None = None
    countersigned: int | None = None
    anchored: bool = False


def ledger_lines(run_index: RunIndex) -> list[LedgerLine]:
    """All runs, the newest first, with what is known of their ledgers without checking them anew."""
    return [_line(run_index, found) for found in run_index.runs()]


def check(run_index: RunIndex, run: str, *, deep: bool = False, wait: float = LIMIT) -> Check:
    """What is wrong with a run's ledger; with `deep`, also with the files that it speaks of."""
    found = run_index.get(run)
    if not _has(found):
        return Check(state=NONE, says=_missing(run), deep=deep)
    try:
        return cache_of(run_index).compute(
            ("audit", run, deep), _stamp(found, deep=deep), lambda: _check_ledger(run_index, found, deep=deep), wait=wait
        )
    except Working:
        return Check(state=WORKING, says="The ledger is being checked still: ask again in a moment.", deep=deep)


def whole_book(run_index: RunIndex, run: str) -> Book:
    """A ledger that verifies; of any other nothing is made, and what is wrong with it is said."""
    done = check(run_index, run)
    if done.state == WORKING:
        raise BadInput("the ledger is being checked still: ask again in a moment")
    if done.findings:
        first = f": {_words(done.findings[0])}"
        raise Unreadable(f"the ledger of run '{run}' {done.state}{first}; nothing is made from it")
    return book_of(run_index, run)


def book_of(run_index: RunIndex, run: str) -> Book:
    """All that a ledger holds, whether it verifies or not; one that cannot be read is `Unreadable`."""
    found = run_index.get(run)
    if not (found.folder / "ledger.db").exists():
        raise Unreadable(f"run '{run}' has no ledger that could be read")

    def make() -> Book:
        _own_files(found)
        with ledger_at(found.folder) as ledger:
            return ledger.book()

    def kept() -> Book:
        return read_checked(run_index, f"the ledger of run '{run}'", make)

    return cache_of(run_index).get_or_make("book", run, _stamp(found), kept, most=_BOOKS)


def known_check(run_index: RunIndex, found: RunEntry) -> Check | None:
    """The last check of files that are still the same, the deep one first."""
    for deep in (True, False):
        stamp = partial(_stamp, found, deep=deep)
        known: Check | None = cache_of(run_index).completed(("audit", found.name, deep), stamp)
        if known is not None:
            return known
    return None


def _line(run_index: RunIndex, found: RunEntry) -> LedgerLine:
    line = LedgerLine(
        run=found.name, run_state=found.state, ledger=_has(found), state=UNCHECKED if _has(found) else NONE,
        anchored=(found.folder / "anchors.json").exists(),
    )  # fmt: skip
    if not line.ledger:
        return line
    if not (found.folder / "ledger.db").exists():
        line.state, line.colour, line.findings = FAILS, RED, 1  # `audit` says that it was removed
        return line
    known = known_check(run_index, found)
    if known is not None:
        line.state, line.findings = known.state, len(known.findings)
        line.colour, line.simulated = known.colour, known.simulated
    head = cache_of(run_index).get_or_make("head", found.name, _stamp(found), lambda: _head(found.folder))
    if head is not None:
        line.covered, line.countersigned = head
    return line


def _head(folder: Path) -> tuple[int, int] | None:
    file = folder / "ledger.head.json"
    try:
        if not is_plain(file):
            return None
        head = SignedHead.read(file)
    except (BadInput, OSError):
        return None
    return head.head.size, len(head.witnesses)


def _check_ledger(run_index: RunIndex, found: RunEntry, *, deep: bool) -> Check:
    """Made in a thread: what goes wrong there is an answer too."""
    try:
        told = read_checked(run_index, f"run '{found.name}'", lambda: _run_audit(found, deep=deep))
    except Unreadable as e:
        wrong = Wrong(name="unreadable", where=found.name, what=str(e))
        return Check(
            state=FAILS,
            says=f"{found.name}: cannot be checked: {e}",
            colour=RED,
            fails=True,
            deep=deep,
            findings=[wrong],
            at=time.time(),
        )
    return Check(
        state=told.state,
        says=f"{found.name}: {hide_root(run_index, told.line)}",
        colour=told.colour,
        fails=told.fails,
        simulated=told.simulated,
        unfinished=hide_root(run_index, told.unfinished),
        close=told.close,
        checked=list(told.checked),
        deep=told.deep,
        findings=[Wrong(name=f.name, where=f.where, what=hide_root(run_index, f.what)) for f in told.findings],
        unchecked=[hide_root(run_index, what) for what in told.unchecked],
        notes=list(told.notes),
        entries=told.entries,
        rounds=told.rounds,
        root=told.root,
        at=time.time(),
    )


def _run_audit(found: RunEntry, *, deep: bool) -> AuditResult:
    _own_files(found)
    return audit(found.folder, deep=deep, files=deep)


def _own_files(found: RunEntry) -> None:
    """A ledger is read from the run's own files, and from none that a link leads to."""
    check_files(found)
    for name in _FILES:
        if not is_plain(found.folder / name):
            raise Unreadable(f"{name} is a link, no plain file, or larger than {LARGEST // 2**20} MB: it is not read")


def _has(found: RunEntry) -> bool:
    """Whether a run has, or had, a ledger."""
    return any((found.folder / name).exists() for name in ("ledger.db", "ledger.head.json"))


def _missing(run: str) -> str:
    return f"run '{run}' has no ledger: it was run by an earlier version, or on a machine that lacks what one needs"


def _stamp(found: RunEntry, *, deep: bool = False) -> Stamp:
    if not deep:
        return stamp_of(found.folder, _FILES)
    every = sorted(str(p.relative_to(found.folder)) for p in found.folder.rglob("*") if p.is_file())
    return stamp_of(found.folder, [*_FILES, *every[:_LONG]])


def _words(finding: Wrong) -> str:
    return f"{finding.name} ({finding.where}): {finding.what}"


def guard_damage(run_index: RunIndex, run: str, make: Callable[[], T]) -> T:
    """What is made of a book that may be damaged."""
    return read_checked(run_index, f"the ledger of run '{run}'", make)
