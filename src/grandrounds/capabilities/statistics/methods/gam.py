"""Method 'gam': an additive model from sums over hospitals, equal to a fit of the pooled rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from grandrounds.capabilities.statistics.gam import GAM_ANSWERS, fit_gam
from grandrounds.capabilities.statistics.gam_result import GAMResult
from grandrounds.capabilities.statistics.gam_terms import FAMILIES, GAMTerms, find_problem, gam_terms
from grandrounds.capabilities.statistics.methods.exchange import ExactMethod
from grandrounds.capabilities.statistics.methods.site import ask_shapes
from grandrounds.capabilities.statistics.models.columns import find_columns
from grandrounds.capabilities.statistics.models.gam import AdditiveModel
from grandrounds.capabilities.statistics.newton import count_upper
from grandrounds.capabilities.statistics.question import Fit
from grandrounds.core.arrays import Array
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.plan_types import Plan
from grandrounds.data.encoding import Encoding
from grandrounds.data.kinds import AnyEncoding
from grandrounds.methods.base import Server
from grandrounds.methods.sums import read_result
from grandrounds.protocol.messages import Ask
from grandrounds.site.state import SHAPES

_FEW_STEPS = 4
"""Exchanges of score and information of a short fit."""

OWN_SHAPES = "each hospital may have added shapes of its own, which stay there: these are the common ones"
"""Note on shapes where hospitals may have their own."""


class Additive(ExactMethod):
    """Additive model: a curve for each number, a value for each level, with bands; equal to a fit of the pooled rows."""

    name = "gam"
    title = "additive model from sums: a curve with a band for each number, a value for each level"
    kinds: ClassVar[tuple[str, ...]] = tuple(GAM_ANSWERS)

    def fit(self, server: Server) -> Fit[GAMResult]:
        return fit_gam(self.terms(server))

    def terms(self, server: Server) -> GAMTerms:
        """Build the terms of the fit from settings and the agreed encoding.

        Args:
            server: The state of the round.
        """
        encoding = _table_encoding(server.encoding)
        return gam_terms(
            self.settings.gam.plain(),
            find_columns(encoding),
            task=encoding.task,
            classes=len(encoding.classes),
            outcome=encoding.outcome,
            least=int(self.settings.exact.least),
            most_exchanges=self.settings.rounds,
        )

    def model(self, server: Server, result: GAMResult) -> Array:
        encoding = _table_encoding(server.encoding)
        model = AdditiveModel(
            len(encoding.features), find_columns(encoding), classes=len(encoding.classes), task=encoding.task
        )
        return model.pack(result.arrays)

    def last_ask(self, server: Server, sites: tuple[str, ...], result: GAMResult) -> Ask | None:
        """Send the final model, from which each site computes the shapes that it keeps (method.gam.own_shapes)."""
        if not self.settings.gam.own_shapes:
            return None
        encoding = _table_encoding(server.encoding)
        return ask_shapes(
            self.model(server, result),
            sites,
            family=FAMILIES[encoding.task],
            outcome=encoding.outcome,
            common=tuple(self.settings.gam.plain()["monotone"]),
        )

    @classmethod
    def local_part(cls, plan: Plan) -> str:
        return SHAPES if plan.method.gam.own_shapes else "none"

    @classmethod
    def foresee_numbers(cls, settings: Any, columns: int) -> int | None:
        """Estimate the numbers that one site sends at least: one coefficient for each input, and few steps.

        A number has more than one, which only the fit knows: an estimate that is too large would refuse fits that are allowed.
        """
        kept = columns if settings.gam.columns is None else min(columns, int(settings.gam.columns))
        return _FEW_STEPS * (count_upper(1 + kept) + 1 + kept)

    @classmethod
    def summarize(cls, plan: Plan, state: Mapping[str, Array], encoding: AnyEncoding) -> dict[str, object]:
        record = read_result(state)
        if record is None:
            return {}
        result = GAMResult.from_dict(record["result"])
        return {
            "shapes": {
                **result.shapes,
                "exchanges": {**record["exchanges"], "fit": result.exchanges},
                "sites": record["sites"],
                "rows": record["rows"],
                "notes": [*result.notes, *([OWN_SHAPES] if plan.method.gam.own_shapes else [])],
            }
        }

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        yield from super().refusals(model, plan, sites=sites, pictures=pictures)
        if plan.model.name != "gam":
            yield f"method 'gam' fits model 'gam', not '{plan.model.name}': set model.name = 'gam'"
            return
        classes = model.classes if model.task == CLASSIFICATION else 0
        problem = find_problem(plan.method.gam.plain(), model.columns, task=model.task, classes=classes)
        if problem:
            yield problem


def _table_encoding(encoding: AnyEncoding | None) -> Encoding:
    assert isinstance(encoding, Encoding), "refused before the first round"
    return encoding
