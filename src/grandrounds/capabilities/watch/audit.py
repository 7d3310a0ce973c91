"""Audit the record of a watch: its ledger with the site's key, the files beside it, and the run that it watches.

The key is trusted if it is given, or if the ledger of the run names it. Files are compared with the newest reading, which has
their hashes, so that an altered figure or a removed alarm is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grandrounds.analysis.audit.file_check import AuditFindings
from grandrounds.analysis.audit.report import count_alarms
from grandrounds.audit.book import Book, read_keys
from grandrounds.audit.canonical import loads
from grandrounds.audit.entry import CLOSE, OPEN, SIMULATED, SIMULATED_KEYS, Content
from grandrounds.audit.files import hash_file, read_file
from grandrounds.audit.head import SignedHead
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.merkle import Tree
from grandrounds.audit.verdict import AuditResult
from grandrounds.audit.verify import UNREADABLE, Finding, verify
from grandrounds.audit.watch_entry import ALARM, READING, START
from grandrounds.capabilities.watch.at_sites.record import (
    ALARMS,
    BASELINE,
    HEAD,
    KEY,
    LEDGER,
    STATE,
    STATUS,
    alarm_parts,
    hash_alarm,
    hash_status,
)
from grandrounds.capabilities.watch.at_sites.signer import run_of
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import load_public

ALTERED, MISSING, UNRECORDED, OTHER_KEY, OTHER_STUDY = (
    "altered file", "missing alarm", "unrecorded alarm", "other key", "other run",
)  # fmt: skip
_UNCHECKED = f"{STATUS}, {ALARMS} and the run: the ledger that they are compared with does not verify"


def is_watch(folder: Path) -> bool:
    """Tell whether a folder is that of a watch, be its ledger removed."""
    marks = (STATUS, KEY, BASELINE)
    return folder.is_dir() and not (folder / "checkpoint").exists() and any((folder / name).exists() for name in marks)


def audit_watch(
    folder: Path,
    *,
    key: bytes | None = None,
    heads: Sequence[SignedHead] = (),
    sites: Mapping[str, bytes] | None = None,
    files: bool = True,
) -> AuditResult:
    """Audit the record of a watch.

    Args:
        folder: The folder of the watch.
        key: The site's public key; None takes the one of the run's ledger, of the site's folder, or beside the ledger.
        heads: Signed heads that others kept.
        sites: Public keys of sites by name, from which the site's is taken.
        files: Compare the files of the watch and the run.

    Returns:
        The result.
    """
    read = _read(folder, heads)
    if isinstance(read, AuditResult):
        return read
    book, kept, damaged = read
    if key is None and sites is not None:
        key = _choose_key(folder, book, sites)
    source, used = ("that was given", key) if key is not None else _find_key(folder)
    findings = [*verify(book, used, heads=kept), *damaged]
    root = Tree(e.leaf for e in book.entries).root().hex()
    trusted = source in ("that was given", _RUN)
    notes = [] if trusted else [f"the key was taken {source}: who can change the ledger can change it (give --key)"]
    if findings:
        return AuditResult(str(folder), tuple(findings), (_UNCHECKED,), tuple(notes), len(book.entries), 0, root, alarms=0)
    entries = [entry.content for entry in book.entries]
    out = AuditFindings(notes=notes)
    out.checked.append(f"ledger: {len(entries)} entries and {len(book.heads)} heads, with the key {source}")
    simulated = entries[0]["keys"]["made"] == SIMULATED
    if simulated:
        out.notes.append(SIMULATED_KEYS)
    if files:
        if any(e["kind"] == START and e["rates"] for e in entries):
            _compare_alarms(out, folder, entries)
            _compare_status(out, folder, entries)
            _compare_baseline(out, folder, entries)
        else:
            out.add_unchecked(f"{STATUS} and {BASELINE}: actions are recorded, and no watch has started yet")
        _compare_run(out, folder, entries)
    else:
        out.add_unchecked(f"{STATUS}, {ALARMS} and the run: the ledger alone was checked")
    return AuditResult(
        str(folder),
        tuple(dict.fromkeys(out.findings)),
        tuple(out.unchecked),
        tuple(out.notes),
        len(entries),
        0,
        root,
        files=files,
        checked=tuple(out.checked),
        simulated=simulated,
        alarms=count_alarms(book),
    )


_RUN = "that the run's ledger names"


def _read(folder: Path, heads: Sequence[SignedHead]) -> AuditResult | tuple[Book, list[SignedHead], list[Finding]]:
    """Read the ledger and the head beside it; a result with the cause where there is no ledger to read."""
    if not (folder / LEDGER).exists():
        why = f"it was removed: {HEAD} beside it is the head of a ledger" if (folder / HEAD).exists() else "it is not there"
        return AuditResult(str(folder), (Finding(UNREADABLE, LEDGER, why),), (_UNCHECKED,), alarms=0)
    try:
        with Ledger.open(folder / LEDGER) as ledger:
            book = ledger.book()
    except BadInput as e:
        return AuditResult(str(folder), (Finding(UNREADABLE, LEDGER, str(e)),), (_UNCHECKED,), alarms=0)
    kept, damaged = list(heads), []
    try:
        kept.append(SignedHead.from_json(loads(read_file(folder / HEAD))))
    except BadInput as e:
        damaged.append(Finding(UNREADABLE, HEAD, f"it {e}"))
    return book, kept, damaged


def _choose_key(folder: Path, book: Book, sites: Mapping[str, bytes]) -> bytes:
    """Choose the key of the site that the first entry names.

    Raises:
        BadInput: None is given for it.
    """
    try:
        site = str(book.entries[0].content["site"]) if book.entries else ""
    except (BadInput, KeyError):
        site = ""
    if site not in sites:
        raise BadInput(
            f"{folder} is the watch of '{site}', for which no key is given: known: {', '.join(sites)}", code="missing-key"
        )
    return sites[site]


def _find_key(folder: Path) -> tuple[str, bytes | None]:
    """Find the site's public key, with its source."""
    named = _key_in_run(folder)
    if named is not None:
        return _RUN, named
    at_hospital = folder.absolute().parent / "keys" / "site.pub"
    for path, source in ((at_hospital, "from the site's folder"), (folder / KEY, "from beside the ledger")):
        if path.is_file() and not path.is_symlink():
            return source, load_public(path)
    return "from the ledger itself", None


