"""The overview of a run folder, also of a run that is running or ended without a summary."""

from __future__ import annotations

from dataclasses import replace

from grandrounds.audit.files import hash_file
from grandrounds.core.errors import BadInput
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.report.overview import NOT_CHECKED, LedgerCheck, Overview, make_overview
from grandrounds.runs.ending import finished_rounds, read_state
from grandrounds.runs.run import Run


def run_overview(run: Run, *, name: str = "", use: str = "", ledger: LedgerCheck = NOT_CHECKED) -> Overview:
    """Collect the facts of a run from its folder.

    Args:
        run: The run.
        name: The name to show; by default that of its plan.
        use: The intended use; empty where none was stated.
        ledger: The state of its ledger, as the caller has verified it.

    Returns:
        The overview. A run that is not finished has its state, its cause and the command that continues it.
    """
    state, ending = read_state(run.folder)
    if state == "finished":
        return make_overview(run.summary, name=name, use=use, ledger=ledger, model_hash=model_hash(run))
    rounds = finished_rounds(Checkpoint(run.folder / "checkpoint"))
    if ending is not None and ending.round != rounds:
        ending = replace(ending, round=rounds)
    plan = run.plan
    return make_overview(
        None,
        name=name or str(plan["name"]) or run.folder.name,
        state=state,
        ending=ending,
        plan=plan,
        rounds=rounds,
        folder=str(run.folder),
        use=use,
        ledger=ledger,
    )


def model_hash(run: Run) -> str:
    """Return the SHA-256 of a run's model file; "" where there is none."""
    try:
        return hash_file(run.model_file("model.safetensors"))
    except BadInput:
        return ""
