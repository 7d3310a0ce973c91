"""Empirical epsilon: honest mechanisms stay under their claim, broken ones are caught by the very same call."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from grandrounds.models.dense import Dense
from grandrounds.privacy.accounting import Event, epsilon_of, skellam_rho
from grandrounds.privacy.attacks.empirical import epsilon_shown, lower_bound
from grandrounds.privacy.secagg import Secret
from grandrounds.privacy.secagg.ring import Scale, Skellam
from grandrounds.privacy.secagg.terms import Context
from grandrounds.site.dp_sgd import SampledSteps, train
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig, TrainJob
from tests.support import refused, slow

RUNS = 200_000
DELTA = 1e-3


def gaussian_epsilon(sigma, delta):
    """The analytic Gaussian mechanism (Balle & Wang 2018, theorem 8) at sensitivity 1, solved for epsilon."""
    low, high = 0.0, 100.0
    for _ in range(80):
        e = (low + high) / 2
        spent = norm.cdf(1 / (2 * sigma) - e * sigma) - math.exp(e) * norm.cdf(-1 / (2 * sigma) - e * sigma)
        low, high = (e, high) if spent > delta else (low, e)
    return high


def held(bound, claimed):
    """Under the claim, and not for want of looking."""
    assert claimed / 3 < bound.epsilon <= claimed
    assert not bound.refutes(claimed)


def test_counts_show_what_the_binomial_says():
    # 0 of n is still possible at a chance q with (1 - q)^n = miss; n of n at p with p^n = miss
    n, miss = 1000, 0.0005
    q, p = 1 - miss ** (1 / n), miss ** (1 / n)
    assert float(epsilon_shown(n, 0, runs=n, delta=0)) == pytest.approx(math.log(p / q))
    assert float(epsilon_shown(n, 0, runs=n, delta=0.25)) == pytest.approx(math.log((p - 0.25) / q))
    # the limits are where the counts are just as unlikely as the confidence allows
    shown = math.exp(float(epsilon_shown(700, 300, runs=n, delta=0)))
    grid = np.linspace(0, 1, 200_001)
    lowest = grid[binom.sf(699, n, grid) >= miss][0]
    highest = grid[binom.cdf(300, n, grid) >= miss][-1]
    assert shown == pytest.approx(lowest / highest, rel=1e-4)


def test_nothing_is_shown_by_equal_counts_or_below_delta():
    assert epsilon_shown([500, 0, 10], [500, 1000, 0], runs=1000, delta=0.05).tolist() == [0, 0, 0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 500), st.integers(0, 500), st.floats(0, 0.5))
def test_more_runs_of_one_kind_show_no_less(likely, unlikely, delta):
    shown = float(epsilon_shown(likely, unlikely, runs=500, delta=delta))
    assert 0 <= shown <= float(epsilon_shown(500, 0, runs=500, delta=delta)) or delta > 0.4
    assert float(epsilon_shown(min(500, likely + 1), unlikely, runs=500, delta=delta)) >= shown
    assert float(epsilon_shown(likely, min(500, unlikely + 1), runs=500, delta=delta)) <= shown


@pytest.mark.parametrize("claimed", [0.5, 1.0, 3.0, 5.0])
def test_laplace(claimed):
    def noised(value, rng, runs):
        return value + rng.laplace(0, 1 / claimed, runs)

    def half(value, rng, runs):
        return value + rng.laplace(0, 1 / (2 * claimed), runs)

    def doubled(value, rng, runs):  # one patient moves it by 2, not by 1 as the noise supposes
        return 2 * value + rng.laplace(0, 1 / claimed, runs)

    held(lower_bound(noised, 0.0, 1.0, runs=RUNS, seed=1, at_once=True), claimed)
    for broken in (half, doubled):
        assert lower_bound(broken, 0.0, 1.0, runs=RUNS, seed=1, at_once=True).refutes(claimed)


@pytest.mark.parametrize("sigma", [0.8, 1.5, 4.0])
def test_gaussian_vectors_without_a_score_of_their_own(sigma):
    claimed = gaussian_epsilon(sigma, DELTA)
    one, none = np.array([0.6, 0.0, -0.8, 0.0]), np.zeros(4)

    def noised(value, rng, runs, part=1.0):
        return value + part * sigma * rng.standard_normal((runs, 4))

    def half(value, rng, runs):
        return noised(value, rng, runs, 0.5)

    held(lower_bound(noised, one, none, runs=RUNS, seed=2, delta=DELTA, at_once=True), claimed)
    assert lower_bound(half, one, none, runs=RUNS, seed=2, delta=DELTA, at_once=True).refutes(claimed)


@pytest.mark.parametrize("claimed", [1.0, 4.0])
def test_randomised_response_run_by_run(claimed):
    def answer(truth, rng, epsilon=claimed):
        return "yes" if (rng.random() < 1 / (1 + math.exp(-epsilon))) == truth else "no"

    held(lower_bound(answer, True, False, runs=8_000, seed=3), claimed)
    broken = lower_bound(lambda t, rng: answer(t, rng, 1.5 * claimed), True, False, runs=8_000, seed=3)
    assert broken.refutes(claimed)


def test_the_event_is_found_in_either_direction():
    def rare(value, rng, runs):  # only "a" ever gives 1
        return (rng.random(runs) < 0.02 * value).astype(float)

    ahead = lower_bound(rare, 1, 0, runs=20_000, seed=4, at_once=True)
    back = lower_bound(rare, 0, 1, runs=20_000, seed=4, at_once=True)
    assert (ahead.of, back.of) == ("a", "b")
    assert ahead.epsilon > 2 and back.epsilon > 2
    assert ahead.unlikely == back.unlikely == 0


def test_a_delta_that_covers_the_leak_hides_it():
    def rare(value, rng, runs):
        return (rng.random(runs) < 0.02 * value).astype(float)

    assert lower_bound(rare, 1, 0, runs=20_000, seed=4, delta=0.05, at_once=True).epsilon == 0


def test_claims_that_hold_are_seldom_refuted():
    """At 99% confidence each, 300 tight claims: more than nine refuted would be one in a thousand."""

    def answer(truth, rng, runs):
        return ((rng.random(runs) < 1 / (1 + math.exp(-1.0))) == truth).astype(float)

    wrong = sum(
        lower_bound(answer, True, False, runs=2000, seed=s, at_once=True, confidence=0.99).refutes(1.0)
        for s in range(300)
    )
    assert wrong <= 9


def test_it_repeats_to_the_bit_and_no_run_shows_more_than_the_ceiling():
    def plain(value, rng, runs):
        return value + np.zeros(runs)

    one = lower_bound(plain, 0.0, 1.0, runs=10_000, seed=5, at_once=True)
    assert one == lower_bound(plain, 0.0, 1.0, runs=10_000, seed=5, at_once=True)
    assert one.epsilon == one.ceiling == pytest.approx(math.log(5000 / -math.log(0.0005)), abs=0.01)


def test_bad_input_is_refused():
    with refused("too-few-runs"):
        lower_bound(lambda d, rng: 0.0, 0, 1, runs=3, seed=0)
    with refused("bad-delta"):
        lower_bound(lambda d, rng: 0.0, 0, 1, runs=100, seed=0, delta=1.0)
    with refused("not-finite"):
        lower_bound(lambda d, rng: math.nan, 0, 1, runs=100, seed=0)
    with refused("wrong-shape"):
        lower_bound(lambda d, rng, runs: np.zeros(7), 0, 1, runs=100, seed=0, at_once=True)


@pytest.mark.parametrize("sigma", [0.7, 2.0])
@pytest.mark.parametrize("coarse", [False, True])
def test_skellam_shares_of_the_fewest_survivors(sigma, coarse):
    """Three of five sites survive, one of whom holds the patient: the sum of their shares is what the claim rests on."""
    scale = Scale(bits=32, bound=2.0**26 if coarse else 1.0, parties=5, spare=100.0)
    unit = 64 * scale.step if coarse else 1.0  # coarse: true Poisson draws, and rounding that counts
    noise = Skellam(sigma * unit, fewest=3)

    def sums(value, rng, runs, survivors=3):
        word = int(rng.integers(2**32))
        rows = np.full(runs, value)
        total = scale.to_ring(rows)
        for k in range(survivors):
            secret = Secret.simulated(word, f"site {k}")
            total = total + noise.share(scale, runs, secret=secret, context=Context("audit", 1, "sum"))
        return scale.from_ring(total)

    rho = skellam_rho(sigma * unit, sensitivity=unit, step=scale.step, dimension=1)
    claimed = epsilon_of([Event("skellam", "a sum", rho=rho)], DELTA)
    held(lower_bound(sums, unit, 0.0, runs=RUNS, seed=6, delta=DELTA, at_once=True), claimed)

    def lonely(value, rng, runs):
        return sums(value, rng, runs, survivors=1)

    assert lower_bound(lonely, unit, 0.0, runs=RUNS, seed=6, delta=DELTA, at_once=True).refutes(claimed)


MODEL = Dense((2, 1))
OTHERS = np.array([[0.3, -0.2], [-0.5, 0.4]])
PATIENT = np.array([[6.0, -8.0]])
STEP = 1e-3


def dp_sgd(noise, rate, steps):
    """A site that takes DP-SGD steps, in many copies side by side, each with a secret of its own; what leaves it.

    The worst case is made to happen: the others' gradients are next to nothing (a target of one half at a model near
    zero), the patient's is clipped and points the same way in every step. The rate of learning grows with the rows, so that
    both neighbours move by the noised sum itself: how many rows a site has is taken as known, and must not tell them apart.
    """

    def run(rows, rng, runs):
        n = len(rows)
        half, y = np.full((n, 1), 0.5), np.zeros(n, np.int64)
        half[len(OTHERS) :], y[len(OTHERS) :] = 1.0, 1
        part = Part(
            np.tile(rows, (runs, 1)),
            np.tile(y, runs),
            np.tile(half, (runs, 1)),
            np.zeros(runs * n, np.int64),
            np.arange(runs + 1) * n,
        )
        work = TrainConfig(seed=0, round=1, lr=STEP * n, steps=steps, clip=1.0, noise=noise, rate=rate, fewest=1)
        word, members = int(rng.integers(2**32)), np.arange(runs)
        secrets = [Secret.simulated(word, str(k)) for k in range(runs)]
        draws = SampledSteps.draw(part, members, secrets, config=work, purpose="audit", size=MODEL.layout.size)
        return np.asarray(train(TrainJob(MODEL, part, members, np.zeros(3), work), draws).theta)

    return run


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 1.0, 1), slow(2.0, 1.0, 4), slow(1.2, 0.5, 2)])
def test_dp_sgd_steps(noise, rate, steps):
    claimed = epsilon_of([Event("sampled_gaussian", "steps", count=steps, sigma=noise, rate=rate)], DELTA)
    assert claimed <= 5
    neighbours = np.concatenate([OTHERS, PATIENT]), OTHERS
    honest = lower_bound(dp_sgd(noise, rate, steps), *neighbours, runs=8000, seed=7, delta=DELTA, at_once=True)
    held(honest, claimed)
    half = lower_bound(dp_sgd(noise / 2, rate, steps), *neighbours, runs=8000, seed=7, delta=DELTA, at_once=True)
    assert half.refutes(claimed)