def _key_in_run(folder: Path) -> bytes | None:
    """Return the key of the site that the ledger of the run names; None without a run at hand."""
    opening = next(iter(_run_entries(folder)), None)
    if opening is None or opening.get("kind") != OPEN:
        return None
    return read_keys(opening)[1].get(folder.absolute().parent.name)


def _run_entries(folder: Path) -> list[Content]:
    """Return the entries of the run's ledger that verifies; none without a run at hand."""
    run = run_of(folder)
    if run is None or not (run / LEDGER).is_file():
        return []
    try:
        with Ledger.open(run / LEDGER) as ledger:
            return [] if ledger.verify() else list(ledger.entries())
    except BadInput:
        return []


def _load(out: AuditFindings, folder: Path, name: str) -> Any:
    """Load a JSON file of the watch; None, with a finding, where it cannot be read."""
    try:
        return loads(read_file(folder / name))
    except BadInput as e:
        out.add_finding(ALTERED, name, f"it {e}")
        return None


def _compare_alarms(out: AuditFindings, folder: Path, entries: Sequence[Content]) -> None:
    """Compare the alarms of both files with the entries, by id."""
    recorded = {str(e["alarm"]): e for e in entries if e["kind"] == ALARM}
    read = any(e["kind"] == READING for e in entries)
    for name in (ALARMS, STATUS):
        if not (folder / name).exists() and not (recorded or (name == STATUS and read)):
            continue  # a watch without alarms or readings need not have the file
        content = _load(out, folder, name)
        if content is None:
            continue
        listed = content.get("alarms") if isinstance(content, dict) else content
        if not isinstance(listed, list):
            out.add_finding(ALTERED, name, "it has no list of alarms")
            continue
        before = len(out.findings)
        _compare_list(out, name, listed, recorded)
        if len(out.findings) == before:
            out.checked.append(f"{name}: {len(listed)} alarm{'s' * (len(listed) != 1)}, as in the ledger")


def _compare_list(out: AuditFindings, name: str, listed: Sequence[Any], recorded: Mapping[str, Content]) -> None:
    seen = set()
    for alarm in listed:
        known = str(alarm.get("id", "")) if isinstance(alarm, dict) else ""
        entry = recorded.get(known)
        if entry is None:
            out.add_finding(UNRECORDED, name, f"alarm {known[:40]!r} is there, and no entry raises it")
            continue
        seen.add(known)
        try:
            parts = alarm_parts(alarm)
        except (KeyError, TypeError, ValueError) as e:
            out.add_finding(ALTERED, name, f"alarm {known} lacks a part, or one is of the wrong type ({e})")
            continue
        named = {"kind" if part == "type" else part: (value, entry[part]) for part, value in parts.items()}
        actual, hashes = hash_alarm(alarm), entry["hashes"]
        for key in {**hashes, **actual}:
            if actual.get(key) == hashes.get(key):
                continue
            value, recorded_value = named.get(key, (None, None))
            what = f"its '{key}' is {value!r}, and entry {entry['number']} says {recorded_value!r}"
            if value == recorded_value:
                what = f"its '{key}' is not that of entry {entry['number']}"
            out.add_finding(ALTERED, name, f"alarm {known}: {what}")
    for known in recorded:
        if known not in seen:
            out.add_finding(MISSING, name, f"alarm {known} of entry {recorded[known]['number']} is not there")


