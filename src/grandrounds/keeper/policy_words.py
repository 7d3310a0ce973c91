"""A policy in words, for the people whose hospital it binds."""

from __future__ import annotations

from grandrounds.keeper import policy as said
from grandrounds.keeper.policy import Policy
from grandrounds.protocol.task_spec import KINDS, NOTHING, WORDS
from grandrounds.protocol.tasks import SPECS

MEANS = {
    said.TASK: "the policy does not allow this task",
    said.REPORT: "the policy does not allow these reports",
    said.SECURE: "only secure sums may leave (privacy.secure = true in the plan)",
    said.PRIVACY: "differential privacy is required: privacy.epsilon with a mechanism, data.encoding = 'public'",
    said.EPSILON: "the plan's epsilon is above what one run may spend",
    said.CELLS: "too few patients",
    said.RUN: "the run or its plan is not approved (runs.allow, runs.plans)",
    said.ROUNDS: "more rounds than are allowed",
    said.HOURS: "outside the hours in which work is done",
    said.OWN_CODE: "the plan names code to be imported, which is never done for a message",
}
"""What each code tells the site's own people."""


def in_words(policy: Policy) -> list[str]:
    """What is allowed, a sentence a line."""
    runs, cells, secure, privacy = policy.runs, policy.cells, policy.secure, policy.privacy
    named = "any run" if runs.allow == said.ANY else f"runs named {_listed(runs.allow)}"
    plans = f", only with {len(runs.plans)} approved plan(s)" if runs.plans else ""
    hours = "at any hour" if runs.hours == (0, 24) else f"from {runs.hours[0]}:00 to {runs.hours[1]}:00"
    lines = [f"opens {named}{plans}, of at most {runs.rounds} rounds, {hours}"]
    tasks = [t for t in SPECS if policy.allows_task(t)]
    no = [t for t in SPECS if t not in tasks]
    lines.append(f"does {len(tasks)} of {len(SPECS)} tasks" + (f", never: {', '.join(no)}" if no else ""))
    for kind in KINDS:
        if kind == NOTHING:
            continue
        pairs = [(t, r.name) for t in tasks for r in SPECS[t].reports.values() if r.kind == kind]
        told = [f"{t}.{r}" for t, r in pairs if policy.allows_report(t, r)]
        if kind == WORDS and not policy.reports.notes:
            told = []  # asked for, and sent empty
        masked = " (under masks only)" if pairs and all(policy.wants_sum(t, r) for t, r in pairs) else ""
        lines.append(f"tells {kind}{masked}: {', '.join(told) or 'never'}")
    lines.append(
        f"names no category, subgroup or quantile cell of fewer than {cells.smallest} patients, and trains with "
        f"{cells.fewest_rows} rows or more"
    )
    lines.append(f"takes part in secure sums with a share of at most {secure.largest_weight:g}")
    who = "sites that peers.json lists" if secure.peers == said.LISTED else "whoever the server names (secure.peers)"
    lines.append(f"adds up with {who}, in sums of at least {secure.fewest} sites")
    lines.append(
        f"{'requires differential privacy' if privacy.require else 'does not require differential privacy'}; all runs together "
        f"may spend epsilon {privacy.epsilon:g} at delta {privacy.delta:g}, one run {privacy.run_epsilon:g}"
    )
    return lines


def _listed(words: str | tuple[str, ...]) -> str:
    return words if isinstance(words, str) else ", ".join(words)
