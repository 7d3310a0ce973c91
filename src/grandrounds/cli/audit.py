"""`rounds audit`: check a run's ledger and files, prove a site's weight."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import AddedOptions, expand_options
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
@expand_options
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
    added: AddedOptions = AddedOptions("audit verify"),
    as_json: AsJson = False,
) -> None:
    """Verify a run's ledger, models, scores, reports, round logs and weights, and name every change.

    Every hash, link, signature and countersignature of the ledger is checked. Files are compared with the closing entry,
    and weights are recomputed (not with --ledger-only). A ledger without its closing entry is UNFINISHED.

    The record of a watch is signed by its site: give its key with --key. Its files are compared with the newest reading.

    A truncated ledger looks like that of an unfinished run. A longer head that was stored elsewhere (--heads), or a chain,
    tells them apart. A ledger that the server's owner rewrote with new keys is detected with the sites' keys (--sites).

    Exit codes: 0 verified, or the run is still active; 2 bad input; 3 a change was found, or the ledger is unfinished.
    """
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
    result = added.finish(result, quiet=as_json)
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
