"""Task 'gam.counts' of the private additive model: its reports, its privacy cost, and the Asks that a hospital admits."""

from __future__ import annotations

import json

from grandrounds.core.plan_types import Plan
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.task_spec import CELLS, OWN_COST, ReportSpec, TaskSpec, by_name, charged
from grandrounds.site.ask_cost import AskCost, RowCounts, clipped_sum

COUNT_CELLS = "gam.counts"
COUNTS = "counts of patients by bin and outcome"
"""Name of the release in budgets."""

SPEC = TaskSpec(
    COUNT_CELLS,
    by_name(
        ReportSpec(
            "cells", CELLS,
            charged("patients counted by bin and outcome of every column", f"private additive model: `{COUNTS}`"),
            is_masked=True,
        )
    ),
    asked_by="model `gam` with `privacy.epsilon`",
    cost=OWN_COST, noised_by=("noise",), is_round_work=True, is_learning=True, is_payload=True,
)  # fmt: skip


def cost(ask: Ask, rows: RowCounts) -> AskCost:
    """Charge counts by bin and outcome: a patient is in one cell of each named column and in one total, whatever the bins are."""
    from grandrounds.capabilities.statistics.private_scores import count_sensitivity

    return clipped_sum(ask, rows, COUNTS, count_sensitivity(len(json.loads(str(ask.shared["columns"])))))


def admits(ask: Ask, plan: Plan) -> bool:
    """Admit every Ask: its cost is charged by the columns that it names, whatever the plan has."""
    return True
