"""A site's own policy: allowed runs, tasks and reports, smallest cells, and requirements of secure aggregation and privacy.

The policy is checked before an Ask is processed (`refuses`) and again before an answer leaves (`trim`). It refuses with a
fixed code. It has no state: the site budget knows what was spent.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from grandrounds.capabilities.hospital.keeper.policy.file import parse_objectives, parse_section
from grandrounds.capabilities.hospital.keeper.policy.small_cells import without_figures, without_small_cells
from grandrounds.capabilities.statistics.methods.exchange import ExactMethod
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan import PlanValues
from grandrounds.core.plugins import is_path, unlisted
from grandrounds.experiment.checks.privacy import has_accounting
from grandrounds.methods import METHODS
from grandrounds.protocol.messages import USE_PERSONAL, Ask, Payload
from grandrounds.protocol.task_spec import FIGURE, MODEL, REASONS, SUMMARY, WORDS, TaskSpec
from grandrounds.protocol.tasks import CLOSE, EVALUATE, HELLO, MASKED, MODELS, OPEN, PREPARE, PROPOSE, spec_of, specs

TASK, REPORT, SECURE, PRIVACY = "task-not-allowed", "report-not-allowed", "needs-secure-sum", "needs-privacy"
EPSILON, CELLS, RUN, ROUNDS = "epsilon-too-large", "cells-too-small", "run-not-approved", "too-many-rounds"
HOURS, OWN_CODE, NUMBERS, DAYS = "outside-hours", "own-code-not-allowed", "too-many-numbers", "days-not-allowed"
METHOD = "method-not-allowed"
CODES = (TASK, REPORT, SECURE, PRIVACY, EPSILON, CELLS, RUN, METHOD, ROUNDS, HOURS, OWN_CODE, NUMBERS, DAYS)
"""All codes that a policy refuses with."""

ALL, ANY = "all", "any"
LISTED, TOLD = "listed", "told"
"""Source of the list of peers: the site's own file, or the server."""

DIGEST = "digest"
"""Value of `runs.approve`: no plan is opened whose digest is not listed."""

DP_SGD, CLIENT = "dp-sgd", "client"
_ALWAYS = (HELLO, CLOSE)
_SPARE = 1  # rounds after the last one, in which a run is closed

_FIGURES = (EVALUATE, "figures")
"""Report with a site's own metrics, which every evaluation asks for: it is sent empty where metrics may not leave."""

Listed = str | tuple[str, ...]


@dataclass(frozen=True)
class Runs:
    """Runs that may be opened."""

    allow: Listed = ANY
    methods: Listed = ALL
    approve: str = ANY
    plans: tuple[str, ...] = ()
    cohorts: tuple[str, ...] = ()
    rounds: int = 1000
    refusals: int = 10
    hours: tuple[int, int] = (0, 24)


@dataclass(frozen=True)
class Tasks:
    """Tasks that may be asked."""

    allow: Listed = ALL
    deny: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reports:
    """Reports that may be answered."""

    allow: Listed = ALL
    deny: tuple[str, ...] = ()
    summary: bool = True
    metrics: bool = True
    notes: bool = False


@dataclass(frozen=True)
class Cells:
    """Smallest numbers of patients."""

    smallest: int = 5
    fewest_rows: int = 8


@dataclass(frozen=True)
class Secure:
    """Rules of secure sums: single models, weights and peers."""

    only: bool = False
    largest_weight: float = 0.95
    fewest: int = 3
    peers: str = LISTED


@dataclass(frozen=True)
class Privacy:
    """Requirements of differential privacy."""

    require: bool = False
    exempt: tuple[str, ...] = ()
    epsilon: float = 10.0
    delta: float = 1e-5
    run_epsilon: float = 10.0
    trust_server: bool = False
    honest: int = 0


@dataclass(frozen=True)
class Exact:
    """Limits of exact methods, which send sums over patients."""

    most_ratio: float = 1.0
    most_ratio_clear: float = 0.33
    least: int = 2
    days: bool = False


