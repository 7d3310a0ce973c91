"""`rounds audit anchor | deploy | writer`: a run's rounds on an EVM chain (extra `chain`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.audit.chain.key import VARIABLE
from grandrounds.audit.chain.node import RPC
from grandrounds.cli.terminal import echo

Rpc = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar=RPC,
        show_envvar=False,
        help=f"A node of the chain, http:// or https://. Where the URL holds a secret, set {RPC}.",
    ),
]
Address = Annotated[str, typer.Option("--contract", metavar="ADDRESS", help="RoundAnchor, as `deploy` printed it.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help=f"The account's private key in hex, mode 0600. Not set: {VARIABLE} has it."),
]
Wait = Annotated[
    float, typer.Option("--wait", min=1, help="Seconds to wait for a lost node or for a transaction's block.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to `rounds audit`."""
    for command in (anchor, deploy, writer):
        app.command()(command)


def anchor(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    rpc: Rpc,
    contract: Address,
    batch: Annotated[
        int, typer.Option(help="Rounds under one Merkle root, 1024 at most: fewer, cheaper transactions.")
    ] = 1,
    key_file: KeyFile = None,
    wait: Wait = 120.0,
) -> None:
    """Write the hashes of a run's rounds to a chain, those that are not there yet.

    Interrupted or cut off, the same command goes on, and no round is written twice. Exit code 3: the ledger does not
    verify, or the chain has another hash for one of its rounds, which says that history was rewritten.
    """
    from grandrounds.analysis.audit.report import audit
    from grandrounds.audit.chain.anchor import Rewritten, anchors
    from grandrounds.audit.chain.check import check
    from grandrounds.audit.chain.contract import CONTRACT, Contract, checked_address
    from grandrounds.audit.chain.key import account
    from grandrounds.audit.chain.record import Record
    from grandrounds.audit.chain.spans import check_batch, run_and_rounds
    from grandrounds.audit.ledger import ledger_at

    check_batch(batch)
    contract, signer = checked_address(contract, CONTRACT), account(key_file)
    found = audit(run, files=False)
    if found.findings:
        raise Rewritten(f"the ledger of {run} does not verify, so it is not anchored: {found.findings[0]}")
    with ledger_at(run) as ledger:
        name, rounds = run_and_rounds(ledger.book())
    target = Contract.at(rpc, contract, patience=wait)
    record = Record.begin(run, target, name)
    gas = count = 0
    for span, receipt in anchors(rounds, run=name, contract=target, account=signer, batch=batch):
        record.add(span, receipt)
        gas, count = gas + receipt.gas, count + span.last - span.first + 1
        echo(f"{span}: block {receipt.block}, {receipt.gas} gas, transaction {receipt.transaction}")
    for note in check(rounds, target.held(name, rounds)).notes:
        echo(f"note: {note}")
    price = f", {gas / count:.0f} gas a round" if count else ""
    echo(f"{run}: {count} rounds anchored now, of {len(rounds)} in the ledger (chain {target.node.chain}{price})")


def deploy(rpc: Rpc, key_file: KeyFile = None, wait: Wait = 120.0) -> None:
    """Put a new RoundAnchor contract on a chain and print its address; the account owns it and may write to it."""
    from grandrounds.audit.chain.contract import Contract
    from grandrounds.audit.chain.key import account
    from grandrounds.audit.chain.node import Node

    signer = account(key_file)
    made, receipt = Contract.deploy(Node(rpc, patience=wait), signer)
    echo(f"chain {made.node.chain}, block {receipt.block}, {receipt.gas} gas", err=True)
    echo(made.address)


def writer(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The account of a server that is to anchor runs.")],
    rpc: Rpc,
    contract: Address,
    remove: Annotated[bool, typer.Option("--remove", help="Take the right away; what it anchored stays.")] = False,
    key_file: KeyFile = None,
    wait: Wait = 120.0,
) -> None:
    """Register an account as a writer, or take that back; only the contract's owner can."""
    from grandrounds.audit.chain.contract import WRITER, Contract, checked_address
    from grandrounds.audit.chain.key import account

    address, signer = checked_address(address, WRITER), account(key_file)
    target = Contract.at(rpc, contract, patience=wait)
    receipt = target.set_writer(signer, address, registered=not remove)
    state = "no writer" if remove else "a writer"
    echo(f"{address} is {state} of {target.address}" + ("" if receipt else " already"))
