"""Values of the pages of the register: models, signatures, and the decisions that a user may sign.

Ledgers of runs are checked in the background, as on the audit page. While a check goes on, a model is shown by its hashes alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from grandrounds.audit.register_entry import APPROVE, USE, WITHDRAW_MODEL
from grandrounds.audit.register_state import Event, Signatory, State
from grandrounds.capabilities.console.auth.access import CurrentUser
from grandrounds.capabilities.console.auth.users import Area
from grandrounds.capabilities.console.cache import hide_root
from grandrounds.capabilities.console.run_index import NotFound, RunIndex
from grandrounds.capabilities.console.views import audit as audit_view
from grandrounds.capabilities.dossier.register import ModelStatus, RegisterView, read_register
from grandrounds.core.errors import GrandRoundsError
from grandrounds.report.overview import Overview, make_overview

WAIT = 0.5
"""Seconds that a page waits for the checks of ledgers, all together."""


@dataclass(frozen=True)
class RoleLine:
    """A role that must approve a model, with its approval; None where it is missing."""

    role: str
    approval: Event | None


@dataclass(frozen=True)
class ModelPage:
    """The page of one model.

    Attributes:
        status: The newest record of the run, with its state.
        roles: Each required role and its signature.
        earlier: Earlier records of the same run, which were withdrawn, the newest first.
        is_checked: The check of the run's ledger is complete.
        is_simulated: The keys of the run's ledger follow from its seed.
        results: The overview of the run; None where its files cannot be read.
        decisions: Decisions that this user may sign now.
        hint: Why the user may sign nothing; "" where they may, or are no approver.
    """

    status: ModelStatus
    roles: tuple[RoleLine, ...]
    earlier: tuple[ModelStatus, ...]
    is_checked: bool
    is_simulated: bool
    results: Overview | None
    decisions: tuple[str, ...]
    hint: str


def load_register(run_index: RunIndex, *, wait: float = WAIT) -> RegisterView | None:
    """Read the register of the console's runs; None where there is none.

    Args:
        run_index: The runs.
        wait: Seconds to wait for the checks of the runs' ledgers; they go on, and a later call finds them.

    Returns:
        The register. Sentences have no paths of this machine.
    """
    deadline = time.monotonic() + wait

    def check(folder: Path) -> str:
        name = folder.relative_to(run_index.root).as_posix()
        try:
            checked = audit_view.check(run_index, name, deep=True, wait=max(0.0, deadline - time.monotonic()))
        except NotFound:
            return f"the run {name} is not there"
        if not checked.fails:
            return ""
        why = checked.findings[0].what if checked.findings else checked.unfinished
        return hide_root(run_index, f"the ledger of the run does not verify: {why}")

    return read_register(run_index.root, check_ledger=check)


def find_signatory(view: RegisterView, who: CurrentUser) -> Signatory | None:
    """Find the signatory as whom a user may sign: the active one of the same name."""
    return next((s for s in view.signatories if s.name == who.name and not s.ended), None)


def sort_models(view: RegisterView) -> list[ModelStatus]:
    """Sort models for the list: those in use first, then candidates, approved and withdrawn ones; the newest first in each."""
    order = (State.IN_USE, State.CANDIDATE, State.APPROVED, State.WITHDRAWN)
    return sorted(view.models, key=lambda model: order.index(model.state))


def model_page(run_index: RunIndex, view: RegisterView, run: str, who: CurrentUser) -> ModelPage:
    """Collect the page of one model.

    Args:
        run_index: The runs.
        view: The register.
        run: The run.
        who: The user.

    Returns:
        The page.

    Raises:
        NotFound: The run is not in the register.
    """
    records = [model for model in view.models if model.run == run]
    if not records:
        raise NotFound(f"there is no model '{run[:200]}' in the register", code="not-registered")
    status = records[0]
    signed = {event.role: event for event in status.record.approvals}
    names = dict.fromkeys((*signed, *status.record.missing))
    signatory = find_signatory(view, who)
    decisions = () if signatory is None or not who.may_see(Area.APPROVAL) else _decisions(view, status, signatory)
    roles = tuple(RoleLine(role, signed.get(role)) for role in names)
    checked = None if status.fault else audit_view.check(run_index, run, deep=True, wait=0.0)
    return ModelPage(
        status=status,
        roles=roles,
        earlier=tuple(records[1:]),
        is_checked=checked is None or checked.state != audit_view.WORKING,
        is_simulated=checked is not None and checked.simulated,
        results=_results(run_index, status),
        decisions=decisions,
        hint=_hint(view, who, signatory),
    )


def _results(run_index: RunIndex, status: ModelStatus) -> Overview | None:
    """Read the results that a signatory signs for; None where they are not those that were registered."""
    if status.fault:
        return None
    try:
        return make_overview(run_index.run(status.run).summary, use=status.record.purpose)
    except GrandRoundsError:
        return None


def _decisions(view: RegisterView, status: ModelStatus, signatory: Signatory) -> tuple[str, ...]:
    """List the decisions that the rules of the register allow a signatory now."""
    if view.fault or status.state is State.WITHDRAWN or signatory.role not in view.roles:
        return ()
    if status.fault:
        return (WITHDRAW_MODEL,)
    if status.state is State.CANDIDATE:
        return (APPROVE, WITHDRAW_MODEL) if signatory.role in status.record.missing else (WITHDRAW_MODEL,)
    return (USE, WITHDRAW_MODEL)


def _hint(view: RegisterView, who: CurrentUser, signatory: Signatory | None) -> str:
    if not who.may_see(Area.APPROVAL) or view.fault:
        return ""
    if signatory is None:
        return "No signatory of this register has your name, so you cannot sign. An administrator adds you."
    if signatory.role not in view.roles:
        return f"Your role in the register, {signatory.role}, is not required any more, so you cannot sign."
    return ""
