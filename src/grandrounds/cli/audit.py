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
"""The exit code of a verification that found something, or of a ledger without its end."""

app = typer.Typer(
    help=(
        "Check a run's ledger: every round's decision, hash-linked, signed by the server, countersigned by sites.\n\n"
        "`rounds audit verify RUN --key server.pub` checks it whole, with model and records; `prove` and `check` show a site "
        "its own weight in "
        "each round, or anybody else, with only the public key. Exit code 3: something is wrong, and is named, or the "
        "ledger has no end."
    ),
    no_args_is_help=True,
)

Key = Annotated[
    Path | None,
    typer.Option(
        metavar="server.pub", help="The server's public key, from a source you trust. Not set: the run folder's own."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def verify(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="A run folder, or a file that `rounds audit export` wrote. With --report it may be left out: then it is the "
            "folder that the report lies in.",
        ),
    ] = None,
    key: Key = None,
    deep: Annotated[
        bool | None,
        typer.Option(
            "--deep/--ledger-only",
            help="Compare models, figures, journal, round logs and reports with the ledger, and compute weights again from "
            "their signals; or skip that. Not set: --deep for a run folder, --ledger-only for an export, a ledger alone.",
            show_default=False,
        ),
    ] = None,
    heads: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="A head that a site or you kept (a copy of ledger.head.json); may be repeated."
        ),
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
            help="A report of this run (HTML or PDF) that lies elsewhere: check the ledger and inputs it carries.",
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
    """Check a run's ledger, models, figures, reports, round logs and weights, and name what was changed.

    Of the ledger every hash, link, signature and countersignature is checked. Files are compared with the closing entry,
    and weights are computed again (not with --ledger-only). A ledger without its closing entry is UNFINISHED.

    A ledger that was cut at its end and a run that never ended look alike: a longer head that somebody kept (--heads), or
    a chain (--rpc, --contract), tells them apart. A ledger that the server's owner rewrote with keys of his own making is
    found by the sites' keys (--sites).

    Exit codes: 0 verifies, or the run is going on now; 2 bad input; 3 something was found, or the ledger is unfinished.
    """
    from grandrounds.analysis.audit.chain import add_chain_check
    from grandrounds.analysis.audit.report import audit
    from grandrounds.core.errors import BadInput

    if run is None:
        if report is None:
            raise BadInput(
                "give a run folder, an export, or --report FILE with a report that lies in its run folder",
                code="missing-option",
            )
        run = report.parent
        if not (run / "checkpoint").is_dir():
            raise BadInput(
                f"{report} does not lie in a run folder: give that too, `rounds audit verify RUN --report {report}`",
                code="not-a-run-folder",
            )
    if report is not None and deep is False:
        raise BadInput(
            "--report compares files, which --ledger-only leaves out: give one of the two", code="conflicting-options"
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
    site: Annotated[str, typer.Option(help="The site; a number will do: 3 is site-03.")],
    round_: Annotated[int | None, typer.Option("--round", help="The round; not set: all of them.")] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; not set: print it.")] = None,
) -> None:
    """Write a proof of one site's weight in each round, which needs neither the run nor the ledger to be checked."""
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
            help="The server's public key, from a source you trust. Not set: the one that the proof names, which proves less.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a proof offline: the site's weight in each round, the signals behind it, and who signed for it."""
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
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; not set: print it.")] = None,
) -> None:
    """Write the ledger as JSON lines, one entry a line and then its heads; `rounds audit verify FILE` checks them."""
    _write(out, b"".join(_load_book(run).lines()))


def _load_book(run: Path) -> Book:
    """Load a ledger that verifies; print the findings of another, and exit."""
    from grandrounds.analysis.audit.report import audit
    from grandrounds.audit.ledger import ledger_at

    result = audit(run, files=False)
    if result.findings:
        _show(result)
        raise typer.Exit(FAILED)
    with ledger_at(run) as ledger:
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
        echo("note: the key was taken from the proof itself: who can make the one can make the other (give --key)")


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
    typer.Option(metavar="FILE", help=f"The account's private key in hex, mode 0600. Not set: {VARIABLE} has it."),
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
    """Put a new RoundAnchor contract on a chain and print its address; the account owns it and may write to it."""
    from grandrounds.audit.chain.contract import Contract
    from grandrounds.audit.chain.key import account
    from grandrounds.audit.chain.node import Node

    signer = account(key_file)
    contract, receipt = Contract.deploy(Node(rpc, patience=wait), signer)
    echo(f"chain {contract.node.chain}, block {receipt.block}, {receipt.gas} gas", err=True)
    echo(contract.address)


@app.command()
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
    target = Contract.connect(rpc, contract, patience=wait)
    receipt = target.set_writer(signer, address, registered=not remove)
    state = "no writer" if remove else "a writer"
    echo(f"{address} is {state} of {target.address}" + ("" if receipt else " already"))
