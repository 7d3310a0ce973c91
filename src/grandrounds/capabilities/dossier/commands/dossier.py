"""`rounds dossier`: write the papers of a run for boards, journals and authorities, and verify them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.groups import ParentCommand
from grandrounds.cli.options import Quiet, TrustCode
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from grandrounds.capabilities.dossier.building.writer import Dossier


def register(app: typer.Typer) -> None:
    app.command(cls=ParentCommand)(reads_run(dossier))
    app.command("dossier verify")(verify)


def dossier(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the dossier (default: RUN/dossier).")] = None,
    answers: Annotated[
        Path | None, typer.Option(help="answers.toml with people's answers (default: the one in the dossier's folder).")
    ] = None,
    pdf: Annotated[bool, typer.Option("--pdf/--no-pdf", help="Print dossier.pdf; needs Chrome or Chromium.")] = True,
    date: Annotated[str, typer.Option(help="Day of the dossier, such as 2026-01-31 (default: today, UTC).")] = "",
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the states of all items as JSON and nothing else.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write the papers of a run: TRIPOD+AI, EU AI Act Annex IV, FDA PCCP, DPIA, model card, data sheet.

    Every sentence names its source: a ledger entry with its inclusion proof, a file of the run with its hash, or a command whose
    output is kept. Questions that only people can answer are in answers.toml: fill it in and run the command again. Run
    `rounds attack` first: its results are the evidence of the privacy papers.

    The papers are not legal advice.

    Example: `rounds dossier runs/heart-fedavg-seed0`
    """
    from grandrounds.capabilities.dossier.building.writer import write_dossier
    from grandrounds.core.errors import BadInput
    from grandrounds.runs.run import Run

    if date:
        import datetime

        try:
            datetime.date.fromisoformat(date)
        except ValueError:
            raise BadInput(f"--date is '{date}': write it as 2026-01-31", code="bad-date") from None
    finished_run = Run(run, trust_code=trust_code, withdrawn=True)

    def show_step(step: str) -> None:
        if not (quiet or as_json):
            echo(f"{step} ...", err=True)

    made = write_dossier(finished_run, out, answers=answers, pdf=pdf, date=date, progress=show_step)
    if as_json:
        states = {d.name: {item.id or item.title: item.state for item in d.items} for d in made.documents}
        printed = pdf and not made.unprinted
        echo(json.dumps({"folder": str(made.folder), "manifest": made.manifest, "states": states, "pdf": printed}))
    elif quiet:
        echo(str(made.folder))
    else:
        _show(made)


def _show(made: Dossier) -> None:
    from rich.table import Table

    from grandrounds.cli.terminal import Terminal

    console = Terminal()
    table = Table(title="dossier", title_justify="left")
    states = list(made.documents[0].count_states()) if made.documents else []
    for column in ("document", *states):
        table.add_column(column, justify="left" if column == "document" else "right")
    for document in made.documents:
        table.add_row(document.title, *(str(count) for count in document.count_states().values()))
    console.print(table, markup=False)
    if made.open_questions:
        echo(f"{len(made.open_questions)} questions are open: answer them in {made.folder / 'answers.toml'}, then run this again")
    if made.unprinted:
        echo(f"note: there is no dossier.pdf: {made.unprinted}", err=True)
    echo(f"written: {made.folder / 'index.html'}")
    echo(f"manifest, for signatures: sha256 {made.manifest}")


def verify(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a dossier.")],
    key: Annotated[Path | None, typer.Option(help="The server's public key (default: the one that the ledger names).")] = None,
    manifest: Annotated[str, typer.Option(help="SHA-256 of manifest.json that was signed, or its first digits.")] = "",
    run: Annotated[Path | None, typer.Option(help="The run folder: collect the evidence again and compare it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Verify a dossier: name each figure that was altered since it was written.

    The evidence is compared with the hashes in the ledger's closing entry, whose inclusion proof and signatures are checked. All
    documents are built again from the evidence and compared line by line. Files that the ledger does not name (attacks,
    outputs of commands, the PDF) are covered by the manifest: give its SHA-256 with --manifest. Exit code 3:
    something was altered.

    Example: `rounds dossier verify runs/heart-fedavg-seed0/dossier`
    """
    from grandrounds.capabilities.dossier.building.verify import verify_dossier
    from grandrounds.cli.audit import FAILED
    from grandrounds.protocol.identity import load_public

    result = verify_dossier(folder, key=None if key is None else load_public(key), manifest=manifest, run=run)
    if as_json:
        echo(json.dumps(result.to_dict()))
    else:
        for line in result.checked:
            echo(f"checked: {line}")
        if result.unsigned:
            pinned = "its SHA-256 was given" if manifest else f"sha256 {result.manifest}: compare it with the signed one"
            echo(f"covered by the manifest alone ({pinned}): {', '.join(result.unsigned)}")
        for note in result.notes:
            echo(f"note: {note}")
        for difference in result.differences:
            echo(f"ALTERED: {difference.line}")
        count = len(result.differences)
        echo("the dossier verifies" if not count else f"the dossier does NOT verify: {count} difference{'s' * (count > 1)}")
    if result.differences:
        raise typer.Exit(FAILED)
