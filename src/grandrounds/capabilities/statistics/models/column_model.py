"""Base class of models that read whole columns: additive models, boosted trees, step scores and risk cards.

They have no gradient. They are fitted from sums over hospitals (`question.py`) or from one site's rows, and stored as
named arrays. Every model ends with `line` = (slope, intercept), which a calibration changes: logits = slope * scores + intercept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from grandrounds.capabilities.statistics.models.array_layout import ArrayLayout
from grandrounds.capabilities.statistics.models.columns import (
    Column,
    find_columns,
    parse_columns,
    read_columns,
    write_columns,
)
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.data.kinds import AnyEncoding

LINE = "line"
"""Name of the array with slope and intercept of the calibration, (2,)."""

LEAST = "least_rows"
"""Option with the fewest rows of a cell (method.exact.least), beside the settings of the fit."""

SEED = "seed"
"""Option with the run's seed, for fits that draw columns at random."""


def turn_sign(theta: Array) -> Array:
    """Return the model of class 1 from a model of class 0, the event: its log-odds change sign.

    Args:
        theta: The packed model. `line` is its last array.
    """
    out = np.array(theta, np.float64)
    out[-2:] *= -1
    return out


@dataclass(frozen=True)
class ColumnModel:
    """A model of whole columns behind the `Model` protocol.

    Attributes:
        features: Number of inputs.
        columns: The columns that the inputs hold.
        classes: Number of classes; 0 for other tasks.
        task: The type of the outcome.
        options: The settings of its fit ([method.gam], [method.trees] or [method.card]).
    """

    features: int
    columns: tuple[Column, ...]
    classes: int = 2
    task: str = CLASSIFICATION
    options: Mapping[str, Any] | None = None
    kernel: ClassVar[str] = ""
    arrays: ClassVar[tuple[tuple[str, int], ...]] = ()  # names and numbers of axes, without `line`

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Any:
        """Build the model that a spec describes."""
        return cls(
            features=int(spec["inputs"][0]),
            columns=parse_columns(str(spec["columns"])),
            classes=int(spec["classes"]),
            task=str(spec.get("task", CLASSIFICATION)),
            options=dict(spec["options"]),
        )

    @classmethod
    def columns_of(cls, encoding: AnyEncoding | None) -> str:
        """Write the columns of an encoding, as a spec has them."""
        return write_columns(find_columns(encoding))

    @cached_property
    def layout(self) -> ArrayLayout:
        return ArrayLayout((*self.arrays, (LINE, 1)))

    @property
    def outputs(self) -> int:
        """One score for two classes and for other tasks; else one for each class."""
        return self.classes if self.task == CLASSIFICATION and self.classes > 2 else 1

    @property
    def site_bytes(self) -> int:
        return 1 << 20

    def start(self) -> dict[str, Array]:
        """Return the arrays of the model before its fit, whose scores are 0. Every model implements it."""
        raise TypeError(f"{type(self).__name__} does not implement start()")

    def scores(self, arrays: Mapping[str, Array], values: Array) -> Array:
        """Compute scores (n, outputs) of values (n, C), as `read_columns` returns them. Every model implements it.

        Args:
            arrays: The model's arrays.
            values: The rows.
        """
        raise TypeError(f"{type(self).__name__} does not implement scores()")

    def column_shapley(self, arrays: Mapping[str, Array], values: Array, background: Array) -> Array:
        """Compute exact Shapley values (n, outputs, C) of the scores, with columns as players. Every model implements it.

        Args:
            arrays: The model's arrays.
            values: The rows, (n, C).
            background: Rows that stand for an absent column, (m, C).
        """
        raise TypeError(f"{type(self).__name__} does not implement column_shapley()")

    def check(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """Check arrays that may come from another hospital, and return them; models with places and sizes override it.

        Raises:
            BadInput: The arrays do not fit each other or the columns.
        """
        return arrays

    def read(self, theta: Array) -> Mapping[str, Array]:
        """Return the checked arrays of a vector."""
        arrays = self.layout.views(theta)
        if arrays[LINE].shape != (2,):
            raise BadInput("these parameters are not a model of whole columns: 'line' is damaged", code="damaged-model")
        return self.check(arrays)

    def pack(self, arrays: Mapping[str, Array]) -> Array:
        """Pack the arrays of a fit into a vector, with the identity as line if they have none."""
        return self.layout.pack({LINE: np.array([1.0, 0.0]), **arrays})

    def constant(self, risk: float) -> Array:
        """Return the model that gives every row the same probability of two classes' event.

        Args:
            risk: The probability, between 0 and 1.
        """
        return self.pack({**self.start(), LINE: np.array([1.0, np.log(risk) - np.log1p(-risk)])})

    def init(self, seed: int, dtype: np.typing.DTypeLike = np.float64) -> Array:
        """Return the model before its fit. The seed has no effect."""
        return self.pack(self.start())

    def logits(self, theta: Array, x: Array) -> Array:
        arrays = self.read(theta)
        slope, intercept = arrays[LINE]
        out: Array = slope * self.scores(arrays, self.values(x)) + intercept
        return out

    def values(self, x: Array) -> Array:
        """Read the columns of inputs (n, d)."""
        if x.ndim != 2 or x.shape[1] != self.features:
            raise BadInput(
                f"the model reads rows of {self.features} inputs, not an array of shape {x.shape}", code="mismatched-shapes"
            )
        return read_columns(x, self.columns)

    def shapley(self, theta: Array, x: Array, background: Array) -> Array:
        """Compute exact Shapley values (n, outputs, d) of the logits; a column's value is at its first input.

        Args:
            theta: The model.
            x: Rows, (n, d).
            background: Background rows, (m, d).
        """
        arrays = self.read(theta)
        by_column = self.column_shapley(arrays, self.values(x), self.values(background))
        out = np.zeros((len(x), self.outputs, self.features))
        out[:, :, [c.levels[0] if c.is_category else c.place for c in self.columns]] = by_column * arrays[LINE][0]
        return out

    def with_temperature(self, theta: Array, temperature: float) -> Array:
        return self.with_platt(theta, slope=1 / temperature, intercept=0.0)

    def with_platt(self, theta: Array, *, slope: float, intercept: float) -> Array:
        """Return the model whose logits s are slope * s + intercept."""
        arrays = dict(self.read(theta))
        first, second = arrays[LINE]
        return self.layout.pack({**arrays, LINE: np.array([slope * first, slope * second + intercept])})

    def combine(self, models: Array | Sequence[Array], weights: Array) -> Array:
        """Return the one model that has all the weight; refuse several, which cannot be averaged."""
        values = np.asarray(weights, np.float64)
        if len(models) != len(values) or not (values >= 0).all() or np.count_nonzero(values) != 1:
            raise BadInput(
                f"models '{self.kernel}' of several sites cannot be averaged: use the method of the same name, which adds sums",
                code="cannot-average",
            )
        only = np.asarray(models[int(values.argmax())], np.float64)
        self.read(only)
        return only
