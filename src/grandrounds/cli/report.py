"""`rounds report`: write the report of a run or a comparison again, and the files for a governance board."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import Withdrawn
from grandrounds.cli.terminal import echo, reads_run

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


COMPARISON, REPORT = "comparison.json", "report.html"


def register(app: typer.Typer) -> None:
    app.command()(reads_run(report))


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN | COMPARISON", help="The folder of a run or of a comparison.")],
    pdf: Annotated[
        bool, typer.Option("--pdf", help="Also write report.pdf for a governance board, with a sign-off block.")
    ] = False,
    deck: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write five slides for a governance board, such as deck.pptx."),
    ] = None,
    use: Annotated[
        str,
        typer.Option(
            help="For --pdf and --deck: the intended use of the model, in a sentence or two (default: its purpose in the "
            "register of models)."
        ),
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Write the page to this file (default: report.html in the folder).")] = None,
    withdrawn: Withdrawn = False,
) -> None:
    """Write report.html of a run or a comparison again; with --pdf a PDF and with --deck slides for a governance board.

    The report begins with a plain summary: is the model better than no model, and for whom it is worse. Hospitals, subgroups,
    calibration, explanations, privacy, the record and training follow. PDF and slides verify the ledger first and end with a
    sign-off block, filled from the register of models where the run is in one. The PDF has page numbers, bookmarks, and the
    run and the hash of its model on each page; it needs Chrome or Chromium on this machine. The slides need python-pptx.

    The report of a run that is running, failed or was stopped has its state, the cause and the command that continues it.

    Examples: `rounds report runs/heart` -- `rounds report runs/heart --pdf --use "Triage of chest pain in adults."` --
    `rounds report runs/heart --deck deck.pptx`
    """
    from grandrounds.core.errors import BadInput

    for_board = pdf or deck is not None
    if use and not for_board:
        raise BadInput("--use is for the board's files: add --pdf or --deck FILE", code="missing-option")
    if (folder / COMPARISON).is_file():
        if for_board:
            raise BadInput(
                f"{folder} is a comparison, and a model card describes one run: give the folder of a run",
                code="not-a-run-folder",
            )
        echo(str(_write(out or folder / REPORT, _comparison(folder))))
        return
    if not (folder / "checkpoint").is_dir():
        raise BadInput(
            f"{folder} is neither a run's folder (no checkpoint/) nor a comparison's (no {COMPARISON})",
            code="not-a-run-folder",
        )
    _report_run(folder, out or folder / REPORT, pdf=pdf, deck=deck, use=use, withdrawn=withdrawn)


def _report_run(folder: Path, out: Path, *, pdf: bool, deck: Path | None, use: str, withdrawn: bool) -> None:
    from grandrounds.analysis import reports
    from grandrounds.runs.run import Run

    run = Run(folder, withdrawn=withdrawn)
    if not run.finished and not pdf and deck is None:
        echo(str(_write(out, reports.draw_unfinished(run))))
        return
    echo(str(_write_report(run, out)))
    if not pdf and deck is None:
        return
    board = reports.make_board_file(run, use=use)
    if pdf:
        from grandrounds.report.printing import write_pdf

        page, provenance = reports.draw_report(run, board)
        view = reports.board_overview(run, board)
        write_pdf(page, folder / reports.PDF, provenance, header=view.page_header)
        echo(str(folder / reports.PDF))
    if deck is not None:
        from grandrounds.report.deck import write_deck

        write_deck(reports.board_overview(run, board), board, run.summary, run.rounds, deck)
        echo(str(deck))


def report_run(folder: Path) -> None:
    """Write a finished run's report.html again, also after a withdrawal; a run whose files were changed keeps its page."""
    from grandrounds.analysis.audit.changes import find_changes
    from grandrounds.runs.run import Run

    if not find_changes(folder):
        _write_report(Run(folder, withdrawn=True), folder / REPORT)


def _write_report(run: Run, path: Path) -> Path:
    """Write the page of a finished run, and say where it replaces another one.

    Raises:
        BadInput: It would replace the page that the run ended with, and files of the run were changed since.
    """
    from grandrounds.analysis.audit.changes import find_changes
    from grandrounds.analysis.reports import draw_report
    from grandrounds.audit.files import read_file
    from grandrounds.core.errors import BadInput

    page = draw_report(run)[0]
    try:
        replaces = path.resolve() == (run.folder / REPORT).resolve() and read_file(path) != page.encode()
    except BadInput:
        replaces = False  # there is no page
    if replaces and find_changes(run.folder):
        raise BadInput(
            f"{path} was written when the run ended, and files of the run were changed since: name another file with --out FILE",
            code="file-exists",
        )
    if replaces:
        echo(f"note: {path} replaces another page; `rounds audit verify {run.folder}` compares it with its inputs", err=True)
    return _write(path, page)


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


def _write(path: Path, page: str) -> Path:
    from grandrounds.core.arrays import write_atomic
    from grandrounds.core.errors import BadInput

    try:
        write_atomic(path, page.encode(), durable=False)
    except OSError as e:
        raise BadInput(f"cannot write {path}: {e.strerror or e}", code="cannot-write") from None
    return path
