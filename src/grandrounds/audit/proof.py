"""One file that shows a site's weight in a round to somebody who has neither the ledger nor the run: only a public key.

It holds the round's entry, the entry that names the sites' keys, a signed and countersigned head, and the few hashes that
lead from the entries to the head's root. It is canonical JSON with nothing in it that is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.audit.book import Book, keys_of
from grandrounds.audit.canonical import canonical, parse
from grandrounds.audit.entry import ROUND
from grandrounds.audit.head import SignedHead, longest, unhex
from grandrounds.audit.merkle import Tree, includes, leaf_hash
from grandrounds.audit.verify import FORGED_HEAD, FORGED_WITNESS, STRANGER, Finding
from grandrounds.errors import BadInput

SCHEMA = 1
NOT_INCLUDED = "not in the ledger"
OTHER_CLAIM = "claim without ground"
DAMAGED = "damaged proof"
_KEYS = {"schema", "run", "round", "site", "weight", "opening", "entry", "head"}


@dataclass(frozen=True)
class Proven:
    """What a proof claims, and what is wrong with it; nothing where it holds."""

    run: str
    round: int
    site: str
    weight: float | None
    witnesses: tuple[str, ...]
    keys: str
    findings: tuple[Finding, ...] = ()


def prove(book: Book, *, round: int, site: str) -> bytes:
    """The proof of one site's weight in one round, as the bytes of its file."""
    said = [entry.said for entry in book.entries]
    number = next((n for n, s in enumerate(said) if s["kind"] == ROUND and s["round"] == round), None)
    if number is None:
        known = [s["round"] for s in said if s["kind"] == ROUND]
        held = f"it has rounds {known[0]} to {known[-1]}" if known else "it has none yet"
        raise BadInput(f"the ledger has no round {round}; {held}")
    head = longest(h for h in book.heads if h.witnesses) or longest(book.heads)
    if head is None or head.head.size <= number:
        raise BadInput(f"no signed head is over round {round} yet: let the run go on, or `rounds resume` it")
    tree = Tree(entry.leaf for entry in book.entries)

    def part(at: int) -> dict[str, Any]:
        path = [node.hex() for node in tree.inclusion(at, head.head.size)]
        return {"said": said[at], "path": path}

    claim = {
        "run": said[0]["run"],
        "round": round,
        "site": site,
        "weight": said[number]["decision"]["weights"].get(site),
    }
    return (
        canonical({"schema": SCHEMA, **claim, "opening": part(0), "entry": part(number), "head": head.to_dict()})
        + b"\n"
    )


def check(data: bytes, key: bytes) -> Proven:
    """Whether a proof holds, with nothing but the server's public key."""
    try:
        value = parse(data.removesuffix(b"\n"))
        if not (isinstance(value, dict) and set(value) == _KEYS and value["schema"] == SCHEMA):
            raise BadInput(f"is no proof of schema {SCHEMA}")
        head, parts = SignedHead.of(value["head"]), {name: _part(value[name]) for name in ("opening", "entry")}
        opening, (entry, _) = parts["opening"][0], parts["entry"]
        _, sites = keys_of(opening)
        claim = {name: value[name] for name in ("run", "round", "site", "weight")}
        if not isinstance(claim["site"], str):
            raise BadInput("names no site")
        findings = [*_included(parts, head), *_signed(head, key, sites)]
        if not findings:  # what the entry says is the server's word now, and can be compared
            findings = list(_claimed(claim, entry, head))
        keys = str(opening["keys"].get("made", ""))
    except BadInput as e:
        return Proven("", 0, "", None, (), "", (Finding(DAMAGED, "proof", f"it {e}"),))
    return Proven(**claim, witnesses=tuple(head.witnesses), keys=keys, findings=tuple(findings))


def check_file(path: Path, key: bytes) -> Proven:
    try:
        return check(path.read_bytes(), key)
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}") from None


def _part(value: Any) -> tuple[dict[str, Any], list[bytes]]:
    """An entry and its path to the root."""
    if not (isinstance(value, dict) and set(value) == {"said", "path"} and isinstance(value["path"], list)):
        raise BadInput("lacks an entry with its path")
    if not isinstance(value["said"], dict):
        raise BadInput("holds an entry that says nothing")
    return value["said"], [unhex(node, 32, "a hash of the path") for node in value["path"]]


def _included(parts: Mapping[str, tuple[dict[str, Any], list[bytes]]], head: SignedHead) -> Iterator[Finding]:
    for name, (said, path) in parts.items():
        number = said.get("number")
        leaf = leaf_hash(canonical(said))
        if type(number) is not int or not includes(head.head.root, head.head.size, number=number, leaf=leaf, path=path):
            yield Finding(NOT_INCLUDED, name, "its hashes do not lead from the entry to the head's root")


def _signed(head: SignedHead, key: bytes, sites: Mapping[str, bytes]) -> Iterator[Finding]:
    if not head.head.is_signed_by(key, head.signature):
        yield Finding(FORGED_HEAD, "head", "it is not signed by the key given: a wrong key, or a forged signature")
    for site, signature in head.witnesses.items():
        if site not in sites:
            yield Finding(STRANGER, "head", f"{site} is no site of this run")
        elif not head.head.is_countersigned_by(sites[site], signature):
            yield Finding(FORGED_WITNESS, "head", f"the countersignature is not that of {site}")


def _claimed(claim: Mapping[str, Any], entry: Mapping[str, Any], head: SignedHead) -> Iterator[Finding]:
    """What the proof says on its first lines must be what the entry says."""
    weights = entry.get("decision", {}).get("weights", {}) if entry.get("kind") == ROUND else {}
    truth = {"run": entry.get("run"), "round": entry.get("round"), "weight": weights.get(claim["site"])}
    for name, value in truth.items():
        if claim[name] != value or type(claim[name]) is not type(value):
            yield Finding(OTHER_CLAIM, name, f"it claims {claim[name]!r}, the entry says {value!r}")
    asked = entry.get("decision", {}).get("asked", [])
    if claim["site"] not in asked and claim["site"] not in weights:
        yield Finding(OTHER_CLAIM, "site", f"{claim['site']!r} had no part in that round")
    if head.head.run != entry.get("run"):
        yield Finding(OTHER_CLAIM, "head", f"it is of run {head.head.run!r}")


def parties(book: Book, round: int) -> list[str]:
    """The sites that a proof about a round can name: those with keys, and who else was asked."""
    known = list(keys_of(book.entries[0].said)[1])
    asked = [
        s
        for e in book.entries
        if e.said["kind"] == ROUND and e.said["round"] == round
        for s in e.said["decision"]["asked"]
    ]
    return list(dict.fromkeys([*known, *asked]))
