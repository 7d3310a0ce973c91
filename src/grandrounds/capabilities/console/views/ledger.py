"""The content of a ledger: entries page by page, countersignatures by site, anchors on a chain, and proofs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from grandrounds.audit.book import Book, read_keys
from grandrounds.audit.canonical import canonical
from grandrounds.audit.digest import value_digest
from grandrounds.audit.entry import ROUND, Entry
from grandrounds.audit.head import longest
from grandrounds.audit.proof import provable_sites, prove
from grandrounds.audit.spans import run_and_rounds, span_of
from grandrounds.audit.verify import FORGED_WITNESS
from grandrounds.capabilities.console.cache import read_checked
from grandrounds.capabilities.console.run_index import NotFound, RunIndex, Unreadable, refuse_file
from grandrounds.capabilities.console.views.audit import Check, guard_damage, load_book, load_verified_book
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import load_public

PAGE_SIZE = 25
ANCHORS = "anchors.json"
_LARGEST = 4 * 2**20


class EntryLine(BaseModel):
    """One entry. `signed`: by the server's key; `weights`: the digest of the weights it records, `model` that of the model
    that came of them; `wrong`: why it cannot be read."""

    at: int
    kind: str = ""
    round: int | None = None
    hash: str
    previous: str = ""
    signed: bool | None = None
    weights: str = ""
    sites: int = 0
    model: str = ""
    explanation: str = ""
    wrong: str = ""


class Entries(BaseModel):
    """A page of entries. `key`: the server's public key that signatures were checked with, and its source."""

    page: int
    pages: int
    total: int
    key: str
    key_from: str
    entries: list[EntryLine]


class FullEntry(BaseModel):
    """One entry, word for word."""

    at: int
    hash: str
    signature: str
    says: dict[str, Any]


class SiteSignatures(BaseModel):
    """A site's countersignatures. `due`: heads that it was to sign; `last`: entries under the last head that it did."""

    site: str
    key: str
    signed: int
    due: int
    last: int
    forged: int


class AnchorSpan(BaseModel):
    """Rounds that were written to a chain. `same`: that hash matches the ledger; None: unknown."""

    first: int
    last: int
    hash: str
    block: int
    transaction: str
    gas: int | None
    same: bool | None


class AnchorContract(BaseModel):
    """A contract that a run was anchored with. `ours`: it knows the run by this ledger's first entry."""

    chain: int
    contract: str
    ours: bool | None
    spans: list[AnchorSpan]
    rounds: int


