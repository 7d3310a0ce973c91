"""`gr.load_run`: open a run folder, with a warning where its files are not those that its ledger names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grandrounds.core.errors import warn_user

if TYPE_CHECKING:
    from grandrounds.runs.run import Run


def load_run(folder: str | Path, *, trust_code: bool | None = False, withdrawn: bool = False) -> Run:
    """Open a run folder; a warning names the first change of a run whose files are not those that its ledger names.

    Args:
        folder: The folder.
        trust_code: As in `Run`.
        withdrawn: As in `Run`.

    Returns:
        The run.

    Raises:
        BadInput: The folder is not a run folder.
    """
    from grandrounds.analysis.audit.changes import find_changes
    from grandrounds.runs.run import Run

    run = Run(Path(folder), trust_code=trust_code, withdrawn=withdrawn)
    if changes := find_changes(run.folder):
        warn_user([f"{folder}: {changes} `rounds audit verify` names every change"])
    return run
