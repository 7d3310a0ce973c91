"""Fits of models that read whole columns, by the name of the model: one line each.

The server drives such a fit over all hospitals. Methods 'pooled' and 'local' drive the same fit over the rows of one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from grandrounds.capabilities.statistics.boosting import fit_trees
from grandrounds.capabilities.statistics.boosting_result import TreesResult
from grandrounds.capabilities.statistics.boosting_terms import trees_terms
from grandrounds.capabilities.statistics.card import CardResult, card_terms, fit_card
from grandrounds.capabilities.statistics.gam import fit_gam, gam_terms
from grandrounds.capabilities.statistics.gam_result import GAMResult
from grandrounds.capabilities.statistics.models.column_model import SEED, ColumnModel
from grandrounds.capabilities.statistics.question import Fit
from grandrounds.data.outcome import Outcome


def _fit_gam(model: ColumnModel, outcome: Outcome | None, least: int) -> Fit[GAMResult]:
    options = model.options or {}
    terms = gam_terms(options, model.columns, task=model.task, classes=model.classes, outcome=outcome, least=least)
    return fit_gam(replace(terms, is_local=True))


def _fit_trees(model: ColumnModel, outcome: Outcome | None, least: int) -> Fit[TreesResult]:
    options, units = model.options or {}, outcome or Outcome(model.task)
    return fit_trees(
        trees_terms(
            options,
            model.columns,
            task=model.task,
            classes=model.classes,
            centre=units.centre,
            unit=units.scale,
            seed=int(options.get(SEED, 0)),
            least=least,
        )
    )


def _fit_card(model: ColumnModel, outcome: Outcome | None, least: int) -> Fit[CardResult]:
    return fit_card(card_terms(model, least))


FITS: dict[str, Callable[[ColumnModel, Outcome | None, int], Fit[Any]]] = {
    "card": _fit_card,
    "gam": _fit_gam,
    "trees": _fit_trees,
}
"""From the model, the outcome (None for classes) and the fewest rows of a cell (method.exact.least) to the fit. Its result has
`arrays`, which `model.pack` takes. Keys are kernels: "gam", "trees", "steps", "card"."""
