"""Sentences about a policy for a site's staff: its rules, and what to change where it refuses a part of a plan."""

from __future__ import annotations

import math

from grandrounds.capabilities.hospital.keeper.codes import SENTENCES
from grandrounds.capabilities.hospital.keeper.policy import rules
from grandrounds.capabilities.hospital.keeper.policy.rules import ALL, ANY, DIGEST, LISTED, Policy
from grandrounds.core.plan import PlanValues
from grandrounds.core.plan_types import Plan
from grandrounds.experiment.checks.privacy import has_accounting
from grandrounds.protocol.task_spec import KINDS, NOTHING, SUMMARY, WORDS
from grandrounds.protocol.tasks import spec_of, specs

_COLUMNS = 20  # inputs of the table for which `foresee_ratio` counts

MEANS = {
    rules.TASK: "the policy does not allow this task: remove it from tasks.deny of policy.toml, or add it to tasks.allow, or "
    "change the setting of the plan that asks for it (docs/releases.md)",
    rules.REPORT: "the policy does not allow these reports: change reports.allow or reports.deny of policy.toml, or the setting "
    "of the plan that asks for them (docs/releases.md)",
    rules.SECURE: "only secure sums may leave: set privacy.secure = true in the plan, or secure.only = false in policy.toml",
    rules.PRIVACY: "differential privacy is required: set privacy.epsilon and privacy.mechanism = 'dp-sgd' with "
    "data.encoding = 'public' in the plan",
    rules.EPSILON: "the plan's epsilon exceeds the limit of one run: lower privacy.epsilon in the plan, or raise "
    "privacy.run_epsilon in policy.toml",
    rules.CELLS: "too few patients",
    rules.RUN: "the run, its plan or its cohort is not approved (runs.allow, runs.plans and runs.cohorts in policy.toml)",
    rules.METHOD: "the method is not named: add it to runs.methods in policy.toml, or use one of those methods in the plan",
    rules.ROUNDS: "more rounds than allowed: lower method.rounds in the plan, or raise runs.rounds in policy.toml",
    rules.HOURS: "outside the working hours (runs.hours in policy.toml): submit the run within them",
    rules.NUMBERS: "an exact method would send more numbers, relative to the numbers held, than exact.most_ratio of policy.toml "
    "allows",
    rules.DAYS: "sums by the day of an event disclose single patients: set method.exact.baseline = 'grid' in the plan, or "
    "exact.days = true in policy.toml",
    rules.OWN_CODE: "the plan names code that this site does not import: use a model of the package; a local objective must be "
    "listed under [objectives] in policy.toml",
}
"""Explanation of each code and what to change, for the site's staff."""


def explain_code(code: str) -> str:
    """Explain a refusal code without a plan; the code itself where it is unknown."""
    return MEANS.get(code) or SENTENCES.get(code, code)


def explain_refusal(policy: Policy, plan: PlanValues, code: str, task: str, reports: str = "") -> str:
    """Explain why a policy refuses a part of a plan, with the values of both, and say what to change and where.

    Args:
        policy: The policy.
        plan: The plan.
        code: The code of the refusal.
        task: The refused task.
        reports: The refused reports, separated by commas; empty for all of them.

    Returns:
        A sentence.
    """
    method, privacy, limits = rules.method_name(plan), plan["privacy"], policy.privacy
    match code:
        case rules.RUN:
            return _not_approved(policy, plan)
        case rules.METHOD:
            also = " and, as it has no differential privacy, to privacy.exempt"
            where = "there" if has_accounting(method) or not limits.require else f"there{also}"
            return f"method '{method}' is not in runs.methods of policy.toml: add it {where}, or use another method in the plan"
        case rules.ROUNDS:
            return f"the plan has {plan['method']['rounds']} rounds, and runs.rounds is {policy.runs.rounds}: {_fix(code)}"
        case rules.EPSILON:
            limit = min(limits.run_epsilon, limits.epsilon)
            return f"privacy.epsilon is {privacy['epsilon']:g}, and one run may spend {limit:g}: {_fix(code)}"
        case rules.PRIVACY if not has_accounting(method):
            return (
                f"differential privacy is required, and method '{method}' has none: add it to privacy.exempt in policy.toml, or "
                "use another method in the plan"
            )
        case rules.PRIVACY if privacy["epsilon"] is not None:
            return (
                "without noise this discloses training or validation patients: change the setting of the plan that asks for it "
                "(docs/privacy.md#settings-that-a-budget-refuses)"
            )
        case rules.SECURE if privacy.get("secure"):
            return (
                "only secure sums may leave, and this leaves alone although privacy.secure is set: change the setting of the "
                "plan that asks for it, or set secure.only = false in policy.toml"
            )
        case rules.CELLS:
            return _few_patients(policy, plan)
        case rules.REPORT:
            return _refused_reports(policy, task, reports)
    return MEANS[code]


