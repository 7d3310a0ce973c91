"""`rounds audit anchor | deploy | writer`, and `--rpc` and `--contract` of `rounds audit verify`: rounds on an EVM chain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.capabilities.integrations.chain.key import VARIABLE
from grandrounds.capabilities.integrations.chain.node import RPC
from grandrounds.cli.terminal import echo

if TYPE_CHECKING:
    from grandrounds.audit.verdict import AuditResult

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
    typer.Option(metavar="FILE", help=f"The account's private key in hex, mode 0600. Default: {VARIABLE}."),
]
Wait = Annotated[
    float, typer.Option("--wait", min=1, help="Seconds to wait for a lost node or for a transaction's block.")
]


@dataclass(frozen=True)
class ChainOptions:
    """Options of `rounds audit verify` that name the chain with which a ledger is compared."""

    rpc: Annotated[
        str | None, typer.Option(metavar="URL", help="Also compare with a chain: a node of it, http:// or https://.")
    ] = None
    contract: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="The RoundAnchor contract that the run was anchored with.")
    ] = None

    def finish(self, result: AuditResult, *, quiet: bool) -> AuditResult:
        """Add the chain's findings to an audit; without a chain the audit stays as it is."""
        from grandrounds.capabilities.integrations.chain.audit import add_chain_check

        return add_chain_check(result, Path(result.where), rpc=self.rpc, contract=self.contract)


def register_anchor(app: typer.Typer) -> None:
    app.command("audit anchor")(anchor)


def register_deploy(app: typer.Typer) -> None:
    app.command("audit deploy")(deploy)


def register_writer(app: typer.Typer) -> None:
    app.command("audit writer")(writer)


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
    """Write the hashes of a run's rounds to a chain, except those that it has.

    If it is interrupted, run the same command again: no round is written twice. Exit code 3: the ledger does not verify,
    or the chain has another hash for one of its rounds, so history was rewritten.
    """
    from grandrounds.analysis.audit.report import audit
    from grandrounds.audit.ledger import ledger_at
    from grandrounds.audit.spans import run_and_rounds
    from grandrounds.capabilities.integrations.chain.anchor import Rewritten, anchors
    from grandrounds.capabilities.integrations.chain.batches import check_batch
    from grandrounds.capabilities.integrations.chain.check import check
    from grandrounds.capabilities.integrations.chain.contract import CONTRACT, Contract, checked_address
    from grandrounds.capabilities.integrations.chain.key import account
    from grandrounds.capabilities.integrations.chain.record import Record

    check_batch(batch)
    contract, signer = checked_address(contract, CONTRACT), account(key_file)
    result = audit(run, files=False)
    if result.findings:
        raise Rewritten(f"the ledger of {run} does not verify, so it is not anchored: {result.findings[0]}")
    with ledger_at(run) as ledger:
        name, rounds = run_and_rounds(ledger.book())
    target = Contract.connect(rpc, contract, patience=wait)
    record = Record.begin(run, target, name)
    gas = count = 0
    for span, receipt in anchors(rounds, run=name, contract=target, account=signer, batch=batch):
        record.add(span, receipt)
        gas, count = gas + receipt.gas, count + span.last - span.first + 1
        echo(f"{span}: block {receipt.block}, {receipt.gas} gas, transaction {receipt.transaction}")
    for note in check(rounds, target.read_run(name, rounds)).notes:
        echo(f"note: {note}")
    price = f", {gas / count:.0f} gas a round" if count else ""
    echo(f"{run}: {count} rounds anchored now, of {len(rounds)} in the ledger (chain {target.node.chain}{price})")


def deploy(rpc: Rpc, key_file: KeyFile = None, wait: Wait = 120.0) -> None:
    """Deploy a new RoundAnchor contract to a chain and print its address; the account owns it and may write to it."""
    from grandrounds.capabilities.integrations.chain.contract import Contract
    from grandrounds.capabilities.integrations.chain.key import account
    from grandrounds.capabilities.integrations.chain.node import Node

    signer = account(key_file)
    contract, receipt = Contract.deploy(Node(rpc, patience=wait), signer)
    echo(f"chain {contract.node.chain}, block {receipt.block}, {receipt.gas} gas", err=True)
    echo(contract.address)


def writer(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The account of a server that anchors runs.")],
    rpc: Rpc,
    contract: Address,
    remove: Annotated[bool, typer.Option("--remove", help="Revoke the right; anchored rounds stay.")] = False,
    key_file: KeyFile = None,
    wait: Wait = 120.0,
) -> None:
    """Register an account as a writer, or revoke it; only the owner of the contract can."""
    from grandrounds.capabilities.integrations.chain.contract import WRITER, Contract, checked_address
    from grandrounds.capabilities.integrations.chain.key import account

    address, signer = checked_address(address, WRITER), account(key_file)
    target = Contract.connect(rpc, contract, patience=wait)
    receipt = target.set_writer(signer, address, registered=not remove)
    state = "no writer" if remove else "a writer"
    echo(f"{address} is {state} of {target.address}" + ("" if receipt else " already"))
