"""One audit: a run's ledger, or an export of it, against a key and the heads that others kept, in values to print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from grandrounds.audit.book import Book, keys_of
from grandrounds.audit.deep import deep as look_deep
from grandrounds.audit.entry import ROUND, SIMULATED
from grandrounds.audit.head import SignedHead
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.merkle import Tree
from grandrounds.audit.verify import UNREADABLE, Finding, verify
from grandrounds.errors import BadInput
from grandrounds.identity import load_public

LEDGER_ALONE = "model files, journal, round logs and weights: the ledger alone was checked"
BROKEN = "model files, journal, round logs and weights: the ledger that they are held against does not verify"
EXPORTED = "model files, journal, round logs and weights: an export holds the ledger alone"
"""Why the files of a run were not compared with its ledger."""


@dataclass(frozen=True)
class Audited:
    """What an audit found, what it could not check, and what one should know about it."""

    where: str
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    entries: int = 0
    rounds: int = 0
    root: str = ""
    deep: bool = False

    @property
    def verdict(self) -> str:
        """What verifies, in words; of an audit with findings nothing does."""
        if self.findings:
            return "does NOT verify"
        return (
            "verifies, with model and records"
            if self.deep
            else "the ledger verifies; model and records were not checked"
        )

    def to_dict(self) -> dict[str, Any]:
        return {"verifies": not self.findings, **asdict(self)}


def ledger_at(run: Path) -> Ledger:
    """The ledger of a run folder, for reading."""
    if not run.exists():
        raise BadInput(f"there is no {run}: give the path that `rounds run` printed")
    if not (run / "checkpoint").is_dir():
        raise BadInput(f"{run} is not a run folder: it has no checkpoint/ (give the path that `rounds run` printed)")
    if not (run / "ledger.db").exists():
        raise BadInput(
            f"{run} has no ledger: it was run by an earlier version, or on a machine that lacks what one needs"
        )
    return Ledger.open(run / "ledger.db")


def audit(run: Path, *, key: Path | None = None, deep: bool = False, heads: Sequence[Path] = ()) -> Audited:
    """Check a run folder or an exported file.

    Args:
        run: The folder, or the file that `rounds audit export` wrote.
        key: The server's public key; None takes the one in the folder.
        deep: Also compare model, journal and round logs with the ledger, and compute the weights again.
        heads: Signed heads that others kept.
    """
    kept = [SignedHead.read(path) for path in heads]
    given = None if key is None else load_public(key)
    if run.is_file():
        _refuse_what_is_no_export(run)
        if deep:
            raise BadInput(f"{run} is an export: --deep needs the run folder itself")
        return replace(_audited(run, _read(run), given, kept), unchecked=(EXPORTED,))
    own = run / "ledger.head.json"
    if own.exists() and not (run / "ledger.db").exists():
        gone = Finding(UNREADABLE, "ledger.db", f"it was removed: {own.name} beside it is the head of a ledger")
        return Audited(str(run), (gone,), (BROKEN,))
    with ledger_at(run) as ledger:
        try:
            book: Book | Finding = ledger.book()
        except BadInput as e:
            book = Finding(UNREADABLE, "ledger.db", str(e))
    damaged = []
    if own.exists():
        try:
            kept.append(SignedHead.read(own))
        except BadInput as e:
            damaged.append(Finding(UNREADABLE, own.name, str(e)))
    found = _audited(run, book, given or _folders_key(run), kept, damaged=damaged, trusted=given is not None)
    if not deep:
        return replace(found, unchecked=(LEDGER_ALONE,))
    if isinstance(book, Finding) or found.findings:
        return replace(found, unchecked=(BROKEN,))
    more = look_deep(book, run)
    return replace(found, findings=tuple(more.findings), unchecked=tuple(more.unchecked), deep=True)


def _audited(
    where: Path,
    book: Book | Finding,
    key: bytes | None,
    kept: Sequence[SignedHead],
    *,
    damaged: Sequence[Finding] = (),
    trusted: bool = True,
) -> Audited:
    if isinstance(book, Finding):
        return Audited(str(where), (book, *damaged))
    findings = (*verify(book, key, heads=kept), *damaged)
    notes = []
    if key is None or not trusted:
        source = "the ledger itself" if key is None else "beside the ledger"
        notes.append(f"the key was taken from {source}: who can rewrite the one can rewrite the other (give --key)")
    if not findings:
        made = book.entries[0].said["keys"]["made"]
        notes += [f"keys are simulated: {made}"] if made == SIMULATED else []
        notes += _late(book)
        notes += _unwitnessed(book)
    rounds = 0 if findings else sum(e.said["kind"] == ROUND for e in book.entries)
    root = Tree(e.leaf for e in book.entries).root().hex()
    return Audited(str(where), findings, (), tuple(notes), len(book.entries), rounds, root)


def _refuse_what_is_no_export(path: Path) -> None:
    """A file that is plainly something else is a mistake, not a damaged ledger."""
    try:
        with path.open("rb") as f:
            start = f.read(400)
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}") from None
    if start.startswith(b"SQLite format 3"):
        raise BadInput(f"{path} is the database of a ledger: give the run folder it lies in")
    if start.startswith(b"-----BEGIN"):
        raise BadInput(f"{path} is a key: give it as --key, and the run folder or an export to check")
    if start.startswith(b'{"countersigned":'):
        raise BadInput(f"{path} is a proof: `rounds audit check {path}` checks it")


def _read(path: Path) -> Book | Finding:
    try:
        return Book.read(path)
    except BadInput as e:
        return Finding(UNREADABLE, path.name, str(e))


def _folders_key(run: Path) -> bytes | None:
    path = run / "server.pub"
    return load_public(path) if path.exists() else None


def _late(book: Book) -> list[str]:
    """Rounds that were run without a ledger, as its opening entries say."""
    first = [e.said["first"] for e in book.entries if e.said["kind"] == "open"]
    return [f"rounds before {n} were run without a ledger" for n in first if n > 1]


def _unwitnessed(book: Book) -> list[str]:
    """Sites that have not countersigned the newest head: a run that goes on asks them again."""
    newest = book.heads[-1]
    sites = list(keys_of(book.entries[0].said)[1])
    missing = [s for s in newest.head.witnesses(sites) if s not in newest.witnesses]
    return [f"the newest head lacks the countersignatures of {len(missing)} sites"] if missing else []
