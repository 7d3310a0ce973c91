"""Verify a ledger with the server's public key and heads that others kept, and name its faults.

The ledger of a watch is verified with the public key of the site that signs it, that of a register with the register's key.

An empty list means that these are the entries that the server signed, all of them up to the longest known head, in order,
and that the sites countersigned the same. It does not mean that the server decided well, or recorded the truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from grandrounds.audit.book import Book, read_keys
from grandrounds.audit.entry import (
    CLOSE,
    NOTHING,
    OPEN,
    RESUME,
    ROUND,
    WITHDRAW,
    Content,
    Entry,
    find_fault,
)
from grandrounds.audit.head import SignedHead
from grandrounds.audit.merkle import Tree
from grandrounds.audit.register_entry import KINDS as REGISTER_KINDS
from grandrounds.audit.register_entry import START as REGISTER_START
from grandrounds.audit.register_state import replay
from grandrounds.audit.watch_entry import KINDS, START, order_faults
from grandrounds.core.errors import BadInput

UNREADABLE = "unreadable"
EMPTY = "no entries"
WRONG_KEY = "wrong key"
CHANGED = "changed entry"
FORGED = "forged signature"
REMOVED = "removed entry"
DUPLICATED = "duplicated entry"
REORDERED = "reordered entry"
MISFILED = "misfiled entry"
BROKEN = "broken link"
OTHER_RUN = "another run"
GAP = "missing round"
TRUNCATED = "truncated ledger"
FORKED = "forked head"
FORGED_HEAD = "forged head"
UNCOVERED = "entry without a head"
FORGED_WITNESS = "forged countersignature"
STRANGER = "unknown witness"
NO_WITNESS = "missing countersignature"
MALFORMED = "malformed entry"
NOT_ALLOWED = "entry against the rules"
NO_SITES = "no site keys"
OTHER_SITES = "other site keys"


@dataclass(frozen=True)
class Finding:
    """One fault: its kind, its place, and a description."""

    name: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.name} ({self.where}): {self.what}"


def verify(
    book: Book,
    key: bytes | None = None,
    *,
    heads: Sequence[SignedHead] = (),
    sites: Mapping[str, bytes] | None = None,
    quick: bool = False,
) -> list[Finding]:
    """Verify a ledger.

    Args:
        book: The ledger.
        key: The public key of the server, or of the site that signs a watch. By default the key that the ledger names is
            used: then only its consistency is checked.
        heads: Signed heads that others kept.
        sites: Each site's public key, known independently of the ledger.
        quick: Where the newest head covers all entries, let its signature stand for theirs and those of sites.

    Returns:
        All findings; empty if it verifies.
    """
    if not book.entries:
        longest = max((h.head.size for h in (*book.heads, *heads)), default=0)
        if longest:
            return [Finding(TRUNCATED, "ledger", f"it has no entries, but a head over {longest} was signed")]
        return [Finding(EMPTY, "ledger", "it is empty, without even an opening entry")]
    try:
        server_key, named = read_keys(book.entries[0].content)
    except BadInput as e:
        server_key, named = None, {}
        first = [Finding(CHANGED, "entry 0", f"the ledger does not begin with its keys: it {e}")]
    else:
        is_of_run = book.entries[0].content["kind"] not in (START, REGISTER_START)
        first = [*_site_keys(named, sites)] if is_of_run else []
    used = key or server_key
    if used is None:
        return first
    if (
        key is not None
        and server_key is not None
        and server_key != key
        and not any(e.is_signed_by(key) for e in book.entries)
    ):
        description = (
            f"no entry is signed by the given key, {key.hex()[:16]}...; the ledger names {server_key.hex()[:16]}..."
        )
        return [Finding(WRONG_KEY, "ledger", description)]
    checker = _Checker(book, used, named, Tree(e.leaf for e in book.entries))
    if quick and not first and checker.is_covered(heads):
        return []
    findings = [*first, *checker.entries(), *checker.order(), *checker.heads(), *checker.kept_heads(heads)]
    return list(dict.fromkeys(findings))


def _site_keys(named: Mapping[str, bytes], expected: Mapping[str, bytes] | None) -> Iterator[Finding]:
    """Compare the sites and keys that a ledger names with known ones."""
    if not named:
        yield Finding(NO_SITES, "entry 0", "it names no sites: only the server vouches for this ledger")
    if expected is None:
        return
    for site in sorted(set(named) | set(expected)):
        if site not in named:
            yield Finding(OTHER_SITES, "entry 0", f"it does not name {site}, for which a key was given")
        elif site not in expected:
            yield Finding(OTHER_SITES, "entry 0", f"it names {site}, for which no key was given")
        elif named[site] != expected[site]:
            theirs, known = named[site].hex()[:16], expected[site].hex()[:16]
            yield Finding(
                OTHER_SITES, "entry 0", f"the key of {site} is {theirs}... there, but the given key is {known}..."
            )


@dataclass(frozen=True)
class _Checker:
    """Checks one ledger."""

    book: Book
    key: bytes
    sites: Mapping[str, bytes]
    tree: Tree

    @property
    def signer(self) -> str:
        """The party that signs this ledger."""
        return "site" if self._is_watch else "register" if self._is_register else "server"

    @property
    def _is_watch(self) -> bool:
        return self._first_kind in KINDS

    @property
    def _is_register(self) -> bool:
        return self._first_kind in REGISTER_KINDS

    @property
    def _first_kind(self) -> object:
        first = next((content for entry in self.book.entries if (content := _read_content(entry)) is not None), {})
        return first.get("kind")

    def is_covered(self, heads: Sequence[SignedHead]) -> bool:
        """Tell whether the newest head is over all entries, as they are, and every kept head over the first of them."""
        if not self.book.heads or self.book.heads[-1].head.size != len(self.tree):
            return False
        signed = (replace(head, witnesses={}) for head in (self.book.heads[-1], *heads))
        return not any(True for head in signed for _ in self._head(head, "ledger"))

    def entries(self) -> Iterator[Finding]:
        """Check signatures, and the hash of the previous entry in each."""
        entries = self.book.entries
        for number, entry in enumerate(entries):
            if not entry.is_signed_by(self.key):
                if self._is_vouched_for(number):
                    yield Finding(
                        FORGED, f"entry {number}", f"its signature is not the {self.signer}'s, but its text is unchanged"
                    )
                else:
                    yield Finding(CHANGED, f"entry {number}", f"its text is not what the {self.signer} signed")
            content = _read_content(entry)
            if content is None:
                yield Finding(CHANGED, f"entry {number}", "it is not canonical JSON of a known schema")
                continue
            before = entries[number - 1].hash if number else NOTHING
            if content.get("previous") != before:
                yield Finding(BROKEN, f"entry {number}", "it names another entry before it than the one that is there")

    def order(self) -> Iterator[Finding]:
        """Find entries that are missing, there twice, or out of place, by their own numbers."""
        contents = [_read_content(e) for e in self.book.entries]
        numbers = [s["number"] for s in contents if s is not None and type(s.get("number")) is int]
        for number, times in sorted(Counter(numbers).items()):
            if times > 1:
                yield Finding(DUPLICATED, f"entry {number}", f"it occurs {times} times")
        if len(numbers) == len(contents):
            present = set(numbers)
            for number in range(min(max(numbers), len(numbers) + len(contents))):
                if number not in present:
                    yield Finding(REMOVED, f"entry {number}", "it is missing, but later entries are there")
        for a, b in pairwise(numbers):
            if b < a:
                yield Finding(REORDERED, f"entry {b}", f"it comes after entry {a}")
        for position, place in enumerate(self.book.places):
            if place != position:
                yield Finding(MISFILED, f"entry {position}", f"it is stored under {place}")
                break
        readable = [s for s in contents if s is not None]
        if self._is_register:
            yield from self._register(readable)
        else:
            yield from self._watch(readable) if self._is_watch else self._rounds(readable)

    def _watch(self, contents: Sequence[Content]) -> Iterator[Finding]:
        """Check that the entries are of one run and one site, and that each fits those before it."""
        run = contents[0].get("run")
        for value in contents:
            fault = find_fault(value) or ("" if value["kind"] in KINDS else "it is not an entry of a watch")
            if fault:
                yield Finding(MALFORMED, f"entry {value.get('number')}", fault)
            if value.get("run") != run:
                what = f"it is of run {value.get('run')!r}, but the watch of {run!r}"
                yield Finding(OTHER_RUN, f"entry {value.get('number')}", what)
        sound = [value for value in contents if not find_fault(value) and value["kind"] in KINDS]
        for number, fault in order_faults(sound):
            yield Finding(MALFORMED, f"entry {number}", fault)

    def _register(self, contents: Sequence[Content]) -> Iterator[Finding]:
        """Check the signatures of people, and that each entry follows the rules of a register."""
        sound = []
        for value in contents:
            fault = find_fault(value) or ("" if value["kind"] in REGISTER_KINDS else "it is not an entry of a register")
            if fault:
                yield Finding(MALFORMED, f"entry {value.get('number')}", fault)
            else:
                sound.append(value)
        for number, fault in replay(sound).faults:
            yield Finding(NOT_ALLOWED, f"entry {number}", fault)

    def _rounds(self, contents: Sequence[Content]) -> Iterator[Finding]:
        """Check that the entries are of one run and consecutive rounds; a gap requires an opening entry."""
        run, due = contents[0].get("run") if contents else None, None
        before = ""
        for value in contents:
            number, kind = value.get("number"), value.get("kind")
            if value.get("run") != run:
                yield Finding(OTHER_RUN, f"entry {number}", f"it is of run {value.get('run')!r}, but the ledger of {run!r}")
            fault = find_fault(value)
            if fault:
                yield Finding(MALFORMED, f"entry {number}", fault)
            elif kind in KINDS or kind in REGISTER_KINDS:
                other = "a watch" if kind in KINDS else "a register"
                yield Finding(MALFORMED, f"entry {number}", f"it belongs into the ledger of {other}")
            elif kind == OPEN:
                due = value["first"]
            elif kind == ROUND:
                if value["round"] != due:
                    yield Finding(GAP, f"entry {number}", f"it is of round {value['round']}, but round {due} was expected")
                due = value["round"] + 1
            elif kind == RESUME and due is not None and value["round"] != due - 1:
                yield Finding(
                    GAP, f"entry {number}", f"it names round {value['round']}, but the run was resumed after round {due - 1}"
                )
            elif kind == WITHDRAW and before != CLOSE:
                yield Finding(MALFORMED, f"entry {number}", "a site withdraws from a run that is not closed")
            if before == WITHDRAW:
                yield Finding(MALFORMED, f"entry {number}", "it comes after a withdrawal, which ends the ledger")
            before = str(kind)

    def heads(self) -> Iterator[Finding]:
        """Check the heads in the ledger, their signatures and their witnesses."""
        if not self.book.heads or self.book.heads[-1].head.size < len(self.tree):
            yield Finding(UNCOVERED, f"entry {len(self.tree) - 1}", "there is no signed head over it: heads were removed")
        parted = next((h for h in self.book.heads if self._parts(h)), None)
        for head in self.book.heads:
            later = parted is not None and head.head.size > parted.head.size and self._parts(head)
            yield from (f for f in self._head(head, "ledger") if not (later and f.name == FORKED))
            due = [s for s in head.head.witnesses(list(self.sites)) if s not in head.witnesses]
            missing = [s for s in due if s not in self._absent(head.head.size)]
            if missing and head is not self.book.heads[-1]:
                names = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
                yield Finding(NO_WITNESS, f"head of {head.head.size}", f"not countersigned by {names}")
        for size, site in self.book.strays:
            yield Finding(STRANGER, f"head of {size}", f"{site} countersigned a head that does not exist")

    def _absent(self, size: int) -> set[str]:
        """Find sites that the rounds on both sides of a head record as missing: they were not there to countersign it.

        A site that returns countersigns later heads, each with a proof that it continues the head that the site signed last.
        """
        sides = (reversed(self.book.entries[:size]), self.book.entries[size:])
        rounds = (next((c for e in side if (c := _read_content(e)) and c.get("kind") == ROUND), {}) for side in sides)
        decisions = [value.get("decision") for value in rounds]
        missing = [decision.get("missing") for decision in decisions if isinstance(decision, dict)]
        return {str(site) for sites in missing if isinstance(sites, dict) for site in sites}

    def kept_heads(self, heads: Sequence[SignedHead]) -> Iterator[Finding]:
        """Check heads that others kept: each must be a beginning of this ledger."""
        for number, head in enumerate(heads, 1):
            yield from self._head(head, f"kept head {number}")

    def _head(self, signed: SignedHead, where: str) -> Iterator[Finding]:
        head = signed.head
        place = f"head of {head.size}" if where == "ledger" else f"{where}, of {head.size} entries"
        if not head.is_signed_by(self.key, signed.signature):
            yield Finding(FORGED_HEAD, place, f"its signature is not the {self.signer}'s")
            return
        who = f" and countersigned by {len(signed.witnesses)} sites" if signed.witnesses else ""
        if head.size > len(self.tree):
            description = f"the ledger has {len(self.tree)} entries, but a head over {head.size} was signed{who}"
            yield Finding(TRUNCATED, place, description)
        elif self._parts(signed):
            witnessed = f", and {len(signed.witnesses)} sites countersigned," if signed.witnesses else ""
            yield Finding(FORKED, place, f"the {self.signer} signed{witnessed} another root than these entries have")
        said_run = (_read_content(self.book.entries[0]) or {}).get("run")
        if head.run != said_run:
            yield Finding(OTHER_RUN, place, f"it is of run {head.run!r}, but the ledger of {said_run!r}")
        for site, signature in signed.witnesses.items():
            key = self.sites.get(site)
            if key is None:
                yield Finding(STRANGER, place, f"{site} is not a site of this run")
            elif not head.is_countersigned_by(key, signature):
                yield Finding(FORGED_WITNESS, place, f"the countersignature is not that of {site}")

    def _parts(self, signed: SignedHead) -> bool:
        """Check whether a head covers other entries than these; the first of several in the ledger is enough."""
        head = signed.head
        return head.size <= len(self.tree) and head.root != self.tree.root(head.size)

    def _is_vouched_for(self, number: int) -> bool:
        """Check that the text of an entry is unchanged, by a later signature: the next entry, or a head over it."""
        entries = self.book.entries
        if number + 1 < len(entries):
            after = entries[number + 1]
            return after.is_signed_by(self.key) and (_read_content(after) or {}).get("previous") == entries[number].hash
        return any(
            h.head.size == len(entries)
            and h.head.root == self.tree.root()
            and h.head.is_signed_by(self.key, h.signature)
            for h in self.book.heads
        )


def _read_content(entry: Entry) -> Content | None:
    """Read the content of an entry; None if it is damaged."""
    try:
        return entry.content
    except BadInput:
        return None
