"""Reports of a run folder: the page, the file for a board with register and audit, and the page of an unfinished run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from grandrounds.analysis.audit.changes import find_changes
from grandrounds.analysis.audit.file_check import ClosingEntry
from grandrounds.analysis.audit.report import audit, has_ledger
from grandrounds.analysis.membership.attack import FILE, read_attacks
from grandrounds.audit.entry import SIMULATED
from grandrounds.audit.files import SUMMARY, hash_file
from grandrounds.audit.ledger import ledger_at
from grandrounds.core.capability import collect, load
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import Plan
from grandrounds.report.card import BoardFile, Signature
from grandrounds.report.overview import NOT_CHECKED, LedgerCheck, Overview
from grandrounds.report.page import report_page
from grandrounds.report.provenance import LedgerState, Provenance
from grandrounds.report.unfinished import unfinished_page
from grandrounds.runs.environment import own_version
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.overview import run_overview
from grandrounds.runs.readable_model import readable_file
from grandrounds.runs.run import Run

REPORT, PDF, DECK = "report.html", "report.pdf", "deck.pptx"


def draw_report(run: Run, board: BoardFile | None = None) -> tuple[str, Provenance]:
    """Draw the page of a finished run.

    Args:
        run: The run.
        board: Facts of a file for a board; None for report.html.

    Returns:
        The page, and the provenance that it carries.

    Raises:
        BadInput: The run is not finished, or a site withdrew from it.
    """
    summary = run.summary
    run.refuse_withdrawn()
    explanations = run.explanations if (run.folder / "explanations.json").exists() else None
    attacks = read_attacks(run)
    provenance = read_run_provenance(run.folder, attacked=attacks is not None, newest=board is not None)
    model = readable_file(run.folder / "model.safetensors")
    changes = find_changes(run.folder)
    ledger = LedgerCheck("fails", changes) if changes else NOT_CHECKED
    page = report_page(summary, run.rounds, summary.environment, explanations, attacks, model, board, provenance, ledger)
    return page, provenance


def draw_unfinished(run: Run) -> str:
    """Draw the page of a run that is running, or ended without a summary."""
    return unfinished_page(run_overview(run), run.rounds)


def make_board_file(run: Run, *, use: str = "") -> BoardFile:
    """Collect the facts of a file for a board: the audit of the ledger now, and the state of the model in the register.

    Args:
        run: The run.
        use: The intended use; by default the purpose in the register.

    Returns:
        The facts; signatures that the register has are filled in.
    """
    result = audit(run.folder, deep=True, reports=False) if has_ledger(run.folder) else None
    made = f"made on {datetime.now(UTC):%d %B %Y}"
    state = collect("model_register").get("state")
    status = load(state)(run.folder) if state else None
    if status is None:
        return BoardFile(Plan(run.plan), result, use, made)
    record = status.record
    signed = tuple(Signature(e.role, e.by, e.date[:10]) for e in record.approvals)
    missing = tuple(Signature(role) for role in record.missing)
    register = f"Register of models: {status.sentence}."
    return BoardFile(Plan(run.plan), result, use or record.purpose, made, (*signed, *missing), register.replace("..", "."))


def board_overview(run: Run, board: BoardFile) -> Overview:
    """Return the overview of a run with the facts of a file for a board."""
    return run_overview(run, use=board.use, ledger=LedgerCheck.from_audit(board.audited))


def read_run_provenance(folder: Path, *, attacked: bool, newest: bool = False) -> Provenance:
    """Collect the provenance of a report: the ledger, and the hashes of the files that it is drawn from.

    Args:
        folder: The run folder.
        attacked: The report shows attacks.json.
        newest: Take all entries of the ledger. A page carries the entries before the closing one, which names the page: so a
            page that is drawn again is the same page.
    """
    inputs = {SUMMARY: hash_file(folder / SUMMARY), **RunFolder(folder).input_hashes()}
    if attacked:
        inputs[FILE] = hash_file(folder / FILE)
    return Provenance(_ledger_position(folder, newest=newest), inputs, own_version())


def _ledger_position(folder: Path, *, newest: bool) -> LedgerState | None:
    """Read the position of a run's ledger; None for a run without one, or with one that cannot be read."""
    if not (folder / "ledger.db").exists():
        return None
    try:
        with ledger_at(folder) as ledger:
            entries, tree = list(ledger.entries()), ledger.tree()
        close = ClosingEntry.find_last(entries)
        size = len(tree) if newest or close is None else close.number
        key_origin = entries[0]["keys"]["made"]
        return LedgerState(str(entries[0]["run"]), size, tree.root(size).hex(), key_origin == SIMULATED)
    except (BadInput, KeyError, TypeError, IndexError):
        return None
