"""Is the model in use right, and for the right reason? The server scores it on reference pictures, and asks no site."""

from __future__ import annotations

from dataclasses import dataclass

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import Plan
from grandrounds.core.references import watched_rows
from grandrounds.explain.rationale import RationaleRule
from grandrounds.runs.references import References, ServerRows


@dataclass(frozen=True)
class RationaleEvaluator:
    """The pictures of evaluation.rationale_set, and the rule of [method.xfed], whatever the method is."""

    name: str
    rows: ServerRows
    rule: RationaleRule

    @classmethod
    def of(cls, plan: Plan, references: References) -> RationaleEvaluator | None:
        """None where nothing is watched."""
        name = watched_rows(plan)
        rows = references.get(name)
        if name is None or rows is None:
            return None
        return cls(name, rows, RationaleRule.from_settings(plan.seed, plan.method.xfed))

    def scores(self, model: Array) -> dict[str, object]:
        """A round's `reasons`, of the common model."""
        return dict(self.rows.scored(model, self.rule).figures())

    def final(self, model: Array) -> dict[str, object]:
        """The summary's `reasons`, of the model that is kept, and what scores that mean nothing would be."""
        return {"on": self.name, **self.scores(model), "baselines": self.rows.baselines(model, self.rule)}
