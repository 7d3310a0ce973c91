"""Ledger of a run: an entry for its start, one per round, one for its end; sites countersign each head.

It works with every method. The journal's line of a round contains all values of the entry, so after a crash between the two
the next start writes the same bytes. A closing entry is written after the files that it names and before summary.json, which
marks the run as finished: after a crash between the two the run is finalized again, and the last closing entry is valid.

Every round's entry has a commitment to each site's answers: SHA-256(salt || SHA-256(answer) ...), over all answers that the
method received in the round. Training is deterministic, so without a salt anybody who knows a site's rows except one patient
could train twice and learn from the hash whether that patient was there. The salt follows from the server's key. With the salt
and the answer that the site stored, both can prove what was sent.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.audit import entry as entries
from grandrounds.audit.digest import arrays_digest, model_digest, row_digests, value_digest
from grandrounds.audit.files import FinalFiles
from grandrounds.audit.head import SignedHead
from grandrounds.audit.ledger import Ledger
from grandrounds.core.arrays import Array, write_atomic
from grandrounds.core.errors import BadInput, RunFailed
from grandrounds.core.plan import PlanValues
from grandrounds.core.records import RoundRecord
from grandrounds.engine.driver import Engine
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Effect, Round
from grandrounds.methods.effects import intercept
from grandrounds.models.protocol import Calibration
from grandrounds.protocol.identity import Identity, Signers, public_pem
from grandrounds.protocol.messages import Answers, Arrival, Ask, Payload
from grandrounds.report.provenance import LedgerState
from grandrounds.runs.withdrawal import Repetition
from grandrounds.site.witness import BEHIND, REASONS, SIGNED

_PURPOSE = b"grandrounds/commitments/1\x00"


def commitment(salt: bytes, *answers: Payload) -> str:
    """Compute the commitment to one site's answers of a round, in their order."""
    return _sealed(salt, b"".join(row_digests({n: [v] for n, v in a.items()}, 1)[0] for a in answers))


class Commitments:
    """Hash the answers of a round on their way to the method."""

    def __init__(self, identity: Identity, run: str) -> None:
        self._key = hashlib.sha256(identity.sign(_PURPOSE + run.encode())).digest()
        self._heard: dict[str, bytes] = {}

    def salt(self, round: int, site: str) -> bytes:
        """Return the salt that the server reveals to open a site's commitment."""
        return hashlib.blake2b(f"{round}\x1f{site}".encode(), key=self._key, digest_size=32).digest()

    def watched(self, work: Round) -> Round:
        """Return the method's round; every reply is hashed first."""
        self._heard = {}

        def through(effect: Effect) -> Generator[Effect, Any, Any]:
            reply = yield effect
            self._hear(reply)
            return reply

        return intercept(work, through)

    def of_round(self, round: int) -> dict[str, str]:
        """Return the commitment of each site in the last round."""
        return {site: _sealed(self.salt(round, site), heard) for site, heard in self._heard.items()}

    def _hear(self, reply: Any) -> None:
        if isinstance(reply, Arrival):
            if not reply.answer.error:
                columns = {name: [value] for name, value in reply.answer.values.items()}
                self._add(reply.answer.site, row_digests(columns, 1)[0])
        elif isinstance(reply, Answers):
            for site, row_digest in zip(reply.sites, row_digests(reply.columns, len(reply)), strict=True):
                self._add(site, row_digest)

    def _add(self, site: str, row_digest: bytes) -> None:
        self._heard[site] = self._heard.get(site, b"") + row_digest


def _sealed(salt: bytes, digests: bytes) -> str:
    return hashlib.sha256(salt + digests).hexdigest()


FACTS = "ledger"
"""Keys of a round's line in the journal that its entry needs."""

COPY_EVERY = 1.0
"""Seconds between two copies of the newest head to its own file: a rename takes longer than an entry."""