def _fix(code: str) -> str:
    """Return the second half of an explanation: what to change."""
    return MEANS[code].split(": ", 1)[1]


def _not_approved(policy: Policy, plan: PlanValues) -> str:
    """Say which of the three lists lacks the plan."""
    if not policy.allows_run(plan):
        return f"'{plan['name']}' is not in runs.allow of policy.toml: add it there, or submit the run with a name that is"
    if not policy.allows_cohort(plan):
        cohort = rules.cohort_digest(plan)[:12] or "(none)"
        return f"the plan's cohort {cohort} is not in runs.cohorts of policy.toml: add its digest there"
    return "the plan is not approved: `rounds site approve FOLDER plan.json` adds its digest to runs.plans of policy.toml"


def _few_patients(policy: Policy, plan: PlanValues) -> str:
    """Say which smallest number of the plan is too small."""
    cell, shown = rules.smallest_cell(plan), rules.smallest_in_the_clear(plan)
    if cell < policy.exact.least:
        part = "trees" if rules.method_name(plan) == "trees" else "exact"
        return (
            f"cells of {cell:g} patients over all sites, and exact.least is {policy.exact.least}: raise method.{part}.least "
            "in the plan, or lower exact.least in policy.toml"
        )
    if shown < policy.cells.smallest:
        return (
            f"counts of {shown:g} patients in the clear, and cells.smallest is {policy.cells.smallest}: raise "
            f"method.{rules.method_name(plan)}.least in the plan, or set privacy.secure = true there"
        )
    return f"the site has fewer training rows than cells.fewest_rows = {policy.cells.fewest_rows} of policy.toml"


def _refused_reports(policy: Policy, task: str, reports: str) -> str:
    """Say which rule refuses reports of a task."""
    specs = spec_of(task).reports
    named = [r for r in specs if not reports or r in reports.split(", ")]
    if not policy.reports.summary and any(specs[r].kind == SUMMARY for r in named):
        fix = "set data.encoding = 'public' in the plan, or reports.summary = true in policy.toml"
        return f"summaries of columns may not leave: {fix}"
    if any(policy.needs_noise(task, r) for r in named):
        return (
            "metrics and explanations of one site may not leave without noise: set explain.sketch = 'none' in the plan, or "
            "whichever setting asks for them (docs/releases.md), or reports.metrics = true in policy.toml"
        )
    return MEANS[rules.REPORT]


