"""Rounds of a ledger as they are written to a chain: in spans, each of at most so many rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grandrounds.audit.spans import Rounds, Span, span_of, stretch
from grandrounds.core.errors import BadInput

LONGEST = 1024
"""Largest number of rounds under one root, as in the contract."""


def check_batch(batch: int) -> None:
    """Refuse more rounds under one root than the contract accepts."""
    if not 1 <= batch <= LONGEST:
        raise BadInput(f"--batch must be from 1 to {LONGEST}, not {batch}", code="out-of-range")


def stretches(numbers: Sequence[int]) -> str:
    """Describe rounds, with consecutive ones as ranges."""
    return ", ".join(stretch(part[0], part[-1]) for part in _unbroken(numbers))


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
