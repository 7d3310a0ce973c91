"""The overview of a run folder, also of a run that is running or ended without a summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from grandrounds.audit.files import hash_file
from grandrounds.core.errors import BadInput
from grandrounds.data.sets.labels import ColumnLabels
from grandrounds.engine.checkpoint import Checkpoint
from grandrounds.report.outcome import PREDICTIONS
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
    if read_state(run.folder)[0] == "finished":
        return make_overview(run.summary, name=name, use=use, ledger=ledger, model_hash=model_hash(run))
    plan = run.plan
    name = name or str(plan["name"]) or run.folder.name
    return unfinished_overview(run.folder, plan, name=name, shown_folder=str(run.folder), use=use, ledger=ledger)


def unfinished_overview(
    folder: Path,
    plan: Mapping[str, Any],
    *,
    name: str,
    shown_folder: str,
    use: str = "",
    ledger: LedgerCheck = NOT_CHECKED,
) -> Overview:
    """Collect the facts of a run without a summary from its folder and its plan.

    Args:
        folder: The run folder.
        plan: The run's plan.
        name: The name to show.
        shown_folder: The folder as the command that continues the run names it.
        use: The intended use; empty where none was stated.
        ledger: The state of its ledger, as the caller has verified it.

    Returns:
        The overview. Its command has the settings with which the run gets past the error that ended it.
    """
    state, ending = read_state(folder)
    rounds = finished_rounds(Checkpoint(folder / "checkpoint"))
    if ending is not None and ending.round != rounds:
        ending = replace(ending, round=rounds)
    view = make_overview(
        None, name=name, state=state, ending=ending, plan=plan, rounds=rounds, folder=shown_folder, use=use, ledger=ledger
    )
    settings = "".join(f" --set {setting}" for setting in (() if ending is None else ending.settings))
    command = view.next_command + settings if view.next_command.startswith("rounds resume ") else view.next_command
    return replace(view, prediction=_planned_prediction(plan), next_command=command)


def _planned_prediction(plan: Mapping[str, Any]) -> str:
    """Name the number that the model will give for a patient, as far as the plan tells; "" where it does not."""
    data = plan.get("data") or {}
    if data.get("event"):
        return f"risk of {ColumnLabels.of_plan(data).name_event(str(data.get('label') or ''), str(data['event']))}"
    return PREDICTIONS.get(str(data.get("task") or ""), "")


def model_hash(run: Run) -> str:
    """Return the SHA-256 of a run's model file; "" where there is none."""
    try:
        return hash_file(run.model_file("model.safetensors"))
    except BadInput:
        return ""
