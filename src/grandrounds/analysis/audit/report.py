"""One audit: a run's ledger, or an export of it, against a key and the heads that others kept; and the files beside it.

Command line, console, report and PDF show the verdict of this one function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grandrounds.analysis.audit.file_check import Close, Compared, compare_files, compare_open_model
from grandrounds.analysis.audit.report_check import check_report
from grandrounds.analysis.audit.run_files import deep as look_deep
from grandrounds.audit.book import Book, keys_of
from grandrounds.audit.canonical import loads
from grandrounds.audit.entry import CLOSE, ROUND, SIMULATED
from grandrounds.audit.files import MODEL, REPORT, SUMMARY, read_file
from grandrounds.audit.head import SignedHead
from grandrounds.audit.ledger import Ledger, ledger_at
from grandrounds.audit.merkle import Tree
from grandrounds.audit.verdict import Audited
from grandrounds.audit.verify import NO_WITNESS, UNREADABLE, Finding, verify
from grandrounds.core.errors import BadInput
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.protocol.identity import Identity, load_public
from grandrounds.protocol.peers import load_site_keys
from grandrounds.runs.ledger import SERVER

LEDGER_ALONE = "model files, figures, journal, round logs and weights: the ledger alone was checked"
BROKEN = "model files, figures, journal, round logs and weights: the ledger that they are held against does not verify"
EXPORTED = "model files, figures, journal, round logs and weights: an export holds the ledger alone"
"""Why the files of a run were not compared with its ledger."""

NOT_DEEP = "journal, checkpoint and weights: only the files that the closing entry names were compared"
UNFINISHED = "unfinished ledger"
OTHER_KEYS = "other keys"
PDF = "report.pdf"


def audit(
    run: Path,
    *,
    key: Path | None = None,
    deep: bool = False,
    heads: Sequence[Path] = (),
    files: bool = True,
    sites: Path | None = None,
    report: Path | None = None,
    reports: bool = True,
) -> Audited:
    """Check a run folder or an exported file.

    Args:
        run: The folder, or the file that `rounds audit export` wrote.
        key: The server's public key; None takes the one in the folder.
        deep: Also compare checkpoint, journal and plan with the ledger, and compute the weights again.
        heads: Signed heads that others kept.
        files: Compare the files that the closing entry names: models, figures, round logs, reports.
        sites: A list or a folder of the sites' public keys, which the ledger must name.
        report: A page or PDF to check against the run.
        reports: Check report.html and report.pdf of the folder too.

    Raises:
        BadInput: There is no such run or export, or a key or a head cannot be read.
    """
    kept = [SignedHead.read(path) for path in heads]
    given = None if key is None else load_public(key)
    known = None if sites is None else load_site_keys(sites)
    if run.is_file():
        _refuse_what_is_no_export(run)
        if deep or report is not None:
            raise BadInput(
                f"{run} is an export: {'--deep' if deep else '--report'} needs the run folder itself",
                code="needs-run-folder",
            )
        found, book = _audited(run, _read(run), given, kept, sites=known, given_heads=len(kept))
        if not found.findings and book is not None:
            found = _ended_export(found, book)
        return replace(found, unchecked=(EXPORTED,))
    own = run / "ledger.head.json"
    if _is_there(own) and not _is_there(run / "ledger.db"):
        gone = Finding(UNREADABLE, "ledger.db", f"it was removed: {own.name} beside it is the head of a ledger")
        return Audited(str(run), (gone,), (BROKEN,))
    damaged = []
    if _is_there(own):
        try:
            kept.append(SignedHead.of(loads(read_file(own))))
        except BadInput as e:
            damaged.append(Finding(UNREADABLE, own.name, f"it {e}"))
    found, book = _audited(
        run,
        _book(run),
        given or _folders_key(run),
        kept,
        damaged=damaged,
        trusted=given is not None,
        sites=known,
        given_heads=len(heads),
    )
    if book is None or found.findings:
        return replace(found, unchecked=(BROKEN,))
    if not files:
        return _without_files(found, book, run)
    return _with_files(found, book, run, deep=deep, report=report, reports=reports)


def _without_files(found: Audited, book: Book, run: Path) -> Audited:
    """The audit of a ledger alone, which must have an end unless the run is going on."""
    found = replace(found, unchecked=(LEDGER_ALONE,))
    if book.entries[-1].said["kind"] == CLOSE:
        return found
    running = Checkpoint(run / "checkpoint").is_locked() and not _is_there(run / SUMMARY)
    return replace(found, running=running, unfinished="" if running else _unfinished(run, None, rounds=found.rounds))


def _with_files(found: Audited, book: Book, run: Path, *, deep: bool, report: Path | None, reports: bool) -> Audited:
    """Add to the audit of a ledger that verifies what the files beside it are."""
    said = [entry.said for entry in book.entries]
    out, close = Compared(notes=list(found.notes), checked=list(found.checked)), Close.last_of(said)
    running = Checkpoint(run / "checkpoint").is_locked()
    ended = said[-1]["kind"] == CLOSE
    finished = _is_there(run / SUMMARY)
    unfinished = ""
    simulated = _compare_keys(out, said[0], run) or found.simulated
    if finished and not ended:
        out.wrong(
            UNFINISHED, "ledger", f"it has no closing entry after round {found.rounds}, though {SUMMARY} is there"
        )
    elif not finished and not running:
        unfinished = _unfinished(run, close if ended else None, rounds=found.rounds)
    if finished and ended and close is not None:
        running = False
        _compare_witnesses(out, book)
        compare_files(out, run, close)
        if reports:
            _compare_reports(out, book, run, close, report)
    elif report is not None:
        out.wrong(UNFINISHED, report.name, "no closing entry is valid, so that a report cannot be checked")
    elif close is not None:
        _note_changes(out, run, close)
    else:
        if not running:
            compare_open_model(out, run, [s for s in said if s["kind"] == ROUND])
        out.open_question("model files and figures: the run has not ended, so the ledger names none")
    if deep:
        look_deep(out, book, run, close, open_end=not (finished and ended))
    elif finished:
        out.open_question(NOT_DEEP)
    return replace(
        found,
        findings=tuple(dict.fromkeys(out.findings)),
        unchecked=tuple(out.unchecked),
        checked=tuple(out.checked),
        notes=tuple(out.notes),
        deep=deep,
        files=True,
        unfinished=unfinished,
        running=running and not out.findings,
        simulated=simulated,
        close=close.line if close is not None and finished and ended else "",
    )


def _unfinished(run: Path, close: Close | None, *, rounds: int) -> str:
    """Say why a run has no valid end."""
    fix = f"`rounds resume {run}` goes on with it"
    if close is not None:
        return f"{SUMMARY}, which entry {close.number} names, is not there: the run was resumed since, or it was removed; {fix}"
    model = f", and {MODEL} is there, which no entry vouches for: do not use it" if _is_there(run / MODEL) else ""
    return f"the ledger has no closing entry after round {rounds}{model}; {fix}"


def _ended_export(found: Audited, book: Book) -> Audited:
    """An export must end as a ledger does."""
    if book.entries[-1].said["kind"] != CLOSE:
        why = "the run had not ended when it was exported, or it was cut"
        return replace(found, unfinished=f"the ledger has no closing entry after round {found.rounds}: {why}")
    out = Compared()
    _compare_witnesses(out, book)
    return replace(found, findings=tuple(out.findings))


def _compare_witnesses(out: Compared, book: Book) -> None:
    """The head over a closing entry is countersigned before the run is called finished."""
    if keys_of(book.entries[0].said)[1] and not book.heads[-1].witnesses:
        size = book.heads[-1].head.size
        out.wrong(
            NO_WITNESS,
            f"head of {size}",
            "no site countersigned the end of this ledger: the server alone vouches for it",
        )


def _compare_keys(out: Compared, opening: Mapping[str, Any], run: Path) -> bool:
    """Compare simulated keys with those that follow from the plan's seed; gives whether the server's does."""
    try:
        seed = int(Checkpoint(run / "checkpoint").plan()["seed"])
    except (BadInput, KeyError, TypeError, ValueError, RecursionError):
        return False  # a plan that cannot be read is found where it is compared
    server, sites = keys_of(opening)
    follows = Identity.simulated(seed, SERVER).public == server
    if opening["keys"]["made"] == SIMULATED:
        wrong = [s for s, k in sites.items() if Identity.simulated(seed, s).public != k]
        for name in ([] if follows else [SERVER]) + wrong[:5]:
            out.wrong(
                OTHER_KEYS, "entry 0", f"it says that all keys follow from the seed, and the key of {name} does not"
            )
    elif follows:
        out.notes.append(
            "the server's key follows from the experiment's seed, though the ledger says that it is its own"
        )
    return follows


def _compare_reports(out: Compared, book: Book, run: Path, close: Close, given: Path | None) -> None:
    """Check the reports in the folder, and one that was given."""
    opening = book.entries[0].said
    tree = Tree(entry.leaf for entry in book.entries)
    there = [path for path in (run / REPORT, run / PDF) if _is_there(path)]
    if REPORT in close.files and not _is_there(run / REPORT):
        out.open_question(f"{REPORT}: it is not there; `rounds report {run}` draws it")
    if given is not None and not any(_same_file(given, path) for path in there):
        there.append(given)
    for path in there:
        if path != given and REPORT not in close.files:
            continue  # of version 0.1, which is said already
        check_report(out, path, run, close=close, tree=tree, run=opening["run"], made=opening["keys"]["made"])


def _note_changes(out: Compared, run: Path, close: Close) -> None:
    """Name files that are no longer those of the last close, of a run that was resumed and did not end yet."""
    since = Compared()
    compare_files(since, run, close)
    changed = [f.where for f in since.findings if f.where != SUMMARY]
    if changed:
        out.open_question(f"{', '.join(changed)}: changed since entry {close.number} closed the run")


def _same_file(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False


def _is_there(path: Path) -> bool:
    """Tell that something has this name, be it a link that leads nowhere."""
    return path.exists() or path.is_symlink()


def _book(run: Path) -> Book | Finding:
    if run.is_dir() and _is_there(run / "ledger.db") and (run / "checkpoint").is_dir():
        try:
            with Ledger.open(run / "ledger.db") as ledger:
                return ledger.book()
        except BadInput as e:
            return Finding(UNREADABLE, "ledger.db", str(e))
    with ledger_at(run) as ledger:  # says why there is none
        return ledger.book()


def _audited(
    where: Path,
    book: Book | Finding,
    key: bytes | None,
    kept: Sequence[SignedHead],
    *,
    damaged: Sequence[Finding] = (),
    trusted: bool = True,
    sites: Mapping[str, bytes] | None = None,
    given_heads: int = 0,
) -> tuple[Audited, Book | None]:
    if isinstance(book, Finding):
        return Audited(str(where), (book, *damaged)), None
    findings = (*verify(book, key, heads=kept, sites=sites), *damaged)
    notes, checked, simulated = [], [], False
    if key is None or not trusted:
        source = "the ledger itself" if key is None else "beside the ledger"
        notes.append(f"the key was taken from {source}: who can rewrite the one can rewrite the other (give --key)")
    if not findings:
        made = book.entries[0].said["keys"]["made"]
        simulated = made == SIMULATED
        notes += [f"keys are simulated: {made}"] if simulated else []
        notes += _late(book)
        notes += _unwitnessed(book)
        checked.append(_ledger_line(book, kept=given_heads, sites=sites is not None))
    rounds = 0 if findings else sum(e.said["kind"] == ROUND for e in book.entries)
    root = Tree(e.leaf for e in book.entries).root().hex()
    found = Audited(
        str(where),
        findings,
        (),
        tuple(notes),
        len(book.entries),
        rounds,
        root,
        checked=tuple(checked),
        simulated=simulated,
    )
    return found, book


def _ledger_line(book: Book, *, kept: int, sites: bool) -> str:
    """List the checks of a ledger that verifies."""
    signed = sum(len(h.witnesses) for h in book.heads)
    more = (f"; {kept} kept head{'s' * (kept > 1)}" if kept else "") + ("; the sites' keys, as given" if sites else "")
    return f"ledger: {len(book.entries)} entries, {len(book.heads)} heads and {signed} countersignatures{more}"


def _refuse_what_is_no_export(path: Path) -> None:
    """A file that is plainly something else is a mistake, not a damaged ledger."""
    try:
        with path.open("rb") as f:
            start = f.read(400)
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}", code="unreadable-file") from None
    if start.startswith(b"SQLite format 3"):
        raise BadInput(f"{path} is the database of a ledger: give the run folder it lies in", code="not-an-export")
    if start.startswith(b"-----BEGIN"):
        raise BadInput(
            f"{path} is a key: give it as --key, and the run folder or an export to check", code="not-an-export"
        )
    if start.startswith(b'{"countersigned":'):
        raise BadInput(f"{path} is a proof: `rounds audit check {path}` checks it", code="not-an-export")


def _read(path: Path) -> Book | Finding:
    try:
        return Book.read(path)
    except BadInput as e:
        return Finding(UNREADABLE, path.name, str(e))


def _folders_key(run: Path) -> bytes | None:
    path = run / "server.pub"
    if not _is_there(path):
        return None
    try:
        read_file(path)  # a pipe or a link is not opened
    except BadInput as e:
        raise BadInput(f"{path} {e}: give the server's key with --key", code=e.code) from None
    return load_public(path)


def _late(book: Book) -> list[str]:
    """Rounds that were run without a ledger, as its opening entries say."""
    first = [e.said["first"] for e in book.entries if e.said["kind"] == "open"]
    return [f"rounds before {n} were run without a ledger" for n in first if n > 1]


def _unwitnessed(book: Book) -> list[str]:
    """Sites that have not countersigned the newest head: a run that goes on asks them again."""
    newest = book.heads[-1]
    sites = list(keys_of(book.entries[0].said)[1])
    missing = [s for s in newest.head.witnesses(sites) if s not in newest.witnesses]
    if missing and not newest.witnesses:
        return ["WARNING: no site countersigned the newest head: the server alone vouches for the end of this ledger"]
    return [f"the newest head lacks the countersignatures of {len(missing)} sites"] if missing else []
