"""One file that shows a member its weights to somebody who has neither the ledger nor the run: only a public key.

It holds the entries of the rounds, the entry that names the sites' keys, a signed and countersigned head, the few hashes that
lead from the entries to the head's root, and the head that the member countersigned last where that is another. It is
canonical JSON with nothing in it that is not checked. An entry is whole or it could not be: so other sites' numbers are in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grandrounds.audit.book import Book, keys_of
from grandrounds.audit.canonical import canonical, parse
from grandrounds.audit.entry import ROUND
from grandrounds.audit.head import SignedHead, longest, unhex
from grandrounds.audit.member import Part, part_of
from grandrounds.audit.merkle import Tree, extends, includes, leaf_hash
from grandrounds.audit.verify import FORGED_HEAD, FORGED_WITNESS, FORKED, STRANGER, Finding
from grandrounds.core.errors import BadInput

SCHEMA = 2
NOT_INCLUDED = "not in the ledger"
OTHER_CLAIM = "claim without ground"
DAMAGED = "damaged proof"
_KEYS = {"schema", "run", "site", "rounds", "opening", "head", "countersigned"}

Entered = tuple[dict[str, Any], list[bytes]]
"""What an entry says, and its path to the root."""


@dataclass(frozen=True)
class Proven:
    """What a proof claims, and what is wrong with it; nothing where it holds.

    `signed`: how many entries are under the head that the member itself countersigned last; 0: it has signed none.
    """

    run: str = ""
    site: str = ""
    rounds: tuple[Part, ...] = ()
    witnesses: tuple[str, ...] = ()
    signed: int = 0
    keys: str = ""
    findings: tuple[Finding, ...] = ()


def prove(book: Book, *, site: str, round: int | None = None) -> bytes:
    """The proof of a site's weight in one round, or in all of them, as the bytes of its file."""
    said = [entry.said for entry in book.entries]
    head = longest(h for h in book.heads if h.witnesses) or longest(book.heads)
    covered = 0 if head is None else head.head.size
    numbers = [n for n in _numbers(said, round) if n < covered]
    if head is None or not numbers:
        which = "a round" if round is None else f"round {round}"
        raise BadInput(
            f"no signed head is over {which} yet: let the run go on, or `rounds resume` it", code="unsigned-round"
        )
    tree = Tree(entry.leaf for entry in book.entries)

    def entered(at: int) -> dict[str, Any]:
        return {"said": said[at], "path": _hexed(tree.inclusion(at, covered))}

    own = longest(h for h in book.heads if site in h.witnesses and h.head.size <= covered)
    signed = None
    if own is not None and site not in head.witnesses:
        alone = replace(own, witnesses={site: own.witnesses[site]})
        signed = {"head": alone.to_dict(), "path": _hexed(tree.consistency(own.head.size, covered))}
    proof = {
        "schema": SCHEMA,
        "run": said[0]["run"],
        "site": site,
        "rounds": [{**part_of(said[n], site).to_dict(), "entry": entered(n)} for n in numbers],
        "opening": entered(0),
        "head": head.to_dict(),
        "countersigned": signed,
    }
    return canonical(proof) + b"\n"


def check(data: bytes, key: bytes | None = None) -> Proven:
    """Whether a proof holds, with nothing but the server's public key; without one, by the key that the ledger names."""
    try:
        return _checked(_read(data), key)
    except BadInput as e:
        return Proven(findings=(Finding(DAMAGED, "proof", f"it {e}"),))


def check_file(path: Path, key: bytes | None = None) -> Proven:
    try:
        return check(path.read_bytes(), key)
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}", code="cannot-read") from None


def parties(book: Book) -> list[str]:
    """The sites that a proof can name: those with keys, and who else was asked in some round."""
    asked = [s for e in book.entries if e.said["kind"] == ROUND for s in e.said["decision"]["asked"]]
    return list(dict.fromkeys([*keys_of(book.entries[0].said)[1], *asked]))


def _numbers(said: Sequence[Mapping[str, Any]], round: int | None) -> list[int]:
    """Where the entries of one round, or of all, are."""
    known = {s["round"]: n for n, s in enumerate(said) if s["kind"] == ROUND}
    if round is not None and round not in known:
        held = f"it has rounds {min(known)} to {max(known)}" if known else "it has none yet"
        raise BadInput(f"the ledger has no round {round}; {held}", code="unknown-round")
    return [n for r, n in known.items() if round in (None, r)]


@dataclass(frozen=True)
class _Proof:
    """A proof as it is read, unchecked."""

    run: Any
    site: str
    claims: list[dict[str, Any]]
    entries: list[Entered]
    opening: Entered
    head: SignedHead
    own: tuple[SignedHead, list[bytes]] | None


def _read(data: bytes) -> _Proof:
    value = parse(data.removesuffix(b"\n"))
    if not (isinstance(value, dict) and set(value) == _KEYS and value["schema"] == SCHEMA):
        raise BadInput(f"is no proof of schema {SCHEMA}: `rounds audit prove` writes one", code="bad-proof")
    rounds, signed = value["rounds"], value["countersigned"]
    if not isinstance(value["site"], str):
        raise BadInput("names no site", code="bad-proof")
    if not (isinstance(rounds, list) and rounds and all(isinstance(r, dict) and "entry" in r for r in rounds)):
        raise BadInput("shows no round", code="bad-proof")
    if signed is not None and not (isinstance(signed, dict) and set(signed) == {"head", "path"}):
        raise BadInput("lacks the head that the site countersigned", code="bad-proof")
    claims = [{name: v for name, v in r.items() if name != "entry"} for r in rounds]
    own = None if signed is None else (SignedHead.of(signed["head"]), _path(signed["path"]))
    head = SignedHead.of(value["head"])
    entries = [_entered(r["entry"]) for r in rounds]
    return _Proof(value["run"], value["site"], claims, entries, _entered(value["opening"]), head, own)


