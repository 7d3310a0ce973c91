"""What clients add to their replies, held against the package's own reports and scikit-learn."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from grandrounds.capabilities.integrations.flower.client import fedxchain_report, sse_report, sse_report_of, xfed_report
from grandrounds.core.errors import install_extra
from grandrounds.explain.agreement import centre_blob
from grandrounds.explain.explainer import measure
from grandrounds.explain.explainers.shapley import direction
from grandrounds.explain.features import Features
from grandrounds.explain.rule import SketchRule
from grandrounds.explain.trust import distribution
from grandrounds.metrics import scores, tally
from grandrounds.models.dense import Dense
from grandrounds.site.explain import sketched
from tests.support import refused

COLUMNS = ("age", "ward", "ward", "ward", "lactate")


@pytest.fixture
def rows():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(50, 5))
    x[:, 1:4] = np.eye(3)[rng.integers(0, 3, 50)]
    return x, (x[:, 0] + x[:, 1] + rng.normal(size=50) > 0.3).astype(int)


@pytest.mark.parametrize("widths", [(5, 1), (5, 4, 3)])
def test_the_sketch_of_a_callable_is_that_of_the_package_s_own_model(rows, widths):
    x, y = rows
    y = y if widths[-1] == 1 else (y + (x[:, 4] > 1)).astype(int)
    model = Dense(widths)
    theta = np.random.default_rng(0).normal(size=model.layout.size)

    def predict(some):
        z = model.logits(theta, some)
        return 1 / (1 + np.exp(-z[:, 0])) if widths[-1] == 1 else np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)

    rule = SketchRule("permutation", 3, repeats=2)
    target = y[:, None].astype(float) if widths[-1] == 1 else np.eye(3)[y]
    explainer = rule.explainer(Features.from_columns(COLUMNS), None)
    theirs = sketched(rule, explainer, model, theta[None], x, target, names=("a",), round=1)
    own = sse_report(predict, x, y, columns=COLUMNS, seed=3, repeats=2)
    assert own["grandrounds.sketch"] == pytest.approx(theirs["sketch"][0].tolist(), abs=1e-9)
    assert own["grandrounds.sketch.total"] == pytest.approx(float(theirs["sketch.total"][0]))
    assert own["grandrounds.sketch.flat"] == 0 and len(own["grandrounds.sketch"]) == 3


def test_validation_loss_and_calibration_error_are_the_usual_ones(rows):
    x, y = rows
    fitted = LogisticRegression().fit(x, y)
    own = sse_report(fitted.predict_proba, x, y, validation=(x, y))
    p = fitted.predict_proba(x)[:, 1]
    bins = np.minimum((p * 15).astype(int), 14)
    ece = sum(abs(p[bins == b].sum() - y[bins == b].sum()) for b in range(15)) / len(y)
    assert own["grandrounds.val_loss"] == pytest.approx(log_loss(y, p))
    assert own["grandrounds.ece"] == pytest.approx(ece)
    assert scores(tally(np.log(p / (1 - p))[:, None], y, classes=2))["ece"] == pytest.approx(ece)


def test_one_and_two_columns_of_probabilities_say_the_same(rows):
    x, y = rows
    fitted = LogisticRegression().fit(x, y)
    two = sse_report(fitted.predict_proba, x, y, validation=(x, y))
    one = sse_report(lambda some: fitted.predict_proba(some)[:, 1], x, y, validation=(x, y))
    assert {k: pytest.approx(v) for k, v in two.items()} == one


def test_a_node_without_validation_rows_says_that_it_does_not_know(rows):
    x, y = rows
    own = sse_report(lambda some: np.full(len(some), 0.5), x, y, validation=(x[:0], y[:0]))
    assert np.isnan(own["grandrounds.val_loss"]) and np.isnan(own["grandrounds.ece"])
    assert own["grandrounds.sketch.flat"] == 1 and own["grandrounds.sketch"] == pytest.approx([0.2] * 5)


def test_without_labels_the_sketch_is_of_how_predictions_move(rows):
    x, _ = rows
    own = sse_report(lambda some: 1 / (1 + np.exp(-2 * some[:, 0])), x, None)
    assert own["grandrounds.sketch"] == pytest.approx([1, 0, 0, 0, 0])


def test_importances_of_one_s_own_become_shares():
    own = sse_report_of(np.array([[3.0, -1.0, 1.0], [1.0, -3.0, 1.0]]))
    assert own == {
        "grandrounds.sketch": pytest.approx([2 / 3, 0, 1 / 3]),
        "grandrounds.sketch.total": 3.0,
        "grandrounds.sketch.flat": 0,
    }


def test_shap_shares_and_their_direction_are_those_of_the_package(rows):
    x, y = rows
    model, background = Dense((5, 1)), x[:7]
    theta = np.random.default_rng(2).normal(size=model.layout.size)
    weight = model.layers(theta)[0][0][:, 0]
    shap = weight * (x - background.mean(axis=0))
    explainer = SketchRule("shap", 0).explainer(Features.from_inputs([str(j) for j in range(5)]), background)
    theirs = distribution(measure(explainer, model, theta[None], x, y[:, None].astype(float)).values)[0]
    own = fedxchain_report(shap, accuracy=0.8, against=(x, background))
    assert own["grandrounds.shap.shares"] == pytest.approx(theirs.tolist())
    assert own["grandrounds.shap.direction"] == pytest.approx(direction(model, theta, x, background).tolist())
    assert own["grandrounds.trust.accuracy"] == 0.8


def test_xai_accuracy_counts_pictures_whose_heat_is_inside_the_mask():
    masks = np.zeros((4, 8, 8), bool)
    masks[:2, 2:6, 2:6] = True  # in the middle, where the heat is
    masks[2, :2, :2] = True
    heats = centre_blob((4, 8, 8))
    x, y = np.zeros((4, 8, 8)), np.array([0, 1, 1, 2])
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
    own = xfed_report(lambda some: p[: len(some)], x, y, heats=heats, masks=masks)
    assert own["grandrounds.rationale.xai"] == pytest.approx(2 / 3)  # the last mask is empty: left out
    assert own["grandrounds.rationale.accuracy"] == 0.75
    assert own["grandrounds.rationale.loss"] == pytest.approx(-np.log([0.7, 0.8, 0.25, 0.8]).mean())


def test_grid_scenes_are_scored_by_their_warmest_cell():
    heats = np.zeros((2, 4, 4))
    heats[0, 0, 0] = heats[1, 3, 3] = 1
    own = xfed_report(
        lambda some: np.full(len(some), 0.5), np.zeros((2, 4, 4)), [0, 1], scenes=(heats, np.array([0, 1]), 2)
    )
    assert own["grandrounds.rationale.grid"] == 0.5


def test_what_is_no_probability_or_no_heat_is_refused(rows):
    x, y = rows
    with refused("bad-predictions"):
        sse_report(lambda some: some[:, 0] * 5, x, y)
    with refused("bad-predictions"):
        sse_report(lambda some: np.zeros(7), x, y)
    with refused("missing-argument"):
        xfed_report(lambda some: np.full(len(some), 0.5), x, y)


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_the_helpers_need_no_flower():
    """A client library without flwr can make reports: nothing of it is imported."""
    imported = "import sys, grandrounds.capabilities.integrations.flower.client"
    python(f"{imported}; assert 'flwr' not in sys.modules and 'torch' not in sys.modules")


def test_without_flower_strategies_say_what_to_install():
    code = """
import sys
sys.modules["flwr"] = None
try:
    from grandrounds.capabilities.integrations.flower import SSEAgg
except ImportError as e:
    print(e)
"""
    assert install_extra("flower") in python(code)
