"""Mechanisms: the distributions that they promise, and the privacy loss that follows from these, computed exactly."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

from grandrounds.privacy.mechanisms import (
    exponential_top_k,
    gaussian,
    laplace,
    noise_generator,
    randomised_response,
    report_noisy_max,
    shares_behind,
)
from grandrounds.privacy.secagg import Secret
from tests.support import refused

SURELY = 1e-4


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def ordered(scores, *, epsilon: float, sensitivity: float, k: int) -> dict[tuple[int, ...], float]:
    """Log-chance of every ordered outcome, by drawing one candidate after the other among those left."""
    exponents = np.asarray(scores, float) * epsilon / k / (2 * sensitivity)
    found = {}
    for outcome in permutations(range(len(exponents)), k):
        left = list(range(len(exponents)))
        found[outcome] = 0.0
        for j in outcome:
            found[outcome] += exponents[j] - logsumexp(exponents[left])
            left.remove(j)
    return found


@pytest.mark.parametrize("k", [1, 2, 3])
def test_gumbel_top_k_is_drawing_one_after_the_other(k):
    scores, runs = np.array([0.0, 1.5, -0.5, 3.0]), 200_000
    drawn = exponential_top_k(np.tile(scores, (runs, 1)), epsilon=2.0, sensitivity=0.7, k=k, rng=rng())
    true = ordered(scores, epsilon=2.0, sensitivity=0.7, k=k)
    assert sum(np.exp(list(true.values()))) == pytest.approx(1)
    code = drawn @ 4 ** np.arange(k)
    seen = [np.sum(code == np.dot(o, 4 ** np.arange(k))) for o in true]
    assert sum(seen) == runs
    assert stats.chisquare(seen, np.exp(list(true.values())) * runs).pvalue > SURELY


def test_half_the_noise_would_fail_the_same_test():
    scores, runs = np.array([0.0, 1.5, -0.5, 3.0]), 200_000
    drawn = exponential_top_k(np.tile(scores, (runs, 1)), epsilon=4.0, sensitivity=0.7, k=1, rng=rng())
    true = ordered(scores, epsilon=2.0, sensitivity=0.7, k=1)
    seen = np.bincount(drawn[:, 0], minlength=4)
    assert stats.chisquare(seen, np.exp(list(true.values())) * runs).pvalue < SURELY


@settings(max_examples=200, deadline=None)
@given(
    scores=st.lists(st.floats(-5, 5), min_size=2, max_size=5),
    moves=st.lists(st.floats(-1, 1), min_size=5, max_size=5),
    k=st.integers(1, 3),
    epsilon=st.floats(0.05, 5),
    sensitivity=st.floats(0.1, 3),
)
def test_loss_on_neighbouring_scores_is_within_epsilon(scores, moves, k, epsilon, sensitivity):
    k = min(k, len(scores))
    near = np.array(scores) + sensitivity * np.array(moves[: len(scores)])
    a = ordered(scores, epsilon=epsilon, sensitivity=sensitivity, k=k)
    b = ordered(near, epsilon=epsilon, sensitivity=sensitivity, k=k)
    assert max(abs(a[o] - b[o]) for o in a) <= epsilon + 1e-9


def test_epsilon_is_not_wasted():
    """A candidate far behind that one patient lifts while all others sink: the loss comes to almost all of epsilon."""
    worst = 0.0
    for signs in product([-1, 1], repeat=4):
        a = ordered([0, 9, 9, 9], epsilon=2.0, sensitivity=1.0, k=1)
        b = ordered(np.array([0, 9, 9, 9]) + np.array(signs), epsilon=2.0, sensitivity=1.0, k=1)
        worst = max(worst, *(abs(a[o] - b[o]) for o in a))
    assert 1.99 < worst <= 2.0


def test_scores_of_any_size_are_drawn():
    drawn = exponential_top_k(np.array([1e300, -1e300, 1e300]), epsilon=1.0, sensitivity=1.0, k=2, rng=rng())
    assert set(drawn) == {0, 2}


def test_all_candidates_come_out_once():
    assert sorted(exponential_top_k(np.zeros(6), epsilon=1.0, sensitivity=1.0, k=6, rng=rng())) == list(range(6))


def test_noisy_maximum_by_gumbel_is_the_exponential_mechanism():
    scores, generator = np.array([0.0, 1.0, 2.5]), rng(1)
    drawn = [report_noisy_max(scores, epsilon=1.5, sensitivity=1.0, rng=generator) for _ in range(20_000)]
    true = np.exp(1.5 * scores / 2) / np.exp(1.5 * scores / 2).sum()
    assert stats.chisquare(np.bincount(drawn, minlength=3), true * len(drawn)).pvalue > SURELY


def test_noisy_maximum_by_laplace_against_its_closed_form():
    """Of two, the better wins unless a difference of two Laplace draws of scale b passes the gap g."""
    gap, b, generator = 1.0, 2.0, rng(2)
    drawn = [
        report_noisy_max(np.array([gap, 0.0]), epsilon=1.0, sensitivity=1.0, rng=generator, noise="laplace")
        for _ in range(20_000)
    ]
    loses = np.exp(-gap / b) * (2 + gap / b) / 4
    assert stats.binomtest(sum(drawn), len(drawn), loses).pvalue > SURELY


def test_normal_and_laplace_noise_have_the_deviation_that_was_asked_for():
    values = np.full(100_000, 3.0)
    noised = gaussian(values, sigma=1.5, sensitivity=2.0, rng=rng())
    assert stats.kstest(noised, stats.norm(3.0, 3.0).cdf).pvalue > SURELY
    noised = laplace(values, epsilon=0.5, sensitivity=2.0, rng=rng())
    assert stats.kstest(noised, stats.laplace(3.0, 4.0).cdf).pvalue > SURELY
    assert gaussian(np.zeros((2, 3)), sigma=1.0, sensitivity=1.0, rng=rng()).shape == (2, 3)


def test_randomised_response_tells_each_answer_as_often_as_epsilon_allows():
    """Four categories at epsilon = ln 3: kept with chance 3/6, every other with 1/6, so no two differ by more than 3."""
    reports = randomised_response(np.full(120_000, 2), epsilon=np.log(3), categories=4, rng=rng())
    assert stats.chisquare(np.bincount(reports), [20_000, 20_000, 60_000, 20_000]).pvalue > SURELY


def test_shares_behind_reports_are_unbiased():
    """Exact expectations give the true shares back; a thousand draws lie around them within their standard error."""
    kept, other = 3 / 6, 1 / 6
    true = np.array([0.7, 0.2, 0.1, 0.0])
    expected = np.rint(6_000_000 * (kept * true + other * (1 - true))).astype(int)
    assert shares_behind(np.repeat(np.arange(4), expected), epsilon=np.log(3), categories=4) == pytest.approx(true)
    answers, generator = np.repeat(np.arange(4), [70, 20, 10, 0]), rng(4)
    found = np.array(
        [
            shares_behind(
                randomised_response(answers, epsilon=np.log(3), categories=4, rng=generator),
                epsilon=np.log(3),
                categories=4,
            )
            for _ in range(1000)
        ]
    )
    assert (np.abs(found.mean(axis=0) - true) < 4 * found.std(axis=0) / np.sqrt(1000)).all()
    assert found.sum(axis=1) == pytest.approx(1)


@pytest.mark.parametrize(
    ("scores", "changed", "code"),
    [
        ([1.0, np.nan], {}, "not-finite"),
        ([1.0, np.inf], {}, "not-finite"),
        (["a", "b"], {}, "not-numeric"),
        ([1.0, 2.0], {"k": 3}, "bad-count"),
        ([1.0, 2.0], {"k": 0}, "bad-count"),
        ([], {}, "bad-count"),
        ([1.0, 2.0], {"epsilon": 0.0}, "bad-privacy-parameter"),
        ([1.0, 2.0], {"epsilon": np.inf}, "bad-privacy-parameter"),
        ([1.0, 2.0], {"sensitivity": -1.0}, "bad-privacy-parameter"),
    ],
)
def test_bad_scores_and_settings_are_refused(scores, changed, code):
    with refused(code):
        exponential_top_k(np.array(scores), **({"epsilon": 1.0, "sensitivity": 1.0, "k": 1, "rng": rng()} | changed))


def test_bad_values_of_other_mechanisms_are_refused():
    with refused("not-finite"):
        gaussian(np.array([np.nan]), sigma=1.0, sensitivity=1.0, rng=rng())
    with refused("bad-privacy-parameter", match="epsilon"):
        laplace(np.zeros(1), epsilon=-1.0, sensitivity=1.0, rng=rng())
    with refused("bad-category", match="0 to 1"):
        randomised_response(np.array([2]), epsilon=1.0, categories=2, rng=rng())
    with refused("bad-category"):
        randomised_response(np.array([0.5]), epsilon=1.0, categories=2, rng=rng())
    with refused("unknown-noise"):
        report_noisy_max(np.zeros(2), epsilon=1.0, sensitivity=1.0, rng=rng(), noise="cauchy")
    with refused("no-reports"):
        shares_behind(np.zeros(0, int), epsilon=1.0, categories=2)


def test_generators_of_a_site_differ_by_purpose_and_repeat_only_in_a_simulation():
    own, told = Secret.own(), Secret.simulated(0, "a")
    assert noise_generator(told, "round 1").random() == noise_generator(told, "round 1").random()
    assert noise_generator(told, "round 1").random() != noise_generator(told, "round 2").random()
    assert noise_generator(own, "round 1").random() != noise_generator(own, "round 1").random()
