"""Boosted trees across hospitals: method 'trees'.

The trees have the same bits as those of the pooled rows. summary.json has their sizes, the exchanges, and the share of histogram
cells that hold one patient; trees of depth one also have the shape of each column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from grandrounds.capabilities.statistics.boosting import fit_trees
from grandrounds.capabilities.statistics.boosting_answers import TREES_ANSWERS
from grandrounds.capabilities.statistics.boosting_losses import SQUARED
from grandrounds.capabilities.statistics.boosting_result import TreesResult, read_effects
from grandrounds.capabilities.statistics.boosting_terms import TreesTerms, trees_terms
from grandrounds.capabilities.statistics.methods.exchange import ExactMethod
from grandrounds.capabilities.statistics.models.column_trees import TreesModel
from grandrounds.capabilities.statistics.models.columns import find_columns
from grandrounds.capabilities.statistics.question import Fit
from grandrounds.core.arrays import Array
from grandrounds.core.outcome import COUNT, REGRESSION, SURVIVAL
from grandrounds.core.plan_types import Plan
from grandrounds.data.encoding import Encoding
from grandrounds.data.kinds import AnyEncoding
from grandrounds.data.outcome import Outcome
from grandrounds.methods.base import Server
from grandrounds.methods.sums import read_result

_LEVEL_NUMBERS = 3  # gradients, curvatures and rows of a cell


class BoostedTrees(ExactMethod):
    """Boosted trees from summed histograms of whole-number gradients."""

    name = "trees"
    title = "boosted trees from sums over hospitals, the same bits as from pooled rows"
    kinds: ClassVar[tuple[str, ...]] = (*TREES_ANSWERS, "range.time", "counts.time")

    def fit(self, server: Server) -> Fit[TreesResult]:
        return fit_trees(_terms(self.settings.trees.plain(), self.settings.exact.least, server.encoding, server.seed))

    def model(self, server: Server, result: TreesResult) -> Array:
        encoding = server.encoding
        assert isinstance(encoding, Encoding), "refused before the first round"
        model = TreesModel(
            len(encoding.features), find_columns(encoding), classes=len(encoding.classes), task=encoding.task
        )
        return model.pack(result.arrays)

    @classmethod
    def default_rounds(cls, settings: Any) -> int:
        return trees_terms(_sizes(settings), (), task=SURVIVAL, classes=0).exchanges

    @classmethod
    def foresee_numbers(cls, settings: Any, columns: int) -> int | None:
        """Estimate from below: a tenth of all cells, because categories have few bins, and small nodes are not split.

        The share of all cells that was sent is 0.17 on heart, 0.35 on the eICU demo and 0.55 on the ICU cohort.
        """
        terms = trees_terms(_sizes(settings), ())
        nodes = (
            terms.rounds * terms.parallel * (2 ** (terms.depth - 1) - 1)
        )  # the smaller child of every split but the root
        roots = terms.rounds * columns * (1 - (1 - terms.share) ** terms.parallel)  # of all columns that a tree may use
        cells = nodes * np.ceil(terms.share * columns) + np.ceil(roots)
        return int(cells * terms.bins * _LEVEL_NUMBERS) // 10

    @classmethod
    def summarize(cls, plan: Plan, state: Mapping[str, Array], encoding: AnyEncoding) -> dict[str, object]:
        record = read_result(state)
        if record is None:
            return {}
        result = TreesResult.from_dict(record["result"])
        terms = _terms(plan.plain()["method"]["trees"], plan.method.exact.least, encoding, plan.seed)
        common = {
            "exchanges": record["exchanges"],
            "sites": record["sites"],
            "rows": record["rows"],
            "notes": list(result.notes),
        }
        out: dict[str, object] = {
            "trees": {
                "trees": result.trees.trees,
                "rounds": result.rounds,
                "depth": result.trees.depth,
                "parallel": result.parallel,
                "bins": terms.bins,
                "loss": terms.loss,
                "cells": result.cells.to_dict(),
                "validation": result.losses,
                **common,
            }
        }
        if result.trees.depth == 1 and result.trees.outputs == 1:
            out["shapes"] = {**describe_shapes(result, terms, least=plan.method.exact.least), **common}
        return out

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        yield from super().refusals(model, plan, sites=sites, pictures=pictures)
        if plan.model.name != "trees":
            yield f"method 'trees' fits boosted trees, and model.name is '{plan.model.name}': use model.name = 'trees'"
        terms = trees_terms(_sizes(plan.method), ())
        if plan.method.rounds < terms.rounds * terms.depth and not plan.method.trees.early_stop:
            yield (
                f"{terms.rounds} rounds of boosting of depth {terms.depth} take over {terms.rounds * terms.depth} exchanges, and "
                f"method.rounds allows {plan.method.rounds}: remove method.rounds, or set method.trees.rounds"
            )
        if plan.train.class_weights != "none":
            yield "method 'trees' gives every row the same weight: set train.class_weights = 'none'"

    @classmethod
    def exposes(cls, plan: Plan) -> tuple[str, ...]:
        return (
            *super().exposes(plan),
            "histograms of gradients in every exchange: many of their cells hold one patient, whose gradient tells the outcome",
        )


def describe_shapes(result: TreesResult, terms: TreesTerms, *, least: int) -> dict[str, Any]:
    """Describe trees of depth one as the shape of each column: effects of bins and levels around their mean over patients.

    Args:
        result: The trees, with one output.
        terms: Their terms.
        least: Counts of patients below this are not told.

    Returns:
        Keys `intercept`, `family` and `columns` of summary.json's `shapes`, in the units of the outcome.
    """
    intercept, effects = read_effects(result.trees)
    unit, centre = (terms.unit, terms.centre) if terms.loss == SQUARED else (1.0, 0.0)
    columns = []
    for c, column in enumerate(terms.columns):
        width = int(result.trees.edge_counts[c]) + 2
        rows, effect = result.rows[c, :width], effects[c, :width]
        mean = float((rows * effect).sum() / max(1, rows.sum()))
        intercept += mean
        told = [int(n) if n >= least else 0 for n in rows.tolist()]
        effect = (effect - mean) * unit
        columns.append(
            {
                "name": column.name,
                "kind": "category" if column.is_category else "number",
                "values": list(column.words[: width - 1]) if column.is_category else result.points[c, 1:width].tolist(),
                **({} if column.is_category else {"edges": result.trees.edges[c, : width - 2].tolist()}),
                "effect": effect[1:].tolist(),
                "se": None,
                "rows": told[1:],
                "missing": {"effect": float(effect[0]), "se": None, "rows": told[0]} if rows[0] else None,
                "edf": None,
                "used": bool((effects[c] != effects[c, 0]).any()),
                "monotone": {1: "up", -1: "down"}.get(terms.signs[c]) if terms.signs else None,
            }
        )
    families = {SQUARED: "linear"}
    return {"intercept": centre + unit * intercept, "family": families.get(terms.loss, terms.loss), "columns": columns}


def _sizes(settings: Any) -> dict[str, Any]:
    """Return the settings [method.trees] that set the number of exchanges and their sizes."""
    names = ("preset", "rounds", "depth", "parallel", "columns", "bins", "survival")
    return {name: getattr(settings.trees, name) for name in names}


def _terms(options: Mapping[str, Any], least: int, encoding: AnyEncoding | None, seed: int) -> TreesTerms:
    assert isinstance(encoding, Encoding), "refused before the first round"
    outcome = encoding.outcome or Outcome(encoding.task)
    has_unit = encoding.task in (REGRESSION, COUNT)
    return trees_terms(
        options,
        find_columns(encoding),
        task=encoding.task,
        classes=len(encoding.classes),
        centre=outcome.centre,
        unit=outcome.scale if has_unit else 1.0,
        seed=seed,
        least=int(least),
    )
