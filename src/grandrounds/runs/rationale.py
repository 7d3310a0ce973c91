"""Score the heat maps of the model in use against truth masks, on reference images at the server. No site is asked."""

from __future__ import annotations

from dataclasses import dataclass

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import Plan
from grandrounds.core.references import watched_rows
from grandrounds.data.images import usable_masks
from grandrounds.explain.rationale import RationaleRule
from grandrounds.methods.xfed.checks import scoring_references
from grandrounds.runs.references import References, ServerRows


@dataclass(frozen=True)
class RationaleEvaluator:
    """The images of evaluation.rationale_set, or XFed's scoring images with masks, and the rule of [method.xfed]."""

    name: str
    rows: ServerRows
    rule: RationaleRule

    @classmethod
    def of(cls, plan: Plan, references: References) -> RationaleEvaluator | None:
        """Set up the evaluation; None without evaluation.rationale_set and without masks by which XFed could score."""
        watched = watched_rows(plan)
        name = watched or next(iter(scoring_references(plan)), None)
        rows = references.get(name)
        if name is None or rows is None or (watched is None and (rows.masks is None or not usable_masks(rows.masks).any())):
            return None
        return cls(name, rows, RationaleRule.from_settings(plan.seed, plan.method.xfed))

    def scores(self, model: Array) -> dict[str, object]:
        """Return `reasons` of a round's record, for the global model."""
        return dict(self.rows.scored(model, self.rule).figures())

    def final(self, model: Array) -> dict[str, object]:
        """Return `reasons` of the summary, for the final model, with baseline scores."""
        return {"on": self.name, **self.scores(model), "baselines": self.rows.baselines(model, self.rule)}