def entries(run_index: RunIndex, run: str, page: int) -> Entries:
    """Return a page of entries, counted from 1."""
    book = load_book(run_index, run)
    pages = max(1, -(-len(book.entries) // PAGE_SIZE))
    if page > pages:
        raise NotFound(f"the ledger of run '{run}' has {pages} pages of entries", code="unknown-page")
    key, source = _server_key(run_index, run, book)
    first = (page - 1) * PAGE_SIZE
    shown = [_entry(first + n, e, key) for n, e in enumerate(book.entries[first : first + PAGE_SIZE])]
    key_text = "" if key is None else key.hex()
    return Entries(page=page, pages=pages, total=len(book.entries), key=key_text, key_from=source, entries=shown)


def entry(run_index: RunIndex, run: str, number: int) -> FullEntry:
    book = load_book(run_index, run)
    if number >= len(book.entries):
        raise NotFound(f"the ledger of run '{run}' has {len(book.entries)} entries, from 0 on", code="unknown-entry")
    stored = book.entries[number]
    content = guard_damage(run_index, run, lambda: stored.content)
    return FullEntry(at=number, hash=stored.hash, signature=stored.signature.hex(), says=content)


def signatures(run_index: RunIndex, run: str, checked: Check) -> list[SiteSignatures]:
    """Countersignatures by site; `checked`: the check that compared them with the sites' keys."""
    book = load_book(run_index, run)
    sites = guard_damage(run_index, run, lambda: read_keys(book.entries[0].content)[1] if book.entries else {})
    names = list(sites)
    due = dict.fromkeys(names, 0)
    for head in book.heads:
        for site in head.head.witnesses(names):
            due[site] += 1
    forged = [f.what for f in checked.findings if f.name == FORGED_WITNESS]
    return [
        SiteSignatures(
            site=site,
            key=sites[site].hex(),
            signed=sum(site in h.witnesses for h in book.heads),
            due=due[site],
            last=max((h.head.size for h in book.heads if site in h.witnesses), default=0),
            forged=sum(finding.endswith(f" that of {site}") for finding in forged),
        )
        for site in names
    ]


def list_sites(run_index: RunIndex, run: str) -> list[str]:
    """List the sites that a proof can be made for; none where the ledger cannot be read."""
    try:
        return guard_damage(run_index, run, lambda: provable_sites(load_book(run_index, run)))
    except Unreadable:
        return []


def proof(run_index: RunIndex, run: str, site: str, round: int | None = None) -> bytes:
    """Write the file that `rounds audit prove` writes, from a ledger that verifies."""
    book = load_verified_book(run_index, run)
    if site not in provable_sites(book):
        raise NotFound(f"run '{run}' has no site '{site[:200]}'", code="unknown-site")
    try:
        return prove(book, site=site, round=round)
    except BadInput as e:
        raise NotFound(str(e), code=e.code) from None


def export(run_index: RunIndex, run: str) -> bytes:
    """Write the file that `rounds audit export` writes, from a ledger that verifies."""
    return b"".join(load_verified_book(run_index, run).lines())


def newest_head(run_index: RunIndex, run: str) -> bytes:
    """Return the newest signed head, to be stored elsewhere."""
    head = longest(load_verified_book(run_index, run).heads)
    if head is None:
        raise NotFound(f"the ledger of run '{run}' has no head yet", code="missing-head")
    return head.to_bytes()


def anchors(run_index: RunIndex, run: str) -> list[AnchorContract]:
    """List the contracts that the run was anchored with, as its folder records; the chain itself is not queried."""
    file = run_index.get(run).folder / ANCHORS
    if not file.exists():
        return []
    refuse_file(file, f"{ANCHORS} of run '{run}'", largest=_LARGEST)
    places = read_checked(
        run_index, f"the file {ANCHORS} of run '{run}'", lambda: list(json.loads(file.read_bytes())["anchors"])
    )
    try:
        name, rounds = run_and_rounds(load_book(run_index, run))
        ledger: tuple[str, dict[int, bytes]] | None = (name.hex(), dict(rounds))
    except (BadInput, Unreadable, KeyError, TypeError, ValueError):
        ledger = None
    return read_checked(
        run_index, f"the file {ANCHORS} of run '{run}'", lambda: [_read_contract(place, ledger) for place in places]
    )


def _read_contract(place: dict[str, Any], ledger: tuple[str, dict[int, bytes]] | None) -> AnchorContract:
    rounds = {} if ledger is None else ledger[1]
    spans = [
        AnchorSpan(
            first=s["first"], last=s["last"], hash=s["hash"], block=s["block"], transaction=s["transaction"],
            gas=s.get("gas"), same=None if ledger is None else _matches_ledger(s["first"], s["last"], s["hash"], rounds),
        )
        for s in place["spans"]
    ]  # fmt: skip
    covered = {n for s in spans for n in rounds if s.first <= n <= s.last}
    ours = None if ledger is None else place.get("run") == ledger[0]
    return AnchorContract(chain=place["chain"], contract=place["contract"], ours=ours, spans=spans, rounds=len(covered))


def _matches_ledger(first: int, last: int, digest: str, rounds: dict[int, bytes]) -> bool:
    """Check that the ledger's rounds give the hash that was written to the chain."""
    covered = [(n, rounds[n]) for n in sorted(rounds) if first <= n <= last]
    complete = len(covered) == last - first + 1
    return bool(complete and span_of(covered).hash.hex() == digest)


def _server_key(run_index: RunIndex, run: str, book: Book) -> tuple[bytes | None, str]:
    """Return the server's key and its source: beside the ledger, as `rounds audit verify` takes it, else the ledger's own."""
    file = run_index.get(run).folder / "server.pub"
    try:
        if file.is_file() and not file.is_symlink():
            return load_public(file), "server.pub in the run's folder"
        return read_keys(book.entries[0].content)[0], "the ledger itself"
    except (BadInput, IndexError):
        return None, "none: no key can be read"


def _entry(number: int, entry: Entry, key: bytes | None) -> EntryLine:
    line = EntryLine(at=number, hash=entry.hash, signed=None if key is None else entry.is_signed_by(key))
    try:
        content = entry.content
        line.kind, line.previous = str(content.get("kind", "")), str(content.get("previous", ""))
        if content.get("kind") == ROUND:
            weights = content["decision"]["weights"]
            line.round, line.sites, line.weights = int(content["round"]), len(weights), _digest(weights)
        line.model = str(content.get("model") or "")
        line.explanation = str(content.get("explanation") or "")
    except (BadInput, KeyError, TypeError, ValueError, AttributeError) as e:
        line.wrong = str(e) if isinstance(e, BadInput) else "it is no entry of a known kind"
    return line


def _digest(weights: Any) -> str:
    canonical(weights)  # refuses content that no ledger would hold
    return value_digest(weights)


def findings_by_entry(checked: Check, lines: Sequence[EntryLine]) -> dict[int, list[str]]:
    """List the findings at each of these entries."""
    return {
        line.at: [f"{f.name}: {f.what}" for f in checked.findings if f.where == f"entry {line.at}"] for line in lines
    }
