"""Membership attacks as arithmetic: by hand, against scikit-learn, and where they must find nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.special import log_softmax
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from grandrounds.core.rng import generator
from grandrounds.privacy.attacks.membership import confidence, judged, most_area, most_hits, offline, online
from tests.support import refused


def test_confidence_is_the_log_odds_of_the_true_class():
    binary = np.array([[2.0], [-1.0]])
    assert confidence(binary, np.array([1, 1])).tolist() == [2.0, -1.0]
    assert confidence(binary, np.array([0, 0])).tolist() == [-2.0, 1.0]
    wide = generator(0, purpose="logits").normal(size=(50, 4)) * 3
    y = np.arange(50) % 4
    p = np.exp(log_softmax(wide, axis=1))[np.arange(50), y]
    assert confidence(wide, y) == pytest.approx(np.log(p / (1 - p)))


def test_a_row_learnt_by_heart_is_still_told_from_one_learnt_better():
    sure = confidence(np.array([[40.0], [60.0]]), np.array([1, 1]))  # both are 1.0 as probabilities
    assert sure[0] < sure[1]
    assert confidence(np.array([[np.inf, 0.0], [-np.inf, 0.0]]), np.array([0, 0])).tolist() == [100.0, -100.0]
    with refused("diverged-model"):
        confidence(np.array([[np.nan]]), np.array([1]))


def test_figures_by_hand():
    # members .9 .8 .4, others .5 .3: of six pairs five are the right way round
    found = judged("x", np.array([0.9, 0.8, 0.4, 0.5, 0.3]), np.array([1, 1, 1, 0, 0], bool))
    assert (found.members, found.nonmembers, found.auc) == (3, 2, pytest.approx(5 / 6))
    # above every other row (no false alarm, and a fiftieth of one) lie two of three members
    assert found.tpr == pytest.approx(2 / 3, abs=0.01)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 60), st.booleans())
def test_area_is_that_of_scikit_learn(seed, n, ties):
    rng = generator(seed, purpose="scores")
    scores, member = rng.normal(size=n), rng.random(n) < 0.5
    member[:2] = True, False
    if ties:
        scores = scores.round()
    found = judged("x", scores, member)
    assert found.auc == pytest.approx(roc_auc_score(member, scores))
    assert math.isnan(found.low) or 0 <= found.low <= found.auc <= found.high <= 1


def test_rows_without_a_score_do_not_count():
    found = judged("x", np.array([1.0, np.nan, 0.0, np.nan]), np.array([True, True, False, False]))
    assert (found.members, found.nonmembers, found.auc) == (1, 1, 1.0)


def test_interval_covers_chance_as_often_as_it_says():
    rng = generator(0, purpose="cover")
    member = np.arange(200) < 120
    found = [judged("x", rng.normal(size=200), member) for _ in range(400)]
    covered = np.mean([f.low <= 0.5 <= f.high for f in found])
    assert 0.92 <= covered <= 0.98


def test_offline_score_by_hand():
    shadows = np.array([[1.0, 9.0], [3.0, 5.0], [7.0, 2.0], [5.0, 4.0]])
    inside = np.array([[False, True], [False, True], [True, False], [True, False]])
    # out-models of row 0 say 1, 3; of row 1 say 2, 4: means 2 and 3, pooled variance (2 + 2) / 2 = 2
    assert offline(np.array([4.0, 3.0]), shadows, inside) == pytest.approx([2 / math.sqrt(2), 0.0])


def test_online_score_by_hand():
    shadows = np.array([[1.0, 9.0], [3.0, 5.0], [7.0, 2.0], [5.0, 4.0]])
    inside = np.array([[False, True], [False, True], [True, False], [True, False]])
    # in-models of row 0 say 7, 5; of row 1 say 9, 5: means 6 and 7, pooled variance (2 + 8) / 2 = 5
    expected = norm.logpdf([4.0, 3.0], [6, 7], math.sqrt(5)) - norm.logpdf([4.0, 3.0], [2, 3], math.sqrt(2))
    assert online(np.array([4.0, 3.0]), shadows, inside) == pytest.approx(expected)


def test_a_row_that_every_shadow_saw_has_no_score():
    shadows, inside = np.ones((4, 2)), np.array([[True, False]] * 4)
    assert np.isnan(offline(np.ones(2), shadows, inside)).tolist() == [True, False]


def test_many_shadows_give_rows_variances_of_their_own():
    rng = generator(0, purpose="shadows")
    spread = np.array([0.1, 5.0])
    shadows, inside = rng.normal(size=(200, 2)) * spread, rng.random((200, 2)) < 0.5
    assert offline(np.array([0.5, 0.5]), shadows, inside) == pytest.approx(0.5 / spread, rel=0.35, abs=0.3)


def test_lira_is_not_taken_in_by_easy_rows_and_finds_nothing_in_chance():
    rng = generator(1, purpose="easy")
    n, s = 600, 32
    easy = rng.normal(size=n) * 4  # some rows are easy for every model
    member = np.arange(n) % 2 == 0
    inside = rng.random((s, n)) < 0.5
    shadows = easy + inside + rng.normal(size=(s, n))
    target = easy + member + rng.normal(size=n)
    by_loss = judged("loss", target, member)
    assert by_loss.auc < 0.62
    for score in (offline, online):
        assert judged("lira", score(target, shadows, inside), member).auc > 0.72  # of Phi(1 / sqrt 2) = .76 at most
        nothing = judged("lira", score(easy + rng.normal(size=n), shadows, inside), member)
        assert nothing.low < 0.5 < nothing.high


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.5, 1e-5), (2.0, 0.01), (8.0, 1e-5)])
def test_what_epsilon_allows_is_the_area_under_its_curve(epsilon, delta):
    fpr = np.linspace(0, 1, 20_001)
    hits = [most_hits(epsilon, delta, fpr=f) for f in fpr]
    assert trapezoid(hits, fpr) == pytest.approx(most_area(epsilon, delta), abs=1e-4)
    assert most_hits(epsilon, delta, fpr=0.01) <= math.exp(epsilon) * 0.01 + delta + 1e-12


def test_the_best_test_of_randomised_response_reaches_what_epsilon_allows():
    """Its two outcomes make the corner of the curve: TPR = e^eps FPR with FPR = 1 / (1 + e^eps)."""
    epsilon = 1.5
    corner = 1 / (1 + math.exp(epsilon))
    assert most_hits(epsilon, 0.0, fpr=corner) == pytest.approx(1 - corner)
    assert most_area(epsilon, 0.0) == pytest.approx(1 - corner)


def test_a_huge_epsilon_allows_everything_without_overflow():
    assert most_hits(1e6, 1e-5) == 1.0
    assert most_area(1e6, 1e-5) == pytest.approx(1.0)
