"""Intervals of a patient's explanation: from the covariance of the estimates, checked by hand and against statsmodels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from grandrounds.capabilities.cases.case import explain_case
from grandrounds.capabilities.cases.case_page import case_page
from grandrounds.capabilities.cases.intervals import intercept_note, matching_estimates, score_errors
from grandrounds.capabilities.statistics.estimates import INTERCEPT, Estimates
from grandrounds.runs.run import load_run
from tests.capabilities.cases.test_case import by_hand, made
from tests.command import rounds
from tests.store import copied, shared_folder
from tests.support import without_ledger

NAMES = [INTERCEPT, "age", "sex=f", "sex=m", "bmi"]


def fitted(**more) -> Estimates:
    covariance = np.array([[0.04, 0.0, 0.0], [0.0, 0.01, 0.002], [0.0, 0.002, 0.09]])
    left_out = {"sex=m": "is a combination of columns before it", "bmi": "constant"}
    return Estimates.build("logistic", NAMES, np.array([-1.0, 0.5, 0.3]), covariance, left_out=left_out, **more)


def test_errors_by_hand():
    errors = score_errors(
        fitted(),
        np.array([2.0, 1.0, 0.0, 7.0]),
        np.array([0.5, 0.4, 0.6, 0.0]),
        inputs=NAMES[1:],
        columns=["age", "sex", "sex", "bmi"],
    )
    assert errors.contributions == pytest.approx({"age": 1.5 * 0.1, "sex": 0.6 * 0.3, "bmi": 0.0})
    # (1, 2, 1) V (1, 2, 1)' = 0.04 + 4 x 0.01 + 2 x 2 x 0.002 + 0.09
    assert errors.score == pytest.approx(np.sqrt(0.178))
    # (1.5, 0.6): 2.25 x 0.01 + 2 x 0.9 x 0.002 + 0.36 x 0.09
    assert errors.difference == pytest.approx(np.sqrt(0.0225 + 0.0036 + 0.0324))
    assert errors.around(1.0, 0.5) == pytest.approx((1 - 0.5 * 1.959963985, 1 + 0.5 * 1.959963985))
    assert errors.around(1.0, None) is None


def test_the_interval_of_a_risk_is_that_of_statsmodels():
    sm = pytest.importorskip("statsmodels.api")
    random = np.random.default_rng(3)
    x = random.normal(size=(200, 2))
    y = (random.random(200) < 1 / (1 + np.exp(-x @ [0.8, -0.5]))).astype(float)
    fit = sm.GLM(y, sm.add_constant(x), family=sm.families.Binomial()).fit()
    ours = Estimates.build("logistic", [INTERCEPT, "a", "b"], fit.params, fit.cov_params())
    errors = score_errors(ours, x[0], np.zeros(2), inputs=["a", "b"], columns=["a", "b"])
    ends = errors.around(float(np.array([1.0, *x[0]]) @ fit.params), errors.score)
    theirs = fit.get_prediction(np.array([[1.0, *x[0]]])).summary_frame().iloc[0]
    shown = [1 / (1 + np.exp(-z)) for z in ends]
    assert shown == pytest.approx([theirs["mean_ci_lower"], theirs["mean_ci_upper"]], rel=1e-9)


def test_a_linear_model_takes_t():
    linear = Estimates.build("linear", NAMES[:2], np.ones(2), np.eye(2), degrees=10.0)
    errors = score_errors(linear, np.ones(1), np.zeros(1), inputs=["age"], columns=["age"])
    assert errors.width == pytest.approx(2.2281388519649385)


def test_without_an_intercept_the_score_itself_has_no_error():
    cox = Estimates.build("cox", ["age"], np.ones(1), np.eye(1))
    errors = score_errors(cox, np.array([3.0]), np.array([1.0]), inputs=["age"], columns=["age"])
    assert errors.score is None and errors.difference == 2.0


def test_only_the_estimates_own_model_has_intervals():
    record = {"estimates": {"fitted": fitted().to_dict(), "original": fitted().to_dict()}}
    weights = np.array([0.5, 0.3, 0.0, 0.0])
    assert matching_estimates(record, weights, NAMES[1:]) is not None
    assert matching_estimates(record, -weights, NAMES[1:]) is not None, "the weights of the other class"
    assert matching_estimates(record, weights.astype(np.float32), NAMES[1:]) is not None
    assert matching_estimates(record, 1.1 * weights, NAMES[1:]) is None, "a calibrated model"
    assert matching_estimates(record, weights, [*NAMES[1:4], "height"]) is None
    assert matching_estimates({}, weights, NAMES[1:]) is None


@shared_folder
def estimated(root: Path) -> None:
    """A logistic run whose summary has its own weights as estimates, with a covariance of our choice."""
    made_run = made(root / "fit", evaluation={"calibrate": "none"})
    w, _, _, _ = by_hand(made_run, 1)
    names, d = [INTERCEPT, *made_run.model.encoding.features], len(w) + 1
    beta = np.array([made_run.model.parameters["layer0.bias"][0], *w[:, 0]], float)
    root = np.random.default_rng(0).normal(size=(d, d)) / 20
    estimates = Estimates.build("logistic", names, beta, root @ root.T).to_dict()
    path = without_ledger(made_run.folder) / "summary.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "estimates": {"fitted": estimates, "original": estimates}})
    )


@pytest.fixture(scope="module")
def run(estimated, tmp_path_factory):
    return load_run(copied(estimated / "fit", tmp_path_factory.mktemp("runs") / "fit"))


def test_a_case_has_intervals_of_contributions_and_risk(run):
    case = explain_case(run, 12)
    _, x, mean, sources = by_hand(run, 12)
    v = np.array(run.summary["estimates"]["fitted"]["covariance"])
    for r in case.attributions:
        d = np.where([c == r.column for c in sources], x - mean, 0.0)
        assert r.high - r.low == pytest.approx(2 * 1.959963985 * np.sqrt(d @ v[1:, 1:] @ d), rel=1e-5)
        assert (r.low + r.high) / 2 == pytest.approx(r.contribution)
    row = np.array([1.0, *x])
    half = 1.959963985 * np.sqrt(row @ v @ row)
    ends = 1 / (1 + np.exp(-(case.score - half))), 1 / (1 + np.exp(-(case.score + half)))
    assert case.risk_interval == pytest.approx(ends, rel=1e-5)
    assert case.to_dict()["probability_interval"] == pytest.approx(list(ends), rel=1e-5)


def test_pages_show_the_intervals(run):
    case = explain_case(run, 12)
    page = case_page(case, top=5)
    first = case.attributions[0]
    assert f"{first.low:+.3f} to {first.high:+.3f}" in page and "<th>95% CI</th>" in page
    low, high = case.risk_interval
    assert f"95% CI {low:.1%} to {high:.1%}" in page and "covariance of the estimates" in page
    text = rounds("explain", run.folder, "--case", 12, "--out", run.folder / "case.html").stdout
    assert f"(95% CI {low:.1%} to {high:.1%})" in " ".join(text.split())


def test_another_explainer_has_none(run):
    case = explain_case(run, 12, explainer="lime")
    assert case.risk_interval is None and all(r.low is None for r in case.attributions)
    assert "low" not in case.attributions[0].to_dict() and "probability_interval" not in case.to_dict()


def test_a_run_with_estimates_is_shown_with_their_table(run):
    done = rounds("show", run.folder)
    text = done.stdout
    assert not done.stderr and "Logistic regression across hospitals" in text and "odds ratio" in text and "std err" in text


def test_a_note_says_whose_intercept_a_prediction_uses():
    def note(**facts) -> str:
        values = fitted(facts=facts).to_dict()
        return intercept_note({"estimates": {"fitted": values, "original": values}})

    assert note(intercept="common") == "" and intercept_note({}) == ""
    assert "uses their mean" in note(intercept="random", mean_intercept=-1.0)
    assert "intercept of zero" in note(intercept="own", mean_intercept=None)
