"""Records of a consortium: keys and certificates that were issued or revoked, and the state of submitted runs.

The consortium's record is a ledger as a run's is (`audit.ledger`), signed by the server's key. Where that key is rotated, the
entry that says so is the last one the old key signs, so the record can be followed from the first key to the one of today.
Runs have one small file each, beside their folder. This, not Flower's status, is the truth about a run.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
KINDS = (PROVISIONED, JOINED, RENEWED, ROTATED, SERVER_ROTATED, OPERATOR, REVOKED, WITHDRAWN)


def append_entry(path: Path, consortium: str, identity: Identity, kind: str, **facts: Any) -> None:
    """One entry: what was done, at what time, and to which keys or certificates."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    with Ledger.open(path, identity=identity) as ledger:
        ledger.append(consortium, {"kind": kind, "run": consortium, "when": when, **facts})


@dataclass(frozen=True)
class ConsortiumState:
    """What the record says holds now: keys by site, voided keys, who has withdrawn, operators by serial number, revoked ones."""

    sites: dict[str, dict[str, str]] = field(default_factory=dict)
    void: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    withdrawn: dict[str, str] = field(default_factory=dict)
    issued: dict[str, str] = field(default_factory=dict)
    revoked: dict[str, str] = field(default_factory=dict)

    def hear(self, said: Mapping[str, Any]) -> None:
        """Take in one entry."""
        kind, when = said["kind"], said["when"]
        for site, keys in said.get("sites", {}).items():
            if site in self.sites:
                self.void.setdefault(site, []).append(self.sites[site])
            self.sites[site] = dict(keys)
            self.withdrawn.pop(site, None)
        if kind == WITHDRAWN:
            gone = self.sites.pop(said["site"], None)  # none where a withdrawal was cut short and done again
            self.void.setdefault(said["site"], []).extend([] if gone is None else [gone])
            self.withdrawn[said["site"]] = when
        self.issued.update({serial: name for name, serial in said.get("operators", {}).items()})
        if kind == REVOKED:
            self.revoked[said["serial"]] = when


def consortium_state(path: Path) -> ConsortiumState:
    """What holds now, by the record alone."""
    now = ConsortiumState()
    for said in entries(path):
        now.hear(said)
    return now


def describe_entry(said: Mapping[str, Any]) -> str:
    """One entry on one line."""
    who = [*said.get("sites", {}), *said.get("operators", {}), *said.get("services", {})]
    who += [str(said[k])[:16] for k in ("site", "operator", "serial", "new") if k in said]
    return f"{said['when']}  {said['kind']}: {', '.join(who)}"


def entries(path: Path) -> list[dict[str, Any]]:
    """All that was ever written down, from the first on."""
    with Ledger.open(path) as ledger:
        return list(ledger.entries())


def last_entry(path: Path) -> dict[str, Any]:
    """The newest entry."""
    with Ledger.open(path) as ledger:
        return ledger.last() or {}


def verify_record(book: Book, key: bytes | None) -> list[Finding]:
    """What is wrong with a consortium's record. `key`: the server's, of today or from before a rotation."""
    if not book.entries:
        return [Finding(words.EMPTY, "record", "there is nothing in it")]
    signers, found = _entries(book)
    if key is not None and key not in signers:
        what = f"the key given, {key.hex()[:16]}..., is none that it was signed with or handed on to"
        found.insert(0, Finding(words.WRONG_KEY, "record", what))
    return [*found, *_heads(book, signers[:-1])]


def _entries(book: Book) -> tuple[list[bytes], list[Finding]]:
    """Who signs each entry, and the next one, by what the ones before say; and what is wrong with them."""
    found: list[Finding] = []
    signers: list[bytes] = []
    signer, before = b"", NOTHING
    for at, entry in enumerate(book.entries):
        where = f"entry {at}"
        try:
            said = entry.said
            signer = signer or unhex(said.get("server"), 32, "the server's key")
            following = unhex(said.get("new"), 32, "the new key") if said.get("kind") == SERVER_ROTATED else signer
        except BadInput as e:
            found.append(Finding(words.CHANGED, where, f"it {e}"))
            said, following = {}, signer
        if not entry.is_signed_by(signer):
            found.append(Finding(words.CHANGED, where, "its text is not what the server signed"))
        if said.get("number") != at or book.places[at] != at:
            found.append(Finding(words.MISFILED, where, f"it says that it is number {said.get('number')}"))
        if said.get("previous") != before:
            found.append(Finding(words.BROKEN, where, "it names another entry before it than the one that is there"))
        if said.get("kind") not in KINDS:
            found.append(Finding(words.CHANGED, where, f"there is no kind of entry {said.get('kind')!r}"))
        signers.append(signer)
        signer, before = following, entry.hash
    return [*signers, signer], found


def _heads(book: Book, signers: list[bytes]) -> Iterator[Finding]:
    tree = Tree(e.leaf for e in book.entries)
    if not book.heads or book.heads[-1].head.size < len(signers):
        yield Finding(words.UNCOVERED, f"entry {len(signers) - 1}", "no signed head is over it: heads were removed")
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
    """A run's name is its folder's and its log's: letters, digits, - _ . only."""
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is no name of a run: letters, digits, - _ and . are allowed, 100 characters at most",
            code="invalid-name",
        )
    return name


@dataclass(frozen=True)
class RunRecords:
    """The records of a server's runs. `rounds submit` and the scheduler write at the same time, so each takes its turn."""

    folder: Path

    def note(self, name: str, **news: Any) -> dict[str, Any]:
        """Add to what is known of a run; every state has its time."""
        with self._turn():
            return self._note(name, news)

    def queued(self, name: str, flower: int) -> None:
        """A run was submitted, as this run of Flower's; one that runs by now stays what it is."""
        with self._turn():
            if flower not in (self.get(name) or {}).get("flower", ()):
                self._note(name, {"state": QUEUED, "flower": flower})

    def _note(self, name: str, news: dict[str, Any]) -> dict[str, Any]:
        record = self.get(name) or {"run": name, "flower": [], "history": []}
        if (flower := news.pop("flower", None)) is not None and flower not in record["flower"]:
            record["flower"].append(flower)
        if (state := news.get("state")) is not None:
            record["history"].append([state, datetime.now(UTC).isoformat(timespec="seconds")])
        record.update(news)
        write_atomic(self._path(name), json.dumps(record, indent=1).encode())
        return record

    def get(self, name: str) -> dict[str, Any] | None:
        """What is known of a run, if it was ever submitted."""
        try:
            record: dict[str, Any] = json.loads(self._path(name).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            raise BadInput(
                f"{self._path(name)} cannot be read: the record of run {name} is damaged", code="damaged-record"
            ) from None
        return record

    def all(self) -> list[dict[str, Any]]:
        """Every run, the newest last."""
        records = [self.get(path.stem) for path in self.folder.glob("*.json")]
        return sorted((r for r in records if r), key=lambda r: (r["history"][0][1] if r["history"] else "", r["run"]))

    @contextmanager
    def _turn(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _path(self, name: str) -> Path:
        return self.folder / f"{check_run_name(name)}.json"
