"""Changed runs: files that are not those which the ledger names, found before a command, a page or a report uses them."""

from __future__ import annotations

from pathlib import Path

from grandrounds.audit.files import SUMMARY
from grandrounds.core.errors import GrandRoundsError
from grandrounds.core.packages import NEEDED_PACKAGES, is_installed


class ChangedRun(GrandRoundsError):
    """The files of a run are not those that its ledger names."""

    exit_code = 3


def find_changes(run: Path) -> str:
    """Compare the files of a finished run with its ledger, as `rounds audit verify` does, without weights, journal and report.

    One signature is checked for all entries of the ledger, so that the time hardly depends on the rounds.

    Args:
        run: The run folder.

    Returns:
        The first change in one sentence; "" where there is none, for a run that is not finished or has no ledger, and on a
        machine without the packages that a ledger needs.
    """
    if not all(map(is_installed, NEEDED_PACKAGES)):
        return ""
    from grandrounds.analysis.audit.report import audit, has_ledger
    from grandrounds.report.overview import LedgerCheck

    if not has_ledger(run) or not (run / SUMMARY).exists():
        return ""
    result = audit(run, reports=False, quick=True)
    return LedgerCheck.from_audit(result).sentence if result.findings else ""
