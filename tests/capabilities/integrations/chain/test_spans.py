"""Rounds taken together, and a ledger against what a chain holds of it; no chain is needed."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.audit.spans import Span, span_of
from grandrounds.audit.verify import TRUNCATED
from grandrounds.capabilities.integrations.chain.batches import spans
from grandrounds.capabilities.integrations.chain.check import ABSENT, DIFFERENT, AnchoredRun, check

WRITER = "0x" + "11" * 20


def h(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def some_rounds(numbers) -> list[tuple[int, bytes]]:
    return [(n, h(b"entry", str(n).encode())) for n in numbers]


def held(rounds, *, batch: int) -> AnchoredRun:
    on_chain = tuple(spans(rounds, batch=batch))
    return AnchoredRun(WRITER, on_chain[-1].last + 1, on_chain)


ledgers = st.lists(st.integers(1, 60), min_size=1, max_size=40, unique=True).map(lambda n: some_rounds(sorted(n)))


def test_one_round_is_its_entry_and_three_are_the_root_of_rfc_6962():
    (_, a), (_, b), (_, c) = rounds = some_rounds([4, 5, 6])
    assert span_of(rounds[:1]) == Span(4, 4, a)
    pair = h(b"\x01", h(b"\x00", a), h(b"\x00", b))
    assert span_of(rounds) == Span(4, 6, h(b"\x01", pair, h(b"\x00", c)))


@given(ledgers, st.integers(1, 12))
def test_spans_hold_every_round_once_and_bridge_no_gap(rounds, batch):
    made = list(spans(rounds, batch=batch))
    assert [n for s in made for n in range(s.first, s.last + 1)] == [n for n, _ in rounds]
    assert all(s.last - s.first < batch for s in made)


@given(ledgers, st.integers(1, 12))
def test_a_ledger_as_it_was_anchored_has_no_findings(rounds, batch):
    found = check(rounds, held(rounds, batch=batch))
    assert not found.findings and not found.notes


@given(ledgers, st.integers(1, 12), st.data())
def test_one_flipped_bit_of_any_entry_is_found_in_its_span(rounds, batch, data):
    on_chain = held(rounds, batch=batch)
    at, bit = data.draw(st.integers(0, len(rounds) - 1)), data.draw(st.integers(0, 255))
    number, entry = rounds[at]
    rounds[at] = number, (int.from_bytes(entry, "big") ^ (1 << bit)).to_bytes(32, "big")
    [finding] = check(rounds, on_chain).findings
    [span] = [s for s in on_chain.spans if s.first <= number <= s.last]
    assert (finding.name, finding.where) == (DIFFERENT, str(span))


@given(ledgers, st.integers(1, 12), st.data())
def test_a_removed_round_is_found(rounds, batch, data):
    on_chain = held(rounds, batch=batch)
    del rounds[data.draw(st.integers(0, len(rounds) - 1))]
    assert check(rounds, on_chain).findings


def test_a_ledger_that_was_cut_after_it_was_anchored_is_found():
    rounds = some_rounds(range(1, 9))
    names = [f.name for f in check(rounds[:5], held(rounds, batch=1)).findings]
    assert TRUNCATED in names


def test_a_run_that_the_contract_does_not_know_is_a_finding_and_rounds_to_come_are_a_note():
    rounds = some_rounds([1, 2, 3, 6, 7])
    assert [f.name for f in check(rounds, AnchoredRun(None, 0)).findings] == [ABSENT]
    partly = AnchoredRun(WRITER, 7, tuple(spans([r for r in rounds if r[0] in (1, 6)], batch=1)))
    found = check(rounds, partly)
    assert not found.findings
    passed, later = found.notes
    assert passed.startswith("rounds 2 to 3: passed over") and later.startswith("round 7: not on the chain yet")


@pytest.mark.parametrize("count", [1, 2, 7, 1024])
def test_a_batch_can_be_proved_round_by_round(count):
    from grandrounds.audit.merkle import Tree, includes, leaf_hash

    rounds = some_rounds(range(1, count + 1))
    tree = Tree(leaf_hash(entry) for _, entry in rounds)
    root = span_of(rounds).hash if count > 1 else tree.root()
    at = count // 2
    assert includes(root, count, number=at, leaf=leaf_hash(rounds[at][1]), path=tree.inclusion(at))
