"""Task 'watch': its reports, its privacy cost, and the Asks that a hospital admits."""

from __future__ import annotations

import math

from grandrounds.core.plan_types import Plan
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.task_spec import CELLS, OWN_COST, ReportSpec, TaskSpec, by_name, charged
from grandrounds.site.ask_cost import ROW_KINDS, AskCost, RowCounts, every_report, number, within

WATCH = "watch"
COUNTS = "counts of new and reference patients in agreed bins"
"""Name of the release in budgets."""

SPEC = TaskSpec(
    WATCH,
    by_name(
        ReportSpec(
            "sums", CELLS,
            charged("new patients against reference patients in agreed bins, and which features moved", f"watch: `{COUNTS}`"),
            is_masked=True,
        )
    ),
    asked_by="`rounds watch`",
    cost=OWN_COST, noised_by=("noise",), is_round_work=True, is_learning=True, is_payload=True,
)  # fmt: skip


def watch_sensitivity(columns: int, *, labels: bool) -> float:
    """Return the largest L2 change by one patient, who may be both a new and a reference patient.

    A patient adds at most one to each histogram: those of columns, scores, explanations, and outcomes with risks.
    """
    return math.sqrt(2 * (columns + 2 + (2 if labels else 0)))


def cost(ask: Ask, rows: RowCounts) -> AskCost:
    """Charge counts with the site's own noise: a patient is in one bin of each histogram, as a new and as a reference patient.

    New patients are charged as training rows, whose noise is the same, since they have no account of their own; also those of a
    site that only tests. A site refuses an Ask whose number of columns is not that of its bins.
    """
    columns, noise = number(ask.shared, "columns"), number(ask.shared, "noise")
    known = rows.present("train", "val") or (ROW_KINDS["train"],)
    reach = watch_sensitivity(max(1, int(columns)), labels=bool(ask.shared.get("labels", 1)))
    if not (noise and within(noise / reach, 1e-6, 1e9)):
        return every_report(ask, COUNTS, known)
    return AskCost(tuple(Event("gaussian", COUNTS, sigma=noise / reach, of=part) for part in known))


def admits(ask: Ask, plan: Plan) -> bool:
    """Check that an Ask has the model, the bins and the rules of the plan, and the same for every site."""
    from grandrounds.capabilities.watch.method.bins import edges_json

    watch = plan.method.watch
    wanted = {
        "digest": watch.model,
        "edges": edges_json(watch.edges.plain()),
        "level": watch.level,
        "least": watch.least,
        "labels": int(watch.labels),
        "moved": watch.moved,
    }
    return ask.names_of_one_site <= {"committed"} and all(ask.shared.get(name) == value for name, value in wanted.items())
