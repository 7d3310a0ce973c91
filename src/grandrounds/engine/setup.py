"""Set-up of a run at sites: the Asks of round 0 that every site must have done, and the answers of each site.

A resumed run may begin without a site. Then the site's first answers are used, so that row counts and identities are those of
the start. The Asks that it missed are sent before its next Asks, in the same message. Its answers are used only if it did all of
them, so that no site answers with a model of another shape or plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from grandrounds.core.arrays import load, save
from grandrounds.core.errors import RunFailed
from grandrounds.engine.sealing import REFUSED, InvalidAnswer, read_answer, refusal_reason
from grandrounds.protocol.codec import decode_answer
from grandrounds.protocol.messages import Answer, Ask, Payload
from grandrounds.protocol.task_spec import REQUIRED
from grandrounds.protocol.tasks import CLOSE, LEND, OPEN, spec_of


class Setup:
    """The set-up of one run.

    Args:
        file: File in which answers are kept for the next start; None to keep none.
        resumed: The run has committed rounds.
    """

    def __init__(self, file: Path | None = None, *, resumed: bool = False) -> None:
        self._file = file
        self._answers: dict[str, bytes] = {}  # "task site" -> the answer
        self._pending: dict[str, dict[str, Ask]] = {}  # site -> task -> Ask
        self._reasons: dict[str, str] = {}  # of the sites with pending Asks
        self.notes: list[str] = []
        stored = {} if file is None or not file.exists() else load(file)[0]
        opened = [name for name in stored if name.startswith(f"{OPEN} ")]
        self.sites = tuple(name.removeprefix(f"{OPEN} ") for name in opened)  # of the start of the run, if it had begun
        if resumed:
            self._answers = {name: data.tobytes() for name, data in stored.items()}

    @property
    def incomplete(self) -> dict[str, str]:
        """Return the sites with pending Asks of the set-up, with the reasons."""
        return dict(self._reasons)

    def postponed(self, ask: Ask, sites: Sequence[str]) -> dict[str, str]:
        """Find sites that are not asked this yet, with the reasons: one with pending Asks gets it together with those."""
        return {site: why for site, why in self._reasons.items() if site in sites} if _is_part(ask) else {}

    def prerequisites(self, asks: Sequence[Ask], site: str) -> tuple[Ask, ...]:
        """Return the pending Asks that a site must do before these; none if the run is over."""
        return () if asks[-1].task == CLOSE else tuple(self._pending.get(site, {}).values())

    def record(self, ask: Ask, site: str, body: bytes) -> None:
        """Record a site's answer, where the Ask is part of the set-up."""
        if not _is_part(ask):
            return
        before = self._answers.get(f"{_key(ask)} {site}")
        if before is not None and before != body and not _equal(_values(before, site), _values(body, site)):
            self.notes.append(f"{site} answers {ask.task} differently than at the start of the run")
        self._answers[f"{_key(ask)} {site}"] = body

    def write(self, ask: Ask) -> None:
        """Write the answers to disk, where the Ask is part of the set-up."""
        if self._file is not None and _is_part(ask):
            save(self._file, {name: np.frombuffer(body, np.uint8) for name, body in self._answers.items()}, {})

    def settle(self, ask: Ask, missing: Mapping[str, str]) -> dict[str, Payload]:
        """Find earlier answers of sites that did not answer.

        A site may refuse reference rows, or peers that it does not know: it is missing then, as now.

        Args:
            ask: The Ask; nothing is done where it is no part of the set-up.
            missing: Sites that did not answer, with the reasons.

        Returns:
            By site, the values of its earlier answer.

        Raises:
            RunFailed: A site that must have answered never did.
        """
        lost: dict[str, str] = {}
        substitutes: dict[str, Payload] = {}
        if not _is_part(ask):
            return substitutes
        required = spec_of(ask.task).setup == REQUIRED  # the answer has the site's participation, its rows, or its key
        for site, why in missing.items():
            if not required and why.startswith(REFUSED) and site not in self._pending:
                continue
            before = self._answers.get(f"{_key(ask)} {site}")
            if before is not None:
                substitutes[site] = _values(before, site)
            elif required:
                lost[site] = why
                continue
            self._postpone(ask, site, why)
        if lost:
            who = "; ".join(f"{site}: {why}" for site, why in sorted(lost.items()))
            step = "open the run" if ask.task == OPEN else f"complete {ask.task}, which is part of the set-up"
            raise RunFailed(f"{len(lost)} of {len(ask.to or ())} sites did not {step} ({who})", code="setup-incomplete")
        return substitutes

    def catch_up(self, site: str, asks: Sequence[Ask], bodies: Sequence[bytes]) -> list[Answer]:
        """Take a site's answers to its pending Asks, and note where they differ from its first ones.

        Args:
            site: The site.
            asks: Asks that were pending.
            bodies: The bytes of its answers.

        Returns:
            The answers.

        Raises:
            InvalidAnswer: One cannot be read, or is a refusal.
        """
        answers = []
        for ask, body in zip(asks, bodies, strict=True):
            answers.append(read_answer(body, site, ask, None))
            if answers[-1].error:
                raise InvalidAnswer(refusal_reason(answers[-1].error))
        for ask, body in zip(asks, bodies, strict=True):
            self.record(ask, site, body)
            self._pending.get(site, {}).pop(_key(ask), None)
            self.write(ask)
        if not self._pending.get(site):
            self._pending.pop(site, None)
            self._reasons.pop(site, None)
        return answers

    def _postpone(self, ask: Ask, site: str, why: str) -> None:
        if site not in self._pending:
            self.notes.append(f"{site} was not there when the run was set up: {why}")
        self._pending.setdefault(site, {})[_key(ask)] = ask
        self._reasons.setdefault(site, why)


def _is_part(ask: Ask) -> bool:
    return ask.round == 0 and bool(spec_of(ask.task).setup)


def _key(ask: Ask) -> str:
    return f"{ask.task}:{ask.shared['name']}" if ask.task == LEND else ask.task


def _values(body: bytes, site: str) -> Payload:
    return dict(decode_answer(body, site, None).values)


def _equal(a: Payload, b: Payload) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
