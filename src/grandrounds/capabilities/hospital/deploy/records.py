"""Records of a consortium: issued and revoked keys and certificates, and the state of submitted runs.

The consortium's record is a ledger like that of a run (`audit.ledger`), signed by the server's key. A rotation of that key
is the last entry that the old key signs, so the record can be followed from the first key to the current one. Each run has
a small file beside its folder. This file, not Flower's status, is the truth about a run.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

from grandrounds.audit import verify as words
from grandrounds.audit.book import Book
from grandrounds.audit.entry import NOTHING
from grandrounds.audit.head import unhex
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.merkle import Tree
from grandrounds.audit.verify import Finding
from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import Identity

PROVISIONED, JOINED, RENEWED, ROTATED = "provisioned", "joined", "renewed", "rotated"
SERVER_ROTATED, OPERATOR, REVOKED, WITHDRAWN = "server-rotated", "operator", "revoked", "withdrawn"
AGREED, INVITED = "agreed", "invited"
Entry = dict[str, Any]
"""One entry of the record: a JSON object whose fields depend on its kind."""

KINDS = (PROVISIONED, JOINED, RENEWED, ROTATED, SERVER_ROTATED, OPERATOR, REVOKED, WITHDRAWN, AGREED, INVITED)
BY_SITE, BY_OPERATOR = "site", "operator"
"""Maker of a site's private keys."""


def append_entry(path: Path, consortium: str, identity: Identity, kind: str, **facts: Any) -> None:
    """Append an entry: the action, its time, and the affected keys or certificates."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    with Ledger.open(path, identity=identity) as ledger:
        ledger.append(consortium, {"kind": kind, "run": consortium, "when": when, **facts})


@dataclass(frozen=True)
class ConsortiumState:
    """State derived from the record: keys by site and their maker, void keys, open invitations, withdrawn sites, operators by
    serial number, revoked certificates.
    """

    sites: dict[str, dict[str, str]] = field(default_factory=dict)
    void: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    withdrawn: dict[str, str] = field(default_factory=dict)
    issued: dict[str, str] = field(default_factory=dict)
    revoked: dict[str, str] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    invited: dict[str, dict[str, str]] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """Update the state by one entry."""
        kind, when = entry["kind"], entry["when"]
        for site, keys in entry.get("sites", {}).items():
            if site in self.sites:
                self.void.setdefault(site, []).append(self.sites[site])
            self.sites[site] = dict(keys)
            self.made[site] = entry.get("made", BY_OPERATOR)
            self.withdrawn.pop(site, None)
            self.invited.pop(site, None)
        self.invited.update(entry.get("invited", {}))
        if kind == WITHDRAWN:
            keys_before = self.sites.pop(entry["site"], None)  # none if a withdrawal was interrupted and repeated
            self.void.setdefault(entry["site"], []).extend([] if keys_before is None else [keys_before])
            self.withdrawn[entry["site"]] = when
            self.invited.pop(entry["site"], None)
        self.issued.update({serial: name for name, serial in entry.get("operators", {}).items()})
        if kind == REVOKED:
            self.revoked[entry["serial"]] = when


def consortium_state(path: Path) -> ConsortiumState:
    """Compute the current state from the record only."""
    state = ConsortiumState()
    for entry in read_entries(path):
        state.apply(entry)
    return state


def describe_entry(entry: Entry) -> str:
    """Format an entry as one line."""
    who = [*entry.get("sites", {}), *entry.get("operators", {}), *entry.get("services", {}), *entry.get("invited", {})]
    who += [str(entry[k])[:16] for k in ("site", "operator", "serial", "new", "cohort") if k in entry]
    return f"{entry['when']}  {entry['kind']}: {', '.join(who)}"


def read_entries(path: Path) -> list[Entry]:
    """Read all entries in order."""
    with Ledger.open(path) as ledger:
        return list(ledger.entries())


def last_entry(path: Path) -> Entry:
    """Read the newest entry; empty if there is none."""
    with Ledger.open(path) as ledger:
        return ledger.last() or {}


def verify_record(book: Book, key: bytes | None) -> list[Finding]:
    """Verify a consortium's record. `key` is the server's current key, or one from before a rotation."""
    if not book.entries:
        return [Finding(words.EMPTY, "record", "it is empty")]
    signers, findings = _check_entries(book)
    if key is not None and key not in signers:
        sentence = f"the given key, {key.hex()[:16]}..., never signed it and was never endorsed in it"
        findings.insert(0, Finding(words.WRONG_KEY, "record", sentence))
    return [*findings, *_check_heads(book, signers[:-1])]


def _check_entries(book: Book) -> tuple[list[bytes], list[Finding]]:
    """Check every entry; returns the signer of each and of the next one, and the findings."""
    findings: list[Finding] = []
    signers: list[bytes] = []
    signer, before = b"", NOTHING
    for number, entry in enumerate(book.entries):
        where = f"entry {number}"
        try:
            content = entry.content
            signer = signer or unhex(content.get("server"), 32, "the server's key")
            following = (
                unhex(content.get("new"), 32, "the new key") if content.get("kind") == SERVER_ROTATED else signer
            )
        except BadInput as e:
            findings.append(Finding(words.CHANGED, where, f"it {e}"))
            content, following = {}, signer
        if not entry.is_signed_by(signer):
            findings.append(Finding(words.CHANGED, where, "its text is not what the server signed"))
        if content.get("number") != number or book.places[number] != number:
            findings.append(Finding(words.MISFILED, where, f"its number is {content.get('number')}"))
        if content.get("previous") != before:
            findings.append(Finding(words.BROKEN, where, "it names another entry before it than the one that is there"))
        if content.get("kind") not in KINDS:
            findings.append(Finding(words.CHANGED, where, f"its kind {content.get('kind')!r} is unknown"))
        signers.append(signer)
        signer, before = following, entry.hash
    return [*signers, signer], findings


def _check_heads(book: Book, signers: list[bytes]) -> Iterator[Finding]:
    tree = Tree(e.leaf for e in book.entries)
    if not book.heads or book.heads[-1].head.size < len(signers):
        yield Finding(words.UNCOVERED, f"entry {len(signers) - 1}", "there is no signed head over it: heads were removed")
    for signed in book.heads:
        head, where = signed.head, f"head of {signed.head.size}"
        if not 0 < head.size <= len(signers):
            yield Finding(words.TRUNCATED, where, f"the record has {len(signers)} entries, but this head was signed")
        elif not head.is_signed_by(signers[head.size - 1], signed.signature):
            yield Finding(words.FORGED_HEAD, where, "its signature is not the server's")
        elif head.root != tree.root(head.size):
            yield Finding(words.FORKED, where, "the server signed another root than these entries have")


QUEUED, RUNNING, DONE, FAILED, STOPPED = "queued", "running", "done", "failed", "stopped"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_run_name(name: str) -> str:
    """Check a run's name, which is also the name of its folder and log.

    Raises:
        BadInput: It contains other characters than A-Z, digits, - _ . or is too long.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is not a valid name of a run: use letters, digits, - _ and . (at most 100 characters)",
            code="invalid-name",
        )
    return name


