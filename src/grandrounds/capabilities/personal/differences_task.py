"""Task 'personal.differences': its reports, and the Asks that a hospital admits."""

from __future__ import annotations

from grandrounds.core.plan_types import Plan
from grandrounds.experiment.checks.privacy import under_budget
from grandrounds.methods.guard.server import is_personal
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.task_spec import (
    FIGURE,
    NOTHING,
    ROWS_COST,
    SUM,
    ReportSpec,
    TaskSpec,
    by_name,
    public,
    refused,
)

PERSONAL_DIFFERENCES = "personal.differences"

SPEC = TaskSpec(
    PERSONAL_DIFFERENCES,
    by_name(
        ReportSpec(
            "sums", SUM,
            refused("gradient and curvature of the common model", "not asked for under a budget"),
            account="sums of a statistic", rows=("train", "val"), is_raw=True, is_masked=True,
        ),
        ReportSpec(
            "tested", NOTHING,
            public("yes: the site tested which columns differ from the common model, and keeps the result"),
        ),
        ReportSpec(
            "differences", FIGURE,
            refused("by column: difference from the common model, its interval and p-value", "stay at sites under a budget"),
            account="differences from the common model", rows=("train", "val"), is_raw=True,
            hidden=(("train", "differences"), ("val", "differences")), nan_columns=("differences",),
        ),
    ),
    asked_by="`personal.differences`",
    cost=ROWS_COST, is_learning=True, per_round=2,
)  # fmt: skip


def reports(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Name the reports of each Ask of a plan: under a budget sites keep their findings."""
    if not plan.personal.differences:
        return ()
    return (("tested",),) if under_budget(plan) else (("sums",), ("tested", "differences"))


def admits(ask: Ask, plan: Plan) -> bool:
    """Check that an Ask has the seed and the rows of the plan, and nothing but the model for one site."""
    if not is_personal(plan) or not ask.names_of_one_site <= {"committed", "model"}:
        return False
    rows = ("train", "validation") if plan.personal.rows == "auto" else (plan.personal.rows,)
    return ask.shared.get("seed") == plan.seed and ask.shared.get("rows") in rows
