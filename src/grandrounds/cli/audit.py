"""`rounds audit`: check a run's ledger and files, prove a site's weight, anchor rounds on an EVM chain (extra `chain`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.audit.chain.key import VARIABLE
from grandrounds.audit.chain.node import RPC
from grandrounds.cli.terminal import echo

if TYPE_CHECKING:
    from grandrounds.audit.book import Book
    from grandrounds.audit.proof import ProofResult
    from grandrounds.audit.verdict import AuditResult


FAILED = 3
"""Exit code of a verification that found a change, or a ledger without its closing entry."""

app = typer.Typer(
    help=(
        "Verify the ledger of a run: every round's decision, signed by the server and countersigned by sites.\n\n"
        "`rounds audit verify RUN --key server.pub` checks the ledger, the model and the records. `prove` and `check` prove "
        "a site's weight in each round to anybody who has the public key. Exit code 3: the command "
        "found a change, or the ledger has no closing entry."
    ),
    no_args_is_help=True,
)

Key = Annotated[
    Path | None,
    typer.Option(
        metavar="server.pub",
        help="The server's public key, of a watch the site's, from a source you trust. Default: the one in the folder.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def verify(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="A run folder, the folder of a watch (RUN/at_sites/SITE/watch), or a file that `rounds audit export` wrote. "
            "Default with --report: the folder of the report.",
        ),
    ] = None,
    key: Key = None,
    deep: Annotated[
        bool | None,
        typer.Option(
            "--deep/--ledger-only",
            help="Compare models, scores, journal, round logs and reports with the ledger, and "
            "recompute weights from their signals; or check the ledger only. Default: --deep for "
            "a run folder, --ledger-only for an export.",
            show_default=False,
        ),
    ] = None,
    heads: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A stored head of the ledger, a copy of ledger.head.json (repeatable)."),
    ] = None,
    sites: Annotated[
        Path | None,
        typer.Option(
            metavar="KEYS",
            help="The sites' public keys, from a source you trust: peers.json, or a folder with a file NAME.pub for each "
            "site. The ledger must name these sites and keys.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A report of this run (HTML or PDF) in another place: check the ledger head and input hashes in it.",
        ),
    ] = None,
    rpc: Annotated[
        str | None, typer.Option(metavar="URL", help="Also compare with a chain: a node of it, http:// or https://.")
    ] = None,
    contract: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="The RoundAnchor contract that the run was anchored with.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify a run's ledger, models, scores, reports, round logs and weights, and name every change.

    Every hash, link, signature and countersignature of the ledger is checked. Files are compared with the closing entry,
    and weights are recomputed (not with --ledger-only). A ledger without its closing entry is UNFINISHED.

    The record of a watch is signed by its site: give its key with --key. Its files are compared with the newest reading.

    A truncated ledger looks like that of an unfinished run. A longer head that was stored elsewhere (--heads), or a chain
    (--rpc, --contract), tells them apart. A ledger that the server's owner rewrote with new keys is detected with the
    sites' keys (--sites).

    Exit codes: 0 verified, or the run is still active; 2 bad input; 3 a change was found, or the ledger is unfinished.
    """
    from grandrounds.analysis.audit.chain import add_chain_check
    from grandrounds.analysis.audit.report import audit
    from grandrounds.core.errors import BadInput

    if run is None:
        if report is None:
            raise BadInput(
                "nothing to verify is given: name a run folder, an export, or --report FILE with a "
                "report in its run folder",
                code="missing-option",
            )
        run = report.parent
        if not (run / "checkpoint").is_dir():
            raise BadInput(
                f"{report} is not in a run folder: name the run too, `rounds audit verify RUN --report {report}`",
                code="not-a-run-folder",
            )
    if report is not None and deep is False:
        raise BadInput(
            "--report compares files, and --ledger-only leaves them out: give one of the two",
            code="conflicting-options",
        )
    files = deep if deep is not None else not run.is_file()
    result = audit(run, key=key, deep=files, heads=heads or [], files=files, sites=sites, report=report)
    result = add_chain_check(result, run, rpc=rpc, contract=contract)
    if as_json:
        echo(json.dumps(result.to_dict()))
    else:
        _show(result)
    if result.fails:
        raise typer.Exit(FAILED)


@app.command()
def prove(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    site: Annotated[str, typer.Option(help="The site; 3 is site-03.")],
    round_: Annotated[int | None, typer.Option("--round", help="The round (default: all).")] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write (default: standard output).")] = None,
) -> None:
    """Write a proof of one site's weight in each round. It can be checked without the run and the ledger."""
    from grandrounds.audit.member import describe_parts
    from grandrounds.audit.proof import check, provable_sites, prove
    from grandrounds.core.names import site_named

    book = _load_book(run)
    data = prove(book, round=round_, site=site_named(site, provable_sites(book), where=run))
    _write(out, data, describe_parts(check(data).rounds))


