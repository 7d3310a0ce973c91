"""Risk cards as models: the printed arithmetic, exact Shapley values, damaged cards."""

from __future__ import annotations

from itertools import combinations
from math import factorial

import numpy as np
import pytest

from grandrounds.capabilities.statistics.models.card import CardModel, card_arrays
from grandrounds.capabilities.statistics.models.columns import Column, write_columns
from grandrounds.core.errors import BadInput
from grandrounds.models import build_model
from grandrounds.models.risk_card import Card, RiskRange, Term, print_risk, show_risk

COLUMNS = (
    Column("age", place=0),
    Column("lactate", place=1, missing=2),
    Column("pain", levels=(3, 4, 5), words=("none", "mild", "severe")),
)
CARD = Card(
    (
        Term("age above 54", "age", "above", 54.0, 2),
        Term("age above 70", "age", "above", 70.0, 3),
        Term("lactate at most 2.5", "lactate", "at most", 2.5, -1),
        Term("lactate missing", "lactate", "missing", None, -2),
        Term("pain = severe", "pain", "level", "severe", 4),
    ),
    (
        RiskRange(-3, 0, 40, 1, 0.025, 0.004, 0.129),
        RiskRange(1, 2, 30, 3, 0.1, 0.035, 0.256),
        RiskRange(3, 5, 20, 5, 0.25, 0.112, 0.469),
        RiskRange(6, 9, 10, 7, 0.7, 0.397, 0.892),
    ),
)
MODEL = CardModel(6, COLUMNS)
ROWS = np.array(
    [  # age, lactate, lactate missing, none, mild, severe
        [54.0, 2.5, 0, 1, 0, 0],  # -1
        [54.5, 1.0, 0, 0, 0, 1],  # 2 - 1 + 4 = 5
        [71.0, 3.0, 0, 0, 0, 1],  # 2 + 3 + 4 = 9
        [71.0, 0.0, 1, 0, 1, 0],  # 2 + 3 - 2 = 3, a missing lactate is not "at most 2.5"
        [60.0, 9.0, 0, 0, 0, 0],  # 2, no level
    ]
)


def theta() -> np.ndarray:
    return MODEL.pack(card_arrays(CARD, COLUMNS))


def test_the_risk_of_each_row_is_the_printed_risk_of_its_points():
    points = MODEL.points(MODEL.read(theta()), MODEL.values(ROWS)).sum(axis=1)
    assert points.tolist() == [-1, 5, 9, 3, 2]
    risk = 1 / (1 + np.exp(-MODEL.logits(theta(), ROWS)[:, 0]))
    np.testing.assert_allclose(risk, [0.025, 0.25, 0.7, 0.25, 0.1], rtol=1e-14)
    assert [CARD.risk(int(p)) for p in points] == [0.025, 0.25, 0.7, 0.25, 0.1]


def test_shapley_values_equal_those_over_all_orders_of_columns():
    rng = np.random.default_rng(0)
    background = np.column_stack(
        [rng.uniform(40, 80, 7), rng.uniform(0, 5, 7), rng.integers(0, 2, 7), np.eye(3)[rng.integers(0, 3, 7)]]
    )
    values, others, arrays = MODEL.values(ROWS), MODEL.values(background), MODEL.read(theta())

    def worth(row: np.ndarray, chosen: tuple[int, ...]) -> float:
        mixed = others.copy()
        mixed[:, list(chosen)] = row[list(chosen)]
        return float(MODEL.scores(arrays, mixed).mean())

    found = MODEL.column_shapley(arrays, values, others)[:, 0]
    for row, phi in zip(values, found, strict=True):
        for j in range(3):
            rest = [c for c in range(3) if c != j]
            by_hand = sum(
                factorial(size) * factorial(2 - size) / 6 * (worth(row, (*s, j)) - worth(row, s))
                for size in range(3)
                for s in combinations(rest, size)
            )
            assert phi[j] == pytest.approx(by_hand, abs=1e-12)
        assert phi.sum() == pytest.approx(worth(row, (0, 1, 2)) - worth(row, ()), abs=1e-12)


def test_a_card_survives_json_and_a_spec():
    assert Card.from_dict(CARD.to_dict()) == CARD
    assert CARD.to_dict()["totals"][0]["from"] == -3
    spec = {"name": "card", "inputs": [6], "classes": 2, "columns": write_columns(COLUMNS), "options": {}}
    assert np.array_equal(build_model(spec).logits(theta(), ROWS), MODEL.logits(theta(), ROWS))
    assert MODEL.logits(MODEL.init(0), ROWS).tolist() == [[0.0]] * 5


@pytest.mark.parametrize(
    ("name", "value"),
    [("column", 7.0), ("kind", 4.0), ("points", 0.5), ("points", 1e6), ("first", -9.5), ("risk", 1.0), ("risk", 0.9)],
)
def test_a_damaged_card_is_refused(name: str, value: float):
    arrays = card_arrays(CARD, COLUMNS)
    arrays[name] = np.array([value, *arrays[name][1:]])
    with pytest.raises(BadInput, match="not a risk card"):
        MODEL.logits(MODEL.pack(arrays), ROWS)


def test_a_calibration_is_refused():
    with pytest.raises(BadInput, match="evaluation.calibrate = 'none'"):
        MODEL.with_temperature(theta(), 2.0)


def test_a_card_without_totals_is_refused():
    with pytest.raises(BadInput, match="damaged"):
        Card.from_dict({"terms": [], "totals": []})


def test_risks_are_printed_with_all_their_digits():
    printed = [print_risk(r) for r in (0.23456, 0.0104, 0.00314, 0.99572, 0.000071)]
    assert printed == [0.235, 0.01, 0.0031, 0.9957, 0.000071]
    assert [show_risk(r) for r in printed] == ["23.5%", "1%", "0.31%", "99.57%", "0.0071%"]