@dataclass(frozen=True)
class Policy:
    """All sections of a policy file."""

    runs: Runs = Runs()
    tasks: Tasks = Tasks()
    reports: Reports = Reports()
    cells: Cells = Cells()
    secure: Secure = Secure()
    privacy: Privacy = Privacy()
    exact: Exact = Exact()
    objectives: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Policy:
        """Load a policy file.

        Args:
            path: The file.

        Returns:
            The policy.

        Raises:
            BadInput: It cannot be read, or has an unknown key, which may have been meant to forbid something.
        """
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as e:
            reason = getattr(e, "strerror", None) or "not UTF-8 text"
            raise BadInput(
                f"the policy {path} cannot be read: {reason}; without a policy nothing is answered", code="cannot-read"
            ) from None
        return cls.parse(text, where=str(path))

    @classmethod
    def parse(cls, text: str, *, where: str = "the policy") -> Policy:
        """Parse the text of a policy file.

        Args:
            text: The content.
            where: Name of the file for errors.

        Returns:
            The policy.

        Raises:
            BadInput: The text is not TOML, or has an unknown key or value.
        """
        try:
            sections = tomllib.loads(text)
        except tomllib.TOMLDecodeError as e:
            raise BadInput(
                f"{where} is not valid TOML ({e}): correct it; without a policy nothing is answered", code="not-toml"
            ) from None
        kinds: dict[str, Any] = {"runs": Runs, "tasks": Tasks, "reports": Reports, "cells": Cells}
        kinds |= {"secure": Secure, "privacy": Privacy, "exact": Exact}
        objectives = parse_objectives(sections.pop("objectives", {}), f"{where} [objectives]")
        odd = next((name for name in sections if name not in kinds), None)
        if odd is not None:
            raise BadInput(f"unknown section '{odd}' in {where}; {nearest(odd, [*kinds, 'objectives'])}", code="unknown-section")
        policy = cls(
            **{name: parse_section(kind, sections.get(name, {}), f"{where} [{name}]") for name, kind in kinds.items()},
            objectives=objectives,
        )
        _check(policy, where)
        return policy

    def requires_privacy(self, plan: PlanValues | None) -> bool:
        """Check whether a plan needs differential privacy here: `privacy.require`, unless its method is exempt."""
        return self.privacy.require and (plan is None or method_name(plan) not in self.privacy.exempt)

    def withheld_splits(self, plan: PlanValues) -> tuple[str, ...]:
        """Return the splits about which a host reports nothing in an evaluation, whatever the plan says."""
        return ("train", "val") if self.requires_privacy(plan) else ()

    def refuses(
        self, ask: Ask, plan: PlanValues | None, *, rows: int | None = None, now: datetime | None = None
    ) -> str:
        """Return the code with which an Ask is refused, the first of `refusals`; empty if it is allowed."""
        return next(iter(self.refusals(ask, plan, rows=rows, now=now)), "")

    def refusals(
        self, ask: Ask, plan: PlanValues | None, *, rows: int | None = None, now: datetime | None = None
    ) -> tuple[str, ...]:
        """Return the codes of all rules that refuse an Ask; none if it is allowed.

        Args:
            ask: The Ask.
            plan: The plan of its run; None if there is none.
            rows: Number of training rows of the site, if known.
            now: Time of day; the current time by default.

        Returns:
            The codes, each once.
        """
        if ask.task in _ALWAYS:
            return ()
        if plan is not None and not is_plan(plan):
            return (RUN,)
        withheld = tuple(r for r in ask.withheld if r in ask.report)
        refused = (
            (TASK, not self.allows_task(ask.task)),
            (HOURS, not self._in_hours(now or datetime.now())),
            (ROUNDS, ask.round > self.runs.rounds + _SPARE),
            (RUN, plan is not None and not self._approves(plan, "" if ask.id is None else ask.id.run)),
            (METHOD, plan is not None and not self.allows_method(plan)),
            (ROUNDS, plan is not None and self._has_too_many_rounds(plan)),
            (DAYS, plan is not None and not self.exact.days and _counts_days(plan)),
            (CELLS, plan is not None and smallest_cell(plan) < self.exact.least),
            (CELLS, plan is not None and smallest_in_the_clear(plan) < self.cells.smallest),
            (EPSILON, plan is not None and self.over_budget(plan)),
            (PRIVACY, plan is not None and self.lacks_privacy_limit(plan)),
            (OWN_CODE, _own_code(ask, plan) or self._refuses_objective(ask, plan)),
            (REPORT, any(not self.allows_report(ask.task, r) for r in ask.report)),
            (REPORT, not _has_noise(ask, plan) and any(self.needs_noise(ask.task, r) for r in ask.report if r not in withheld)),
            (SECURE, any(self.needs_secure_sum(ask.task, r) for r in ask.report if r not in withheld)),
            (CELLS, spec_of(ask.task).is_learning and rows is not None and rows < self.cells.fewest_rows),
            (PRIVACY, self.requires_privacy(plan) and ask.task != OPEN and not is_private(ask, plan)),
        )
        return tuple(dict.fromkeys(code for code, no in refused if no))

    def trim(self, ask: Ask, values: Payload, *, rows: Mapping[str, int] | None = None) -> Payload:
        """Return an answer as it may leave: without counts of fewer patients than allowed, and with empty notes and metrics
        if they are not allowed.

        Args:
            ask: The Ask.
            values: The answer.
            rows: Number of rows for train, val and test.

        Returns:
            The answer.
        """
        trimmed = without_small_cells(ask.task, values, self.cells.smallest, rows)
        if not self.reports.notes and "notes" in trimmed:
            trimmed = {**trimmed, "notes": "[]"}
        if not self.reports.metrics and ask.task == _FIGURES[0]:
            trimmed = without_figures(trimmed, _FIGURES[1])
        return trimmed

    def allows_task(self, task: str) -> bool:
        """Check that a task is known, listed and not denied."""
        is_known = task in specs() and task not in self.tasks.deny
        return is_known and (task == OPEN or self.tasks.allow == ALL or task in self.tasks.allow)

    def allows_report(self, task: str, report: str) -> bool:
        """Check that a report of a task is known, listed and not denied."""
        spec, names = spec_of(task).reports.get(report), {report, f"{task}.{report}"}
        if spec is None or names & set(self.reports.deny) or (spec.kind == SUMMARY and not self.reports.summary):
            return False
        return self.reports.allow == ALL or bool(names & set(self.reports.allow))

    def is_emptied(self, task: str, report: str) -> bool:
        """Check whether a report is sent without values: notes, and the metrics of an evaluation, where they may not leave."""
        spec = spec_of(task).reports.get(report)
        if (task, report) == _FIGURES:
            return not self.reports.metrics
        return spec is not None and spec.kind == WORDS and not self.reports.notes

    def needs_noise(self, task: str, report: str) -> bool:
        """Check whether a report is a metric or an explanation of this site that may leave with noise only."""
        spec = spec_of(task).reports.get(report)
        if self.reports.metrics or spec is None or (task, report) == _FIGURES:
            return False
        return spec.kind in (FIGURE, REASONS)

    def needs_secure_sum(self, task: str, report: str) -> bool:
        """Check whether a report may leave in a secure sum only."""
        spec = spec_of(task).reports.get(report)
        return self.secure.only and spec is not None and spec.is_summable

    def over_budget(self, plan: PlanValues) -> bool:
        """Check whether a plan would spend more than one run may."""
        planned = plan["privacy"]["epsilon"]
        return planned is not None and bool(planned > min(self.privacy.run_epsilon, self.privacy.epsilon))

    def lacks_privacy_limit(self, plan: PlanValues) -> bool:
        """Check whether a plan has no privacy limit although one is required."""
        return self.requires_privacy(plan) and plan["privacy"]["epsilon"] is None

    def allows_method(self, plan: PlanValues) -> bool:
        """Check that a plan's method is named in `runs.methods`."""
        return self.runs.methods == ALL or method_name(plan) in self.runs.methods

    def allows_run(self, plan: PlanValues, run: str = "") -> bool:
        """Check that a run of this name, or of this plan's, is allowed."""
        return self.runs.allow == ANY or bool({run, str(plan["name"])} & set(self.runs.allow))

    def allows_cohort(self, plan: PlanValues) -> bool:
        """Check that a plan's cohort is approved; any is while `runs.cohorts` is empty."""
        return not self.runs.cohorts or cohort_digest(plan) in self.runs.cohorts

    def approves_plan(self, plan: PlanValues) -> bool:
        """Check that a plan is approved by its digest; with `runs.approve = "any"` every plan is while none is listed."""
        if not self.runs.plans and self.runs.approve != DIGEST:
            return True
        return plan_digest(plan) in self.runs.plans

    def _approves(self, plan: PlanValues, run: str) -> bool:
        return self.allows_run(plan, run) and self.allows_cohort(plan) and self.approves_plan(plan)

    def _refuses_objective(self, ask: Ask, plan: PlanValues | None) -> bool:
        """Check whether the plan or the Ask names a local objective that is not listed, or not installed as listed."""
        train = {} if plan is None else plan.get("train", {})
        named = {train.get("objective") if isinstance(train, Mapping) else None, ask.shared.get("objective")} - {None, ""}
        return any(unlisted(str(name), self.objectives) for name in named)

    def _has_too_many_rounds(self, plan: PlanValues) -> bool:
        return int(plan["method"]["rounds"]) > self.runs.rounds

    def sends_too_many(self, numbers: int, *, held: int, masked: bool) -> bool:
        """Check whether an exact method would send too many numbers: a sum of few people is those people, masked or not.

        Args:
            numbers: Numbers that the site has sent in this run, with those of the Ask.
            held: Rows of all sites times columns.
            masked: The sums leave by secure aggregation.

        Returns:
            True if the ratio exceeds `exact.most_ratio`, or `exact.most_ratio_clear` without secure aggregation.
        """
        return numbers > (self.exact.most_ratio if masked else self.exact.most_ratio_clear) * held

    def _in_hours(self, now: datetime) -> bool:
        first, last = self.runs.hours
        if first <= last:
            return first <= now.hour < last
        return now.hour >= first or now.hour < last


