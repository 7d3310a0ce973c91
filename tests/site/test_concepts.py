"""VEIL at a site: how far one patient can reach, and that draws are what they claim to be, from the site's own secret."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from grandrounds.methods.veil.bounded_fits import convex_weights, gradient_descent_weights
from grandrounds.methods.veil.extractor import Extractor, printed_weights
from grandrounds.methods.veil.site import CENSUS, MOMENTS, PROPOSE, SCORES, VeilSite, score_statistic
from grandrounds.privacy.accounting import Event, epsilon_of, noise_for
from grandrounds.privacy.attacks.empirical import lower_bound
from grandrounds.privacy.secagg import Secret
from grandrounds.protocol.messages import Ask, AskId
from grandrounds.site.stack import Part
from tests.support import ready, stack, veil_sites

D = 3
HELD = stack([5, 5])
ID = AskId("run", 1, 0)


def hospitals(rows, outcomes, *, copies=1, secret=lambda name: Secret.simulated(0, name)) -> VeilSite:
    """A hospital with these training rows, in so many copies side by side."""
    n = len(rows)
    y = np.tile(np.asarray(outcomes, np.int64), copies)
    x = np.tile(np.asarray(rows, float), (copies, 1))
    part = Part(x, y, y[:, None].astype(float), np.zeros_like(y), np.arange(copies + 1) * n)
    return veil_sites([str(k) for k in range(copies)], replace(HELD, parts={"train": part}), secret)


def told(task, rows, outcomes, *, copies=1, secret=lambda name: Secret.simulated(0, name), **shared) -> np.ndarray:
    """What these hospitals answer to one Ask, (copies, ...)."""
    site = hospitals(rows, outcomes, copies=copies, secret=secret)
    answer = site.tasks[task](Ask(task, shared={"inputs": D, "prior": 0.3, **shared}, id=ID), np.arange(copies))
    return np.asarray(next(iter(answer.values())))


# How far one patient reaches

values = st.floats(-1e9, 1e9) | st.floats(-3, 3)
models = arrays(float, D + 1, elements=st.floats(-5, 5) | st.floats(-1e99, 1e99))


@st.composite
def neighbours(draw):
    """(rows, outcomes) of some patients, and of the same without the last of them."""
    n = draw(st.integers(1, 7))
    x = draw(arrays(float, (n, D), elements=values))
    y = draw(arrays(np.int64, n, elements=st.integers(0, 1)))
    return (x, y), (x[:-1], y[:-1])


@given(neighbours(), models, st.floats(0.1, 10))
@settings(max_examples=100, deadline=None)
def test_one_patient_moves_each_utility_by_at_most_one(pair, model, c):
    sent = {"model": model, "value": c}
    (x, y), (fewer, labels) = pair
    assert np.abs(score_statistic(sent, x, y) - score_statistic(sent, fewer, labels)).max() <= 1 + 1e-9


@given(neighbours(), models, st.floats(0.1, 10), st.floats(0.1, 5), st.lists(st.integers(0, D - 1), max_size=D))
@settings(max_examples=80, deadline=None)
def test_one_patient_moves_a_sum_of_scores_by_at_most_the_norm(pair, model, c, norm, features):
    asked = {"model": model, "value": c, "norm": norm, "features": np.array(features, np.int64)}
    more, fewer = (told(SCORES, *rows, **asked)[0] for rows in pair)
    assert np.linalg.norm(more - fewer) <= norm * (1 + 1e-9)


@given(neighbours(), st.floats(0.1, 10), st.floats(0.1, 5), st.floats(0.1, 9), st.floats(0.01, 0.99))
@settings(max_examples=80, deadline=None)
def test_one_patient_moves_second_moments_by_at_most_what_is_stated(pair, c, norm, a, prior):
    asked = {"value": c, "norm": norm, "outcome": a, "prior": prior}
    more, fewer = (told(MOMENTS, *rows, **asked)[0] for rows in pair)
    assert np.linalg.norm(more - fewer) <= math.sqrt(norm**4 + a**2 * norm**2) * (1 + 1e-9)


@given(neighbours())
@settings(max_examples=50, deadline=None)
def test_one_patient_is_one_row_and_one_event_or_none(pair):
    more, fewer = (told(CENSUS, *rows)[0] for rows in pair)
    assert (more - fewer).tolist() == [1, pair[0][1][-1]]


@given(neighbours(), st.floats(0.1, 10), st.floats(0.1, 9))
@settings(max_examples=60, deadline=None)
def test_one_patient_moves_rows_events_and_values_by_at_most_the_root_of_three(pair, c, norm):
    more, fewer = (told(CENSUS, *rows, value=c, norm=norm)[0] for rows in pair)
    assert np.linalg.norm(more - fewer) <= math.sqrt(3) * (1 + 1e-9)


def test_scores_are_told_from_the_centre():
    asked = {"model": np.zeros(D + 1), "value": 2.0, "norm": 99.0, "features": np.arange(D)}
    x, y, centre = np.array([[1.0, -3.0, 0.5], [0.2, 0.1, 4.0]]), [1, 0], np.array([0.5, 0.1, -1.0])
    by_hand = 0.5 * (np.append([1, -2, 0.5] - centre, 1) - np.append([0.2, 0.1, 2] - centre, 1))
    assert told(SCORES, x, y, **asked, centre=centre)[0].tolist() == pytest.approx(by_hand.tolist())


def test_the_reach_is_used_up():
    """The bounds above are no wider than need be: some patient comes close to each."""
    x, y = np.full((1, D), 50.0), [1]
    sure = np.array([-90.0, 0, 0, 0])  # the model said never, and it happened
    assert score_statistic({"model": sure, "value": 2.0}, x, np.array(y)).tolist() == pytest.approx([1, 1, 1, 1])
    asked = {"model": sure, "value": 2.0, "norm": 1.5, "features": np.arange(D)}
    assert np.linalg.norm(told(SCORES, x, y, **asked)[0]) == pytest.approx(1.5)
    moments = told(MOMENTS, x, y, value=2.0, norm=1.5, outcome=4.0, prior=1e-9)[0]
    assert np.linalg.norm(moments) == pytest.approx(math.sqrt(1.5**4 + 4**2 * 1.5**2))


RULE = Extractor(epochs=3, batch=2, lr=0.7, clip=1.3, l2=0.4)


@given(neighbours(), st.floats(0.05, 3), st.integers(1, 5), st.integers(0, 3), st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_as_printed_no_weight_exceeds_half_its_bound_whatever_the_data(pair, lr, epochs, batch, seed):
    """So that eq. 1 is vacuous: utilities lie within [0, 1/2], and all together are no longer than that, for any patients."""
    rule = replace(RULE, lr=lr, epochs=epochs, batch=batch)
    weights = printed_weights(rule, *pair[0], np.random.default_rng(seed))
    assert np.linalg.norm(weights) <= 0.5 + 1e-12


def test_the_printed_bound_is_two_steps_for_each_batch():
    """Eq. 1 by hand: 5 rows in batches of 2 are 3 steps, 3 times, of .7 * 1.3 at most, twice."""
    x, y = np.full((5, 1), 100.0), np.ones(5)
    weights = printed_weights(RULE, x, y, np.random.default_rng(0))
    unit = 2 * 3 * 3 * 0.7 * 1.3
    assert weights[0] * unit == pytest.approx(0.7 * 1.3), "after one full step it is sure, and stays"


def from_even(utility) -> float:
    """Total variation between the printed draw and an even one, at epsilon 5 over ten rounds of five proposals."""
    e = np.exp(5 / (10 * 5) / 2 * np.abs(utility))
    return float(np.abs(e / e.sum() - 1 / len(e)).sum() / 2)


@given(arrays(float, 100, elements=st.floats(0, 1)).filter(lambda w: w.sum() > 0.01))
@settings(max_examples=40, deadline=None)
def test_the_printed_draw_is_all_but_even_whatever_the_weights(weights):
    """Of a hundred features, with any weights that eq. 1 allows."""
    utility = weights / np.linalg.norm(weights) / 2
    assert from_even(utility) < 0.001
    spread = np.exp(0.05 * (utility.max() - utility.min()))
    assert spread <= math.exp(5 / (4 * 5 * 10)) + 1e-12, "e^(eps / 4 k T) = 1.025"


def test_the_printed_draw_is_all_but_even_on_real_patients():
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    for k in range(5):
        rule = Extractor(epochs=5, batch=32, lr=0.1, clip=1.0, l2=0.0)
        weights = printed_weights(rule, x[k::5], y[k::5], np.random.default_rng(k))
        assert 0 < from_even(weights) < 0.001


@given(neighbours(), st.floats(0.2, 3), st.floats(0.05, 2))
@settings(max_examples=80, deadline=None)
def test_one_patient_moves_a_strongly_convex_fit_by_at_most_its_unit(pair, clip, l2):
    rule, rng = replace(RULE, clip=clip, l2=l2), np.random.default_rng(0)
    (x, y), (fewer, labels) = pair
    if len(fewer):
        off = convex_weights(rule, x, y, rng) - convex_weights(rule, fewer, labels, rng)
        assert np.linalg.norm(off) <= 1 + 1e-6
    other = np.concatenate([-x[-1:], fewer]), np.concatenate([1 - y[-1:], labels])
    assert np.linalg.norm(convex_weights(rule, x, y, rng) - convex_weights(rule, *other, rng)) <= 1 + 1e-6


@given(neighbours(), arrays(float, (1, D), elements=values), st.floats(0.2, 3), st.floats(0.01, 9), st.integers(1, 6))
@settings(max_examples=80, deadline=None)
def test_another_patient_moves_a_descent_by_at_most_its_unit(pair, instead, clip, lr, epochs):
    """The number of rows is taken as known there: one patient in place of another."""
    rule, rng = replace(RULE, clip=clip, lr=lr, epochs=epochs), np.random.default_rng(0)
    (x, y), (fewer, labels) = pair
    other = np.concatenate([fewer, instead]), np.append(labels, 1 - y[-1])
    assert np.linalg.norm(gradient_descent_weights(rule, x, y, rng) - gradient_descent_weights(rule, *other, rng)) <= 1 + 1e-9


# What is drawn, and from where

ROWS = np.array([[2.0, -1.0, 0.5], [1.0, 0.3, -2.0], [0.2, 1.0, 1.0], [-1.5, 0.1, 0.4]])
DIED = np.array([1, 1, 0, 1])
ASKED = {"selection": "score", "value": 1.0}


def test_two_draws_are_exactly_two_exponential_mechanisms():
    """All 56 ordered pairs of candidates against their chances by hand, in four thousand hospitals."""
    epsilon, copies = 1.5, 4000
    votes = told(PROPOSE, ROWS, DIED, copies=copies, **ASKED, k=2, epsilon=epsilon)
    z = np.concatenate([np.clip(ROWS, -1, 1), np.ones((4, 1))], axis=1)
    u = (DIED - 0.3) @ z
    e = np.exp(epsilon / 2 * np.concatenate([u, -u]))
    first = e / e.sum()
    found = Counter(map(tuple, votes.tolist()))
    statistic = 0.0
    for i in range(8):
        for j in range(8):
            if i == j:
                assert found[i, j] == 0
                continue
            expected = copies * first[i] * e[j] / (e.sum() - e[i])
            statistic += (found[i, j] - expected) ** 2 / expected
    from scipy.stats import chi2

    assert chi2.sf(statistic, 55) > 1e-3
    wrong = copies / 56  # and uniform draws would not pass
    assert sum((n - wrong) ** 2 / wrong for n in found.values()) > chi2.isf(1e-9, 55)


def test_without_a_budget_the_best_are_proposed():
    z = np.concatenate([np.clip(ROWS, -1, 1), np.ones((4, 1))], axis=1)
    u = (DIED - 0.3) @ z
    votes = told(PROPOSE, ROWS, DIED, **ASKED, k=3)[0]
    assert votes.tolist() == np.argsort(-np.concatenate([u, -u]))[:3].tolist()
    assert votes.dtype == np.uint8


@pytest.mark.parametrize(
    ("task", "shared"),
    [
        (PROPOSE, {**ASKED, "k": 4, "epsilon": 0.5}),
        (CENSUS, {"epsilon": 0.5}),
        (SCORES, {"value": 1.0, "norm": 1.0, "features": np.arange(D), "noise": 2.0}),
        (MOMENTS, {"value": 1.0, "norm": 1.0, "outcome": 2.0, "noise": 2.0}),
    ],
)
def test_draws_follow_the_sites_secret_and_nothing_else(task, shared):
    def answers(secret):
        return told(task, ROWS, DIED, copies=40, secret=secret, **shared).tobytes()

    own = [answers(lambda name: Secret.own()) for _ in range(2)]
    assert own[0] != own[1]
    assert answers(lambda name: Secret.simulated(3, name)) == answers(lambda name: Secret.simulated(3, name))
    assert answers(lambda name: Secret.simulated(3, name)) != answers(lambda name: Secret.simulated(4, name))
    each = told(task, ROWS, DIED, copies=40, **shared)
    assert len({row.tobytes() for row in each}) > 30, "equal hospitals draw apart"


def test_the_same_ask_gets_the_same_answer_from_a_site_that_draws_anew(monkeypatch):
    monkeypatch.setattr("grandrounds.engine.local._secret", lambda seed, site: Secret.own())
    engine, encoding = ready(stack([30, 40, 50]), wire=True)
    d = encoding.inputs[0]
    shared = {"inputs": d, "prior": 0.3, "value": 1.0}
    scores = {"norm": 1.0, "features": np.arange(d), "noise": 3.0}
    asks = (
        Ask(PROPOSE, shared={**shared, "selection": "score", "k": 5, "epsilon": 0.1}, report=("votes",)),
        Ask(SCORES, shared={**shared, **scores}, report=("scores",)),
    )
    for ask in asks:
        first, again, other = (
            next(iter(engine.hosts[0].answer(replace(ask, id=AskId("run", 1, step)), np.zeros(1, int)).values()))
            for step in (7, 7, 8)
        )
        assert first.tobytes() == again.tobytes() != other.tobytes()


def test_noise_has_the_deviation_that_was_asked_for():
    empty = np.zeros((0, D)), np.zeros(0, int)
    noisy = told(MOMENTS, *empty, copies=1500, value=1.0, norm=1.0, outcome=1.0, noise=2.5)
    assert noisy.std() == pytest.approx(2.5, rel=0.02) and abs(noisy.mean()) < 0.05
    counts = told(CENSUS, *empty, copies=8000, epsilon=0.5)
    assert np.abs(counts).mean() == pytest.approx(2 / 0.5, rel=0.03), "Laplace of scale 2 / epsilon: rows and events"


# Under attack: epsilon as it is seen, on the pair of neighbours that is worst

RUNS = 4000
WORST, NOBODY = (np.full((1, D), 50.0), [1]), (np.zeros((0, D)), [])


def watched(task, **shared):
    def run(rows, rng, runs):
        word = int(rng.integers(2**32))
        answers = told(task, *rows, copies=runs, secret=lambda name: Secret.simulated(word, name), **shared)
        return [tuple(a) for a in answers.tolist()] if task == PROPOSE else answers

    return run


SUMS = {
    SCORES: (1.5, {"value": 2.0, "norm": 1.5, "features": np.arange(D), "prior": 1e-6}),
    MOMENTS: (1.5 * math.sqrt(1.5**2 + 3**2), {"value": 2.0, "norm": 1.5, "outcome": 3.0, "prior": 1e-6}),
}


@pytest.mark.parametrize("task", SUMS)
def test_noisy_sums_keep_their_claim_and_are_not_far_from_it(task):
    claimed, delta = 3.0, 0.01
    reach, shared = SUMS[task]
    sigma = noise_for(claimed, delta, steps=1)
    assert epsilon_of([Event("gaussian", "sum", sigma=sigma)], delta) == pytest.approx(claimed, rel=1e-3)
    towards = told(task, *WORST, **shared)[0]  # the best that an attacker can look along

    def seen(noise, runs):
        watch = watched(task, noise=noise, **shared)
        return lower_bound(
            watch, WORST, NOBODY, runs=runs, seed=3, delta=delta, score=lambda a: a @ towards, at_once=True
        )

    assert claimed / 3 < seen(sigma * reach, RUNS).epsilon <= claimed
    assert seen(sigma * reach / 3, RUNS // 2).refutes(claimed)


def test_several_proposals_keep_their_claim_and_are_not_far_from_it():
    claimed = 3.0
    kept = watched(PROPOSE, selection="score", value=2.0, prior=1e-6, k=2, epsilon=claimed / 2)
    bound = lower_bound(kept, WORST, NOBODY, runs=RUNS, seed=3, at_once=True)
    assert claimed / 3 < bound.epsilon <= claimed
    broken = watched(PROPOSE, selection="score", value=2.0, prior=1e-6, k=2, epsilon=3 * claimed)
    assert lower_bound(broken, WORST, NOBODY, runs=RUNS // 2, seed=3, at_once=True).refutes(claimed)
