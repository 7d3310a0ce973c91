"""Approval of a plan by a hospital: what the plan sends, and its digest in policy.toml, whose comments stay as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from grandrounds.capabilities.hospital.keeper.policy import rules
from grandrounds.capabilities.hospital.keeper.policy.describe import explain_refusal
from grandrounds.capabilities.hospital.keeper.policy.questions import refused_requests
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy, plan_digest
from grandrounds.core.arrays import write_atomic
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import PlanValues
from grandrounds.experiment.requests import expected_asks
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.task_spec import CHARGED, EMPTY, NOTHING, ReportSpec
from grandrounds.protocol.tasks import spec_of

MASKED, NOISY, BOTH, CLEAR = "in secure sums", "with noise", "in secure sums, with noise", "as it is"
"""Ways in which data leave a site, as `rounds site approve` prints them."""

_LONGEST_NAME = 60


@dataclass(frozen=True)
class Review:
    """A plan before its approval.

    Attributes:
        plan: The plan.
        digest: Its digest.
        refusals: Explanations of all that the policy would refuse although the plan were approved.
    """

    plan: PlanValues
    digest: str
    refusals: tuple[str, ...]

    @classmethod
    def of(cls, policy: Policy, plan: PlanValues) -> Review:
        """Compare a plan with a policy, as if the plan were approved already."""
        digest = plan_digest(plan)
        approved = replace(policy, runs=replace(policy.runs, plans=(*policy.runs.plans, digest)))
        refusals = (
            f"{task}{f' ({reports})' if reports else ''}: {explain_refusal(approved, plan, code, task, reports)}"
            for code, task, reports in refused_requests(approved, plan)
        )
        return cls(plan, digest, tuple(refusals))

    def lines(self, policy: Policy) -> list[str]:
        """Describe in plain words what a run of the plan does, and what leaves the site."""
        method, privacy = self.plan["method"], self.plan["privacy"]
        lines = [
            f"plan {_printable(str(self.plan['name']))}: method {rules.method_name(self.plan)}, model "
            f"{self.plan['model']['name']}, at most {method['rounds']} rounds",
            f"digest {self.digest}",
        ]
        if privacy["epsilon"] is None:
            lines.append("no differential privacy: no bound on what can be learnt about a patient")
        else:
            lines.append(
                f"differential privacy: epsilon {privacy['epsilon']:g} at delta {privacy['delta']:g}, of the site budget of "
                f"{policy.privacy.epsilon:g}"
            )
        for (kind, way), reports in disclosures(policy, self.plan).items():
            lines.append(f"would leave {way}: {kind} ({', '.join(reports)})")
        return lines


def disclosures(policy: Policy, plan: PlanValues) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """List the data that a run of a plan sends from a site.

    Args:
        policy: The policy, which empties some reports.
        plan: The plan.

    Returns:
        Reports by kind of disclosure and way (`MASKED`, `NOISY`, `BOTH`, `CLEAR`); those that disclose nothing are left out.
    """
    found: dict[tuple[str, str], dict[str, None]] = {}
    for ask in expected_asks(plan):
        for name in ask.report:
            report = spec_of(ask.task).reports[name]
            if report.kind != NOTHING and not _is_empty(policy, plan, ask, report):
                found.setdefault((report.kind, _way(plan, ask, report)), {})[f"{ask.task}.{name}"] = None
    return {key: tuple(reports) for key, reports in found.items()}


def _is_empty(policy: Policy, plan: PlanValues, ask: Ask, report: ReportSpec) -> bool:
    """Check whether a report is sent without values."""
    if policy.is_emptied(ask.task, report.name):
        return True
    return report.release.kind == EMPTY and plan["privacy"]["epsilon"] is not None


def _way(plan: PlanValues, ask: Ask, report: ReportSpec) -> str:
    noisy = plan["privacy"]["epsilon"] is not None and report.release.kind == CHARGED
    if report.name in ask.withheld:
        return BOTH if noisy else MASKED
    return NOISY if noisy else CLEAR


def approve(path: Path, plan: PlanValues, *, by: str = "", today: date | None = None) -> bool:
    """Add the digest of a plan to `runs.plans` of a policy file; the rest of the file stays as it is.

    Args:
        path: The policy file.
        plan: The plan.
        by: The person who approves it, for the comment beside the digest.
        today: The day of the approval; the current one by default.

    Returns:
        False if the digest was listed already.

    Raises:
        BadInput: The file cannot be read or written, or its list has a form in which the digest must be added by hand.
    """
    before = Policy.load(path)
    digest = plan_digest(plan)
    if digest in before.runs.plans:
        return False
    day = (today or date.today()).isoformat()
    comment = f"{_printable(str(plan['name']))}, approved {day}{f' by {_printable(by)}' if by else ''}"
    text = _add(path.read_text("utf-8"), f'  "{digest}",  # {comment}\n')
    after = replace(before, runs=replace(before.runs, plans=(*before.runs.plans, digest)))
    try:
        written = Policy.parse(text)
    except BadInput:
        written = before
    if written != after:
        raise BadInput(f'{path}: add "{digest}" to plans in [runs] by hand', code="unusual-policy-file")
    try:
        write_atomic(path, text.encode())
    except OSError as e:
        raise BadInput(f"{path} cannot be written: {e.strerror or e}", code="cannot-write") from None
    return True


def _add(text: str, line: str) -> str:
    """Add a line to the list `plans` of section [runs]; the caller checks the result."""
    section = re.search(r"(?m)^[ \t]*\[runs\].*\n?", text)
    if section is None:
        return f"{text.rstrip()}\n\n[runs]\nplans = [\n{line}]\n".lstrip()
    following = re.compile(r"(?m)^[ \t]*\[").search(text, section.end())
    until = len(text) if following is None else following.start()
    key = re.compile(r"(?m)^[ \t]*plans[ \t]*=[ \t]*\[").search(text, section.end(), until)
    if key is None:
        return f"{text[: section.end()].rstrip()}\nplans = [\n{line}]\n{text[section.end() :]}"
    end, last = _end_of_list(text, key.end())
    comma = "" if last in ("", ",") else ","
    items = text[key.end() : end].rstrip()
    if comma and "#" in items.rsplit("\n", 1)[-1]:
        items, comma = f"{items}\n", "  ,"  # after a comment the comma needs a line of its own
    return f"{text[: key.end()]}{items}{comma}\n{line}{text[end:]}"


def _end_of_list(text: str, start: int) -> tuple[int, str]:
    """Find the bracket that closes a list of strings, and the last character before it outside of comments and spaces."""
    last = ""
    for token in re.compile(r"#[^\n]*|\"[^\"\n]*\"|'[^'\n]*'|\]|\S").finditer(text, start):
        if token[0] == "]":
            return token.start(), last
        last = last if token[0].startswith("#") else token[0][-1]
    return len(text), last


def _printable(text: str) -> str:
    """Return a name from a plan as one line that cannot end a comment."""
    return "".join(c for c in text if c.isprintable())[:_LONGEST_NAME]
