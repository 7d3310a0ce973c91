from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from grandrounds.metrics import (
    DESCRIPTIONS,
    HIGHER_IS_BETTER,
    METRICS,
    Place,
    choose_threshold,
    scores,
    shown_in,
    tally,
)

from .cohort import Cohort, binary_cohort, log_odds, sigmoid, softmax, uneven_sites

pytestmark = pytest.mark.filterwarnings("error")
WITHIN = 1e-3
EXACTLY = 1e-9
SHARES = [
    name for name in DESCRIPTIONS if name not in ("count", "events", "log_loss", "brier", "mcc") and "calibr" not in name
]
DECIDED = ("accuracy", "balanced_accuracy", "macro_f1")


@pytest.mark.thinned(4)
@pytest.mark.parametrize("sharpness", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("prevalence", [0.089, 0.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_summed_sites_score_as_pooled_rows(seed, prevalence, sharpness):
    cohort = binary_cohort(seed, prevalence=prevalence, sharpness=sharpness)
    s = scores(cohort.federated(), threshold=0.2)
    y, z = cohort.y, cohort.logits[:, 0]
    p, predicted = sigmoid(z), z >= 0
    assert s["count"] == len(y)
    assert s["accuracy"] == pytest.approx(sk.accuracy_score(y, predicted), abs=EXACTLY)
    assert s["majority"] == pytest.approx(max(y.mean(), 1 - y.mean()), abs=EXACTLY)
    assert s["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, predicted), abs=EXACTLY)
    assert s["macro_f1"] == pytest.approx(sk.f1_score(y, predicted, average="macro"), abs=EXACTLY)
    assert s["brier"] == pytest.approx(sk.brier_score_loss(y, p), abs=EXACTLY)
    assert s["log_loss"] == pytest.approx(np.logaddexp(0, np.where(y == 1, -z, z)).mean(), abs=EXACTLY)
    assert s["auroc"] == pytest.approx(sk.roc_auc_score(y, z), abs=WITHIN)
    assert s["auprc"] == pytest.approx(sk.average_precision_score(y, z), abs=WITHIN)
    called = p >= 0.2
    assert s["sensitivity"] == pytest.approx(called[y == 1].mean(), abs=WITHIN)
    assert s["specificity"] == pytest.approx(1 - called[y == 0].mean(), abs=WITHIN)
    assert s["ppv"] == pytest.approx(y[called].mean(), abs=WITHIN)
    assert s["npv"] == pytest.approx(1 - y[~called].mean(), abs=WITHIN)
    false_alarms, found, _ = sk.roc_curve(y, z, drop_intermediate=False)
    one_patient = 1 / y.sum()
    exact = found[false_alarms <= 0.1 + 1e-12].max()
    assert s["recall_at_90_specificity"] == pytest.approx(exact, abs=WITHIN + one_patient)


@pytest.mark.parametrize("sites", [1, 7])
def test_decision_figures_are_those_of_decisions_at_a_chosen_threshold(sites):
    cohort = binary_cohort(5, prevalence=0.089, sites=sites)
    threshold = choose_threshold(cohort.federated(), "youden")
    s = scores(cohort.federated(), threshold=threshold)
    y, decided = cohort.y, sigmoid(cohort.logits[:, 0]) >= threshold
    assert threshold < 0.3
    assert s["decision_accuracy"] == pytest.approx(sk.accuracy_score(y, decided), abs=EXACTLY)
    assert s["decision_balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, decided), abs=EXACTLY)
    assert s["decision_macro_f1"] == pytest.approx(sk.f1_score(y, decided, average="macro"), abs=EXACTLY)
    assert s["events"] == y.sum()
    p = y.mean()
    assert s["decision_accuracy"] == pytest.approx(s["sensitivity"] * p + s["specificity"] * (1 - p), abs=EXACTLY)
    assert abs(s["decision_accuracy"] - s["accuracy"]) > 0.05


def test_at_one_half_and_with_several_classes_decisions_are_the_likeliest_class(digits):
    for cohort in (binary_cohort(6, prevalence=0.2), digits):
        s = scores(cohort.federated(), threshold=0.5 if cohort is not digits else 0.2)
        for name in DECIDED:
            assert s[f"decision_{name}"] == s[name], name
    assert np.isnan(s["events"])


@pytest.mark.parametrize("threshold", [0.5, None])
def test_matthews_correlation_is_that_of_scikit_learn_for_two_and_more_classes(threshold, digits):
    cohort = binary_cohort(7, prevalence=0.2, sites=5)
    at = choose_threshold(cohort.federated(), "youden") if threshold is None else threshold
    decided = sigmoid(cohort.logits[:, 0]) >= at
    each = tally(cohort.logits, cohort.y, classes=2, group=cohort.site, groups=5)
    whole, apart = scores(cohort.federated(), threshold=at)["mcc"], scores(each, threshold=at)["mcc"]
    assert whole == pytest.approx(sk.matthews_corrcoef(cohort.y, decided), abs=EXACTLY)
    for site in range(5):
        here = cohort.site == site
        assert apart[site] == pytest.approx(sk.matthews_corrcoef(cohort.y[here], decided[here]), abs=EXACTLY)
    several = scores(digits.federated())["mcc"]
    assert several == pytest.approx(sk.matthews_corrcoef(digits.y, digits.logits.argmax(axis=1)), abs=EXACTLY)


def test_matthews_correlation_has_its_ends_and_is_undefined_without_a_margin():
    y = np.array([0, 1, 1, 0, 1])
    right = np.where(y == 1, 3.0, -3.0)[:, None]
    assert scores(tally(right, y, classes=2))["mcc"] == 1.0
    assert scores(tally(-right, y, classes=2))["mcc"] == -1.0
    assert np.isnan(scores(tally(np.ones((5, 1)), y, classes=2))["mcc"]), "all decided alike"
    assert np.isnan(scores(tally(right, np.ones(5, int), classes=2))["mcc"]), "one class only"
    assert np.isnan(scores(tally(np.eye(3)[[0, 0]], np.array([1, 2]), classes=3))["mcc"])
    assert np.isnan(scores(tally(np.zeros((0, 1)), np.zeros(0, int), classes=2))["mcc"]), "no rows"
    one = tally(np.tile([0.0, 1.0, -1.0], (3, 1)) + np.eye(3), np.array([0, 1, 1]), classes=3, group=np.zeros(3, int), groups=2)
    assert scores(one)["mcc"].shape == (2,)


def test_log_loss_is_that_of_scikit_learn(digits):
    cohort = binary_cohort(4)
    expected = sk.log_loss(cohort.y, sigmoid(cohort.logits[:, 0]))
    assert scores(cohort.federated())["log_loss"] == pytest.approx(expected, abs=EXACTLY)
    expected = sk.log_loss(digits.y, softmax(digits.logits))
    assert scores(digits.federated())["log_loss"] == pytest.approx(expected, abs=EXACTLY)


@pytest.mark.parametrize("middle", [0.0, -2.3])
def test_a_young_model_whose_scores_lie_close_together_is_still_ranked(middle):
    cohort = binary_cohort(3, sharpness=0.15)
    z = cohort.logits[:, 0] - cohort.logits.mean() + middle
    close = Cohort(z[:, None], cohort.y, cohort.site, cohort.sites, 2)
    assert scores(close.federated())["auroc"] == pytest.approx(sk.roc_auc_score(cohort.y, z), abs=WITHIN)


@pytest.fixture(scope="module")
def digits() -> Cohort:
    """Ten classes: a linear discriminant on blurred digits, scored on rows it has not seen."""
    rng = np.random.default_rng(0)
    x, y = load_digits(return_X_y=True)
    x = x + 6.0 * rng.normal(size=x.shape)
    fitted = LinearDiscriminantAnalysis().fit(x[:600], y[:600])
    logits = fitted.decision_function(x[600:])
    return Cohort(logits, y[600:], uneven_sites(rng, rows=len(logits), sites=11), 11, 10)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 5.0])
def test_several_classes_score_as_pooled_rows(digits, sharpness):
    cohort = Cohort(sharpness * digits.logits, digits.y, digits.site, digits.sites, 10)
    t = cohort.federated()
    s = scores(t)
    y, p, predicted = cohort.y, softmax(cohort.logits), cohort.logits.argmax(axis=1)
    truth = np.eye(10)[y]
    odds = cohort.logits - np.stack(
        [np.logaddexp.reduce(np.delete(cohort.logits, c, axis=1), axis=1) for c in range(10)], axis=1
    )
    assert np.array_equal(t.confusion, sk.confusion_matrix(y, predicted))
    assert s["accuracy"] == pytest.approx(sk.accuracy_score(y, predicted), abs=EXACTLY)
    assert s["majority"] == pytest.approx(np.bincount(y).max() / len(y), abs=EXACTLY)
    assert s["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, predicted), abs=EXACTLY)
    assert s["macro_f1"] == pytest.approx(sk.f1_score(y, predicted, average="macro"), abs=EXACTLY)
    assert s["brier"] == pytest.approx(((p - truth) ** 2).sum(axis=1).mean(), abs=EXACTLY)
    own = cohort.logits[np.arange(len(y)), y]
    assert s["log_loss"] == pytest.approx((np.logaddexp.reduce(cohort.logits, axis=1) - own).mean(), abs=EXACTLY)
    assert s["auroc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"), abs=WITHIN)
    assert s["auprc"] == pytest.approx(sk.average_precision_score(truth, odds), abs=WITHIN)
    recalls = []
    for c in range(10):
        false_alarms, found, _ = sk.roc_curve(truth[:, c], odds[:, c], drop_intermediate=False)
        recalls.append(found[false_alarms <= 0.1 + 1e-12].max())
    one_patient = 1 / np.bincount(y).min()
    assert s["recall_at_90_specificity"] == pytest.approx(np.mean(recalls), abs=WITHIN + one_patient / 2)
    confidence, hit = p.max(axis=1), predicted == y
    level = np.minimum((15 * confidence).astype(int), 14)
    gaps = [abs(confidence[level == b].sum() - hit[level == b].sum()) for b in range(15)]
    assert s["ece"] == pytest.approx(sum(gaps) / len(y), abs=EXACTLY)


def test_several_classes_leave_the_two_class_figures_undefined(digits):
    s = scores(digits.federated())
    undefined = {name for name, value in s.items() if np.isnan(value)}
    at_threshold = {"sensitivity", "specificity", "ppv", "npv"}
    assert undefined == at_threshold | {
        "events",
        "auroc_low",
        "auroc_high",
    } | {
        f"calibration_{name}{end}" for name in ("slope", "intercept", "in_the_large") for end in ("", "_low", "_high")
    }


def test_a_class_that_never_occurs_is_left_out_of_the_means():
    rng = np.random.default_rng(7)
    logits, y = rng.normal(size=(400, 4)), rng.integers(0, 3, 400)
    logits[np.arange(400), y] += 1.0
    s = scores(tally(logits, y, classes=4))
    p = softmax(logits)
    each = [sk.roc_auc_score(y == c, np.log(p[:, c] / (1 - p[:, c]))) for c in range(3)]
    assert s["auroc"] == pytest.approx(np.mean(each), abs=WITHIN)
    recall = sk.recall_score(y, logits.argmax(axis=1), labels=[0, 1, 2], average="macro")
    assert s["balanced_accuracy"] == pytest.approx(recall, abs=EXACTLY)
    never = logits.copy()
    never[:, 3] = -50.0
    expected = sk.f1_score(y, never.argmax(axis=1), average="macro")
    assert scores(tally(never, y, classes=4))["macro_f1"] == pytest.approx(expected, abs=EXACTLY)


def test_four_rows_by_hand():
    s = scores(tally(log_odds([0.1, 0.4, 0.6, 0.9]), np.array([0, 1, 0, 1]), classes=2), threshold=0.3)
    by_hand = {
        "count": 4,
        "accuracy": 0.5,
        "majority": 0.5,
        "balanced_accuracy": 0.5,
        "macro_f1": 0.5,
        "auroc": 3 / 4,
        "auprc": (1 + 2 / 3) / 2,
        "brier": 0.74 / 4,
        "log_loss": -(np.log(0.9) + np.log(0.4)) / 2,
        "ece": (0.1 + 0.6 + 0.6 + 0.1) / 4,
        "recall_at_90_specificity": 1 / 2,
        "sensitivity": 1.0,
        "specificity": 1 / 2,
        "ppv": 2 / 3,
        "npv": 1.0,
    }
    for name, value in by_hand.items():
        assert s[name] == pytest.approx(value, abs=1e-9), name
        assert s[name].shape == ()


def test_every_figure_is_described_in_one_line():
    s = scores(tally(np.zeros((1, 1)), np.zeros(1, int), classes=2))
    assert list(s) == list(DESCRIPTIONS) == list(HIGHER_IS_BETTER)[: len(DESCRIPTIONS)]
    for line in DESCRIPTIONS.values():
        assert line.endswith(".")
        assert "\n" not in line


@pytest.mark.parametrize("only", [0, 1])
@pytest.mark.parametrize("columns", [1, 3])
def test_one_class_leaves_ranking_undefined(only, columns):
    logits = np.random.default_rng(0).normal(size=(50, columns))
    s = scores(tally(logits, np.full(50, only), classes=max(columns, 2)))
    ranking = ["auroc", "auroc_low", "auroc_high", "auprc", "recall_at_90_specificity", "balanced_accuracy", "mcc"]
    for name in [*ranking, "calibration_slope", "calibration_intercept"]:
        assert np.isnan(s[name]), name
    for name in ("accuracy", "majority", "macro_f1", "brier", "log_loss", "ece"):
        assert np.isfinite(s[name]), name
    assert s["majority"] == 1.0


def test_no_rows_leave_everything_but_the_count_undefined():
    for classes, columns in [(2, 1), (3, 3)]:
        s = scores(tally(np.zeros((0, columns)), np.zeros(0, int), classes=classes))
        assert s.pop("count") == 0
        assert all(np.isnan(value) for value in s.values())


def test_each_site_scores_as_if_alone():
    cohort = binary_cohort(6, rows=3000, sites=40)
    together = tally(cohort.logits, cohort.y, group=cohort.site, groups=40, classes=2)
    all_at_once = scores(together, threshold=0.3)
    for k in range(40):
        alone = scores(together[k], threshold=0.3)
        for name, value in all_at_once.items():
            assert value.shape == (40,)
            np.testing.assert_allclose(value[k], alone[name], rtol=1e-7, atol=1e-9, err_msg=name)


def test_figures_at_one_half_agree_with_the_confusion_matrix():
    cohort = binary_cohort(8)
    t = tally(np.round(cohort.logits, 1), cohort.y, group=cohort.site, groups=12, classes=2)
    t = t[t.confusion.sum(axis=2).min(axis=1) > 0]
    assert len(t.count) > 5
    s = scores(t)
    (tn, fp), (fn, tp) = np.moveaxis(t.confusion, 0, -1)
    np.testing.assert_allclose(s["sensitivity"], tp / (tp + fn))
    np.testing.assert_allclose(s["specificity"], tn / (tn + fp))
    np.testing.assert_allclose(s["npv"], tn / (tn + fn))
    np.testing.assert_allclose((s["sensitivity"] + s["specificity"]) / 2, s["balanced_accuracy"])


def test_the_threshold_moves_its_own_figures_alone():
    t = binary_cohort(9).federated()
    low, high = scores(t, threshold=0.05), scores(t, threshold=0.3)
    moved = {name for name in low if low[name] != high[name]}
    assert moved == {m.name for m in METRICS if m.at_threshold}
    assert moved == {"sensitivity", "specificity", "ppv", "npv", "mcc", *(f"decision_{name}" for name in DECIDED)}
    assert low["sensitivity"] > high["sensitivity"]
    assert low["specificity"] < high["specificity"]
    everyone, nobody = scores(t, threshold=0.0), scores(t, threshold=1.0)
    assert (everyone["sensitivity"], everyone["specificity"]) == (1.0, 0.0)
    assert (nobody["sensitivity"], nobody["specificity"]) == (0.0, 1.0)
    assert np.isnan(nobody["ppv"])
    assert np.isnan(scores(t, threshold=float("nan"))["sensitivity"])
    with pytest.raises(ValueError, match="between 0 and 1"):
        scores(t, threshold=50)


def test_a_diverged_model_has_no_losses():
    s = scores(tally(np.full((4, 1), np.nan), np.array([0, 1, 0, 1]), classes=2))
    assert np.isnan(s["log_loss"])
    assert np.isnan(s["brier"])
    assert s["auroc"] == 0.5


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 40),
    st.sampled_from([2, 4]),
    st.sampled_from([0.0, 0.01, 1.0, 30.0, 1e6]),
    st.floats(0, 1),
)
def test_every_share_stays_between_zero_and_one(seed, rows, classes, scale, threshold):
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(rows, 1 if classes == 2 else classes))
    group = rng.integers(0, 3, rows)
    s = scores(
        tally(logits, rng.integers(0, classes, rows), group=group, groups=3, classes=classes),
        threshold=threshold,
    )
    for name in SHARES:
        value = s[name]
        assert value.shape == (3,)
        assert np.all(np.isnan(value) | ((value >= -1e-12) & (value <= 1 + 1e-12))), name
    for name in ("brier", "log_loss"):
        assert np.array_equal(np.isnan(s[name]), s["count"] == 0)
    ordered = ~np.isnan(s["auroc_low"])
    assert np.all(s["auroc_low"][ordered] <= s["auroc"][ordered])
    assert np.all(s["auroc"][ordered] <= s["auroc_high"][ordered])


