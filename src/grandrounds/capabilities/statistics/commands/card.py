"""`rounds card`: show the risk card of a run, and print it on one page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import Quiet, TrustCode, Withdrawn
from grandrounds.cli.terminal import Terminal, echo, reads_run, warn

if TYPE_CHECKING:
    from grandrounds.capabilities.statistics.api.carding import RiskCard


def register(app: typer.Typer) -> None:
    app.command("card")(reads_run(card))


def card(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run with two classes.")],
    terms: Annotated[
        int | None,
        typer.Option("--terms", min=2, max=15, help="Number of terms (default: those of the run's card, or 10)."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the page (default: RUN).")] = None,
    site: Annotated[
        str | None, typer.Option("--site", help="Calibration and net benefit at this hospital (3 is site-03).")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option("--table", help="At a hospital: its own labelled rows for calibration and net benefit."),
    ] = None,
    trust_code: TrustCode = False,
    withdrawn: Withdrawn = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the card as JSON and nothing else.")] = False,
    quiet: Quiet = False,
) -> None:
    """Show a risk card, and write it as one printable page: HTML, PDF and SVG.

    A card has 2 to 15 lines with whole-number points. A patient's risk is the printed risk of the total, and the program
    gives the same risk for every patient.

    A run of model 'card' has its card. For another run in simulation a card is fitted with the same data and split, as a new
    run beside it. The page has a nomogram, and calibration and net benefit at the hospital that --site or --table names.

    Example: `rounds run heart --model gam`, then `rounds card runs/heart-gam-seed0 --terms 5 --site Cleveland`
    """
    from grandrounds.capabilities.statistics.api.carding import card as find_card
    from grandrounds.runs.run import Run

    found = find_card(
        Run(run, trust_code=trust_code, withdrawn=withdrawn),
        terms=terms,
        site=site,
        table=table,
        progress=None if sys.stderr.isatty() and not (quiet or as_json) else False,
    )
    files = found.write(found.run.folder if out is None else out)
    if as_json:
        performance = found.performance.to_dict()
        echo(json.dumps({"run": str(found.run.folder), **found.record.to_dict(), "performance": performance}))
        return
    if quiet:
        echo(str(files[0]))
        return
    if found.fitted:
        echo(
            f"{run} has no card of {len(found.card.terms)} terms: fitted one with the same data and split, {found.run.folder}"
        )
    show_card(found)
    for file in files:
        echo(str(file))
    if len(files) < 3:
        echo("no PDF: it needs Chrome or Chromium on this machine; print the HTML page instead", err=True)


def show_card(found: RiskCard) -> None:
    """Print a card: lines with points, totals with risk and interval, and how it does at one place.

    Args:
        found: The card.
    """
    from rich import box
    from rich.table import Table

    from grandrounds.report.risk_card import NOT_MEASURED, interval_text, risk_text, total_text

    console, record = Terminal(), found.record
    lines = Table(title=record.title, title_justify="left", box=box.SIMPLE_HEAD)
    lines.add_column("line")
    lines.add_column("points", justify="right")
    for term in record.card.terms:
        lines.add_row(term.text, f"{term.points:+d}")
    console.print(lines)
    totals = Table(box=box.SIMPLE_HEAD)
    for name in ("total", "risk", "95% interval", "patients", "events"):
        totals.add_column(name, justify="left" if name == "total" else "right")
    for total in record.card.totals:
        totals.add_row(
            total_text(total, record.card),
            risk_text(total),
            interval_text(total),
            f"{total.rows:,}",
            f"{total.events:,}",
        )
    console.print(totals)
    for sentence in (record.source, NOT_MEASURED, *record.remarks):
        console.print(sentence, style="dim", soft_wrap=True)
    console.print(found.performance.line, soft_wrap=True)
    for note in found.performance.notes:
        console.print(warn(note, "note:"), soft_wrap=True)
