"""The register as other parts read it: the state of each model, and a sentence where a model must not be used.

A state in the register is valid only while the run is as it was registered: its model and summary have the same SHA-256, its
ledger verifies and begins with the same entries, and no site withdrew. Otherwise the model is shown as "not valid".
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from grandrounds.analysis.audit.report import audit
from grandrounds.audit.files import MODEL, READ, SUMMARY, hash_file
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.merkle import Tree
from grandrounds.audit.register_state import Event, ModelRecord, Signatory, State
from grandrounds.capabilities.dossier.register.folder import (
    CheckedRegister,
    file_stamp,
    find_root,
    load_register,
    register_of,
)
from grandrounds.core.errors import BadInput
from grandrounds.runs.withdrawal import MARK, read_withdrawn

NOT_VALID = "not valid"
"""Label of a model whose state in the register is not valid any more."""

_FILES = (MODEL, SUMMARY, MARK, "ledger.db", "ledger.db-wal", "ledger.head.json", "server.pub", *READ)
_CACHED = 200
T = TypeVar("T")
LedgerCheck = Callable[[Path], str]
"""Checks the ledger of a run folder, and returns its fault in a sentence; "" where it verifies."""


@dataclass(frozen=True)
class ModelStatus:
    """A model in the register, with the check of its run.

    Attributes:
        record: The model, its purpose, signatures and history.
        fault: Why its state is not valid; "" while it is.
    """

    record: ModelRecord
    fault: str = ""

    @property
    def run(self) -> str:
        """The run's folder, below the folder of runs."""
        return self.record.folder

    @property
    def state(self) -> State:
        """The state by the register alone."""
        return self.record.state

    @property
    def label(self) -> str:
        """The state as people read it: "not valid" where the run does not fit its state."""
        return NOT_VALID if self.fault and self.state is not State.WITHDRAWN else self.state.value

    @property
    def is_valid(self) -> bool:
        """True where the model may be used: approved or in use, and unchanged."""
        return not self.fault and self.state in (State.APPROVED, State.IN_USE)

    @property
    def withdrawal(self) -> Event | None:
        """The event of its withdrawal; None where it was not withdrawn."""
        return self.record.history[-1] if self.state is State.WITHDRAWN else None

    @property
    def sentence(self) -> str:
        """The state in one sentence."""
        record, ended = self.record, self.withdrawal
        if ended is not None:
            return f"Withdrawn on {ended.date[:10]} by {ended.by} ({ended.role}): {ended.note}"
        if self.fault:
            return f"Not valid ({record.state} in the register): {self.fault}"
        if record.state is State.IN_USE:
            return f"In use at {', '.join(record.in_use)}: {record.purpose}"
        if record.state is State.APPROVED:
            return f"Approved by {', '.join(f'{e.by} ({e.role})' for e in record.approvals)}; not in use"
        signed = f"signed by {', '.join(e.role for e in record.approvals)}; " if record.approvals else ""
        return f"Candidate, not approved: {signed}waiting for {', '.join(record.missing)}"

    @property
    def banner(self) -> str:
        """A warning where the model must not be used; "" otherwise."""
        if self.withdrawal is None and not self.fault:
            return ""
        return f"{self.sentence}{'' if self.sentence.endswith('.') else '.'} Do not use this model."


@dataclass(frozen=True)
class RegisterView:
    """A register as it is read.

    Attributes:
        models: All models, the newest record first.
        roles: Roles that must approve a model.
        open_roles: Roles without a signatory.
        signatories: People who may sign, or could.
        fault: Why the register does not verify; "" if it does.
        entries: Number of entries.
        root: Root of its newest head.
    """

    models: tuple[ModelStatus, ...]
    roles: tuple[str, ...]
    open_roles: tuple[str, ...]
    signatories: tuple[Signatory, ...]
    fault: str
    entries: int
    root: str

    def find(self, run: str) -> ModelStatus | None:
        """Return the newest record of a run, by its folder below the folder of runs."""
        return next((model for model in self.models if model.run == run), None)

    def waiting_for(self, name: str) -> tuple[ModelStatus, ...]:
        """Return the candidates that a signatory may approve now."""
        role = next((s.role for s in self.signatories if s.name == name and not s.ended), None)
        return tuple(m for m in self.models if m.state is State.CANDIDATE and not m.fault and role in m.record.missing)


def read_register(runs: Path, *, check_ledger: LedgerCheck | None = None) -> RegisterView | None:
    """Read the register of a folder of runs, and compare its models with their runs.

    Results are cached in this process while the files stay as they are.

    Args:
        runs: The folder of runs.
        check_ledger: Checks the ledger of a run in another way, such as in the background.

    Returns:
        The register; None where there is none.
    """
    runs = runs.resolve()
    folder = register_of(runs)
    if not folder.exists:
        return None
    checked = _CACHE.get(("register", folder.path), folder.stamp(), lambda: load_register(folder))
    fault = register_fault(checked)
    records = reversed(checked.state.records.values())
    models = tuple(ModelStatus(r, fault or check_record(runs, r, check_ledger=check_ledger)) for r in records)
    state, heads = checked.state, () if checked.book is None else checked.book.heads
    return RegisterView(
        models, state.roles, state.open_roles, tuple(state.signatories.values()), fault,
        0 if checked.book is None else len(checked.book.entries), heads[-1].head.root.hex() if heads else "",
    )  # fmt: skip


