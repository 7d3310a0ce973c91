"""What a run is set up with: the Asks of round 0 that every site must have done, and what each site answered to them.

A run that goes on may begin without a site. What the site answered the first time stands in for it, so that row counts
and identities are those that the run was begun with. The Asks that it did not get are owed to it and go before whatever it
is asked next, in the same letter. What it answers counts only if it did all of them: nobody answers with a model of
another shape, or by another plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.core.arrays import load, save
from grandrounds.core.errors import RunFailed
from grandrounds.engine.letters import Unbelievable, read_answer
from grandrounds.protocol.codec import decode_answer
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.task_spec import REQUIRED
from grandrounds.protocol.tasks import CLOSE, LEND, OPEN, spec_of

REFUSED = "refused"
"""How the reason begins where a site says no."""

_CODE = 40
"""Characters of a refusal's code; what a site sends beyond is no code."""


class Setup:
    """One run's. `file`: where answers are kept for the next start; `goes_on`: whether rounds of the run count already."""

    def __init__(self, file: Path | None = None, *, goes_on: bool = False) -> None:
        self._file = file
        self._answers: dict[str, bytes] = {}  # "task site" -> the answer
        self._owed: dict[str, dict[str, Ask]] = {}  # site -> task -> Ask
        self._why: dict[str, str] = {}  # of those that something is owed to
        self.notes: list[str] = []
        held = {} if file is None or not file.exists() else load(file)[0]
        opened = [name for name in held if name.startswith(f"{OPEN} ")]
        self.sites = tuple(name.removeprefix(f"{OPEN} ") for name in opened)  # that the run was begun with, if it was
        if goes_on:
            self._answers = {name: data.tobytes() for name, data in held.items()}

    @property
    def owing(self) -> dict[str, str]:
        """Sites that have not done all that the run is set up with, and why."""
        return dict(self._why)

    def later(self, ask: Ask, to: Sequence[str]) -> dict[str, str]:
        """Who is not asked this yet, and why: a site that something is owed to gets it with the rest."""
        return {site: why for site, why in self._why.items() if site in to} if _is_part(ask) else {}

    def before(self, asks: Sequence[Ask], site: str) -> tuple[Ask, ...]:
        """What a site does before these; nothing where the run is over."""
        return () if asks[-1].task == CLOSE else tuple(self._owed.get(site, {}).values())

    def answered(self, ask: Ask, site: str, body: bytes) -> None:
        """A site did this."""
        if not _is_part(ask):
            return
        before = self._answers.get(f"{_key(ask)} {site}")
        if before is not None and before != body and not _alike(_values(before, site), _values(body, site)):
            self.notes.append(f"{site} answers {ask.task} otherwise than when the run was begun")
        self._answers[f"{_key(ask)} {site}"] = body

    def write(self, ask: Ask) -> None:
        """Have on disk what sites answered up to this."""
        if self._file is not None and _is_part(ask):
            save(self._file, {name: np.frombuffer(body, np.uint8) for name, body in self._answers.items()}, {})

    def settle(self, ask: Ask, missing: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """What stands in for sites that did not answer this; who must have answered and never did ends the run.

        Rows that a site will not hold, or others that it will not meet, are its own to refuse: it is missing then, as now.
        """
        lost: dict[str, str] = {}
        instead: dict[str, dict[str, Any]] = {}
        if not _is_part(ask):
            return instead
        required = spec_of(ask.task).setup == REQUIRED  # its answer says that a site takes part, its rows, or its key
        for site, why in missing.items():
            if not required and why.startswith(REFUSED) and site not in self._owed:
                continue
            before = self._answers.get(f"{_key(ask)} {site}")
            if before is not None:
                instead[site] = _values(before, site)
            elif required:
                lost[site] = why
                continue
            self._owe(ask, site, why)
        if lost:
            who = "; ".join(f"{site}: {why}" for site, why in sorted(lost.items()))
            what = "open the run" if ask.task == OPEN else f"get past {ask.task}, with which the run is set up"
            raise RunFailed(f"{len(lost)} of {len(ask.to or ())} sites did not {what} ({who})", code="setup-incomplete")
        return instead

    def catch_up(self, site: str, asks: Sequence[Ask], bodies: Sequence[bytes]) -> None:
        """A site did what was owed to it, or is not believed. That it is not what it was is noted: its rows may have changed."""
        for ask, body in zip(asks, bodies, strict=True):
            if error := read_answer(body, site, ask, None).error:
                raise Unbelievable(refused(error))
        for ask, body in zip(asks, bodies, strict=True):
            self.answered(ask, site, body)
            self._owed.get(site, {}).pop(_key(ask), None)
            self.write(ask)
        if not self._owed.get(site):
            self._owed.pop(site, None)
            self._why.pop(site, None)

    def _owe(self, ask: Ask, site: str, why: str) -> None:
        if site not in self._owed:
            self.notes.append(f"{site} was not there when the run was set up: {why}")
        self._owed.setdefault(site, {})[_key(ask)] = ask
        self._why.setdefault(site, why)


def refused(code: str) -> str:
    """Why a site is missing that said no."""
    return f"{REFUSED} ({code[:_CODE]})"


def _is_part(ask: Ask) -> bool:
    return ask.round == 0 and bool(spec_of(ask.task).setup)


def _key(ask: Ask) -> str:
    return f"{ask.task}:{ask.shared['name']}" if ask.task == LEND else ask.task


def _values(body: bytes, site: str) -> dict[str, Any]:
    return dict(decode_answer(body, site, None).values)


def _alike(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
