"""A ledger against the chain. What differs is a finding; what is not on the chain, or not yet, is a note."""

from __future__ import annotations

from dataclasses import dataclass

from grandrounds.audit.chain.spans import Rounds, Span, span_of, stretches
from grandrounds.audit.verify import TRUNCATED, Finding

DIFFERENT = "other than on the chain"
ABSENT = "run not on the chain"


@dataclass(frozen=True)
class Held:
    """What the contract has of a run: who anchors it, the lowest round that still can be, and spans."""

    writer: str | None
    next: int
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Checked:
    """What differs, and what one should know."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def check(rounds: Rounds, held: Held) -> Checked:
    """Every span on the chain worked out again from the ledger's own entries."""
    if held.writer is None:
        what = "the contract knows nothing of it: it was never anchored there, or the ledger's first entry was changed"
        return Checked((Finding(ABSENT, "chain", what),), ())
    entry = dict(rounds)
    findings = [f for span in held.spans if (f := _compared(span, entry))]
    if rounds and held.next > rounds[-1][0] + 1:
        what = f"it ends with round {rounds[-1][0]}, but round {held.next - 1} is on the chain"
        findings.append(Finding(TRUNCATED, "chain", what))
    covered = {number for span in held.spans for number in range(span.first, span.last + 1)}
    missing = [number for number, _ in rounds if number not in covered]
    passed, later = [n for n in missing if n < held.next], [n for n in missing if n >= held.next]
    notes = [f"{stretches(passed)}: passed over when later ones were anchored, so never on the chain"] if passed else []
    notes += [f"{stretches(later)}: not on the chain yet (rounds audit anchor)"] if later else []
    return Checked(tuple(findings), tuple(notes))


def _compared(span: Span, entry: dict[int, bytes]) -> Finding | None:
    numbers = range(span.first, span.last + 1)
    gone = [n for n in numbers if n not in entry]
    if gone:
        return Finding(DIFFERENT, str(span), f"on the chain, but the ledger has no {stretches(gone)}")
    ours = span_of([(n, entry[n]) for n in numbers])
    if ours.hash == span.hash:
        return None
    what = f"the chain has {span.hash.hex()[:16]}..., the ledger gives {ours.hash.hex()[:16]}...: history was rewritten"
    return Finding(DIFFERENT, str(span), what)
