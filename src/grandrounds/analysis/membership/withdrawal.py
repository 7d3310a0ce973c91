"""Attack the models before and after a withdrawal on the rows of the site that withdrew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grandrounds.analysis.membership.attack import THRESHOLD
from grandrounds.analysis.membership.shadows import confidences, find_target
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.privacy.attacks.membership import Attack, judged

if TYPE_CHECKING:
    from grandrounds.runs.run import Run

FEWEST = 2
"""Fewest members and non-members of an attack."""


@dataclass(frozen=True)
class WithdrawalProof:
    """The loss-threshold attack on the site's training rows against its held-back rows, on both models.

    Attributes:
        site: The site that withdrew.
        before: The attack on the earlier model, which was trained on the members.
        after: The attack on the model that is valid now, which was trained on none of them.
    """

    site: str
    before: Attack
    after: Attack

    def sentences(self) -> list[str]:
        """Explain both figures."""
        b, a = self.before, self.after
        rows = f"{b.members} training rows against {b.nonmembers} held-back rows"
        lines = [
            f"membership attack on {self.site}, {rows}: AUC {b.auc:.3f} ({b.low:.3f} to {b.high:.3f}) on the earlier model, "
            f"{a.auc:.3f} ({a.low:.3f} to {a.high:.3f}) on the model without {self.site}; 0.5 is guessing"
        ]
        if a.low > 0.5:
            lines.append(
                f"the attack on the model without {self.site} is above 0.5 though the model has seen none of these rows: the "
                "site's training and held-back rows differ by chance"
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        return {"site": self.site, "before": self.before.to_dict(), "after": self.after.to_dict()}


def check_provable(earlier: Run, site: str) -> None:
    """Check that models can be attacked on the rows of a site, before the site withdraws.

    Args:
        earlier: The run from which the site withdraws.
        site: The site.

    Raises:
        BadInput: The run predicts no class, or the site has no held-back rows.
    """
    if earlier.summary.task != CLASSIFICATION or "statistic" in earlier.summary:
        raise BadInput(
            f"{earlier.folder} predicts no class: membership attacks compare probabilities of classes; leave --prove out",
            code="not-classification",
        )
    rows = earlier.summary["rows"].get(site, {})
    if max(rows.get("test", 0), rows.get("val", 0)) < FEWEST:
        raise BadInput(
            f"{site} has no held-back rows in {earlier.folder}, and an attack compares members with them: leave --prove out",
            code="no-nonmembers",
        )


def prove_withdrawal(earlier: Run, repeated: Run, site: str, *, data: Any = None) -> WithdrawalProof:
    """Attack both models by membership inference on the rows of the site that withdrew.

    Args:
        earlier: The run from which the site withdrew, opened with `withdrawn=True`.
        repeated: The run without the site.
        site: The site.
        data: The rows of the earlier run, where they came from memory.

    Returns:
        The attacks.

    Raises:
        BadInput: The runs predict no class, or the site has no held-back rows.
    """
    from grandrounds.runs.run_rows import RunRows

    check_provable(earlier, site)
    rows = RunRows.read(earlier, data)
    target = find_target(earlier, rows)
    mine = target.site == site
    members = target.member[mine]
    if min(members.sum(), (~members).sum()) < FEWEST:
        raise BadInput(
            f"{site} has too few rows that were trained on, or held back, in {earlier.folder}: leave --prove out",
            code="no-nonmembers",
        )
    after = confidences(repeated, rows.consortium, target.rows[mine], target.site[mine])
    return WithdrawalProof(site, judged(THRESHOLD, target.confidence[mine], members), judged(THRESHOLD, after, members))
