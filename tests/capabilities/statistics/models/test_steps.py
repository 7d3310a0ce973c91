"""Step scores: bins, sums by hand, exact Shapley values, and arrays from outside."""

from __future__ import annotations

from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
import pytest

from grandrounds.capabilities.statistics.models.columns import Column, write_columns
from grandrounds.capabilities.statistics.models.steps import StepModel, step_bins
from grandrounds.core.errors import BadInput
from grandrounds.models import build_model

COLUMNS = (
    Column("age", place=0, missing=2),
    Column("lactate", place=1),
    Column("ward", levels=(3, 4), words=("medical", "surgical")),
)
SPEC = {
    "name": "gam",
    "inputs": [5],
    "classes": 2,
    "columns": write_columns(COLUMNS),
    "options": {"basis": "steps"},
}


def build() -> tuple[StepModel, Any]:
    model: Any = build_model(SPEC)
    assert isinstance(model, StepModel)
    edges = [np.array([50.0, 70.0]), np.array([2.0]), np.empty(0)]
    scores = [np.array([0.5, -1.0, 0.0, 2.0]), np.array([0.0, -0.25, 0.75]), np.array([0.125, 1.0, -1.0])]
    return model, model.join(edges, scores, np.array([-3.0]))


ROWS = np.array(
    [
        [50.0, 2.5, 0.0, 1.0, 0.0],  # a value equal to an edge is in the bin below: -1 + .75 + 1
        [50.1, 2.0, 0.0, 0.0, 1.0],  # 0 - .25 - 1
        [60.0, 9.0, 1.0, 0.0, 0.0],  # age missing, ward missing: .5 + .75 + .125
        [71.0, -5.0, 0.0, 0.0, 1.0],  # 2 - .25 - 1
    ]
)


def test_scores_by_hand() -> None:
    model, arrays = build()
    assert model.kernel == "steps"
    assert model.logits(model.pack(arrays), ROWS)[:, 0].tolist() == [-2.25, -4.25, -1.625, -2.25]
    calibrated = model.with_platt(model.pack(arrays), slope=2.0, intercept=1.0)
    assert model.logits(calibrated, ROWS)[:, 0].tolist() == [-3.5, -7.5, -2.25, -3.5]


def test_model_before_its_fit_scores_zero() -> None:
    model, _ = build()
    assert (model.logits(model.init(0), ROWS) == 0).all()


def test_shapley_values_equal_those_over_all_coalitions() -> None:
    model, arrays = build()
    theta = model.pack(arrays)
    values, background = model.values(ROWS), model.values(ROWS[1:])

    def worth(row: np.ndarray[Any, Any], present: tuple[int, ...]) -> float:
        mixed = background.copy()
        mixed[:, list(present)] = row[list(present)]
        return float(model.scores(arrays, mixed).mean())

    expected = np.zeros((len(ROWS), 3))
    for i, row in enumerate(values):
        for c in range(3):
            others = [k for k in range(3) if k != c]
            for size in range(3):
                weight = factorial(size) * factorial(2 - size) / factorial(3)
                for present in combinations(others, size):
                    expected[i, c] += weight * (worth(row, (*present, c)) - worth(row, present))
    found = model.shapley(theta, ROWS, ROWS[1:])[:, 0]
    assert found[:, [0, 1, 3]] == pytest.approx(expected, abs=1e-12)
    assert not found[:, [2, 4]].any()


def test_shapes_have_bins_levels_and_missing_values() -> None:
    model, arrays = build()
    age, lactate, ward = model.shapes(arrays, {"lactate": (0.0, 10.0)})
    assert (age["values"], age["effect"], age["missing"]) == ([40.0, 60.0, 80.0], [-1.0, 0.0, 2.0], {"effect": 0.5})
    assert (lactate["values"], lactate["missing"]) == ([1.0, 6.0], None)
    assert (ward["kind"], ward["values"], ward["effect"]) == ("category", ["medical", "surgical"], [1.0, -1.0])


def test_bins_of_missing_and_infinite_values() -> None:
    bins = step_bins(np.array([[np.nan], [-np.inf], [np.inf]]), [np.array([0.0])])
    assert bins[:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("edges", lambda a: a["edges"][:, ::-1]),
        ("edge_counts", lambda a: np.array([2.0, 0.0, 0.0])),
        ("edge_counts", lambda a: np.array([2.5, 1.0, 0.0])),
        ("edge_counts", lambda a: np.array([9.0, 1.0, 0.0])),
        ("score", lambda a: a["score"][:, :2]),
        ("score", lambda a: np.repeat(a["score"], 2, axis=2)),
        ("start", lambda a: np.zeros(2)),
    ],
)
def test_damaged_arrays_are_refused(name: str, change: Any) -> None:
    model, arrays = build()
    theta = model.pack({**arrays, name: change(arrays)})
    with pytest.raises(BadInput, match="not a model of step scores"):
        model.logits(theta, ROWS)