def _checked(proof: _Proof, key: bytes | None) -> Proven:
    head, (opening, _) = proof.head, proof.opening
    named, sites = keys_of(opening)
    findings = [*_included(proof), *_signed(head, key or named, sites), *_countersigned(proof, key or named, sites)]
    parts: list[Part] = []
    if not findings:  # what entries say is the server's word now, and can be compared
        parts = [part_of(said, proof.site) for said, _ in proof.entries if said.get("kind") == ROUND]
        findings = list(_claimed(proof, parts, sites))
    own = head if proof.site in head.witnesses else None if proof.own is None else proof.own[0]
    return Proven(
        str(proof.run),
        proof.site,
        tuple(parts),
        tuple(head.witnesses),
        0 if own is None else own.head.size,
        str(opening["keys"].get("made", "")),
        tuple(findings),
    )


def _entered(value: Any) -> Entered:
    if not (isinstance(value, dict) and set(value) == {"said", "path"}):
        raise BadInput("lacks an entry with its path", code="bad-proof")
    if not isinstance(value["said"], dict):
        raise BadInput("holds an entry that says nothing", code="bad-proof")
    return value["said"], _path(value["path"])


def _path(value: Any) -> list[bytes]:
    if not isinstance(value, list):
        raise BadInput("lacks the hashes that lead to a root", code="bad-proof")
    return [unhex(node, 32, "a hash of the path") for node in value]


def _hexed(path: Sequence[bytes]) -> list[str]:
    return [node.hex() for node in path]


def _included(proof: _Proof) -> Iterator[Finding]:
    root, size = proof.head.head.root, proof.head.head.size
    for name, (said, path) in (("opening", proof.opening), *(("round", entry) for entry in proof.entries)):
        number, leaf = said.get("number"), leaf_hash(canonical(said))
        if type(number) is not int or not includes(root, size, number=number, leaf=leaf, path=path):
            yield Finding(NOT_INCLUDED, name, "its hashes do not lead from the entry to the head's root")


def _signed(head: SignedHead, key: bytes, sites: Mapping[str, bytes]) -> Iterator[Finding]:
    if not head.head.is_signed_by(key, head.signature):
        yield Finding(FORGED_HEAD, "head", "it is not signed by the key given: a wrong key, or a forged signature")
    for site, signature in head.witnesses.items():
        if site not in sites:
            yield Finding(STRANGER, "head", f"{site} is no site of this run")
        elif not head.head.is_countersigned_by(sites[site], signature):
            yield Finding(FORGED_WITNESS, "head", f"the countersignature is not that of {site}")


def _countersigned(proof: _Proof, key: bytes, sites: Mapping[str, bytes]) -> Iterator[Finding]:
    """The head that the member signed last: by it alone, and the beginning of what the proof is under."""
    if proof.own is None:
        return
    (own, path), head = proof.own, proof.head.head
    yield from _signed(own, key, sites)
    if set(own.witnesses) != {proof.site}:
        yield Finding(OTHER_CLAIM, "countersigned", f"it is not countersigned by {proof.site!r}")
    if own.head.run != head.run:
        yield Finding(OTHER_CLAIM, "countersigned", f"it is of run {own.head.run!r}")
    if not extends(own.head.root, head.root, first=own.head.size, second=head.size, path=path):
        yield Finding(FORKED, "countersigned", "the ledger does not continue the head that the site countersigned")


def _claimed(proof: _Proof, parts: Sequence[Part], sites: Mapping[str, bytes]) -> Iterator[Finding]:
    """What the proof says in its own words must be what the entries say."""
    said = [entry for entry, _ in proof.entries]
    if len(parts) != len(said):
        yield Finding(OTHER_CLAIM, "rounds", "one of its entries is of no round")
        return
    for claim, part in zip(proof.claims, parts, strict=True):
        if canonical(claim) != canonical(part.to_dict()):
            yield Finding(OTHER_CLAIM, f"round {part.round}", f"it claims {_other(claim, part.to_dict())}")
    order = [part.round for part in parts]
    if order != sorted(set(order)):
        yield Finding(OTHER_CLAIM, "rounds", "they are not in their order, or one is there twice")
    if proof.site not in sites and not any(proof.site in entry["decision"]["asked"] for entry in said):
        yield Finding(OTHER_CLAIM, "site", f"{proof.site!r} is no site of this run")
    for what, run in (("run", proof.run), ("head", proof.head.head.run)):
        if any(entry.get("run") != run for entry in said):
            yield Finding(OTHER_CLAIM, what, f"it is of run {run!r}, its entries are not")


def _other(claim: Mapping[str, Any], truth: Mapping[str, Any]) -> str:
    """The first thing that is claimed otherwise."""
    for name, value in truth.items():
        if name not in claim or canonical(claim[name]) != canonical(value):
            return f"{name} {claim.get(name)!r}, the entry says {value!r}"
    return "more than an entry says"