def _compare_status(out: AuditFindings, folder: Path, entries: Sequence[Content]) -> None:
    """Compare watch.json and state.safetensors with the hashes of the newest reading."""
    reading = next((e for e in reversed(entries) if e["kind"] == READING), None)
    if reading is None:
        out.add_unchecked(f"figures of {STATUS}: no reading is recorded yet")
        return
    content = _load(out, folder, STATUS) if (folder / STATUS).exists() else None
    if isinstance(content, dict):
        actual, recorded = hash_status(content), reading["status"]
        wrong = [name for name in {**recorded, **actual} if actual.get(name) != recorded.get(name)]
        for name in wrong:
            out.add_finding(ALTERED, STATUS, f"its '{name}' is not that of the reading in entry {reading['number']}")
        if not wrong:
            out.checked.append(f"{STATUS}: every figure, by the reading in entry {reading['number']}")
    _compare_hash(out, folder, STATE, reading.get("state"), number=reading["number"])


def _compare_baseline(out: AuditFindings, folder: Path, entries: Sequence[Content]) -> None:
    start = next(e for e in reversed(entries) if e["kind"] == START)
    _compare_hash(out, folder, BASELINE, start["baseline"], number=start["number"])


def _compare_hash(out: AuditFindings, folder: Path, name: str, digest: str | None, *, number: int) -> None:
    """Compare a file with the SHA-256 in an entry."""
    if not digest:
        out.add_unchecked(f"{name}: no entry has its hash")
        return
    try:
        actual = hash_file(folder / name)
    except BadInput as e:
        out.add_finding(ALTERED, name, f"entry {number} names it, and it {e}")
        return
    if actual == digest:
        out.checked.append(f"{name}: by the SHA-256 in entry {number}")
    else:
        out.add_finding(ALTERED, name, f"it is not the file that entry {number} names")


def _compare_run(out: AuditFindings, folder: Path, entries: Sequence[Content]) -> None:
    """Compare the run's ledger with the head that the newest start names, and the site's key with the one it names."""
    start = next(e for e in reversed(entries) if e["kind"] == START)
    study, run = start["study"], run_of(folder)
    if run is None or not study["root"]:
        why = "it has no ledger" if run is not None else "its folder is not at hand"
        out.add_unchecked(f"the run, {study['folder']}: {why}")
        return
    try:
        with Ledger.open(run / LEDGER) as ledger:
            findings, book = ledger.verify(), ledger.book()
    except BadInput as e:
        out.add_finding(OTHER_STUDY, run.name, str(e))
        return
    tree, size = Tree(e.leaf for e in book.entries), int(study["entries"])
    if findings:
        out.add_finding(OTHER_STUDY, run.name, f"the ledger of the run does not verify: {findings[0]}")
    elif not 0 < size <= len(tree) or tree.root(size).hex() != study["root"]:
        out.add_finding(OTHER_STUDY, run.name, f"the run has another ledger than entry {start['number']} names")
    else:
        site, key = start["site"], _key_in_run(folder)
        if key is not None and key.hex() != start["keys"]["site"]:
            out.add_finding(OTHER_KEY, f"entry {start['number']}", f"the ledger of the run names another key for {site}")
        out.checked.append(f"the run, {run.name}: the head of its ledger, by entry {start['number']}")
        _compare_model(out, folder, start, book.entries[size - 1].content)


def _compare_model(out: AuditFindings, folder: Path, start: Content, closing: Content) -> None:
    """Find the model of the watch among the files that the run ended with and those of the site."""
    if closing["kind"] == CLOSE and start["model"] in (closing["model"], *closing["files"].values()):
        out.checked.append(f"the model: one that the run ended with, by entry {start['number']}")
        return
    for path in sorted(folder.absolute().parent.glob("*.safetensors")):
        if not path.is_symlink() and hash_file(path) == start["model"]:
            out.checked.append(f"the model: {path.name} of the site, by entry {start['number']}")
            return
    out.add_unchecked(f"the model {start['model'][:16]}... of entry {start['number']}: no file at hand has it")