def models_in_use(runs: Path, site: str | None = None) -> tuple[ModelStatus, ...]:
    """Return the models that are in use and valid.

    Args:
        runs: The folder of runs.
        site: Only those in use at this hospital.

    Returns:
        The models; none where there is no register, or it does not verify. `read_register` also has those that are not valid.
    """
    view = read_register(runs)
    models = () if view is None else view.models
    return tuple(
        m for m in models if m.state is State.IN_USE and not m.fault and (site is None or site in m.record.in_use)
    )


def state_of(run: Path, *, runs: Path | None = None) -> ModelStatus | None:
    """Return the state of a run's model.

    Args:
        run: The run folder.
        runs: The folder of runs that has the register; by default the nearest one above the run.

    Returns:
        The state; None where the run is in no register.
    """
    root = find_root(run) if runs is None else runs.resolve()
    view = None if root is None else read_register(root)
    if root is None or view is None or not run.resolve().is_relative_to(root):
        return None
    return view.find(run.resolve().relative_to(root).as_posix())


def banner(run: Path, *, runs: Path | None = None) -> str:
    """Return the warning of a model that was withdrawn or is not valid any more; "" where there is nothing to warn of."""
    status = state_of(run, runs=runs)
    return "" if status is None else status.banner


def register_fault(checked: CheckedRegister) -> str:
    """Return the fault of a register that does not verify, in a sentence; "" if it verifies."""
    if not checked.findings:
        return ""
    more = f" and {len(checked.findings) - 1} more" if len(checked.findings) > 1 else ""
    return f"the register does not verify: {checked.findings[0]}{more}"


def check_record(runs: Path, record: ModelRecord, *, check_ledger: LedgerCheck | None = None) -> str:
    """Compare a record with its run.

    Args:
        runs: The folder of runs.
        record: The record.
        check_ledger: Checks the ledger of the run.

    Returns:
        Why the record is not valid, in a sentence without paths; "" if it is valid.
    """
    folder = runs / record.folder
    if not folder.is_dir() or not folder.resolve().is_relative_to(runs.resolve()):
        return f"the run {record.folder} is not there"
    stamp = tuple(file_stamp(folder / name) for name in _FILES)
    fault = _CACHE.get(("files", folder, record.number), stamp, lambda: _file_fault(folder, record))
    if fault:
        return fault
    if check_ledger is not None:
        return check_ledger(folder)
    return _CACHE.get(("ledger", folder), stamp, lambda: ledger_fault(folder))


def ledger_fault(folder: Path) -> str:
    """Check the ledger of a run and the files that it names; returns its first fault in a sentence."""
    try:
        result = audit(folder, reports=False)
    except BadInput as e:
        return f"the ledger of the run cannot be checked: {e}".replace(f"{folder}/", "")
    if result.findings:
        return f"the ledger of the run does not verify: {result.findings[0]}"
    if result.fails:
        return "the ledger of the run has no valid end"
    return result.withdrawn


def _file_fault(folder: Path, record: ModelRecord) -> str:
    try:
        withdrawn = read_withdrawn(folder)
    except BadInput:
        return f"{MARK} of the run is damaged"
    if withdrawn is not None:
        return withdrawn.sentence
    for name, key in ((MODEL, "model"), (SUMMARY, "summary")):
        try:
            found = hash_file(folder / name)
        except BadInput as e:
            return f"{name} {e}"
        if found != record.model[key]:
            return f"{name} was changed: its SHA-256 is {found[:16]}..., registered was {record.model[key][:16]}..."
    try:
        with Ledger.open(folder / "ledger.db") as ledger:
            leaves = [entry.leaf for entry in ledger.book().entries]
    except BadInput:
        return "the ledger of the run cannot be read"
    size = record.model["entries"]
    if len(leaves) < size or Tree(leaves).root(size).hex() != record.model["root"]:
        return "the ledger of the run is not the one that was registered"
    return ""


class _Cache:
    """Results by key, each with the stamp of the files it was made from."""

    def __init__(self) -> None:
        self._results: OrderedDict[Hashable, tuple[object, object]] = OrderedDict()
        self._turn = threading.Lock()

    def get(self, key: Hashable, stamp: object, make: Callable[[], T]) -> T:
        with self._turn:
            before, result = self._results.get(key, (None, None))
            if before == stamp:
                self._results.move_to_end(key)
                return result  # type: ignore[return-value]  # stored under this key by the same function
        new = make()
        with self._turn:
            self._results[key] = (stamp, new)
            while len(self._results) > _CACHED:
                self._results.popitem(last=False)
        return new


_CACHE = _Cache()
