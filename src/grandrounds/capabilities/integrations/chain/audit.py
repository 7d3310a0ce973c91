"""Compare a ledger with the rounds on a chain, for `rounds audit verify --rpc URL --contract ADDRESS`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from grandrounds.audit.book import Book
from grandrounds.audit.ledger import ledger_at
from grandrounds.audit.spans import run_and_rounds
from grandrounds.audit.verdict import AuditResult
from grandrounds.capabilities.integrations.chain.batches import stretches
from grandrounds.capabilities.integrations.chain.check import ChainCheck, check
from grandrounds.capabilities.integrations.chain.contract import CONTRACT, Contract, checked_address
from grandrounds.capabilities.integrations.chain.node import RPC
from grandrounds.core.errors import BadInput


def compare_chain(book: Book, *, rpc: str, contract: str) -> ChainCheck:
    """Compare a ledger with a contract. It takes no key and writes nothing: anyone with a node can do it.

    Args:
        book: The ledger.
        rpc: The address of a node.
        contract: The address of the contract.
    """
    run, rounds = run_and_rounds(book)
    deployed = Contract.connect(rpc, contract)
    on_chain = deployed.read_run(run, rounds)
    result = check(rounds, on_chain)
    if result.findings or not on_chain.spans:
        return result
    same = stretches([n for span in on_chain.spans for n in range(span.first, span.last + 1)])
    return replace(result, notes=(f"{same}: on chain {deployed.node.chain} as in the ledger", *result.notes))


def add_chain_check(result: AuditResult, run: Path, *, rpc: str | None, contract: str | None) -> AuditResult:
    """Add the chain's findings to an audit; without a chain the audit stays as it is.

    Args:
        result: The audit of a run folder or an export.
        run: That folder or file.
        rpc: The address of a node.
        contract: The address of the contract.

    Raises:
        BadInput: Only one of node and contract is named.
    """
    if rpc is None and contract is None:
        return result
    rpc = rpc or os.environ.get(RPC)
    if rpc is None or contract is None:
        raise BadInput("a chain is named by --rpc and --contract together: give both", code="incomplete-chain-address")
    contract = checked_address(contract, CONTRACT)
    try:
        book = _read_book(run)
        run_and_rounds(book)
    except BadInput as e:
        return replace(result, unchecked=(*result.unchecked, f"the chain: the ledger cannot be read ({e})"))
    more = compare_chain(book, rpc=rpc, contract=contract)
    return replace(result, findings=(*result.findings, *more.findings), notes=(*result.notes, *more.notes))


def _read_book(run: Path) -> Book:
    if run.is_file():
        return Book.read(run)
    with ledger_at(run) as ledger:
        return ledger.book()