def plan_digest(plan: PlanValues) -> str:
    """Return the SHA-256 of a plan's JSON with sorted keys and no spaces, by which a site approves it."""
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_private(ask: Ask, plan: PlanValues | None) -> bool:
    """Check that the answer to an Ask discloses nothing about training or validation rows without noise.

    This is the policy's decision from the Ask alone, before any work. In addition the site's account charges the answer
    (`keeper/accounting`) and remembers withheld reports. Together they release nothing that is not charged.

    Args:
        ask: The Ask.
        plan: The plan of the run; None before a run is opened.

    Returns:
        True if every report has noise, is withheld for a secure sum, or discloses nothing about these rows.
    """
    spec = spec_of(ask.task)
    if spec.is_raw or ask.shared.get(USE_PERSONAL) or any(r in spec.reports and spec.reports[r].is_raw for r in ask.report):
        return False
    mechanism = "none" if plan is None else str(plan["privacy"]["mechanism"])
    if spec.is_training:
        return _training(ask, spec, mechanism)
    noised = any(_above_zero(ask, name) for name in spec.noised_by)
    if ask.task == PROPOSE:
        return noised and str(ask.shared.get("selection")) != "paper"
    if ask.task == MASKED:
        of_models = str(ask.shared.get("tag", "")).split(" ")[0] == MODELS
        return noised or not of_models or mechanism == DP_SGD
    withheld = bool(ask.report) and all(r in ask.withheld for r in ask.report)
    return noised or withheld or not spec.noised_by