class RunRecord(TypedDict, total=False):
    """The record of one run, as in its file."""

    run: str
    state: str
    flower: list[int]  # ids of its Flower runs, the newest last
    history: list[list[str]]  # [state, time] of every change
    starts: int  # consecutive deaths of its process
    exit: int


@dataclass(frozen=True)
class RunRecords:
    """Records of a server's runs. `rounds server submit` and the scheduler write concurrently, so each takes a lock."""

    folder: Path

    def update(self, name: str, **changes: Any) -> RunRecord:
        """Update the record of a run; every change of state gets its time."""
        with self._lock():
            return self._write(name, changes)

    def mark_queued(self, name: str, flower: int) -> None:
        """Record that a run was submitted as this Flower run; a running one is not changed."""
        with self._lock():
            if flower not in (self.get(name) or {}).get("flower", ()):
                self._write(name, {"state": QUEUED, "flower": flower})

    def _write(self, name: str, changes: dict[str, Any]) -> RunRecord:
        record = self.get(name) or {"run": name, "flower": [], "history": []}
        if (flower := changes.pop("flower", None)) is not None and flower not in record["flower"]:
            record["flower"].append(flower)
        if (state := changes.get("state")) is not None:
            record["history"].append([state, datetime.now(UTC).isoformat(timespec="seconds")])
        record.update(changes)  # type: ignore[typeddict-item]  # fields by name
        write_atomic(self._path(name), json.dumps(record, indent=1).encode())
        return record

    def get(self, name: str) -> RunRecord | None:
        """Read the record of a run; None if it was never submitted.

        Raises:
            BadInput: The record is damaged.
        """
        try:
            record: RunRecord = json.loads(self._path(name).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            raise BadInput(
                f"{self._path(name)} cannot be read: the record of run {name} is damaged", code="damaged-record"
            ) from None
        return record

    def all(self) -> list[RunRecord]:
        """Read the records of all runs, the newest last."""
        records = [self.get(path.stem) for path in self.folder.glob("*.json")]
        return sorted((r for r in records if r), key=lambda r: (r["history"][0][1] if r["history"] else "", r["run"]))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _path(self, name: str) -> Path:
        return self.folder / f"{check_run_name(name)}.json"
