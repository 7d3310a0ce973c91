"""Terms of an additive model: family, basis, constraints and the strength of smoothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.outcome import CLASSIFICATION, COUNT, REGRESSION
from grandrounds.data.event import ONE_AGAINST_OTHERS
from grandrounds.data.outcome import Outcome

FAMILIES = {CLASSIFICATION: "logistic", REGRESSION: "linear", COUNT: "poisson"}
"""Family of an additive model by data.task."""


@dataclass(frozen=True)
class GAMTerms:
    """Terms of an additive model.

    Attributes:
        family: "logistic", "linear" or "poisson".
        columns: The columns of the inputs.
        splines: B-splines of a number.
        monotone: "up" or "down" for numbers whose curve may only rise or only fall.
        most_columns: Number of columns to keep; None: all.
        gamma: Strength of smoothing; 1 is restricted maximum likelihood.
        least: Fewest patients of a cell of a shape.
        centre: Subtracted from the outcome of linear regression.
        unit: Linear: the outcome is divided by it. Poisson: the mean count, of which the score is the log ratio.
        most_exchanges: Exchanges after which the fit is given up.
        is_local: True for the rows of one hospital alone, which may have one class only, or no column that can be used: the
            model then has an intercept and no shapes.
    """

    family: str
    columns: tuple[Column, ...]
    splines: int = 6
    monotone: Mapping[str, str] = field(default_factory=dict)
    most_columns: int | None = None
    gamma: float = 1.5
    least: int = 5
    centre: float = 0.0
    unit: float = 1.0
    most_exchanges: int = 100
    is_local: bool = False


def gam_terms(
    options: Mapping[str, Any],
    columns: tuple[Column, ...],
    *,
    task: str = CLASSIFICATION,
    classes: int = 2,
    outcome: Outcome | None = None,
    least: int = 5,
    most_exchanges: int = 100,
) -> GAMTerms:
    """Build the terms of an additive model from settings.

    Args:
        options: The section [method.gam].
        columns: The columns of the inputs.
        task: The type of the outcome.
        classes: Number of classes.
        outcome: Units of the outcome; None for classes.
        least: Fewest patients of a cell of a shape.
        most_exchanges: Exchanges after which the fit is given up.

    Returns:
        The terms.

    Raises:
        BadInput: The model is not for this outcome, or a constraint names no numeric column.
    """
    problem = find_problem(options, columns, task=task, classes=classes)
    if problem:
        raise BadInput(problem, code="model-does-not-fit")
    return GAMTerms(
        FAMILIES[task],
        columns,
        splines=int(options["splines"]),
        monotone=dict(options["monotone"]),
        most_columns=options["columns"],
        gamma=float(options["gamma"]),
        least=least,
        centre=outcome.centre if outcome is not None and task == REGRESSION else 0.0,
        unit=outcome.scale if outcome is not None else 1.0,
        most_exchanges=most_exchanges,
    )


def find_problem(options: Mapping[str, Any], columns: tuple[Column, ...], *, task: str, classes: int) -> str:
    """Return one sentence on settings that an additive model cannot have; "" if there are none."""
    if task not in FAMILIES:
        return f"model 'gam' fits classes, numbers or counts, and data.task is '{task}': use model 'trees', or method 'cox'"
    if task == CLASSIFICATION and classes != 2:
        return f"model 'gam' fits two classes, and the label has {classes}: use model 'trees'; or {ONE_AGAINST_OTHERS}"
    kinds = {c.name: c.is_category for c in columns}
    for name in options["monotone"]:
        if name not in kinds:
            return f"method.gam.monotone names '{name}', which is no column of the model; {nearest(name, kinds)}"
        if kinds[name]:
            return (
                f"method.gam.monotone names '{name}', a category, whose levels have no order: name numeric columns only"
            )
    return ""