@dataclass
class Recorder:
    """The ledger of a run in progress."""

    engine: Engine
    folder: Path
    signers: Signers
    reference: Mapping[str, str]
    plan: PlanValues
    warnings: tuple[str, ...] = ()
    _signed: dict[str, int] = field(default_factory=dict)  # site -> number of entries under the last head it countersigned
    _unwritten: SignedHead | None = None  # the head whose countersignatures are written with the next entry

    def __post_init__(self) -> None:
        self.run = self.engine.settings.run
        self.identity = self.signers.server
        self.sites = tuple(self.signers.sites)
        self._commitments = Commitments(self.identity, self.run)
        self._plan = entries.plan_hash(self.plan)
        self._ledger: Ledger | None = None
        self._next_copy = 0.0
        self._asked = False

    @property
    def ledger(self) -> Ledger:
        assert self._ledger is not None
        return self._ledger

    def begin(self, records: Sequence[RoundRecord]) -> None:
        """Open the ledger, verify it, and add entries for rounds of the journal that it lacks."""
        self._ledger = Ledger.open(self.folder / "ledger.db", identity=self.identity)
        write_atomic(self.folder / "server.pub", public_pem(self.identity.public), durable=False)
        entries_before = list(self.ledger.entries()) if len(self.ledger) else []
        if entries_before:
            self._check()
            self._complete()
        last = max((int(e["round"]) for e in entries_before if e["kind"] == entries.ROUND), default=None)
        opened = next((int(e["first"]) for e in reversed(entries_before) if e["kind"] == entries.OPEN), None)
        due = last + 1 if last is not None else opened
        missed = [r for r in records if due is None or r["round"] >= due]
        plan_then = next((str(e["plan"]) for e in reversed(entries_before) if "plan" in e), self._plan)
        without = [int(r["round"]) for r in missed if FACTS not in r]
        if due is None or without:
            due = max(without, default=0) + 1
            if without:
                sentence = f"rounds up to {due - 1} were run without a ledger, which starts with the next"
                self.warnings = (*self.warnings, sentence)
            missed = [r for r in missed if r["round"] >= due]
            plan_then = missed[0][FACTS]["plan"] if missed else self._plan
            self._append(self._opening(due, plan_then), *(self._entry(r) for r in missed))
        elif missed:
            self._append(*(self._entry(r) for r in missed))
        plan_then = missed[-1][FACTS]["plan"] if missed else plan_then
        if plan_then != self._plan:
            last_round = max((int(r["round"]) for r in records), default=0)
            self._append(entries.resume_entry(self.run, round=last_round, plan=self._plan))

    def watched(self, work: Round) -> Round:
        """Return the method's round, with commitments to its answers."""
        return self._commitments.watched(work)

    def facts(self, round: int, served: ModelAssignment, explanation: Mapping[str, object] | None) -> dict[str, object]:
        """Return the hashes of models, explanations and answers for the round's entry, which cannot be computed later."""
        facts = {
            "model": model_digest(served.model),
            "served": arrays_digest(served.arrays(self.engine.sites)),
            "explanation": None if explanation is None else value_digest(explanation),
            "commitments": self._commitments.of_round(round),
            "plan": self._plan,
        }
        return {FACTS: facts}

    def enter(self, record: RoundRecord) -> None:
        """Write the entry of a finished round, and have the new head countersigned."""
        self._append(self._entry(record))

    def standing(self) -> LedgerState:
        """Return the current size and root hash of the ledger, for the report."""
        tree = self.ledger.tree()
        return LedgerState(self.run, len(tree), tree.root().hex(), self.signers.made == entries.SIMULATED)

    def rounds_written(self) -> dict[str, int]:
        """Count the entries before the closing one, which a repeated end writes again, and their countersignatures."""
        self._wait()
        kinds = [e["kind"] for e in self.ledger.entries()]
        while kinds[-1] == entries.CLOSE:
            kinds.pop()
        size = len(kinds)
        unwritten = self._unwritten
        more = 0 if unwritten is None or unwritten.head.size > size else len(unwritten.witnesses)
        return {"entries": size, "countersignatures": self.ledger.count_countersignatures(size) + more}

    def end(
        self,
        model: Array,
        *,
        round: int,
        calibration: Calibration | None,
        ended: FinalFiles,
        released: Sequence[Mapping[str, object]] = (),
    ) -> None:
        """Write the closing entry with the hashes of the final files; not again where they are unchanged.

        `released`: all releases so far that were charged outside the rounds.
        """
        hashed = model_digest(model)
        entry = entries.closing_entry(
            self.run,
            round=round,
            model=hashed,
            calibration=calibration,
            plan=self._plan,
            ended=ended,
            released=released,
        )
        last = self.ledger.last() or {}
        if any(last.get(name) != value for name, value in entry.items()):
            self._append(entry)
        self._wait()
        self._write_countersignatures()

    def close(self) -> None:
        """Close the file; where a run stops early, its newest head is countersigned first, if the file can be written."""
        if self._ledger is not None:
            with suppress(OSError, BadInput):
                self._write_countersignatures()
            self._ledger.close()

    def _write_countersignatures(self) -> None:
        if self._unwritten is not None:
            self.ledger.add_countersignatures(self._unwritten)
            self._copy_head(self._unwritten)
            self._unwritten = None

    def _opening(self, first: int, plan: str) -> dict[str, object]:
        s, repetition = self.signers, Repetition.read(self.folder / "checkpoint")
        return entries.opening_entry(
            self.run,
            first=first,
            plan=plan,
            server=s.server.public,
            sites=s.sites,
            keys=s.made,
            repeats=None if repetition is None else {"site": repetition.site, **asdict(repetition.repeats)},
            cohort=None if (agreed := self.plan["data"].get("cohort")) is None else str(agreed["digest"]),
        )

    def _entry(self, record: RoundRecord) -> dict[str, object]:
        return entries.round_entry(self.run, record, reference=self.reference)

    def _append(self, *contents: Mapping[str, Any]) -> None:
        self._wait()
        head = self.ledger.append(self.run, *contents, witnessed=self._unwritten)
        self._unwritten = None
        self._witness(head)

    def _witness(self, head: SignedHead) -> None:
        """Have a head countersigned together with the next Ask; the signatures are written with the next entry."""
        self._asked = True
        self.engine.piggyback(self._countersigned(head), self._witnessed)

    def _witnessed(self, head: SignedHead) -> None:
        self._unwritten, self._asked = head, False
        if time.monotonic() >= self._next_copy:
            self._copy_head(head)

    def _wait(self) -> None:
        """Wait for outstanding countersignatures."""
        if self._asked:
            self.engine.flush()

    def _copy_head(self, head: SignedHead) -> None:
        """Write the head to its own file, for people who keep copies; an older head is valid too."""
        write_atomic(self.folder / "ledger.head.json", head.to_bytes(), durable=False)
        self._next_copy = time.monotonic() + COPY_EVERY

    def _countersigned(self, signed: SignedHead) -> Generator[Ask, Answers, SignedHead]:
        """Ask the witnesses; a witness whose last signed head differs is asked again from that head."""
        witnesses = signed.head.witnesses(self.sites)
        signatures: dict[str, bytes] = {}
        for _ in range(2):
            answers = yield self._ask(signed, witnesses)
            behind = []
            for site, signature in answers:
                why = int(signature["refused"])
                if why == BEHIND:
                    behind.append(site)
                    self._signed[site] = int(signature["have"])
                elif why != SIGNED:
                    raise RunFailed(
                        f"{site} refuses to countersign the ledger: {REASONS[why]}; "
                        f"`rounds audit verify {self.folder}` shows the problem",
                        code="countersignature-refused",
                    )
                else:
                    signatures[site] = np.asarray(signature["signature"], np.uint8).tobytes()
                    self._signed[site] = signed.head.size
            witnesses = tuple(behind)
            if not witnesses:
                break
        return signed.with_witnesses(signatures)

    def _ask(self, signed: SignedHead, sites: tuple[str, ...]) -> Ask:
        """Return an Ask with the head, and for each site the consistency proof from the last head it signed."""
        size, tree = signed.head.size, self.ledger.tree()
        since = {site: min(self._signed.get(site, 0), size) for site in sites}
        proofs = {n: {"from": n, "proof": _bytes(b"".join(tree.consistency(n, size)))} for n in set(since.values())}
        usual = since[sites[0]]
        shared = {
            "head": signed.head.text.decode(),
            "signature": _bytes(signed.signature),
            "key": _bytes(self.identity.public),
        }
        return Ask(
            "witness",
            shared={**shared, **proofs[usual]},
            each={site: proofs[n] for site, n in since.items() if n != usual},
            to=sites,
            report=("signature", "have", "refused"),
        )

    def _complete(self) -> None:
        """Repeat countersignatures of the newest head that a crash lost."""
        head = self.ledger.head()
        if head is not None and not set(head.head.witnesses(self.sites)) <= set(head.witnesses):
            self._witness(head)

    def _check(self) -> None:
        """Raise where the ledger does not verify: such a run is not resumed."""
        findings = self.ledger.verify(self.identity.public)
        if findings:
            raise BadInput(
                f"the ledger of {self.folder} does not verify: {findings[0]}; `rounds audit verify {self.folder}` lists all",
                code="ledger-does-not-verify",
            )
        for head in self.ledger.book().heads:
            self._signed |= dict.fromkeys(head.witnesses, head.head.size)


def _bytes(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8)