def describe_policy(policy: Policy) -> list[str]:
    """Describe the rules of a policy, one sentence in a line."""
    runs, cells, secure, privacy = policy.runs, policy.cells, policy.secure, policy.privacy
    named = "any run" if runs.allow == ANY else f"runs named {_listed(runs.allow)}"
    plans = f", only with {len(runs.plans)} approved plan(s)" if runs.plans or runs.approve == DIGEST else ""
    plans += f", only with {len(runs.cohorts)} approved cohort(s)" if runs.cohorts else ""
    hours = "at any hour" if runs.hours == (0, 24) else f"from {runs.hours[0]}:00 to {runs.hours[1]}:00"
    lines = [f"opens {named}{plans}, of at most {runs.rounds} rounds, {hours}"]
    if runs.methods != ALL:
        lines.append(f"opens plans of these methods only: {_listed(runs.methods)}")
    tasks = [t for t in specs() if policy.allows_task(t)]
    no = [t for t in specs() if t not in tasks]
    lines.append(f"performs {len(tasks)} of {len(specs())} tasks" + (f", never: {', '.join(no)}" if no else ""))
    for kind in KINDS:
        if kind == NOTHING:
            continue
        pairs = [(t, r.name) for t in tasks for r in spec_of(t).reports.values() if r.kind == kind]
        reports = [f"{t}.{r}" for t, r in pairs if policy.allows_report(t, r)]
        if kind == WORDS and not policy.reports.notes:
            reports = []  # asked for, and sent empty
        masked = " (by secure aggregation only)" if pairs and all(policy.needs_secure_sum(t, r) for t, r in pairs) else ""
        noisy = " (with differential privacy only)" if any(policy.needs_noise(t, r) for t, r in pairs) else ""
        if noisy:
            reports = [f"{t}.{r}" for t, r in pairs if policy.needs_noise(t, r) and not spec_of(t).reports[r].is_raw]
        lines.append(f"discloses {kind}{masked}{noisy}: {', '.join(reports) or 'never'}")
    lines.append(
        f"names no category, subgroup or quantile cell of fewer than {cells.smallest} patients, and trains with "
        f"{cells.fewest_rows} rows or more"
    )
    lines.append(f"takes part in secure sums with a share of at most {secure.largest_weight:g}")
    who = "sites that peers.json lists" if secure.peers == LISTED else "any site that the server names (secure.peers)"
    lines.append(f"joins secure sums with {who}, of at least {secure.fewest} sites")
    lines.append(
        f"{'requires differential privacy' if privacy.require else 'does not require differential privacy'}; all runs together "
        f"may spend epsilon {privacy.epsilon:g} at delta {privacy.delta:g}, one run {privacy.run_epsilon:g}"
    )
    if privacy.require and privacy.exempt:
        lines.append(f"requires no differential privacy of these methods, which have none: {_listed(privacy.exempt)}")
    exact = policy.exact
    lines.append(
        f"sends in exact methods at most {exact.most_ratio:g} numbers per number held ({exact.most_ratio_clear:g} without secure "
        f"aggregation); sums by the day of an event: {'allowed' if exact.days else 'never'}"
    )
    lines.append(f"answers exact methods whose levels, intervals and leaves have {exact.least} patients or more over all sites")
    if policy.objectives:
        lines.append(f"imports local objectives of modules {', '.join(sorted(policy.objectives))}, by their SHA-256")
    return lines


def foresee_ratio(policy: Policy, plan: PlanValues) -> str:
    """Describe how many sums an exact method sends, and below how many rows the policy refuses it.

    Args:
        policy: The policy.
        plan: The plan.

    Returns:
        A sentence for the site's staff; empty if the method sends few numbers or is not an exact one.
    """
    method = rules.exact_method(plan)
    numbers = None if method is None else method.foresee_numbers(Plan(plan).method, _COLUMNS)
    if method is None or numbers is None:
        return ""
    masked = bool(plan["privacy"]["secure"])
    key, ratio = ("most_ratio", policy.exact.most_ratio) if masked else ("most_ratio_clear", policy.exact.most_ratio_clear)
    rows = math.ceil(numbers / (max(ratio, 1e-9) * _COLUMNS))
    return (
        f"method '{method.name}' sends at least {numbers:,} numbers for a table of {_COLUMNS} inputs; with exact.{key} = "
        f"{ratio:g} this site refuses it if all sites together have fewer than {rows:,} training rows"
    )


def _listed(words: str | tuple[str, ...]) -> str:
    return words if isinstance(words, str) else ", ".join(words)