@app.command()
def check(
    proof: Annotated[Path, typer.Argument(metavar="PROOF", help="A file that `rounds audit prove` wrote.")],
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="server.pub",
            help="The server's public key, from a source you trust. Default: the one in the proof, which proves less.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a proof offline: the site's weight in each round, its signals, and the signatures."""
    from grandrounds.audit.proof import check_file
    from grandrounds.protocol.identity import load_public

    proven = check_file(proof, None if key is None else load_public(key))
    if as_json:
        source = "the proof itself" if key is None else "given"
        echo(json.dumps({"holds": not proven.findings, "key": source, **asdict(proven)}))
    elif proven.findings:
        for finding in proven.findings:
            echo(f"FOUND  {finding}")
        echo(f"{proof}: does not hold")
    else:
        _show_proof(proof, proven, trusted=key is not None)
    if proven.findings:
        raise typer.Exit(FAILED)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or the folder of a watch.")],
    out: Annotated[Path | None, typer.Option(help="The file to write (default: standard output).")] = None,
) -> None:
    """Export the ledger as JSON lines: its entries, then its heads. `rounds audit verify FILE` checks them."""
    _write(out, b"".join(_load_book(run, is_export=True).lines()))


def _load_book(run: Path, *, is_export: bool = False) -> Book:
    """Load a ledger that verifies, for an export also that of a watch; otherwise print the findings and exit."""
    from grandrounds.analysis.audit.report import audit, own_ledger
    from grandrounds.audit.ledger import Ledger, ledger_at

    result = audit(run, files=False)
    if result.findings:
        _show(result)
        raise typer.Exit(FAILED)
    with Ledger.open(run / "ledger.db") if is_export and own_ledger(run) else ledger_at(run) as ledger:
        return ledger.book()


def _show_proof(proof: Path, proven: ProofResult, *, trusted: bool) -> None:
    """Print a proof that holds."""
    from grandrounds.audit.member import describe_parts

    for line in describe_parts(proven.rounds):
        echo(line)
    first, last = proven.rounds[0], proven.rounds[-1]
    if first is last:
        had = "had no weight" if first.weight is None else f"had weight {first.weight:.6g}"
        echo(f"{proof}: holds: {proven.site} {had} in round {first.round} of {proven.run}")
    else:
        span = f"{len(proven.rounds)} rounds, {first.round} to {last.round}"
        echo(f"{proof}: holds: {proven.site} in {span}, of {proven.run}")
    countersigned = (
        f"{proven.site} signed for the first {proven.signed} entries"
        if proven.signed
        else f"{proven.site} has signed none"
    )
    echo(f"countersigned by {len(proven.witnesses)} sites; {countersigned}; keys: {proven.keys}")
    if not trusted:
        echo("note: the key was taken from the proof itself, so a forger could have made both: give --key")


def _show(result: AuditResult) -> None:
    """Print checks, findings and gaps; the verdict last, in its colour where the terminal has one."""
    checked = [] if result.findings else [f"checked: {item}" for item in result.checked]
    unchecked = [f"unchecked: {item}" for item in result.unchecked]
    findings = [f"FOUND  {finding}" for finding in result.findings]
    for line in checked + findings + unchecked if result.deep else checked + unchecked + findings:
        echo(line)
    for note in result.notes:
        echo(f"note: {note}")
    if result.close and not result.findings:
        echo(f"valid: {result.close}")
    echo(f"{result.where}: {result.line}", colour=result.colour)


def _write(out: Path | None, data: bytes, words: Sequence[str] = ()) -> None:
    """Write to a file, then print `words` and its name; without a file write the bytes alone to the screen."""
    from grandrounds.core.errors import BadInput

    if out is None:
        sys.stdout.buffer.write(data)
        return
    try:
        out.write_bytes(data)
    except OSError as e:
        raise BadInput(f"cannot write {out}: {e.strerror or e}", code="cannot-write") from None
    for line in (*words, str(out)):
        echo(line)


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


@app.command()
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
    from grandrounds.audit.chain.anchor import Rewritten, anchors
    from grandrounds.audit.chain.check import check
    from grandrounds.audit.chain.contract import CONTRACT, Contract, checked_address
    from grandrounds.audit.chain.key import account
    from grandrounds.audit.chain.record import Record
    from grandrounds.audit.chain.spans import check_batch, run_and_rounds
    from grandrounds.audit.ledger import ledger_at

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


@app.command()
def deploy(rpc: Rpc, key_file: KeyFile = None, wait: Wait = 120.0) -> None:
    """Deploy a new RoundAnchor contract to a chain and print its address; the account owns it and may write to it."""
    from grandrounds.audit.chain.contract import Contract
    from grandrounds.audit.chain.key import account
    from grandrounds.audit.chain.node import Node

    signer = account(key_file)
    contract, receipt = Contract.deploy(Node(rpc, patience=wait), signer)
    echo(f"chain {contract.node.chain}, block {receipt.block}, {receipt.gas} gas", err=True)
    echo(contract.address)


@app.command()
def writer(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The account of a server that anchors runs.")],
    rpc: Rpc,
    contract: Address,
    remove: Annotated[bool, typer.Option("--remove", help="Revoke the right; anchored rounds stay.")] = False,
    key_file: KeyFile = None,
    wait: Wait = 120.0,
) -> None:
    """Register an account as a writer, or revoke it; only the owner of the contract can."""
    from grandrounds.audit.chain.contract import WRITER, Contract, checked_address
    from grandrounds.audit.chain.key import account

    address, signer = checked_address(address, WRITER), account(key_file)
    target = Contract.connect(rpc, contract, patience=wait)
    receipt = target.set_writer(signer, address, registered=not remove)
    state = "no writer" if remove else "a writer"
    echo(f"{address} is {state} of {target.address}" + ("" if receipt else " already"))
