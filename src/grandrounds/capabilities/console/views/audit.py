"""Ledgers: the checks of `rounds audit verify`, made in a thread and cached while the files stay as they are.

Nothing of a ledger is believed before it was checked: a page shows what was found beside each entry, and no proof is made
from one that does not verify.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from grandrounds.analysis.audit.report import audit, has_ledger
from grandrounds.audit.book import Book
from grandrounds.audit.head import SignedHead
from grandrounds.audit.ledger import ledger_at
from grandrounds.audit.verdict import FAILS, RED, AuditResult
from grandrounds.capabilities.console.cache import (
    Stamp,
    StillComputing,
    get_cache,
    hide_root,
    read_checked,
    stamp_files,
)
from grandrounds.capabilities.console.run_index import (
    RunEntry,
    RunIndex,
    Unreadable,
    check_files,
    is_plain,
    refuse_file,
)
from grandrounds.core.errors import BadInput

WORKING, NONE, UNCHECKED = "is being checked", "has no ledger", "not checked yet"
PAGE_WAIT, LIMIT = 1.0, 25.0
"""Seconds that a page and the API wait for a check; it continues in the background."""
_FILES = ("ledger.db", "ledger.db-wal", "ledger.head.json", "server.pub")
_LONG = 4000
_BOOKS = 2
T = TypeVar("T")


class AuditFinding(BaseModel):
    """A finding of a check: its kind, its place, and a sentence."""

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
    findings: list[AuditFinding] = []
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


def ledger_lines(run_index: RunIndex, entries: Iterable[RunEntry] | None = None) -> list[LedgerLine]:
    """List runs with the state of their ledgers from earlier checks: these, or all, the newest first."""
    return [_line(run_index, entry) for entry in (run_index.runs() if entries is None else entries)]


def check(run_index: RunIndex, run: str, *, deep: bool = False, wait: float = LIMIT) -> Check:
    """Check a run's ledger; with `deep`, also the files that it names.

    Args:
        run_index: The runs.
        run: The run.
        deep: Check the files too.
        wait: Seconds to wait for the check; it goes on, and a later call finds it.

    Returns:
        The result, or the state of a check that goes on.
    """
    entry = run_index.get(run)
    if not has_ledger(entry.folder):
        return Check(state=NONE, says=_no_ledger_text(run), deep=deep)
    try:
        return get_cache(run_index).compute(
            ("audit", run, deep),
            _stamp(entry, deep=deep),
            lambda: _check_ledger(run_index, entry, deep=deep),
            wait=wait,
        )
    except StillComputing:
        return Check(state=WORKING, says="The ledger is still being checked: reload in a moment.", deep=deep)


def load_verified_book(run_index: RunIndex, run: str) -> Book:
    """Load a ledger that verifies.

    Raises:
        BadInput: It is still being checked.
        Unreadable: It does not verify.
    """
    checked = check(run_index, run)
    if checked.state == WORKING:
        raise BadInput("the ledger is still being checked: try again in a moment", code="still-computing")
    if checked.findings:
        first = f": {_finding_text(checked.findings[0])}"
        raise Unreadable(
            f"the ledger of run '{run}' {checked.state}{first}; no proof or export is made from it",
            code="unverified-ledger",
        )
    return load_book(run_index, run)


def load_book(run_index: RunIndex, run: str) -> Book:
    """Load a ledger, verified or not.

    Raises:
        Unreadable: It cannot be read.
    """
    entry = run_index.get(run)
    if not (entry.folder / "ledger.db").exists():
        raise Unreadable(f"run '{run}' has no ledger that could be read", code="unreadable-ledger")

    def make() -> Book:
        _check_ledger_files(entry)
        with ledger_at(entry.folder) as ledger:
            return ledger.book()

    def read() -> Book:
        return read_checked(run_index, f"the ledger of run '{run}'", make)

    return get_cache(run_index).get_or_make("book", run, _stamp(entry), read, most=_BOOKS)


def latest_check(run_index: RunIndex, entry: RunEntry) -> Check | None:
    """Return the last check of files that are still the same, the deep one first; None where there is none."""
    for deep in (True, False):
        stamp = partial(_stamp, entry, deep=deep)
        cached: Check | None = get_cache(run_index).completed(("audit", entry.name, deep), stamp)
        if cached is not None:
            return cached
    return None


def _line(run_index: RunIndex, entry: RunEntry) -> LedgerLine:
    has = has_ledger(entry.folder)
    line = LedgerLine(
        run=entry.name, run_state=entry.state, ledger=has, state=UNCHECKED if has else NONE,
        anchored=(entry.folder / "anchors.json").exists(),
    )  # fmt: skip
    if not line.ledger:
        return line
    if not (entry.folder / "ledger.db").exists():
        line.state, line.colour, line.findings = FAILS, RED, 1  # `audit` says that it was removed
        return line
    checked = latest_check(run_index, entry)
    if checked is not None:
        line.state, line.findings = checked.state, len(checked.findings)
        line.colour, line.simulated = checked.colour, checked.simulated
    head = get_cache(run_index).get_or_make("head", entry.name, _stamp(entry), lambda: _head(entry.folder))
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


def _check_ledger(run_index: RunIndex, entry: RunEntry, *, deep: bool) -> Check:
    """Check a ledger in a thread: a fault there is a result too."""
    try:
        result = read_checked(run_index, f"run '{entry.name}'", lambda: _run_audit(entry, deep=deep))
    except Unreadable as e:
        wrong = AuditFinding(name="unreadable", where=entry.name, what=str(e))
        return Check(
            state=FAILS,
            says=f"{entry.name}: cannot be checked: {e}",
            colour=RED,
            fails=True,
            deep=deep,
            findings=[wrong],
            at=time.time(),
        )
    return Check(
        state=result.state,
        says=f"{entry.name}: {hide_root(run_index, result.line)}",
        colour=result.colour,
        fails=result.fails,
        simulated=result.simulated,
        unfinished=hide_root(run_index, result.unfinished),
        close=result.close,
        checked=list(result.checked),
        deep=result.deep,
        findings=[AuditFinding(name=f.name, where=f.where, what=hide_root(run_index, f.what)) for f in result.findings],
        unchecked=[hide_root(run_index, item) for item in result.unchecked],
        notes=list(result.notes),
        entries=result.entries,
        rounds=result.rounds,
        root=result.root,
        at=time.time(),
    )


def _run_audit(entry: RunEntry, *, deep: bool) -> AuditResult:
    _check_ledger_files(entry)
    return audit(entry.folder, deep=deep, files=deep)


def _check_ledger_files(entry: RunEntry) -> None:
    """Refuse a ledger whose files are links: it is read from the run's own files only."""
    check_files(entry)
    for name in _FILES:
        refuse_file(entry.folder / name, f"{name} of run '{entry.name}'")


def _no_ledger_text(run: str) -> str:
    return f"run '{run}' has no ledger: it was run on a machine without the packages that one needs"


def _stamp(entry: RunEntry, *, deep: bool = False) -> Stamp:
    if not deep:
        return stamp_files(entry.folder, _FILES)
    every = sorted(str(p.relative_to(entry.folder)) for p in entry.folder.rglob("*") if p.is_file())
    return stamp_files(entry.folder, [*_FILES, *every[:_LONG]])


def _finding_text(finding: AuditFinding) -> str:
    return f"{finding.name} ({finding.where}): {finding.what}"


def guard_damage(run_index: RunIndex, run: str, make: Callable[[], T]) -> T:
    """Compute from a book that may be damaged.

    Raises:
        Unreadable: It is.
    """
    return read_checked(run_index, f"the ledger of run '{run}'", make)
