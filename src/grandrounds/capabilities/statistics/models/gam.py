"""Additive model: the score is an intercept plus one curve for each number and one value for each level of a category.

The curves are cubic B-splines over the ranks of a number (`column_basis`). Every column's effect is relative to its mean over
the training rows. Shapley values are exact: those of a sum are each column's effect less its mean over the background.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from grandrounds.capabilities.statistics.models.column_basis import (
    BASIS_ARRAYS,
    FEWEST_SPLINES,
    check_basis,
    evaluate_splines,
    rank_values,
)
from grandrounds.capabilities.statistics.models.column_model import ColumnModel
from grandrounds.capabilities.statistics.models.steps import StepModel
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput


@dataclass(frozen=True)
class AdditiveModel(ColumnModel):
    """A sum of one curve for each number and one value for each level.

    Arrays: `knots`, `ranks`, `sizes` of the agreed distribution functions; `curve` (C, splines) coefficients of B-splines, or of
    two values the effects of the lower and the higher one; `levels` (C, L) effects of levels; `gaps` (C,) effects of missing
    values; `intercept` (1,).
    """

    kernel: ClassVar[str] = "gam"
    arrays: ClassVar[tuple[tuple[str, int], ...]] = (
        *BASIS_ARRAYS,
        *(("curve", 2), ("levels", 2), ("gaps", 1), ("intercept", 1)),
    )

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Any:
        """Build the model that a spec describes; the private one has steps in place of curves."""
        return StepModel.from_spec(spec) if spec["options"].get("basis") == "steps" else super().from_spec(spec)

    @property
    def most_levels(self) -> int:
        """Largest number of levels of a column."""
        return max((len(c.levels) for c in self.columns), default=0)

    def start(self) -> dict[str, Array]:
        count = len(self.columns)
        return {
            "knots": np.zeros((count, 0)),
            "ranks": np.zeros((count, 0)),
            "sizes": np.zeros(count),
            "curve": np.zeros((count, FEWEST_SPLINES)),
            "levels": np.zeros((count, self.most_levels)),
            "gaps": np.zeros(count),
            "intercept": np.zeros(1),
        }

    def effects(self, arrays: Mapping[str, Array], values: Array) -> Array:
        """Compute the effect of each column on the score.

        Args:
            arrays: The model's arrays.
            values: (n, C), as `read_columns` returns them.

        Returns:
            (n, C).
        """
        out = np.empty(values.shape)
        for c, column in enumerate(self.columns):
            v = values[:, c]
            known = ~np.isnan(v)
            out[~known, c] = arrays["gaps"][c]
            size, curve = int(arrays["sizes"][c]), arrays["curve"][c]
            if column.is_category:
                out[known, c] = arrays["levels"][c, v[known].astype(np.int64)]
            elif size == 1:
                out[known, c] = np.where(v[known] >= arrays["knots"][c, 0], curve[1], curve[0])
            elif size:
                u = rank_values(v[known], arrays["knots"][c], arrays["ranks"][c], size)
                out[known, c] = evaluate_splines(u, curve)
            else:
                out[known, c] = 0.0
        return out

    def scores(self, arrays: Mapping[str, Array], values: Array) -> Array:
        out: Array = arrays["intercept"][0] + self.effects(arrays, values).sum(axis=1)
        return out[:, None]

    def add_shapes(self, theta: Array, own: Array) -> Array:
        """Add a hospital's own shapes to a model (`own_shapes.OwnShapes.pack`).

        Args:
            theta: The common model.
            own: (n,) additions to the intercept, the curves, the levels and the gaps.

        Returns:
            The hospital's model.

        Raises:
            BadInput: The additions are those of another model.
        """
        arrays, first = dict(self.read(theta)), 0
        for name in ("intercept", "curve", "levels", "gaps"):
            size = arrays[name].size
            arrays[name] = arrays[name] + np.resize(own[first : first + size], arrays[name].shape)
            first += size
        if first != len(own):
            raise BadInput("a hospital's own shapes are those of another additive model", code="damaged-checkpoint")
        return self.pack(arrays)

    def column_shapley(self, arrays: Mapping[str, Array], values: Array, background: Array) -> Array:
        """Compute Shapley values: of a sum of columns, each column's effect less its mean over the background."""
        effect = self.effects(arrays, values)
        out: Array = (effect - self.effects(arrays, background).mean(axis=0))[:, None, :]
        return out

    def check(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        check_basis(arrays, self.columns)
        count = len(self.columns)
        curve = arrays["curve"]
        if not (
            self.outputs == 1
            and curve.shape[0] == count
            and curve.shape[1] >= FEWEST_SPLINES
            and arrays["levels"].shape == (count, self.most_levels)
            and arrays["gaps"].shape == (count,)
            and arrays["intercept"].shape == (1,)
        ):
            raise BadInput(
                "these parameters are not an additive model of these columns: a shape is wrong", code="damaged-model"
            )
        return arrays
