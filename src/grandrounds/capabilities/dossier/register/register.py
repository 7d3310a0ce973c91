"""Write to a register of models: set it up, add signatories, propose, approve, use and withdraw models.

Every change is one entry of the ledger, made under a lock: the state is read, the rules are checked, people sign, and the entry
is appended. A register that does not verify is not written to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grandrounds.analysis.audit.report import audit
from grandrounds.audit.entry import find_fault
from grandrounds.audit.files import MODEL, SUMMARY, hash_file
from grandrounds.audit.ledger import Ledger
from grandrounds.audit.register_entry import (
    CANDIDATE,
    NAME,
    WITHDRAW_MODEL,
    Content,
    candidate_entry,
    decision_entry,
    end_entry,
    roles_entry,
    sign_entry,
    signatory_entry,
    start_entry,
)
from grandrounds.audit.register_state import ModelRecord, RegisterState
from grandrounds.capabilities.dossier.register.folder import CheckedRegister, RegisterFolder, load_register, register_of
from grandrounds.capabilities.dossier.register.signing_key import check_passphrase, open_key, seal_key
from grandrounds.capabilities.dossier.register.status import check_record, register_fault
from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput, nearest
from grandrounds.protocol.identity import Identity, public_pem
from grandrounds.runs.run import Run

LONGEST_NAME = 64


class ChangedMeanwhile(BadInput):
    """The model changed in the register since the person saw it."""


@dataclass(frozen=True)
class Register:
    """The register of a folder of runs, for writing.

    Attributes:
        runs: The folder of runs.
    """

    runs: Path

    @property
    def folder(self) -> RegisterFolder:
        return register_of(self.runs)

    @classmethod
    def create(cls, runs: Path, *, roles: Sequence[str], note: str = "") -> Register:
        """Create the register of a folder of runs.

        Args:
            runs: The folder of runs.
            roles: Roles that must approve a model, such as "medical director".
            note: A remark.

        Raises:
            BadInput: There is a register or a run in its place, a role is invalid, or it cannot be written.
        """
        register, identity = cls(runs), Identity.new()
        folder = register.folder
        if not runs.is_dir():
            raise BadInput(f"there is no folder {runs}: give --runs the folder that has the runs", code="not-a-folder")
        if folder.exists or os.path.lexists(folder.path):
            raise BadInput(
                f"{folder.path} is there already: `rounds models list` shows a register; move anything else away",
                code="register-exists",
            )
        names = [_check_name(role, "role") for role in roles]
        content = start_entry(date=_now(), key=identity.public, roles=names, note=note)
        _refuse_malformed(content)
        try:
            folder.path.mkdir()
            (folder.path / "signatories").mkdir(mode=0o700)
        except OSError as e:
            raise BadInput(f"cannot create {folder.path}: {e.strerror or e}", code="cannot-write") from None
        identity.save(folder.key)
        write_atomic(folder.public_key, public_pem(identity.public))
        with folder.lock(), Ledger.open(folder.ledger, identity=identity) as ledger:
            head = ledger.append(NAME, content)
            write_atomic(folder.head, head.to_bytes())
        return register

    def load(self) -> CheckedRegister:
        """Read and verify the register.

        Raises:
            BadInput: There is none, or it does not verify.
        """
        if not self.folder.exists:
            raise BadInput(
                f"{self.runs} has no register of models: `rounds models init --role ROLE` creates one",
                code="no-register",
            )
        checked = load_register(self.folder)
        if checked.findings:
            raise BadInput(
                f"{register_fault(checked)}; nothing is written to it: `rounds models verify` lists all findings",
                code="damaged-register",
            )
        return checked

    def add_signatory(
        self, name: str, *, role: str, passphrase: str, by: Mapping[str, str] | None = None, note: str = ""
    ) -> Identity:
        """Add a person who may sign for a role, with a new key under their passphrase.

        Args:
            name: The person; the same name as in the console.
            role: The role that the person signs for.
            passphrase: The person's signing passphrase.
            by: Passphrases, by name, of the signatories who agree. Once the register is set up, each role must.
            note: A remark.

        Returns:
            The new key.

        Raises:
            BadInput: A name, role or passphrase is invalid, or a signature is missing.
        """
        _check_name(name, "name")
        check_passphrase(passphrase)
        state, identity = self.load().state, Identity.new()
        if role not in state.roles:
            raise BadInput(f"there is no role '{role}'; {nearest(role, state.roles)}", code="unknown-role")
        keys = self._open_keys(state, by or {})
        path = self.folder.signing_key(identity.public)
        seal_key(path, identity, name=name, passphrase=passphrase)
        try:
            self._append(
                lambda _: signatory_entry(date=_now(), name=name, role=role, identity=identity, note=note), keys
            )
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return identity

    def end_signatory(self, name: str, *, by: Mapping[str, str], note: str) -> None:
        """End the right of a person to sign; what they signed before stays valid."""
        keys = self._open_keys(self.load().state, by)
        self._append(lambda _: end_entry(date=_now(), name=name, note=note), keys)

    def change_roles(self, roles: Sequence[str], *, by: Mapping[str, str], note: str) -> None:
        """Change the roles that must approve a model; a signatory of each present role must agree."""
        keys = self._open_keys(self.load().state, by)
        names = [_check_name(role, "role") for role in roles]
        self._append(lambda _: roles_entry(date=_now(), roles=names, note=note), keys)

    def propose(
        self, run: Path, *, purpose: str, hospitals: Sequence[str] = (), by: str, note: str = ""
    ) -> ModelRecord:
        """Enter the model of a finished run as a candidate.

        Args:
            run: The run folder, below the folder of runs.
            purpose: The intended use, such as "death in hospital, adults in intensive care".
            hospitals: Hospitals at which it may be used; by default all sites of the run.
            by: The person who proposes it.
            note: A remark.

        Returns:
            The record.

        Raises:
            BadInput: The run is unfinished, has no ledger or model, does not verify or was withdrawn, or is a candidate already.
        """
        self.load()
        model, sites = describe_model(run, self.relative(run))
        content = candidate_entry(
            date=_now(),
            model=model,
            purpose=purpose.strip(),
            hospitals=hospitals or sites,
            by=_check_name(by, "name"),
            note=note,
        )
        state = self._append(lambda _: content, {})
        record = state.find_record(model["folder"])
        assert record is not None
        return record

    def decide(
        self,
        kind: str,
        run: str,
        *,
        by: str,
        passphrase: str,
        note: str = "",
        hospitals: Sequence[str] | None = None,
        seen: int | None = None,
    ) -> ModelRecord:
        """Sign a decision about a model: approve it, put it in use, or withdraw it.

        Args:
            kind: One of `register_entry.DECISIONS`.
            run: The run's folder below the folder of runs.
            by: The signatory.
            passphrase: The signatory's signing passphrase.
            note: A remark; of a withdrawal the reason.
            hospitals: For use: the hospitals; none takes the model out of use.
            seen: The record's version that the person saw; None does not compare.

        Returns:
            The record after the decision.

        Raises:
            ChangedMeanwhile: The record has another version than `seen`.
            WrongPassphrase: The passphrase is wrong.
            BadInput: The decision is against the rules, or the model is not valid.
        """
        state = self.load().state
        record = self._find(state, run)
        if kind != WITHDRAW_MODEL and (fault := check_record(self.runs, record)):
            raise BadInput(f"{run} cannot be approved or used: {fault}", code="model-not-valid")
        keys = self._open_keys(state, {by: passphrase})

        def make(now: RegisterState) -> Content:
            current, signatory = self._find(now, run), now.signatories[by]
            if current.number != record.number or (seen is not None and current.version != seen):
                raise ChangedMeanwhile(
                    f"{run} changed in the register since you opened it: look at it again", code="changed-meanwhile"
                )
            return decision_entry(
                kind,
                date=_now(),
                candidate=current.number,
                by=by,
                role=signatory.role,
                note=note.strip(),
                hospitals=hospitals,
            )

        return self._append(make, keys).records[record.number]

    def relative(self, run: Path) -> str:
        """Return a run's folder as the register names it.

        Raises:
            BadInput: It is not below the folder of runs.
        """
        root, folder = self.runs.resolve(), run.resolve()
        if not folder.is_relative_to(root) or folder == root:
            raise BadInput(
                f"{run} is not below {self.runs}: give --runs the folder that it is in", code="not-below-runs"
            )
        return folder.relative_to(root).as_posix()

    def _find(self, state: RegisterState, run: str) -> ModelRecord:
        record = state.find_record(run)
        if record is None:
            raise BadInput(
                f"{run} is not in the register: `rounds models propose {self.runs / run}` enters it as a candidate",
                code="not-registered",
            )
        return record

    def _open_keys(self, state: RegisterState, passphrases: Mapping[str, str]) -> dict[str, Identity]:
        keys = {}
        for name, passphrase in passphrases.items():
            signatory = state.find_active(name)
            if signatory is None:
                active = [s.name for s in state.signatories.values() if not s.ended]
                raise BadInput(f"there is no signatory '{name}'; {nearest(name, active)}", code="unknown-signatory")
            keys[name] = open_key(self.folder.signing_key(signatory.key), passphrase=passphrase)
        return keys

    def _append(self, make: Callable[[RegisterState], Content], keys: Mapping[str, Identity]) -> RegisterState:
        """Check the rules, sign and append one entry; returns the state after it."""
        folder = self.folder
        with folder.lock():
            checked = self.load()
            assert checked.book is not None
            before = checked.book.entries[-1].hash
            content = make(checked.state)
            if content["kind"] != CANDIDATE:
                content = sign_entry(content, keys, after=before)
            placed = {**content, "number": len(checked.book.entries), "previous": before}
            _refuse_malformed(placed)
            if fault := checked.state.check(placed):
                raise BadInput(f"the register does not accept it: {fault}", code="against-register-rules")
            with Ledger.open(folder.ledger, identity=Identity.load(folder.key)) as ledger:
                head = ledger.append(NAME, content)
            write_atomic(folder.head, head.to_bytes())
            checked.state.apply(placed)
            return checked.state


def describe_model(run: Path, folder: str) -> tuple[dict[str, Any], list[str]]:
    """Describe the model of a run for the register: its hashes and the head of the run's ledger; and the run's sites.

    Raises:
        BadInput: The run cannot be registered.
    """
    opened = Run(run)
    if not opened.finished:
        raise BadInput(f"{run} is not finished: `rounds resume {run}` continues it", code="run-not-finished")
    if opened.withdrawn is not None:
        raise BadInput(f"the model of {run} is not valid: {opened.withdrawn.sentence}", code="withdrawn-run")
    if not (run / MODEL).is_file():
        raise BadInput(f"{run} has no {MODEL}: only a run with a common model can be registered", code="no-model")
    result = audit(run, reports=False)
    if result.fails:
        raise BadInput(
            f"the ledger of {run} {result.line}: `rounds audit verify {run}` lists all findings", code="ledger-fails"
        )
    hashes = {"model": hash_file(run / MODEL), "summary": hash_file(run / SUMMARY)}
    name = str(opened.summary.get("name", folder))
    facts = {"run": name, "folder": folder, **hashes, "entries": result.entries, "root": result.root}
    return facts, sorted(opened.summary["rows"])


def _refuse_malformed(content: Content) -> None:
    if fault := find_fault(content):
        raise BadInput(f"the register does not accept it: {fault}", code="against-register-rules")


def _check_name(text: str, what: str) -> str:
    if not text or len(text) > LONGEST_NAME or not text.isprintable() or text != text.strip():
        raise BadInput(
            f"{text!r} is not a valid {what}: use 1 to {LONGEST_NAME} printable characters", code="invalid-name"
        )
    return text


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
