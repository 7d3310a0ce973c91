"""The additive model: its splines are scipy's, its Shapley values add to the score, and damaged arrays are refused."""

from __future__ import annotations

from itertools import combinations
from math import factorial

import numpy as np
import pytest
from scipy.interpolate import BSpline

from grandrounds.capabilities.statistics.models.column_basis import Basis, contrasts, evaluate_splines, spline_matrix
from grandrounds.capabilities.statistics.models.columns import Column, write_columns
from grandrounds.capabilities.statistics.models.gam import AdditiveModel
from grandrounds.core.errors import BadInput
from grandrounds.models import build_model

COLUMNS = (
    Column("age", 0, 3),
    Column("stays", 1),
    Column("sex", 2),
    Column("ward", levels=(4, 5, 6), words=("a", "b", "c")),
)


def model() -> AdditiveModel:
    return AdditiveModel(features=7, columns=COLUMNS, options={"splines": 6})


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "knots": np.array([[20.0, 50, 60, 90], [0, 1, 2, 5], [0.5, 1e9, 1e9, 1e9], [1e9] * 4]),
        "ranks": np.array([[0.05, 0.4, 0.6, 0.95], [0.3, 0.7, 0.9, 0.99], [0.5, 1, 1, 1], [1.0] * 4]),
        "sizes": np.array([4.0, 4, 1, 0]),
        "curve": rng.normal(size=(4, 6)),
        "levels": rng.normal(size=(4, 3)),
        "gaps": np.array([0.7, 0, 0, -0.2]),
        "intercept": np.array([-1.5]),
    }


def inputs(n: int = 40) -> np.ndarray:
    rng = np.random.default_rng(1)
    x = np.zeros((n, 7))
    x[:, 0], x[:, 1], x[:, 2] = rng.uniform(10, 100, n), rng.integers(0, 7, n), rng.integers(0, 2, n)
    x[::5, 3] = 1
    ward = rng.integers(0, 4, n)
    for k in range(3):
        x[ward == k, 4 + k] = 1
    return x


@pytest.mark.parametrize("splines", [4, 6, 11])
def test_splines_are_those_of_scipy(splines):
    u = np.linspace(0, 1, 101)
    steps = splines - 3
    t = np.arange(-3, steps + 4) / steps
    expected = np.stack([BSpline(t, np.eye(splines)[k], 3)(u) for k in range(splines)], axis=1)
    np.testing.assert_allclose(spline_matrix(u, splines), expected, atol=1e-14)
    weights = np.random.default_rng(0).normal(size=splines)
    np.testing.assert_allclose(evaluate_splines(u, weights), expected @ weights, atol=1e-13)
    turn = contrasts(splines)
    np.testing.assert_allclose(turn.T @ turn, np.eye(splines - 1), atol=1e-14)
    np.testing.assert_allclose(turn.sum(axis=0), 0, atol=1e-14)


def test_the_basis_has_contrasts_steps_levels_and_missing_values():
    a = arrays()
    gaps = np.array([True, False, False, True])
    basis = Basis(COLUMNS, 6, a["knots"], a["ranks"], a["sizes"].astype(int), ((), (), (), (0, 2)), gaps)
    assert [(s.column, s.part, s.first, s.size) for s in basis.spans] == [
        (0, "curve", 0, 5), (0, "missing", 5, 1), (1, "curve", 6, 5), (2, "step", 11, 1), (3, "levels", 12, 3),
    ]  # fmt: skip
    x = basis.design(np.array([[np.nan, 1, 1, 2], [55, 0, 0, np.nan], [55, 0, 0, 1]]))
    assert x[0, :5].tolist() == [0] * 5 and x[0, 5] == 1 and x[1, 5] == 0
    assert x[:, 11].tolist() == [0.5, -0.5, -0.5]
    assert x[:, 12:].tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
    np.testing.assert_allclose(x[1, :5], spline_matrix(np.array([0.5]), 6)[0] @ contrasts(6), atol=1e-15)


def test_shapley_values_are_those_of_all_coalitions():
    m = model()
    theta = m.with_platt(m.pack(arrays()), slope=1.3, intercept=0.2)
    x, background = inputs()[:3], inputs()[20:]
    phi = m.shapley(theta, x, background)
    inputs_of = [[0, 3], [1], [2], [4, 5, 6]]
    logits = m.logits(theta, background)[:, 0]

    def value(row: np.ndarray, present: tuple[int, ...]) -> float:
        mixed = background.copy()
        for c in present:
            mixed[:, inputs_of[c]] = row[inputs_of[c]]
        return float(m.logits(theta, mixed).mean())

    for i, row in enumerate(x):
        for c in range(4):
            others = [k for k in range(4) if k != c]
            expected = sum(
                factorial(len(s)) * factorial(3 - len(s)) / factorial(4) * (value(row, (*s, c)) - value(row, s))
                for size in range(4)
                for s in combinations(others, size)
            )
            assert phi[i, 0, inputs_of[c][0]] == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(phi.sum(axis=2)[:, 0], m.logits(theta, x)[:, 0] - logits.mean(), atol=1e-12)


def test_values_beyond_the_last_knot_have_its_effect():
    m = model()
    theta = m.pack(arrays())
    x = inputs(2)
    x[:] = x[0]
    x[:, 3] = 0
    x[0, 0], x[1, 0] = 90, 1e6
    out = m.logits(theta, x)
    assert out[0] == out[1]


def test_a_spec_builds_the_model_and_before_a_fit_its_score_is_zero():
    spec = {"name": "gam", "inputs": [7], "classes": 2, "columns": write_columns(COLUMNS), "options": {"splines": 6}}
    m = build_model(spec)
    assert m.kernel == "gam" and not m.logits(m.init(0), inputs()).any()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("knots", np.zeros((4, 4))),
        ("sizes", np.array([4.0, 5, 1, 0])),
        ("sizes", np.array([4.0, 4, 1, 2])),
        ("levels", np.zeros((4, 2))),
        ("curve", np.zeros((4, 3))),
        ("gaps", np.zeros(3)),
    ],
)
def test_damaged_arrays_are_refused(name, value):
    m = model()
    theta = m.pack({**arrays(), name: value})
    with pytest.raises(BadInput) as refused:
        m.logits(theta, inputs())
    assert refused.value.code == "damaged-model"
