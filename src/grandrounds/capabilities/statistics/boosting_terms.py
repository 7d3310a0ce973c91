"""Terms of boosted trees: presets, the loss of the task, and monotone constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.capabilities.statistics.boosting_bins import LEAST_IN_BIN
from grandrounds.capabilities.statistics.boosting_losses import COX, LossTerms, loss_of_task
from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.outcome import CLASSIFICATION, COUNT, REGRESSION

PRESETS: dict[str, dict[str, float]] = {
    "default": {"rounds": 20, "depth": 4, "parallel": 8, "columns": 0.3, "rate": 0.4},
    "quick": {"rounds": 12, "depth": 5, "parallel": 8, "columns": 0.3, "rate": 0.6},
    "readable": {"rounds": 60, "depth": 1, "parallel": 8, "columns": 0.3, "rate": 0.4},
}
"""Settings of method.trees.preset."""

_BIN_EXCHANGES, _TIME_EXCHANGES = 3, 3


@dataclass(frozen=True)
class TreesTerms:
    """Terms of boosted trees.

    Attributes:
        columns: The columns.
        loss: "logistic", "softmax", "squared", "poisson", "hazard" or "cox".
        outputs: Number of scores: of classes, or 1.
        rounds: Rounds of boosting.
        depth: Depth of a tree.
        parallel: Trees grown at once from the same gradients and averaged, for each output.
        share: Share of the columns that a tree may use.
        rate: Learning rate.
        bins: Most bins of a number, with the one for missing values.
        ridge: Penalty on leaves.
        least: Fewest rows of a leaf.
        signs: For each column 1 if its effect may only rise, -1 if it may only fall, else 0.
        is_stochastic: True: gradients are rounded to 8 levels at random.
        early_stop: Stop after so many rounds without a lower validation loss; 0: never.
        seed: Seed of the columns of each tree.
        centre: Centre of the outcome's units (regression).
        unit: Unit of the outcome (regression, counts).
        least_in_bin: Fewest rows of a bin of a number, over all sites.
    """

    columns: tuple[Column, ...]
    loss: str
    outputs: int = 1
    rounds: int = 20
    depth: int = 4
    parallel: int = 8
    share: float = 0.3
    rate: float = 0.4
    bins: int = 32
    ridge: float = 1.0
    least: int = 20
    signs: tuple[int, ...] = ()
    is_stochastic: bool = False
    early_stop: int = 0
    seed: int = 0
    centre: float = 0.0
    unit: float = 1.0
    least_in_bin: int = LEAST_IN_BIN

    @property
    def loss_terms(self) -> LossTerms:
        """The loss, in rounded units: sums of sites' outcomes can differ in their last bits, and gradients must not."""
        unit = _round_bits(self.unit)
        return LossTerms(
            self.loss, self.outputs, centre=float(np.rint(self.centre / unit * 2.0**16)) / 2.0**16 * unit, unit=unit
        )

    @property
    def exchanges(self) -> int:
        """Most exchanges of the fit."""
        survival = _TIME_EXCHANGES + (self.rounds if self.loss == COX else 0)
        return _BIN_EXCHANGES + 2 + self.rounds * self.depth + (survival if self.loss_terms.is_survival else 0)


def trees_terms(
    options: Mapping[str, Any],
    columns: Sequence[Column],
    *,
    task: str = CLASSIFICATION,
    classes: int = 2,
    centre: float = 0.0,
    unit: float = 1.0,
    seed: int = 0,
    least: int = LEAST_IN_BIN,
) -> TreesTerms:
    """Build the terms of boosted trees from settings.

    Args:
        options: The settings [method.trees].
        columns: The columns that the inputs hold.
        task: The type of the outcome.
        classes: Number of classes; 0 for other tasks.
        centre: Centre of the outcome's units (`encoding.outcome`).
        unit: Unit of the outcome.
        seed: The run's seed.
        least: Fewest rows of a bin of a number, over all sites (method.exact.least).

    Returns:
        The terms.

    Raises:
        BadInput: A monotone constraint names a category or an unknown column.
    """
    sizes = {name: options.get(name) for name in ("rounds", "depth", "parallel", "columns", "rate")}
    sizes = PRESETS[str(options.get("preset", "default"))] | {k: v for k, v in sizes.items() if v is not None}
    loss = loss_of_task(task, classes, survival=str(options.get("survival", "hazard")))
    has_unit = task in (REGRESSION, COUNT)
    return TreesTerms(
        columns=tuple(columns),
        loss=loss,
        outputs=classes if task == CLASSIFICATION and classes > 2 else 1,
        rounds=int(sizes["rounds"]),
        depth=int(sizes["depth"]),
        parallel=int(sizes["parallel"]),
        share=float(sizes["columns"]),
        rate=float(sizes["rate"]),
        bins=int(options.get("bins", 32)),
        ridge=float(options.get("ridge", 1.0)),
        least=int(options.get("least", 20)),
        signs=_read_signs(options.get("monotone") or {}, columns),
        is_stochastic=options.get("rounding", "exact") == "stochastic",
        early_stop=int(options.get("early_stop", 0)),
        seed=seed,
        centre=centre if task == REGRESSION else 0.0,
        unit=unit if has_unit else 1.0,
        least_in_bin=least,
    )


def _read_signs(monotone: Mapping[str, str], columns: Sequence[Column]) -> tuple[int, ...]:
    by_name = {c.name: c for c in columns}
    for name in monotone:
        if name not in by_name:
            raise BadInput(
                f"method.trees.monotone names '{name}', which is not a column of the model; {nearest(name, list(by_name))}",
                code="unknown-column",
            )
        if by_name[name].is_category:
            raise BadInput(
                f"method.trees.monotone names '{name}', a category, whose levels have no order: constrain numbers only",
                code="monotone-category",
            )
    return tuple({"up": 1, "down": -1}.get(str(monotone.get(c.name)), 0) for c in columns)


def _round_bits(value: float) -> float:
    """Round to 20 significant bits."""
    mantissa, exponent = np.frexp(value)
    return float(np.ldexp(np.rint(mantissa * 2.0**20), int(exponent) - 20))
