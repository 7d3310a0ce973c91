"""A proof of a member's weights in one file, which can be checked with only a public key.

It contains the entries of the rounds, the entry with the sites' keys, a signed and countersigned head, the hashes from the
entries to the head's root, and the last head that the member countersigned, if it is another. It is canonical JSON in which
everything is checked. An entry can only be proven whole, so it contains other sites' signals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grandrounds.audit.book import Book, read_keys
from grandrounds.audit.canonical import canonical, parse
from grandrounds.audit.entry import ROUND, Content
from grandrounds.audit.head import SignedHead, longest, unhex
from grandrounds.audit.member import Part, read_part
from grandrounds.audit.merkle import Tree, extends, includes, leaf_hash
from grandrounds.audit.verify import FORGED_HEAD, FORGED_WITNESS, FORKED, STRANGER, Finding
from grandrounds.core.errors import BadInput

SCHEMA = 2
NOT_INCLUDED = "not in the ledger"
OTHER_CLAIM = "claim without ground"
DAMAGED = "damaged proof"
_KEYS = {"schema", "run", "site", "rounds", "opening", "head", "countersigned"}

ProvenEntry = tuple[Content, list[bytes]]
"""Content of an entry, and its path to the root."""


@dataclass(frozen=True)
class ProofResult:
    """Claims of a proof, and findings against it; no findings if it is valid.

    `signed` is the number of entries under the head that the member countersigned last; 0 if it signed none.
    """

    run: str = ""
    site: str = ""
    rounds: tuple[Part, ...] = ()
    witnesses: tuple[str, ...] = ()
    signed: int = 0
    keys: str = ""
    findings: tuple[Finding, ...] = ()


def prove(book: Book, *, site: str, round: int | None = None) -> bytes:
    """Create the proof of a site's weight in one round, or in all of them.

    Args:
        book: The ledger.
        site: The site.
        round: The round; None for all.

    Returns:
        The content of the proof file.

    Raises:
        BadInput: There is no such round, or no signed head over it.
    """
    contents = [entry.content for entry in book.entries]
    head = longest(h for h in book.heads if h.witnesses) or longest(book.heads)
    covered = 0 if head is None else head.head.size
    numbers = [n for n in _entry_numbers(contents, round) if n < covered]
    if head is None or not numbers:
        subject = "a round" if round is None else f"round {round}"
        raise BadInput(
            f"there is no signed head over {subject} yet: let the run continue, or `rounds resume` it", code="unsigned-round"
        )
    tree = Tree(entry.leaf for entry in book.entries)

    def prove_entry(number: int) -> dict[str, object]:
        return {"said": contents[number], "path": _to_hex(tree.inclusion(number, covered))}

    last_signed = longest(h for h in book.heads if site in h.witnesses and h.head.size <= covered)
    signed = None
    if last_signed is not None and site not in head.witnesses:
        alone = replace(last_signed, witnesses={site: last_signed.witnesses[site]})
        signed = {"head": alone.to_dict(), "path": _to_hex(tree.consistency(last_signed.head.size, covered))}
    proof = {
        "schema": SCHEMA,
        "run": contents[0]["run"],
        "site": site,
        "rounds": [{**read_part(contents[n], site).to_dict(), "entry": prove_entry(n)} for n in numbers],
        "opening": prove_entry(0),
        "head": head.to_dict(),
        "countersigned": signed,
    }
    return canonical(proof) + b"\n"


def check(data: bytes, key: bytes | None = None) -> ProofResult:
    """Check a proof with the server's public key; by default with the key that the ledger names.

    Args:
        data: The content of the proof file.
        key: The server's public key.

    Returns:
        Claims and findings.
    """
    try:
        return _check_proof(_read(data), key)
    except BadInput as e:
        return ProofResult(findings=(Finding(DAMAGED, "proof", f"it {e}"),))


def check_file(path: Path, key: bytes | None = None) -> ProofResult:
    """Check the proof in a file."""
    try:
        return check(path.read_bytes(), key)
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror or e}", code="cannot-read") from None


def provable_sites(book: Book) -> list[str]:
    """List the sites that a proof can name: those with keys, and others that were asked in a round."""
    asked_sites = [s for e in book.entries if e.content["kind"] == ROUND for s in e.content["decision"]["asked"]]
    return list(dict.fromkeys([*read_keys(book.entries[0].content)[1], *asked_sites]))


def _entry_numbers(contents: Sequence[Content], round: int | None) -> list[int]:
    """Find the numbers of the entries of one round, or of all."""
    numbers = {s["round"]: n for n, s in enumerate(contents) if s["kind"] == ROUND}
    if round is not None and round not in numbers:
        available = f"it has rounds {min(numbers)} to {max(numbers)}" if numbers else "it has none yet"
        raise BadInput(f"the ledger has no round {round}; {available}", code="unknown-round")
    return [n for r, n in numbers.items() if round in (None, r)]


@dataclass(frozen=True)
class _Proof:
    """A parsed proof that is not checked yet."""

    run: Any
    site: str
    claims: list[Content]
    entries: list[ProvenEntry]
    opening: ProvenEntry
    head: SignedHead
    last_signed: tuple[SignedHead, list[bytes]] | None


def _read(data: bytes) -> _Proof:
    value = parse(data.removesuffix(b"\n"))
    if not (isinstance(value, dict) and set(value) == _KEYS and value["schema"] == SCHEMA):
        raise BadInput(f"is not a proof of schema {SCHEMA}: `rounds audit prove` writes one", code="bad-proof")
    rounds, signed = value["rounds"], value["countersigned"]
    if not isinstance(value["site"], str):
        raise BadInput("names no site", code="bad-proof")
    if not (isinstance(rounds, list) and rounds and all(isinstance(r, dict) and "entry" in r for r in rounds)):
        raise BadInput("shows no round", code="bad-proof")
    if signed is not None and not (isinstance(signed, dict) and set(signed) == {"head", "path"}):
        raise BadInput("lacks the head that the site countersigned", code="bad-proof")
    claims = [{name: v for name, v in r.items() if name != "entry"} for r in rounds]
    last_signed = None if signed is None else (SignedHead.from_json(signed["head"]), _read_path(signed["path"]))
    head = SignedHead.from_json(value["head"])
    entries = [_read_entry(r["entry"]) for r in rounds]
    return _Proof(value["run"], value["site"], claims, entries, _read_entry(value["opening"]), head, last_signed)


def _check_proof(proof: _Proof, key: bytes | None) -> ProofResult:
    head, (opening, _) = proof.head, proof.opening
    named, sites = read_keys(opening)
    findings = [
        *_check_inclusion(proof),
        *_check_signatures(head, key or named, sites),
        *_check_countersignature(proof, key or named, sites),
    ]
    parts: list[Part] = []
    if not findings:  # the entries are now verified, so the claims can be compared with them
        parts = [read_part(content, proof.site) for content, _ in proof.entries if content.get("kind") == ROUND]
        findings = list(_check_claims(proof, parts, sites))
    last_signed = head if proof.site in head.witnesses else None if proof.last_signed is None else proof.last_signed[0]
    return ProofResult(
        str(proof.run),
        proof.site,
        tuple(parts),
        tuple(head.witnesses),
        0 if last_signed is None else last_signed.head.size,
        str(opening["keys"].get("made", "")),
        tuple(findings),
    )


def _read_entry(value: Any) -> ProvenEntry:
    if not (isinstance(value, dict) and set(value) == {"said", "path"}):
        raise BadInput("lacks an entry with its path", code="bad-proof")
    if not isinstance(value["said"], dict):
        raise BadInput("contains an entry without content", code="bad-proof")
    return value["said"], _read_path(value["path"])


def _read_path(value: Any) -> list[bytes]:
    if not isinstance(value, list):
        raise BadInput("lacks the hashes that lead to a root", code="bad-proof")
    return [unhex(node, 32, "a hash of the path") for node in value]


def _to_hex(path: Sequence[bytes]) -> list[str]:
    return [node.hex() for node in path]


def _check_inclusion(proof: _Proof) -> Iterator[Finding]:
    root, size = proof.head.head.root, proof.head.head.size
    for name, (content, path) in (("opening", proof.opening), *(("round", entry) for entry in proof.entries)):
        number, leaf = content.get("number"), leaf_hash(canonical(content))
        if type(number) is not int or not includes(root, size, number=number, leaf=leaf, path=path):
            yield Finding(NOT_INCLUDED, name, "its hashes do not lead from the entry to the head's root")


def _check_signatures(head: SignedHead, key: bytes, sites: Mapping[str, bytes]) -> Iterator[Finding]:
    if not head.head.is_signed_by(key, head.signature):
        yield Finding(FORGED_HEAD, "head", "it is not signed with the given key: the key is wrong, or the signature forged")
    for site, signature in head.witnesses.items():
        if site not in sites:
            yield Finding(STRANGER, "head", f"{site} is not a site of this run")
        elif not head.head.is_countersigned_by(sites[site], signature):
            yield Finding(FORGED_WITNESS, "head", f"the countersignature is not that of {site}")


def _check_countersignature(proof: _Proof, key: bytes, sites: Mapping[str, bytes]) -> Iterator[Finding]:
    """Check the head that the member signed last: it must be signed by the member and be a beginning of the proof's ledger.
    """
    if proof.last_signed is None:
        return
    (signed, path), head = proof.last_signed, proof.head.head
    yield from _check_signatures(signed, key, sites)
    if set(signed.witnesses) != {proof.site}:
        yield Finding(OTHER_CLAIM, "countersigned", f"it is not countersigned by {proof.site!r}")
    if signed.head.run != head.run:
        yield Finding(OTHER_CLAIM, "countersigned", f"it is of run {signed.head.run!r}")
    if not extends(signed.head.root, head.root, first=signed.head.size, second=head.size, path=path):
        yield Finding(FORKED, "countersigned", "the ledger does not continue the head that the site countersigned")


def _check_claims(proof: _Proof, parts: Sequence[Part], sites: Mapping[str, bytes]) -> Iterator[Finding]:
    """Check that the claims of the proof are those of its entries."""
    contents = [entry for entry, _ in proof.entries]
    if len(parts) != len(contents):
        yield Finding(OTHER_CLAIM, "rounds", "one of its entries is not of a round")
        return
    for claim, part in zip(proof.claims, parts, strict=True):
        if canonical(claim) != canonical(part.to_dict()):
            yield Finding(OTHER_CLAIM, f"round {part.round}", f"it claims {_find_difference(claim, part.to_dict())}")
    order = [part.round for part in parts]
    if order != sorted(set(order)):
        yield Finding(OTHER_CLAIM, "rounds", "they are out of order, or one is repeated")
    if proof.site not in sites and not any(proof.site in entry["decision"]["asked"] for entry in contents):
        yield Finding(OTHER_CLAIM, "site", f"{proof.site!r} is not a site of this run")
    for place, run in (("run", proof.run), ("head", proof.head.head.run)):
        if any(entry.get("run") != run for entry in contents):
            yield Finding(OTHER_CLAIM, place, f"it is of run {run!r}, but its entries are not")


def _find_difference(claim: Content, truth: Mapping[str, object]) -> str:
    """Name the first claim that differs."""
    for name, value in truth.items():
        if name not in claim or canonical(claim[name]) != canonical(value):
            return f"{name} {claim.get(name)!r}, the entry says {value!r}"
    return "more than the entry contains"