def _has_noise(ask: Ask, plan: PlanValues | None) -> bool:
    """Check that the plan has a privacy budget, and that the answer to an Ask has noise or is computed from such answers."""
    return plan is not None and plan["privacy"]["epsilon"] is not None and is_private(ask, plan)


def _training(ask: Ask, spec: TaskSpec, mechanism: str) -> bool:
    """Accept DP-SGD at the site, or a clipped update that a secure sum adds noise to. A server's own noise is not accepted.
    """
    if {"shap", "trust"} & set(ask.report) and not (
        ask.shared.get("attribute_on", "") and ask.shared.get("attribute_judged", "-")
    ):
        return False  # attributions or accuracy on own rows
    if mechanism == DP_SGD:
        return all(_above_zero(ask, name) for name in ("rate", "noise", "clip"))
    released = {r for r in ask.report if r in spec.reports and spec.reports[r].kind == MODEL}
    return mechanism == CLIENT and _above_zero(ask, "longest") and released <= set(ask.withheld)


def _above_zero(ask: Ask, name: str) -> bool:
    value = ask.shared.get(name, 0.0)
    return isinstance(value, int | float) and value > 0


def is_plan(plan: PlanValues) -> bool:
    """Check that a plan has the settings that a policy uses."""
    try:
        epsilon, rounds = plan["privacy"]["epsilon"], plan["method"]["rounds"]
        words = (plan["name"], plan["model"]["name"], plan["privacy"]["mechanism"])
    except (KeyError, TypeError):
        return False
    number = epsilon is None or (isinstance(epsilon, int | float) and not isinstance(epsilon, bool) and epsilon > 0)
    return number and isinstance(rounds, int) and all(isinstance(w, str) for w in words)


def method_name(plan: PlanValues) -> str:
    """Return the name of a plan's method; "" without one."""
    return str(plan["method"].get("name", ""))


def _counts_days(plan: PlanValues) -> bool:
    """Check whether a plan asks for sums at every event time."""
    method = plan["method"]
    exact = method.get("exact", {}) if isinstance(method, Mapping) else {}
    return isinstance(exact, Mapping) and exact.get("baseline") == "days" and str(method["name"]) in ("cox", "survival")


