"""A site's own policy: which runs, tasks and reports it allows, how small a cell may be, what must be secure or private.

The policy is asked before anything is done (`refuses`) and again before an answer leaves (`trimmed`). It says no with a
fixed code. It keeps no memory of its own: what was spent is the purse's to know.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plugins import is_path
from grandrounds.keeper import private_asks
from grandrounds.keeper.policy_text import DEFAULT
from grandrounds.keeper.policy_values import section
from grandrounds.keeper.small_cells import without_small_cells
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.task_spec import SUMMARY
from grandrounds.protocol.tasks import CLOSE, HELLO, OPEN, PREPARE, SPECS, spec_of

TASK, REPORT, SECURE, PRIVACY = "task-not-allowed", "report-not-allowed", "needs-secure-sum", "needs-privacy"
EPSILON, CELLS, RUN, ROUNDS = "epsilon-too-large", "cells-too-small", "run-not-approved", "too-many-rounds"
HOURS, OWN_CODE = "outside-hours", "own-code-not-allowed"
CODES = (TASK, REPORT, SECURE, PRIVACY, EPSILON, CELLS, RUN, ROUNDS, HOURS, OWN_CODE)
"""All that a policy can say no with."""

ALL, ANY = "all", "any"
LISTED, TOLD = "listed", "told"
"""By whose word a site knows those whom it adds up with: its own list's, or the server's."""

_ALWAYS = (HELLO, CLOSE)
_SPARE = 1  # rounds after the last, in which a run is closed

Listed = str | tuple[str, ...]
Plan = Mapping[str, Any]


@dataclass(frozen=True)
class Runs:
    """Which runs may be opened."""

    allow: Listed = ANY
    plans: tuple[str, ...] = ()
    rounds: int = 1000
    refusals: int = 10
    hours: tuple[int, int] = (0, 24)


@dataclass(frozen=True)
class Tasks:
    """What may be asked."""

    allow: Listed = ALL
    deny: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reports:
    """What may be answered."""

    allow: Listed = ALL
    deny: tuple[str, ...] = ()
    summary: bool = True
    notes: bool = False


@dataclass(frozen=True)
class Cells:
    """How few patients may be counted together."""

    smallest: int = 5
    fewest_rows: int = 8


@dataclass(frozen=True)
class Secure:
    """Whether single models may leave, and whom the site adds up with."""

    only: bool = False
    largest_weight: float = 0.95
    fewest: int = 3
    peers: str = LISTED


@dataclass(frozen=True)
class Privacy:
    """What is promised to patients."""

    require: bool = False
    epsilon: float = 10.0
    delta: float = 1e-5
    run_epsilon: float = 10.0
    trust_server: bool = False
    honest: int = 0


@dataclass(frozen=True)
class Policy:
    """The whole file."""

    runs: Runs = Runs()
    tasks: Tasks = Tasks()
    reports: Reports = Reports()
    cells: Cells = Cells()
    secure: Secure = Secure()
    privacy: Privacy = Privacy()

    @classmethod
    def load(cls, path: Path) -> Policy:
        """The policy in a file; a key that is not known is refused, because it may have been meant to forbid something."""
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as e:
            reason = getattr(e, "strerror", None) or "not UTF-8 text"
            raise BadInput(f"the policy {path} cannot be read: {reason}; nothing is answered without one") from None
        return cls.parse(text, where=str(path))

    @classmethod
    def parse(cls, text: str, *, where: str = "the policy") -> Policy:
        """The policy that this text says."""
        try:
            found = tomllib.loads(text)
        except tomllib.TOMLDecodeError as e:
            raise BadInput(f"{where} is no TOML ({e}): mend it, nothing is answered without a policy") from None
        kinds = {"runs": Runs, "tasks": Tasks, "reports": Reports, "cells": Cells, "secure": Secure, "privacy": Privacy}
        odd = next((name for name in found if name not in kinds), None)
        if odd is not None:
            raise BadInput(f"unknown section '{odd}' in {where}; {nearest(odd, kinds)}")
        policy = cls(**{name: section(kind, found.get(name, {}), f"{where} [{name}]") for name, kind in kinds.items()})
        _check(policy, where)
        return policy

    @property
    def untold(self) -> tuple[str, ...]:
        """Parts of which a host is to say nothing in an evaluation, whatever the plan says."""
        return ("train", "val") if self.privacy.require else ()

    def refuses(
        self, ask: Ask, plan: Plan | None, *, rows: int | None = None, now: datetime | None = None
    ) -> str:
        """Why this Ask is not answered, as a code; nothing where it is. `rows`: the site's training rows, where known."""
        if ask.task in _ALWAYS:
            return ""
        if plan is not None and not _is_plan(plan):
            return RUN
        held = tuple(r for r in ask.held if r in ask.report)
        refused = (
            (TASK, not self.allows_task(ask.task)),
            (HOURS, not self._in_hours(now or datetime.now())),
            (ROUNDS, ask.round > self.runs.rounds + _SPARE),
            (RUN, plan is not None and not self._approves(plan, "" if ask.id is None else ask.id.run)),
            (ROUNDS, plan is not None and self._longer(plan)),
            (EPSILON, plan is not None and self.over_budget(plan)),
            (PRIVACY, plan is not None and self.unpromised(plan)),
            (OWN_CODE, _own_code(ask, plan)),
            (REPORT, any(not self.allows_report(ask.task, r) for r in ask.report)),
            (SECURE, any(self.wants_sum(ask.task, r) for r in ask.report if r not in held)),
            (CELLS, spec_of(ask.task).is_learning and rows is not None and rows < self.cells.fewest_rows),
            (PRIVACY, self.privacy.require and ask.task != OPEN and not private_asks.is_private(ask, plan)),
        )
        return next((code for code, no in refused if no), "")

    def trimmed(
        self, ask: Ask, values: Mapping[str, Any], *, rows: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """An answer as it may leave: no count of fewer patients than allowed, and no notes where none are.

        `rows`: how many rows the site has for train, val and test.
        """
        kept = without_small_cells(ask.task, values, self.cells.smallest, rows)
        return kept if self.reports.notes or "notes" not in kept else {**kept, "notes": "[]"}

    def allows_task(self, task: str) -> bool:
        """Whether a task is known, listed, and not denied."""
        known = task in SPECS and task not in self.tasks.deny
        return known and (task == OPEN or self.tasks.allow == ALL or task in self.tasks.allow)

    def allows_report(self, task: str, report: str) -> bool:
        """Whether a report of a task is known, listed, and not denied."""
        spec, names = spec_of(task).reports.get(report), {report, f"{task}.{report}"}
        if spec is None or names & set(self.reports.deny) or (spec.kind == SUMMARY and not self.reports.summary):
            return False
        return self.reports.allow == ALL or bool(names & set(self.reports.allow))

    def wants_sum(self, task: str, report: str) -> bool:
        """Whether a report may leave into a secure sum alone."""
        spec = spec_of(task).reports.get(report)
        return self.secure.only and spec is not None and spec.is_summable

    def over_budget(self, plan: Plan) -> bool:
        """Whether a plan means to spend more than one run may."""
        planned = plan["privacy"]["epsilon"]
        return planned is not None and bool(planned > min(self.privacy.run_epsilon, self.privacy.epsilon))

    def unpromised(self, plan: Plan) -> bool:
        """Whether a plan sets no limit to what it spends, where one is required."""
        return self.privacy.require and plan["privacy"]["epsilon"] is None

    def _approves(self, plan: Plan, run: str) -> bool:
        named = self.runs.allow == ANY or bool({run, str(plan["name"])} & set(self.runs.allow))
        return named and (not self.runs.plans or plan_digest(plan) in self.runs.plans)

    def _longer(self, plan: Plan) -> bool:
        return int(plan["method"]["rounds"]) > self.runs.rounds

    def _in_hours(self, now: datetime) -> bool:
        first, last = self.runs.hours
        if first <= last:
            return first <= now.hour < last
        return now.hour >= first or now.hour < last


def default_policy() -> str:
    """The text of the file that a new site is given."""
    return DEFAULT


def plan_digest(plan: Plan) -> str:
    """The SHA-256 of a plan's JSON with sorted keys and no spaces: what a site approves it by."""
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _is_plan(plan: Plan) -> bool:
    """Whether it says what a policy goes by."""
    try:
        epsilon, rounds = plan["privacy"]["epsilon"], plan["method"]["rounds"]
        words = (plan["name"], plan["model"]["name"], plan["privacy"]["mechanism"])
    except (KeyError, TypeError):
        return False
    number = epsilon is None or (isinstance(epsilon, int | float) and not isinstance(epsilon, bool) and epsilon > 0)
    return number and isinstance(rounds, int) and all(isinstance(w, str) for w in words)


def _own_code(ask: Ask, plan: Plan | None) -> bool:
    """Whether code would have to be imported that a message names: never done."""
    if plan is not None and is_path(str(plan["model"]["name"])):
        return True
    if ask.task != PREPARE:
        return False
    try:
        return is_path(str(json.loads(str(ask.shared["spec"]))["name"]))
    except (KeyError, TypeError, ValueError):
        return False  # no spec at all: the host refuses it


def _check(policy: Policy, where: str) -> None:
    """Words that mean nothing are refused: a policy that forbids 'modle' forbids nothing."""
    reports = {name for t in SPECS.values() for r in t.reports for name in (r, f"{t.name}.{r}")}
    for part, listed, known in (
        ("tasks", policy.tasks, set(SPECS)),
        ("reports", policy.reports, reports),
    ):
        words = (*listed.deny, *(() if isinstance(listed.allow, str) else listed.allow))
        odd = next((word for word in words if word not in known), None)
        if odd is not None:
            raise BadInput(f"{where} [{part}] lists '{odd}'; {nearest(odd, sorted(known))}")
    if policy.secure.largest_weight > 1 or policy.privacy.delta >= 1:
        raise BadInput(f"{where}: largest_weight and delta are shares of 1")
    if policy.secure.fewest < Secure.fewest:
        raise BadInput(
            f"{where} [secure] fewest is {policy.secure.fewest}; give {Secure.fewest} or more: "
            "a sum of two tells each of them the other's values"
        )
    odd = next((p for p in policy.runs.plans if len(p) != 64 or set(p) - set("0123456789abcdef")), None)
    if odd is not None:
        raise BadInput(f"{where} [runs] plans lists '{odd}', which is no digest: `rounds site policy` prints a plan's")
