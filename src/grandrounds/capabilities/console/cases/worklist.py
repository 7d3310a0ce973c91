"""The model of a hospital's worklist: the one that the register says is in use there, if it was tested.

A run whose ledger does not verify, or whose model was withdrawn, is refused: no patient is shown with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grandrounds.audit.register_state import State
from grandrounds.capabilities.console.cases.site_cases import SiteCases
from grandrounds.capabilities.console.run_index import RunIndex
from grandrounds.capabilities.console.views.audit import WORKING, check
from grandrounds.capabilities.dossier.register import ModelStatus, RegisterView, read_register
from grandrounds.core.errors import GrandRoundsError
from grandrounds.runs.withdrawal import MARK

FOR_EVALUATION = "Patients are shown in a run to evaluate its model, not for decisions about them."


class RefusedModel(GrandRoundsError):
    """Patients are not shown with a model that was withdrawn, or whose record does not verify."""


@dataclass(frozen=True)
class WorklistModel:
    """The model of a worklist.

    Attributes:
        run: The run; "" where there is none: the sentence says why.
        sentence: Its state as a sentence.
        others: Further runs that are in use at this hospital.
    """

    run: str
    sentence: str
    others: tuple[str, ...] = ()


def refuse_unusable(run_index: RunIndex, run: str) -> None:
    """Refuse a run whose model must not be used for patients.

    Args:
        run_index: The runs.
        run: The run's name.

    Raises:
        RefusedModel: The model was withdrawn, or the record does not verify.
        NotFound: There is no such run.
    """
    fault = model_fault(run_index, run)
    if fault:
        raise RefusedModel(fault, code="refused-model")


def model_fault(run_index: RunIndex, run: str) -> str:
    """Say why a run's model must not be used for patients; "" where nothing is known against it."""
    entry = run_index.get(run)
    if (entry.folder / MARK).exists():
        mark = run_index.run(run).withdrawn
        if mark is not None:
            return f"This model was withdrawn: {mark.sentence}. Patients are not shown with it."
    status = _find_status(_read(run_index), run)
    if status is not None and status.banner:
        return f"{status.banner} Patients are not shown with it."
    checked = check(run_index, run, deep=True)  # the model file too
    if checked.state == WORKING:
        return "The ledger of this run is being checked. Reload the page in a moment."
    if checked.findings:
        return (
            f"The ledger of this run does not verify: {checked.findings[0].what}. "
            "Patients are not shown with this model. Contact the auditor."
        )
    return ""


def choose_model(run_index: RunIndex, cases: SiteCases) -> WorklistModel:
    """Choose the model of this hospital's worklist.

    A model in use that is not valid any more is not replaced by another: the page says that it is not valid.

    Args:
        run_index: The runs.
        cases: The patients of this hospital.

    Returns:
        The model in use at this hospital.
    """
    names = [entry.name for entry in cases.runs()]
    view = _read(run_index)
    models = () if view is None else view.models
    used = [m for m in models if m.state is State.IN_USE and cases.site in m.record.in_use]
    if not used:
        return WorklistModel(
            "",
            f"No model is in use at {cases.site}, so there is no worklist. {FOR_EVALUATION}",
        )
    faults = [_use_fault(run_index, m.run) if m.run in names else "Its run is not at this console." for m in used]
    usable = [m for m, fault in zip(used, faults, strict=True) if not fault]
    if not usable:
        return WorklistModel("", f"The model in use at {cases.site}, {used[0].run}, cannot be shown. {faults[0]}")
    return WorklistModel(usable[0].run, usable[0].sentence, tuple(m.run for m in usable[1:]))


def _use_fault(run_index: RunIndex, run: str) -> str:
    """Say why a model in use has no worklist; "" where it has one."""
    fault = model_fault(run_index, run)
    if not fault and not run_index.run(run).summary.is_tested:
        return "It was never tested: its run has no test rows."
    return fault


def _read(run_index: RunIndex) -> RegisterView | None:
    return read_register(run_index.root, check_ledger=lambda folder: _ledger_fault(run_index, folder))


def _ledger_fault(run_index: RunIndex, folder: Path) -> str:
    """Check the ledger of a run as the audit page does, so that both are checked once."""
    checked = check(run_index, folder.relative_to(run_index.root).as_posix(), deep=True)
    return f"the ledger of the run does not verify: {checked.findings[0].what}" if checked.findings else ""


def _find_status(view: RegisterView | None, run: str) -> ModelStatus | None:
    return None if view is None else view.find(run)