def test_scoring_needs_numpy_alone():
    program = """
import sys
import numpy as np
from grandrounds.metrics import choose_threshold, decision_curve, describe, scores, tally
t = tally(np.array([[-1.0], [0.3], [0.2], [2.0]]), np.array([0, 1, 0, 1]), classes=2)
scores(t), choose_threshold(t), decision_curve(t, [0.2])
heavy = {"scipy", "sklearn", "pandas", "torch"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_records_and_tables_have_their_metrics_in_their_order():
    assert shown_in(Place.ROUND_SITES) == ("count", "accuracy", "auroc", "log_loss", "ece")
    assert shown_in(Place.GAP) == shown_in(Place.COURSE) == ("accuracy", "auroc", "log_loss")
    assert shown_in(Place.CARD)[:5] == ("auroc_within", "auroc", "auprc", "accuracy", "balanced_accuracy")
    assert shown_in(Place.SCREEN)[:5] == ("auroc_within", "accuracy", "balanced_accuracy", "macro_f1", "mcc")
    assert all(shown_in(place) for place in Place)


def test_the_table_names_every_metric_once_and_has_a_way_to_each():
    assert len({m.name for m in METRICS}) == len(METRICS)
    assert all((m.work is None) == bool(m.path) for m in METRICS)
    undefined = {m.name for m in METRICS if m.two_classes}
    three = scores(tally(np.eye(3), np.arange(3), classes=3))
    assert {name for name, value in three.items() if np.isnan(value)} == undefined
