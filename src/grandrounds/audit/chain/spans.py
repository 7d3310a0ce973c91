"""Rounds of a ledger as stored on a chain: one by its entry's hash, or several consecutive ones by one root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grandrounds.audit.book import Book
from grandrounds.audit.entry import ROUND
from grandrounds.audit.merkle import Tree, leaf_hash
from grandrounds.core.errors import BadInput

LONGEST = 1024
"""Largest number of rounds under one root, as in the contract."""

Rounds = Sequence[tuple[int, bytes]]
"""Each round with the hash of its entry, in order."""


@dataclass(frozen=True)
class Span:
    """Rounds `first` to `last`: the hash of one entry, or the RFC 6962 root over several hashes."""

    first: int
    last: int
    hash: bytes

    def __str__(self) -> str:
        return stretch(self.first, self.last)


def check_batch(batch: int) -> None:
    """Refuse more rounds under one root than the contract accepts."""
    if not 1 <= batch <= LONGEST:
        raise BadInput(f"--batch must be from 1 to {LONGEST}, not {batch}", code="out-of-range")


def stretch(first: int, last: int) -> str:
    """Describe a range of rounds."""
    return f"round {first}" if first == last else f"rounds {first} to {last}"


def stretches(numbers: Sequence[int]) -> str:
    """Describe rounds, with consecutive ones as ranges."""
    return ", ".join(stretch(part[0], part[-1]) for part in _unbroken(numbers))


def run_and_rounds(book: Book) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Return the id and the rounds of a ledger. The id is the hash of its first entry, which names the plan and all keys.

    Other entries are not anchored themselves, but each round's entry contains the hash of the previous one.
    """
    if not book.entries:
        raise BadInput("the ledger has no entries to anchor", code="empty-ledger")
    rounds = [(int(e.content["round"]), bytes.fromhex(e.hash)) for e in book.entries if e.content["kind"] == ROUND]
    return bytes.fromhex(book.entries[0].hash), rounds


def span_of(rounds: Rounds) -> Span:
    """Make one span of consecutive rounds."""
    hashes = [entry for _, entry in rounds]
    one = hashes[0] if len(hashes) == 1 else Tree(leaf_hash(h) for h in hashes).root()
    return Span(rounds[0][0], rounds[-1][0], one)


def spans(rounds: Rounds, *, batch: int) -> Iterator[Span]:
    """Split rounds into spans of at most `batch`, which end at a missing round."""
    entry = dict(rounds)
    for part in _unbroken([number for number, _ in rounds]):
        for start in range(0, len(part), batch):
            yield span_of([(number, entry[number]) for number in part[start : start + batch]])


def _unbroken(numbers: Sequence[int]) -> list[list[int]]:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return parts
