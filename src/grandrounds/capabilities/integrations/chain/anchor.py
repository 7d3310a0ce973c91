"""Anchor a run's rounds that are not on the chain yet.

Before each write it waits for earlier transactions and reads the contract, so it can be interrupted at any time and started
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from grandrounds.audit.spans import Rounds, Span
from grandrounds.capabilities.integrations.chain.batches import check_batch, spans
from grandrounds.capabilities.integrations.chain.check import ABSENT, check
from grandrounds.capabilities.integrations.chain.contract import Contract
from grandrounds.capabilities.integrations.chain.node import Receipt, Reverted
from grandrounds.core.errors import BadInput, GrandRoundsError


class Rewritten(GrandRoundsError):
    """The chain has other hashes for rounds of this ledger."""

    exit_code = 3


def anchors(
    rounds: Rounds, *, run: bytes, contract: Contract, account: Any, batch: int = 1
) -> Iterator[tuple[Span, Receipt]]:
    """Anchor missing rounds, `batch` of them under one root; yields each span once it is on the chain.

    Args:
        rounds: Rounds with the hashes of their entries.
        run: Id of the run.
        contract: The contract.
        account: The account that signs and pays.
        batch: Rounds under one root.

    Raises:
        BadInput: The rounds are out of order.
        Rewritten: The chain has other hashes.
    """
    check_batch(batch)
    if any(a >= b for (a, _), (b, _) in pairwise(rounds)):
        raise BadInput(
            "the ledger has a round twice, or out of order: rounds must be consecutive", code="rounds-out-of-order"
        )
    remaining, refused_from = list(rounds), -1
    while remaining:
        contract.node.settle(account.address)
        anchored = contract.read_run(run, remaining)
        findings = [f for f in check(remaining, anchored).findings if f.name != ABSENT]
        if findings:
            raise Rewritten(
                f"{findings[0]}; nothing more is written (chain {contract.node.chain}, {contract.address})",
                code="history-rewritten",
            )
        remaining = [(number, entry) for number, entry in remaining if number >= anchored.next]
        if not remaining:
            return
        contract.check_writer(account, anchored)
        span = next(spans(remaining, batch=batch))
        try:
            receipt = contract.write(account, run, span)
        except Reverted:
            if refused_from == anchored.next:  # refused twice without a change on the chain
                raise
            refused_from = anchored.next
            continue
        yield span, receipt
