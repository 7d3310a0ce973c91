"""Risk card from sums over hospitals: method 'card'. Its exchanges are those of the additive model and three more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from grandrounds.capabilities.statistics.boosting_bins import COUNTS
from grandrounds.capabilities.statistics.card import (
    DIRECT,
    KEPT,
    SHARES,
    CardResult,
    card_options,
    card_terms,
    fit_card,
)
from grandrounds.capabilities.statistics.card_answers import CARD_ANSWERS
from grandrounds.capabilities.statistics.gam import GAM_ANSWERS
from grandrounds.capabilities.statistics.methods.exchange import ExactMethod
from grandrounds.capabilities.statistics.methods.gam import Additive
from grandrounds.capabilities.statistics.models.card import CardModel
from grandrounds.capabilities.statistics.models.columns import find_columns
from grandrounds.capabilities.statistics.question import Fit
from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import Plan
from grandrounds.data.encoding import Encoding
from grandrounds.data.kinds import AnyEncoding
from grandrounds.methods.base import Server
from grandrounds.methods.sums import read_result

STEPS_OF_COLUMN = 2 * len(SHARES) + 1
"""Most candidates of a numeric column: steps upwards and downwards, and missing values."""
COUNTED = 600
"""Numbers of a column that its bins take, about, in three exchanges."""


class RiskCardMethod(ExactMethod):
    """Risk card with whole-number points, distilled from an additive model or fitted to outcomes."""

    name = "card"
    title = "risk card with whole-number points, from sums over hospitals"
    kinds: ClassVar[tuple[str, ...]] = (*GAM_ANSWERS, COUNTS, *CARD_ANSWERS)

    def fit(self, server: Server) -> Fit[CardResult]:
        return fit_card(card_terms(self._model(server), int(self.settings.exact.least)))

    def model(self, server: Server, result: CardResult) -> Array:
        return self._model(server).pack(result.arrays)

    def _model(self, server: Server) -> CardModel:
        encoding = server.encoding
        assert isinstance(encoding, Encoding), "refused before the first round"
        return CardModel(
            len(encoding.features),
            find_columns(encoding),
            len(encoding.classes),
            encoding.task,
            card_options(self.settings.plain()),
        )

    @classmethod
    def foresee_numbers(cls, settings: Any, columns: int) -> int | None:
        """Estimate the numbers that one site sends: those of the additive model or of the bins, and those of the card."""
        steps = columns * STEPS_OF_COLUMN
        own = 3 * steps + KEPT * (KEPT + 3) // 2 + 2 * int(settings.card.terms) * int(settings.card.points)
        if settings.card.route == DIRECT:
            return own + columns * COUNTED
        before = Additive.foresee_numbers(settings, columns)
        return None if before is None else before + own

    @classmethod
    def summarize(cls, plan: Plan, state: Mapping[str, Array], encoding: AnyEncoding) -> dict[str, object]:
        record = read_result(state)
        if record is None:
            return {}
        result = CardResult.from_dict(record["result"])
        facts = {name: record[name] for name in ("exchanges", "sites", "rows")}
        told = {"route": result.route, "scale": result.scale, "base": result.base, "notes": list(result.notes)}
        out: dict[str, object] = {"card": {**result.card.to_dict(), **told, **facts}}
        model = result.additive
        if model is not None:
            counted = {**record["exchanges"], "fit": model.exchanges}
            out["shapes"] = {**model.shapes, **facts, "exchanges": counted, "notes": list(model.notes)}
        return out
