"""The overview of a run as pages show it: facts and sentences of `report.overview`, the ledger's check and the register's use."""

from __future__ import annotations

from grandrounds.capabilities.console.cache import get_cache
from grandrounds.capabilities.console.register.view import load_register
from grandrounds.capabilities.console.run_index import FINISHED, RunIndex
from grandrounds.capabilities.console.views import audit as audit_view
from grandrounds.capabilities.dossier.register import ModelStatus
from grandrounds.report.hospitals import HospitalComparison, compare_hospitals
from grandrounds.report.overview import NO_LEDGER, NOT_CHECKED, LedgerCheck, Overview, make_overview
from grandrounds.runs.overview import unfinished_overview

CHECKING = LedgerCheck("unknown", "The ledger is being checked: reload this page in a moment.")
WAIT = 0.5
"""Seconds that a page waits for the check of a ledger; it continues in the background."""


def find_status(run_index: RunIndex, name: str) -> ModelStatus | None:
    """Return the state of a run's model in the register; None where it is in none."""
    register = load_register(run_index)
    return None if register is None else register.find(name)


def check_record(run_index: RunIndex, name: str) -> LedgerCheck:
    """Check the ledger of a run; the result of a check that takes longer is that it is being checked."""
    checked = audit_view.check(run_index, name, deep=True, wait=WAIT)
    if checked.state == audit_view.NONE:
        return NO_LEDGER
    if checked.state == audit_view.WORKING:
        return CHECKING
    state = "fails" if checked.fails else "unfinished" if checked.unfinished else "verifies"
    return LedgerCheck(state, checked.says.removeprefix(f"{name}: "), simulated=checked.simulated)


def make_run_overview(run_index: RunIndex, name: str, *, use: str = "", ledger: LedgerCheck = NOT_CHECKED) -> Overview:
    """Collect the facts of a run.

    Args:
        run_index: The runs.
        name: The run.
        use: The intended use; "" where none was stated.
        ledger: The ledger's check.

    Returns:
        The overview. Its command names the run below the folder of runs, never a path of this machine.

    Raises:
        NotFound: There is no such run.
        Unreadable: Its files are damaged.
    """
    run, entry = run_index.run(name), run_index.get(name)
    if run.finished:
        return get_cache(run_index).get_or_make(
            "overview", (name, use, ledger), entry.stamp(),
            lambda: make_overview(run.summary, name=name, use=use, ledger=ledger), most=200,
        )  # fmt: skip
    shown_folder = f"{run_index.root.name}/{name}"
    return unfinished_overview(entry.folder, run.plan, name=name, shown_folder=shown_folder, use=use, ledger=ledger)


def compare_run_hospitals(run_index: RunIndex, name: str) -> HospitalComparison | None:
    """Compare the hospitals of a run; None for a run that is not finished or has no comparison."""
    if run_index.get(name).state != FINISHED:
        return None
    return run_index.get_cached(name, "hospitals compared", lambda entry: _compare(run_index, entry.name))


def _compare(run_index: RunIndex, name: str) -> HospitalComparison | None:
    run = run_index.run(name)
    return compare_hospitals(run.summary, run.rounds)
