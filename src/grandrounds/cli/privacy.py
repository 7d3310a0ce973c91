"""`rounds privacy`: what a run promised, spent and left uncovered, in a privacy officer's words; and a site's own budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from grandrounds.cli.auditing import FAILED
from grandrounds.cli.running import TrustCode
from grandrounds.cli.terminal import echo, reads_run

PURSE = "purse"


def register(app: typer.Typer) -> None:
    app.command()(reads_run(privacy))


def privacy(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run; or the word `purse`.")],
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="After `purse`: a site's budget file.")] = None,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a run promised to patients, what it spent of its budget, and what no promise covers.

    Epsilon is worked out again from the releases in every round's Decision and compared with what the run says and with
    the ledger. Exit code 3: they do not agree, or an attack did better than the promise allows.

    `rounds privacy purse FILE` shows a site's own budget file: what is spent, by which run, and what is left.

    Example: `rounds privacy runs/breast-cancer-fedavg-seed0`
    """
    if file is not None:
        _purse(run, file, as_json=as_json)
        return
    from grandrounds.analysis.privacy.account import account_of
    from grandrounds.cli.privacy_view import account_lines
    from grandrounds.runs.run import Run

    found = account_of(Run(run, trust_code=trust_code))
    echo(json.dumps(found.to_dict()) if as_json else "\n".join(account_lines(found)))
    if found.findings:
        raise typer.Exit(FAILED)


def _purse(word: Path, file: Path, *, as_json: bool) -> None:
    from grandrounds.analysis.privacy.account import purse_at
    from grandrounds.cli.privacy_view import purse_lines
    from grandrounds.core.errors import BadInput

    if str(word) != PURSE:
        raise BadInput(f"one run at a time: `rounds privacy {word}`; a site's budget is `rounds privacy purse {file}`")
    held = purse_at(file)
    echo(json.dumps(held.to_dict()) if as_json else "\n".join(purse_lines(held)))
