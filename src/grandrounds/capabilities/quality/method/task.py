"""Task 'quality': its reports, its privacy cost, and the Asks that a hospital admits."""

from __future__ import annotations

import math

from grandrounds.core.plan_types import Plan, QualitySettings
from grandrounds.data.agreement.bins import FURTHER, AgreedBins
from grandrounds.privacy.events import Event
from grandrounds.protocol.messages import Ask
from grandrounds.protocol.task_spec import CELLS, OWN_COST, ReportSpec, TaskSpec, by_name, charged
from grandrounds.site.ask_cost import AskCost, RowCounts, every_report, number, within

QUALITY = "quality"
COUNTS = "counts of rows in agreed bins"
"""Name of the release in budgets."""

SPEC = TaskSpec(
    QUALITY,
    by_name(
        ReportSpec(
            "counts", CELLS,
            charged("rows counted in agreed bins of columns, outcome and years; repeated rows; patients with several rows",
                    f"quality: `{COUNTS}`"),
            is_masked=True,
        )
    ),
    asked_by="`rounds quality`",
    cost=OWN_COST, noised_by=("noise",), is_round_work=True, is_learning=True, is_payload=True,
)  # fmt: skip


def read_bins(settings: QualitySettings) -> AgreedBins:
    """Read the agreed bins of [method.quality] of a plan.

    Args:
        settings: The section.

    Raises:
        BadInput: The bins of a column are not valid.
    """
    return AgreedBins.from_dict(settings.plain())


def count_blocks(bins: AgreedBins) -> int:
    """Return the number of blocks that noise is added for: those of columns and all further ones."""
    return len(bins.columns) + FURTHER


def count_reach(blocks: int) -> float:
    """Return the largest L2 change of all counts by one patient, or by one row: one count of each block changes by 1.

    Args:
        blocks: Number of blocks of counts.
    """
    return math.sqrt(max(1, blocks))


def cost(ask: Ask, rows: RowCounts) -> AskCost:
    """Charge counts with the site's own noise: a patient is in one bin of each block.

    All rows are counted, so training, validation and test rows are charged alike. A site refuses an Ask whose number of blocks
    is not that of its bins.
    """
    blocks, noise = number(ask.shared, "blocks"), number(ask.shared, "noise")
    known = rows.present("train", "val", "test")
    reach = count_reach(int(blocks))
    if not (noise and within(noise / reach, 1e-6, 1e9)):
        return every_report(ask, COUNTS, known)
    return AskCost(tuple(Event("gaussian", COUNTS, sigma=noise / reach, of=part) for part in known))


def admits(ask: Ask, plan: Plan) -> bool:
    """Check that an Ask has the bins of the plan, and the same for every site."""
    quality = plan.method.quality
    wanted = {"bins": read_bins(quality).to_json(), "least": quality.least}
    return ask.names_of_one_site <= {"committed"} and all(ask.shared.get(name) == value for name, value in wanted.items())