def smallest_cell(plan: PlanValues) -> float:
    """Return the fewest patients, over all hospitals, in a level, a time interval or a leaf of a plan's exact method."""
    method = plan["method"]
    if exact_method(plan) is None:
        return math.inf
    sections = [method.get("exact", {}), method.get("trees", {}) if method["name"] == "trees" else {}]
    numbers = [s.get("least") for s in sections if isinstance(s, Mapping)]
    return min((n for n in numbers if isinstance(n, int | float)), default=math.inf)


def cohort_digest(plan: PlanValues) -> str:
    """Return the digest of a plan's cohort, "" without one; the keeper checks that it is that of the definition."""
    cohort = plan["data"].get("cohort")
    return str(cohort.get("digest", "")) if isinstance(cohort, Mapping) else ""


def smallest_in_the_clear(plan: PlanValues) -> float:
    """Return the smallest count of patients that a watch or method 'quality' sends in the clear.

    It is infinite for other plans, and for counts that are masked or have noise.
    """
    method, privacy = plan["method"], plan["privacy"]
    name = method.get("name")
    if name not in ("watch", "quality") or privacy.get("secure") or privacy["epsilon"] is not None:
        return math.inf
    least = method.get(name, {}).get("least")
    return least if isinstance(least, int | float) else 0


def exact_method(plan: PlanValues) -> type[ExactMethod] | None:
    """Return the class of a built-in exact method; code that a plan names is not imported."""
    method = METHODS.get(str(plan["method"].get("name", "")))
    return method if method is not None and issubclass(method, ExactMethod) else None


def _own_code(ask: Ask, plan: PlanValues | None) -> bool:
    """Check whether a message names code to import, which a site never does."""
    if plan is not None and is_path(str(plan["model"]["name"])):
        return True
    if ask.task != PREPARE:
        return False
    try:
        return is_path(str(json.loads(str(ask.shared["spec"]))["name"]))
    except (KeyError, TypeError, ValueError):
        return False  # no spec at all: the host refuses it


def _check(policy: Policy, where: str) -> None:
    """Refuse unknown words: a policy that forbids 'modle' forbids nothing."""
    reports = {name for t in specs().values() for r in t.reports for name in (r, f"{t.name}.{r}")}
    for part, listed, valid in (
        ("tasks", policy.tasks, set(specs())),
        ("reports", policy.reports, reports),
    ):
        words = (*listed.deny, *(() if isinstance(listed.allow, str) else listed.allow))
        odd = next((word for word in words if word not in valid), None)
        if odd is not None:
            raise BadInput(f"{where} [{part}] lists '{odd}'; {nearest(odd, sorted(valid))}", code="bad-policy-value")
    _check_methods(policy, where)
    if policy.secure.largest_weight > 1 or policy.privacy.delta >= 1:
        raise BadInput(f"{where}: largest_weight and delta must be between 0 and 1", code="bad-policy-value")
    if policy.secure.fewest < Secure.fewest:
        raise BadInput(
            f"{where} [secure] fewest is {policy.secure.fewest}; give {Secure.fewest} or more: in a sum of two each site "
            "learns the other's values",
            code="bad-policy-value",
        )
    for key, digests, command in (
        ("plans", policy.runs.plans, "`rounds site policy` prints a plan's digest"),
        ("cohorts", policy.runs.cohorts, "`rounds cohort check` prints a cohort's digest"),
    ):
        odd = next((p for p in digests if len(p) != 64 or set(p) - set("0123456789abcdef")), None)
        if odd is not None:
            raise BadInput(
                f"{where} [runs] {key} lists '{odd}', which is not a digest: {command}", code="bad-policy-value"
            )


def _check_methods(policy: Policy, where: str) -> None:
    """Refuse names of methods that do not exist, and exemptions of methods that have differential privacy."""
    for key, names in (("[runs] methods", policy.runs.methods), ("[privacy] exempt", policy.privacy.exempt)):
        odd = next((name for name in names if name not in METHODS), None) if names != ALL else None
        if odd is not None:
            raise BadInput(f"{where} {key} lists '{odd}'; {nearest(odd, sorted(METHODS))}", code="bad-policy-value")
    private = next((name for name in policy.privacy.exempt if has_accounting(name)), None)
    if private is not None:
        raise BadInput(
            f"{where} [privacy] exempt lists '{private}', which has differential privacy: remove it there, and let plans set "
            "privacy.epsilon",
            code="bad-policy-value",
        )
