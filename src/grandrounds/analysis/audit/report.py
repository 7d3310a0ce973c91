"""Audit a run's ledger, or an export of it, against a key and the heads that others kept; and the files beside it.

Command line, console, report and PDF show the verdict of this one function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from grandrounds.analysis.audit.file_check import AuditFindings, ClosingEntry, Entry, compare_files, compare_open_model
from grandrounds.analysis.audit.report_check import check_report
from grandrounds.analysis.audit.run_files import compare_checkpoint
from grandrounds.analysis.audit.withdrawal_check import compare_mark, compare_other_run, withdrawal_in
from grandrounds.audit.book import Book, read_keys
from grandrounds.audit.canonical import loads
from grandrounds.audit.entry import CLOSE, ROUND, SIMULATED, SIMULATED_KEYS, WITHDRAW
from grandrounds.audit.files import MODEL, REPORT, SUMMARY, read_file
from grandrounds.audit.head import SignedHead
from grandrounds.audit.ledger import Ledger, ledger_at
from grandrounds.audit.merkle import Tree
from grandrounds.audit.verdict import AuditResult
from grandrounds.audit.verify import NO_WITNESS, UNREADABLE, Finding, verify
from grandrounds.audit.watch_entry import ALARM, START
from grandrounds.core.capability import LedgerFolder, collect, load
from grandrounds.core.errors import BadInput
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.protocol.identity import Identity, load_public
from grandrounds.protocol.peers import load_site_keys
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.ledger import SERVER

LEDGER_ALONE = "model files, figures, journal, round logs and weights: the ledger alone was checked"
BROKEN = "model files, figures, journal, round logs and weights: the ledger that they are compared with does not verify"
EXPORTED = "model files, figures, journal, round logs and weights: an export holds the ledger alone"
EXPORTED_WATCH = "alarms and figures in files, and the run: an export holds the ledger alone"
"""Reasons for not comparing the files of a run with its ledger."""

_ENDS = (CLOSE, WITHDRAW)
"""Kinds of entry with which the ledger of a finished run ends."""

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
    quick: bool = False,
) -> AuditResult:
    """Check a run folder, an exported file, or the folder of a watch.

    Args:
        run: The folder, or the file that `rounds audit export` wrote.
        key: The server's public key, of a watch the site's; None takes the one in the folder.
        deep: Also compare checkpoint, journal and plan with the ledger, and compute the weights again.
        heads: Signed heads that others kept.
        files: Compare the files that the closing entry names: models, figures, round logs, reports.
        sites: A list or a folder of the sites' public keys, which the ledger must name.
        report: A page or PDF to check against the run.
        reports: Check report.html and report.pdf of the folder too.
        quick: Check one signature for all entries of the ledger, and none of its sites, where it covers all of them.

    Raises:
        BadInput: There is no such run or export, a key or a head cannot be read, or the run needs a capability that is not
            installed: its weights could not be computed again.
    """
    signed_heads = [SignedHead.read(path) for path in heads]
    server_key = None if key is None else load_public(key)
    site_keys = None if sites is None else load_site_keys(sites)
    if other := own_ledger(run):
        name, folder = other
        if report is not None:
            raise BadInput(f"{run} is the folder of {name}, which has no report: leave out --report", code="conflicting-options")
        result: AuditResult = load(folder.audit)(run, key=server_key, heads=signed_heads, sites=site_keys, files=files)
        return result
    if run.is_file():
        _check_export(run)
        if deep or report is not None:
            raise BadInput(
                f"{run} is an export: {'--deep' if deep else '--report'} needs the run folder itself",
                code="needs-run-folder",
            )
        result, book = _audit_ledger(
            run, _read_export(run), server_key, signed_heads, sites=site_keys, trusted_heads=len(signed_heads)
        )
        if not result.findings and book is not None:
            if book.entries[0].content["kind"] == START:
                return replace(result, unchecked=(EXPORTED_WATCH,), alarms=count_alarms(book))
            result = _check_export_end(result, book)
        return replace(result, unchecked=(EXPORTED,))
    if files:
        RunFolder(run).refuse_without_capability()
    head_file = run / "ledger.head.json"
    if _exists(head_file) and not _exists(run / "ledger.db"):
        removed = Finding(
            UNREADABLE, "ledger.db", f"it was removed: {head_file.name} beside it is the head of a ledger"
        )
        return AuditResult(str(run), (removed,), (BROKEN,))
    damaged = []
    if _exists(head_file):
        try:
            signed_heads.append(SignedHead.from_json(loads(read_file(head_file))))
        except BadInput as e:
            damaged.append(Finding(UNREADABLE, head_file.name, f"it {e}"))
    result, book = _audit_ledger(
        run,
        _read_ledger(run),
        server_key or _key_in_folder(run),
        signed_heads,
        damaged=damaged,
        trusted=server_key is not None,
        sites=site_keys,
        trusted_heads=len(heads),
        quick=quick,
    )
    if book is None or result.findings:
        return replace(result, unchecked=(BROKEN,))
    if not files:
        return _ledger_only(result, book, run)
    return _add_files(result, book, run, deep=deep, report=report, reports=reports)


def own_ledger(folder: Path) -> tuple[str, LedgerFolder] | None:
    """Return what a folder is that is no run folder and has a ledger of its own; None for others."""
    return next(((name, one) for name, one in collect("ledgers").items() if load(one.holds)(folder)), None)


def count_alarms(book: Book) -> int:
    """Count the alarms in the ledger of a watch."""
    return sum(entry.content["kind"] == ALARM for entry in book.entries)


def has_ledger(run: Path) -> bool:
    """Tell whether a run has, or had, a ledger."""
    return any(_exists(run / name) for name in ("ledger.db", "ledger.head.json"))


def _ledger_only(result: AuditResult, book: Book, run: Path) -> AuditResult:
    """Audit a ledger alone, which must have an end unless the run is going on."""
    result = replace(result, unchecked=(LEDGER_ALONE,), withdrawn=_withdrawn_text(book))
    if book.entries[-1].content["kind"] in _ENDS:
        return result
    running = Checkpoint(run / "checkpoint").is_locked() and not _exists(run / SUMMARY)
    return replace(
        result, running=running, unfinished="" if running else _why_unfinished(run, None, rounds=result.rounds)
    )


def _add_files(
    result: AuditResult, book: Book, run: Path, *, deep: bool, report: Path | None, reports: bool
) -> AuditResult:
    """Add the comparison of files to the audit of a ledger that verifies."""
    entries = [entry.content for entry in book.entries]
    out, close = AuditFindings(notes=list(result.notes), checked=list(result.checked)), ClosingEntry.find_last(entries)
    running = Checkpoint(run / "checkpoint").is_locked()
    ended, withdrawn = entries[-1]["kind"] in _ENDS, withdrawal_in(entries)
    finished = _exists(run / SUMMARY)
    unfinished = ""
    simulated = _compare_keys(out, entries[0], run) or result.simulated
    if finished and not ended:
        out.add_finding(
            UNFINISHED, "ledger", f"it has no closing entry after round {result.rounds}, though {SUMMARY} is there"
        )
    elif not finished and not running:
        unfinished = _why_unfinished(run, close if ended else None, rounds=result.rounds)
    if finished and ended and close is not None:
        running = False
        _compare_witnesses(out, book, close)
        compare_files(out, run, close)
        compare_mark(out, run, withdrawn)
        compare_other_run(out, run, entries, withdrawn)
        if reports:
            _compare_reports(out, book, run, close, report)
    elif report is not None:
        out.add_finding(UNFINISHED, report.name, "no closing entry is valid, so that a report cannot be checked")
    elif close is not None:
        _note_changes(out, run, close)
    else:
        if not running:
            compare_open_model(out, run, [s for s in entries if s["kind"] == ROUND])
        out.add_unchecked("model files and figures: the run has not ended, so the ledger names none")
    if deep:
        compare_checkpoint(out, book, run, close, open_end=not (finished and ended))
    elif finished:
        out.add_unchecked(NOT_DEEP)
    return replace(
        result,
        findings=tuple(dict.fromkeys(out.findings)),
        unchecked=tuple(out.unchecked),
        checked=tuple(out.checked),
        notes=tuple(out.notes),
        deep=deep,
        files=True,
        unfinished=unfinished,
        running=running and not out.findings,
        simulated=simulated,
        close=close.line if close is not None and finished and ended and withdrawn is None else "",
        withdrawn=_withdrawn_text(book),
    )


def _withdrawn_text(book: Book) -> str:
    """Return the withdrawal at the end of a ledger in one sentence; "" where there is none."""
    withdrawn = withdrawal_in([entry.content for entry in book.entries])
    return "" if withdrawn is None else withdrawn.sentence


def _why_unfinished(run: Path, close: ClosingEntry | None, *, rounds: int) -> str:
    """Explain why a run has no valid end."""
    fix = f"`rounds resume {run}` continues it"
    if close is not None:
        return f"{SUMMARY}, which entry {close.number} names, is not there: the run was resumed since, or it was removed; {fix}"
    model = f", and {MODEL} is there, which no entry vouches for: do not use it" if _exists(run / MODEL) else ""
    return f"the ledger has no closing entry after round {rounds}{model}; {fix}"


def _check_export_end(result: AuditResult, book: Book) -> AuditResult:
    """Check that an export ends as a ledger does."""
    if book.entries[-1].content["kind"] not in _ENDS:
        why = "the run had not ended when it was exported, or it was cut"
        return replace(result, unfinished=f"the ledger has no closing entry after round {result.rounds}: {why}")
    out = AuditFindings()
    close = ClosingEntry.find_last([entry.content for entry in book.entries])
    if close is not None:
        _compare_witnesses(out, book, close)
    return replace(result, findings=tuple(out.findings), withdrawn=_withdrawn_text(book))


def _compare_witnesses(out: AuditFindings, book: Book, close: ClosingEntry) -> None:
    """Check that a head over the closing entry is countersigned: a run is not called finished before."""
    over = [head for head in book.heads if head.head.size > close.number]
    if read_keys(book.entries[0].content)[1] and not any(head.witnesses for head in over):
        size = book.heads[-1].head.size
        out.add_finding(
            NO_WITNESS,
            f"head of {size}",
            "no site countersigned the end of this ledger: the server alone vouches for it",
        )


def _compare_keys(out: AuditFindings, opening: Entry, run: Path) -> bool:
    """Compare simulated keys with those that follow from the plan's seed; returns whether the server's does."""
    try:
        seed = int(Checkpoint(run / "checkpoint").plan()["seed"])
    except (BadInput, KeyError, TypeError, ValueError, RecursionError):
        return False  # a plan that cannot be read is found where it is compared
    server, sites = read_keys(opening)
    follows = Identity.simulated(seed, SERVER).public == server
    if opening["keys"]["made"] == SIMULATED:
        wrong = [s for s, k in sites.items() if Identity.simulated(seed, s).public != k]
        for name in ([] if follows else [SERVER]) + wrong[:5]:
            out.add_finding(
                OTHER_KEYS, "entry 0", f"it says that all keys follow from the seed, and the key of {name} does not"
            )
    elif follows:
        out.notes.append(
            "the server's key follows from the experiment's seed, though the ledger says that it is its own"
        )
    return follows


def _compare_reports(out: AuditFindings, book: Book, run: Path, close: ClosingEntry, report: Path | None) -> None:
    """Check the reports in the folder, and one that was given."""
    opening = book.entries[0].content
    tree = Tree(entry.leaf for entry in book.entries)
    paths = [path for path in (run / REPORT, run / PDF) if _exists(path)]
    if REPORT in close.files and not _exists(run / REPORT):
        out.add_unchecked(f"{REPORT}: it is not there; `rounds report {run}` draws it")
    if report is not None and not any(_same_file(report, path) for path in paths):
        paths.append(report)
    for path in paths:
        check_report(out, path, run, close=close, tree=tree, run=opening["run"], key_source=opening["keys"]["made"])


def _note_changes(out: AuditFindings, run: Path, close: ClosingEntry) -> None:
    """Name files that are no longer those of the last close, of a run that was resumed and did not end yet."""
    since = AuditFindings()
    compare_files(since, run, close)
    changed = [f.where for f in since.findings if f.where != SUMMARY]
    if changed:
        out.add_unchecked(f"{', '.join(changed)}: changed since entry {close.number} closed the run")


def _same_file(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False


def _exists(path: Path) -> bool:
    """Tell that something has this name, be it a link that leads nowhere."""
    return path.exists() or path.is_symlink()


def _read_ledger(run: Path) -> Book | Finding:
    if run.is_dir() and _exists(run / "ledger.db") and (run / "checkpoint").is_dir():
        try:
            with Ledger.open(run / "ledger.db") as ledger:
                return ledger.book()
        except BadInput as e:
            return Finding(UNREADABLE, "ledger.db", str(e))
    with ledger_at(run) as ledger:  # says why there is none
        return ledger.book()


def _audit_ledger(
    where: Path,
    book: Book | Finding,
    key: bytes | None,
    signed_heads: Sequence[SignedHead],
    *,
    damaged: Sequence[Finding] = (),
    trusted: bool = True,
    sites: Mapping[str, bytes] | None = None,
    trusted_heads: int = 0,
    quick: bool = False,
) -> tuple[AuditResult, Book | None]:
    if isinstance(book, Finding):
        return AuditResult(str(where), (book, *damaged)), None
    findings = (*verify(book, key, heads=signed_heads, sites=sites, quick=quick), *damaged)
    notes, checked, simulated = [], [], False
    if key is None or not trusted:
        source = "the ledger itself" if key is None else "beside the ledger"
        notes.append(
            f"the key was taken from {source}: anyone who can change the ledger can change this key (give --key)"
        )
    if not findings:
        key_source = book.entries[0].content["keys"]["made"]
        simulated = key_source == SIMULATED
        notes += [SIMULATED_KEYS] if simulated else []
        notes += _late_rounds(book)
        notes += _missing_witnesses(book)
        checked.append(_ledger_line(book, heads=trusted_heads, sites=sites is not None))
    rounds = 0 if findings else sum(e.content["kind"] == ROUND for e in book.entries)
    root = Tree(e.leaf for e in book.entries).root().hex()
    result = AuditResult(
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
    return result, book


def _ledger_line(book: Book, *, heads: int, sites: bool) -> str:
    """List the checks of a ledger that verifies."""
    signed = sum(len(h.witnesses) for h in book.heads)
    more = (f"; {heads} kept head{'s' * (heads > 1)}" if heads else "") + (
        "; the sites' keys, as given" if sites else ""
    )
    return f"ledger: {len(book.entries)} entries, {len(book.heads)} heads and {signed} countersignatures{more}"


def _check_export(path: Path) -> None:
    """Refuse a file of another kind: a mistake, not a damaged ledger."""
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


def _read_export(path: Path) -> Book | Finding:
    try:
        return Book.read(path)
    except BadInput as e:
        return Finding(UNREADABLE, path.name, str(e))


def _key_in_folder(run: Path) -> bytes | None:
    path = run / "server.pub"
    if not _exists(path):
        return None
    try:
        read_file(path)  # a pipe or a link is not opened
    except BadInput as e:
        raise BadInput(f"{path} {e}: give the server's key with --key", code=e.code) from None
    return load_public(path)


def _late_rounds(book: Book) -> list[str]:
    """Note rounds that were run without a ledger, as its opening entries say."""
    first = [e.content["first"] for e in book.entries if e.content["kind"] == "open"]
    return [f"rounds before {n} were run without a ledger" for n in first if n > 1]


def _missing_witnesses(book: Book) -> list[str]:
    """Note sites that have not countersigned the newest head: a run that goes on asks them again."""
    newest = book.heads[-1]
    sites = list(read_keys(book.entries[0].content)[1])
    missing = [s for s in newest.head.witnesses(sites) if s not in newest.witnesses]
    if missing and not newest.witnesses:
        return ["WARNING: no site countersigned the newest head: the server alone vouches for the end of this ledger"]
    return [f"the newest head lacks the countersignatures of {len(missing)} sites"] if missing else []
