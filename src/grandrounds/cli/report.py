"""`rounds report`: write the report of a run or a comparison again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import Withdrawn
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from grandrounds.report.provenance import LedgerState, Provenance
    from grandrounds.runs.run import Run


COMPARISON = "comparison.json"


def register(app: typer.Typer) -> None:
    app.command()(reads_run(report))


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN | COMPARISON", help="A finished run's folder, or a comparison's.")
    ],
    pdf: Annotated[
        bool, typer.Option("--pdf", help="Also write report.pdf, with a model card, for the governance file.")
    ] = False,
    use: Annotated[str, typer.Option(help="For --pdf: the intended use of the model, in a sentence or two.")] = "",
    withdrawn: Withdrawn = False,
) -> None:
    """Write report.html of a run or a comparison again; with --pdf also a PDF with a model card.

    Use it for a run from a machine without plotly, or for a report of an older version. The PDF begins with a model card:
    intended use, data, sites, scores by subgroup, calibration, privacy, and the head of the ledger, which is verified
    first. Printing needs Chrome or Chromium on this machine.
    """
    from grandrounds.core.errors import BadInput

    if use and not pdf:
        raise BadInput("--use is for the model card of the PDF: add --pdf", code="missing-option")
    if (folder / COMPARISON).is_file():
        if pdf:
            raise BadInput(
                f"{folder} is a comparison, and a model card describes one run: give the folder of a run",
                code="not-a-run-folder",
            )
        page = _comparison(folder)
    elif (folder / "checkpoint").is_dir():
        page, _ = _run(folder, withdrawn=withdrawn)
    else:
        raise BadInput(
            f"{folder} is neither a run's folder (no checkpoint/) nor a comparison's (no {COMPARISON})",
            code="not-a-run-folder",
        )
    echo(str(_write(folder, page)))
    if pdf:
        from grandrounds.report.page import write_pdf

        page, carried = _run(folder, use=use, card=True, withdrawn=withdrawn)
        write_pdf(page, folder / "report.pdf", carried)
        echo(str(folder / "report.pdf"))


def _run(folder: Path, *, card: bool = False, use: str = "", withdrawn: bool = False) -> tuple[str, Provenance]:
    """Draw the page of a run; also return the provenance that it carries."""
    from grandrounds.analysis.membership.attack import read_attacks
    from grandrounds.report.page import report_page
    from grandrounds.runs.readable_model import readable_file
    from grandrounds.runs.run import Run

    run = Run(folder, withdrawn=withdrawn)
    summary = run.summary  # refuses a run that is not finished
    run.refuse_withdrawn()
    explanations = run.explanations if (folder / "explanations.json").exists() else None
    weights = readable_file(folder / "model.safetensors")
    first = _card(run, use) if card else ()
    attacks = read_attacks(run)
    carried = _provenance(folder, attacked=attacks is not None, newest=card)
    return report_page(
        summary, run.rounds, summary.environment, explanations, attacks, weights, first, carried
    ), carried


def _provenance(folder: Path, *, attacked: bool, newest: bool = False) -> Provenance:
    """Collect the provenance of a report: the ledger, and the hashes of the files that it is drawn from."""
    from grandrounds.analysis.membership.attack import FILE
    from grandrounds.audit.files import SUMMARY, hash_file
    from grandrounds.report.provenance import Provenance
    from grandrounds.runs.environment import own_version
    from grandrounds.runs.folder import RunFolder

    inputs = {SUMMARY: hash_file(folder / SUMMARY), **RunFolder(folder).input_hashes()}
    if attacked:
        inputs[FILE] = hash_file(folder / FILE)
    return Provenance(_ledger_position(folder, newest=newest), inputs, own_version())


def _ledger_position(folder: Path, *, newest: bool) -> LedgerState | None:
    """Read the position of a run's ledger; None for a run without one, or with one that cannot be read.

    A page carries the entries before the closing one, which names the page: so a page that is drawn again is the same page. A
    PDF carries all entries (`newest`).
    """
    if not (folder / "ledger.db").exists():
        return None
    from grandrounds.analysis.audit.file_check import ClosingEntry
    from grandrounds.audit.entry import SIMULATED
    from grandrounds.audit.ledger import ledger_at
    from grandrounds.core.errors import BadInput
    from grandrounds.report.provenance import LedgerState

    try:
        with ledger_at(folder) as ledger:
            entries, tree = list(ledger.entries()), ledger.tree()
        close = ClosingEntry.find_last(entries)
        size = len(tree) if newest or close is None else close.number
        key_origin = entries[0]["keys"]["made"]
        return LedgerState(str(entries[0]["run"]), size, tree.root(size).hex(), key_origin == SIMULATED)
    except (BadInput, KeyError, TypeError, IndexError):
        return None


def _card(run: Run, use: str) -> list[str]:
    from datetime import UTC, datetime

    from grandrounds.analysis.audit.report import audit
    from grandrounds.core.plan_types import Plan
    from grandrounds.report.card import model_card

    has = any((run.folder / name).exists() for name in ("ledger.db", "ledger.head.json"))
    issued = f"made on {datetime.now(UTC):%d %B %Y}"
    result = audit(run.folder, deep=True, reports=False) if has else None
    return model_card(run.summary, Plan(run.plan), result, use=use, date=issued)


def report_run(folder: Path) -> Path:
    """Write a finished run's report.html again, and return its path; also of a run from which a site withdrew."""
    return _write(folder, _run(folder, withdrawn=True)[0])


def _comparison(folder: Path) -> str:
    from grandrounds.analysis.comparison_page import comparison_page
    from grandrounds.core.arrays import read_file
    from grandrounds.core.errors import BadInput

    path = folder / COMPARISON
    try:
        comparison = json.loads(read_file(path))
        runs = _runs(folder, comparison.get("runs", {}))
        return comparison_page(comparison, runs, title=folder.resolve().name)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise BadInput(f"{path} is damaged: make it again with `rounds compare`", code="damaged-file") from None


def _runs(folder: Path, named: Mapping[str, Mapping[str, str]]) -> dict[str, list[Run]]:
    """Open the runs of each arm; a run whose folder is gone is left out, with a note."""
    from grandrounds.core.errors import BadInput
    from grandrounds.runs.run import Run

    out: dict[str, list[Run]] = {}
    for arm, places in named.items():
        for place in places.values():
            try:
                run = Run(folder / place)
            except BadInput:
                echo(f"left out {folder / place}: the folder no longer exists", err=True)
                continue
            out.setdefault(arm, []).append(run)
    return out


def _write(folder: Path, page: str) -> Path:
    from grandrounds.core.arrays import write_atomic
    from grandrounds.core.errors import BadInput

    path = folder / "report.html"
    try:
        write_atomic(path, page.encode(), durable=False)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}", code="cannot-write") from None
    return path
