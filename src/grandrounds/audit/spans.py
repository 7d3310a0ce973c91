"""Consecutive rounds of a ledger under one hash: that of one entry, or one root over several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grandrounds.audit.book import Book
from grandrounds.audit.entry import ROUND
from grandrounds.audit.merkle import Tree, leaf_hash
from grandrounds.core.errors import BadInput

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


def stretch(first: int, last: int) -> str:
    """Describe a range of rounds."""
    return f"round {first}" if first == last else f"rounds {first} to {last}"


def run_and_rounds(book: Book) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Return the id and the rounds of a ledger. The id is the hash of its first entry, which names the plan and all keys.

    Other entries have no hash here, but each round's entry contains the hash of the previous one.
    """
    if not book.entries:
        raise BadInput("the ledger has no entries", code="empty-ledger")
    rounds = [(int(e.content["round"]), bytes.fromhex(e.hash)) for e in book.entries if e.content["kind"] == ROUND]
    return bytes.fromhex(book.entries[0].hash), rounds


def span_of(rounds: Rounds) -> Span:
    """Make one span of consecutive rounds."""
    hashes = [entry for _, entry in rounds]
    one = hashes[0] if len(hashes) == 1 else Tree(leaf_hash(h) for h in hashes).root()
    return Span(rounds[0][0], rounds[-1][0], one)
