"""Compare a ledger with the chain. A difference is a finding; a round that is not on the chain is a note."""

from __future__ import annotations

from dataclasses import dataclass

from grandrounds.audit.spans import Rounds, Span, span_of
from grandrounds.audit.verify import TRUNCATED, Finding
from grandrounds.capabilities.integrations.chain.batches import stretches

DIFFERENT = "other than on the chain"
ABSENT = "run not on the chain"


@dataclass(frozen=True)
class AnchoredRun:
    """A run in the contract: its writer, the lowest round that can still be anchored, and its spans."""

    writer: str | None
    next: int
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class ChainCheck:
    """Findings and notes of a comparison."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def check(rounds: Rounds, anchored: AnchoredRun) -> ChainCheck:
    """Recompute every span on the chain from the ledger's entries, and compare."""
    if anchored.writer is None:
        description = (
            "the contract does not know it: it was never anchored there, or the ledger's first entry was changed"
        )
        return ChainCheck((Finding(ABSENT, "chain", description),), ())
    entry = dict(rounds)
    findings = [f for span in anchored.spans if (f := _compare_span(span, entry))]
    if rounds and anchored.next > rounds[-1][0] + 1:
        description = f"it ends with round {rounds[-1][0]}, but round {anchored.next - 1} is on the chain"
        findings.append(Finding(TRUNCATED, "chain", description))
    covered = {number for span in anchored.spans for number in range(span.first, span.last + 1)}
    missing = [number for number, _ in rounds if number not in covered]
    passed, later = [n for n in missing if n < anchored.next], [n for n in missing if n >= anchored.next]
    notes = [f"{stretches(passed)}: passed over when later ones were anchored, so never on the chain"] if passed else []
    notes += [f"{stretches(later)}: not on the chain yet (rounds audit anchor)"] if later else []
    return ChainCheck(tuple(findings), tuple(notes))


def _compare_span(span: Span, entry: dict[int, bytes]) -> Finding | None:
    numbers = range(span.first, span.last + 1)
    absent = [n for n in numbers if n not in entry]
    if absent:
        return Finding(DIFFERENT, str(span), f"on the chain, but the ledger has no {stretches(absent)}")
    ours = span_of([(n, entry[n]) for n in numbers])
    if ours.hash == span.hash:
        return None
    description = (
        f"the chain has {span.hash.hex()[:16]}..., the ledger gives {ours.hash.hex()[:16]}...: history was rewritten"
    )
    return Finding(DIFFERENT, str(span), description)
