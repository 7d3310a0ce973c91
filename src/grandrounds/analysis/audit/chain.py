"""What `rounds audit verify --rpc URL --contract ADDRESS` adds: a ledger against what is on a chain."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from grandrounds.audit.book import Book
from grandrounds.audit.chain.check import Checked, check
from grandrounds.audit.chain.contract import CONTRACT, Contract, checked_address
from grandrounds.audit.chain.node import RPC
from grandrounds.audit.chain.spans import run_and_rounds, stretches
from grandrounds.audit.ledger import ledger_at
from grandrounds.audit.verdict import Audited
from grandrounds.core.errors import BadInput


def against_chain(book: Book, *, rpc: str, contract: str) -> Checked:
    """Findings and notes. It takes no key and writes nothing: anyone with a node can do it."""
    run, rounds = run_and_rounds(book)
    there = Contract.at(rpc, contract)
    held = there.held(run, rounds)
    found = check(rounds, held)
    if found.findings or not held.spans:
        return found
    same = stretches([n for span in held.spans for n in range(span.first, span.last + 1)])
    return replace(found, notes=(f"{same}: on chain {there.node.chain} as in the ledger", *found.notes))


def with_chain(found: Audited, run: Path, *, rpc: str | None, contract: str | None) -> Audited:
    """An audit of a run folder or an export, with what the chain adds; as it was where no chain is named."""
    if rpc is None and contract is None:
        return found
    rpc = rpc or os.environ.get(RPC)
    if rpc is None or contract is None:
        raise BadInput("a chain is named by --rpc and --contract together: give both", code="incomplete-chain-address")
    contract = checked_address(contract, CONTRACT)
    try:
        book = _book(run)
        run_and_rounds(book)
    except BadInput as e:
        return replace(found, unchecked=(*found.unchecked, f"the chain: the ledger cannot be read ({e})"))
    more = against_chain(book, rpc=rpc, contract=contract)
    return replace(found, findings=(*found.findings, *more.findings), notes=(*found.notes, *more.notes))


def _book(run: Path) -> Book:
    if run.is_file():
        return Book.read(run)
    with ledger_at(run) as ledger:
        return ledger.book()
