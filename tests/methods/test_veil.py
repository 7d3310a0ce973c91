"""VEIL at the server: ballots by hand, weights from sums, and a budget that is used up and not passed."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.methods.secure import STATISTIC_BITS
from grandrounds.methods.veil.budget import MAX_SUM_ENTRY, plan_spending, resolve_selection
from grandrounds.methods.veil.regression import Curvature, fit_moments, fit_step, strongest_features, unpack_moments
from grandrounds.methods.veil.site import MOMENTS, PROPOSE, SCORES
from grandrounds.methods.veil.weights import Ballot, net_votes, quorum_votes
from grandrounds.privacy.accounting import epsilon_of, skellam_rho
from grandrounds.privacy.budget import Budget
from grandrounds.privacy.secagg import Scale, Skellam, fewest_honest
from grandrounds.protocol.messages import Answers, Ask, AskId
from tests.site.test_concepts import told
from tests.support import sections

# Votes


# Four sites, three features and the intercept (numbers 0 to 3, and 4 to 7 with a minus), two proposals each.
VOTES = np.array([[0, 1], [0, 5], [4, 3], [0, 2]], np.uint8)


def test_a_ballot_has_signs_where_entries_were_proposed():
    assert Ballot.from_votes(VOTES, 4).signs.tolist() == [[1, 1, 0, 0], [1, -1, 0, 0], [-1, 0, 0, 1], [1, 0, 1, 0]]
    both = Ballot.from_votes(np.array([[2, 6]]), 4)
    assert not both.signs.any(), "a feature proposed both ways says nothing"


def test_net_votes_by_hand():
    change, why = net_votes(Ballot.from_votes(VOTES, 4), np.array([1.0, 2.0, 3.0, 4.0]))
    # (1 + 2 - 3 + 4) / 10, (1 - 2) / 10, 4 / 10, 3 / 10
    assert change.tolist() == pytest.approx([0.4, -0.1, 0.4, 0.3])
    assert why == "net votes of 4 sites for 3 features"


def test_quorum_and_mean_sign_by_hand():
    """Eq. 3: who was proposed by half of the sites; eq. 4: the mean of the signs with which."""
    change, why = quorum_votes(Ballot.from_votes(VOTES, 4), quorum=0.5)
    assert change.tolist() == pytest.approx([(1 + 1 - 1 + 1) / 4, 0, 0, 0])
    assert why == "2 features of 3 that were proposed passed the quorum of 50%"
    assert quorum_votes(Ballot.from_votes(VOTES, 4), quorum=0.25)[0].tolist() == pytest.approx([0.5, 0, 1, 1])


@pytest.mark.parametrize(("share", "of"), [(0.07, 100), (0.14, 50), (0.55, 100), (0.1, 30), (0.3, 10)])
def test_a_quorum_is_met_by_exactly_so_many(share, of):
    votes = np.ones((of, 1), np.uint8)  # all others for the second entry
    votes[: round(share * of)] = 0
    assert quorum_votes(Ballot.from_votes(votes, 3), quorum=share)[0][0] == 1
    votes[0] = 1
    assert quorum_votes(Ballot.from_votes(votes, 3), quorum=share)[0][0] == 0


def test_a_quorum_above_what_even_draws_give_lets_nothing_pass():
    """tau > k / d: four hundred sites that draw 5 of 90 features, whose shares are all near 1/18."""
    rng = np.random.default_rng(0)
    votes = np.array([rng.choice(90, 5, replace=False) + 91 * rng.integers(0, 2, 5) for _ in range(400)])
    assert not quorum_votes(Ballot.from_votes(votes, 91), quorum=0.12)[0].any()
    assert quorum_votes(Ballot.from_votes(votes, 91), quorum=0.03)[0].any()


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 999), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_a_step_by_votes_is_never_longer_than_one(sites, k, seed, quorum):
    rng = np.random.default_rng(seed)
    ballot = Ballot.from_votes(np.array([rng.choice(12, k, replace=False) for _ in range(sites)]), 6)
    for change in (net_votes(ballot, rng.uniform(0.1, 9, sites))[0], quorum_votes(ballot, quorum=quorum)[0]):
        assert np.abs(change).max() <= 1 + 1e-12
        assert not change[~ballot.signs.any(axis=0)].any(), "what nobody proposed stays"


# Weights from sums


def planted(n=4000, d=12, seed=0):
    """Outcomes that are a linear probability of features 2, 5 and 9; (rows, outcomes, slopes)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, d))
    slopes = np.zeros(d)
    slopes[[2, 5, 9]] = 0.15, -0.12, 0.08
    return x, (rng.random(n) < 0.35 + x @ slopes).astype(int), slopes


def moments_of(x, y, prior):
    z = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    return z.T @ z, z.T @ (y - prior)


def test_what_a_site_packs_is_unpacked():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(20, 3)), rng.integers(0, 2, 20)
    packed = told(MOMENTS, x, y, value=9.0, norm=99.0, outcome=2.5, prior=0.4)[0]
    gram, towards = unpack_moments(packed, 4, outcome=2.5)
    expected = moments_of(x, y, 0.4)
    np.testing.assert_allclose(gram, expected[0], atol=1e-12)
    np.testing.assert_allclose(towards, expected[1], atol=1e-12)


def test_without_noise_the_planted_features_are_found():
    x, y, slopes = planted()
    chosen, model = fit_moments(*moments_of(x, y, 0.35), prior=0.35, features=3, noise=0.0)
    assert set(chosen.tolist()) == {2, 5, 9} and np.count_nonzero(model[:-1]) == 3
    np.testing.assert_allclose(model[:-1] * 0.35 * 0.65, slopes, atol=0.03)
    order = chosen.tolist()
    assert order[0] == 2, "first what explains most"


def test_all_features_are_least_squares():
    x, y, _ = planted(n=300)
    _, model = fit_moments(*moments_of(x, y, 0.3), prior=0.3, features=0, noise=0.0)
    z = np.concatenate([x, np.ones((300, 1))], axis=1)
    expected = np.linalg.lstsq(z, y - 0.3, rcond=None)[0] / (0.3 * 0.7)
    expected[-1] += np.log(0.3 / 0.7)
    np.testing.assert_allclose(model, expected, rtol=1e-5, atol=1e-6)


def test_noise_makes_the_fit_shrink_and_not_explode():
    """Second moments of few patients under much noise are no covariance any more: some eigenvalues fall below zero."""
    x, y, _ = planted(n=60)
    gram, towards = moments_of(x, y, 0.35)
    rng = np.random.default_rng(0)
    noise = np.triu(rng.normal(0, 40, gram.shape))
    noisy = gram + noise + np.triu(noise, 1).T
    assert np.linalg.eigvalsh(noisy).min() < 0
    _, model = fit_moments(noisy, towards + rng.normal(0, 40, 13), prior=0.35, features=0, noise=40.0)
    assert np.abs(model).max() < 5


def test_the_strongest_are_chosen_beside_those_held():
    scores = np.array([3.0, -9.0, 1.0, 5.0, -4.0])
    assert strongest_features(scores, 2, exclude=np.array([1])).tolist() == [3, 4]
    assert strongest_features(scores, 9, exclude=np.array([1, 3])).tolist() == [0, 2, 4], "no more than there are"
    assert strongest_features(scores, 0, exclude=np.array([1])).tolist() == []
    assert scores.tolist() == [3.0, -9.0, 1.0, 5.0, -4.0]


def test_a_step_with_the_curve_is_newtons():
    x, y, _ = planted(n=500)
    prior = float(y.mean())
    gram, scores = moments_of(x, y, prior)
    chosen = np.array([9, 2])
    at = [9, 2, 12]
    start = np.zeros(13)
    start[-1] = np.log(prior / (1 - prior))
    found = fit_step(start, scores[at], chosen, rows=500, lr=7.0, curve=Curvature(gram, prior, 0.0))
    expected = start.copy()
    expected[at] += np.linalg.solve(prior * (1 - prior) * gram[np.ix_(at, at)], scores[at])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    plain = fit_step(start, scores[at], chosen, rows=500, lr=7.0, curve=None)
    assert plain[9] == pytest.approx(7.0 * scores[9] / 500) and np.count_nonzero(plain[:-1]) == 2


def test_newtons_steps_end_at_the_maximum_likelihood():
    """Over and over, with second moments as the curve: where the scores vanish, as logistic regression has it."""
    x, y, _ = planted(n=800)
    prior = float(y.mean())
    gram, _ = moments_of(x, y, prior)
    theta = np.zeros(13)
    z = np.concatenate([x, np.ones((800, 1))], axis=1)
    for _ in range(30):
        scores = z.T @ (y - 1 / (1 + np.exp(-z @ theta)))
        theta = fit_step(theta, scores, np.arange(12), rows=1, lr=1, curve=Curvature(gram, prior, 0.0))
    assert np.abs(scores).max() < 1e-3


# One round, driven by hand


def veil(rounds=6, **own):
    return build_method(*sections({"name": "veil", "rounds": rounds, "veil": own}, epochs=2, batch=4, lr=0.1))


def server(round=1, d=3, sites="abcd", **more) -> Server:
    return Server(round, np.zeros(d + 1), tuple(sites), 0, **more)


def heard(ask: Ask, sites: str, **columns) -> Answers:
    answers = Answers(tuple(sites), {name: np.asarray(c) for name, c in columns.items()})
    answers.id = AskId("run", 1, 0)
    return answers


def ended(work, answers):
    with pytest.raises(StopIteration) as end:
        work.send(answers)
    return end.value.value


def test_a_round_of_votes_by_hand():
    """Rows and events first, then proposals: root weights, a step of 2 * 2/3, from the log-odds of the prior."""
    work = veil(selection="score", k=2).round(server())
    census = next(work)
    assert census.task == "veil.census" and census.to == tuple("abcd")
    ask = work.send(heard(census, "abcd", census=[[100, 30], [400, 100], [100, 10], [900, 160]]))
    assert ask.task == PROPOSE and "model" not in ask.shared and "seed" not in ask.shared
    assert ask.shared["prior"] == pytest.approx(300 / 1500)
    outcome = ended(work, heard(ask, "abd", votes=[[0, 1], [0, 5], [4, 3]]))
    w = np.array([10, 20, 30]) / 60
    moved = np.array([w[0] + w[1] - w[2], w[0] - w[1], 0, w[2]]) * 2 * 2 / 3
    assert outcome.model == pytest.approx(moved + np.array([0, 0, 0, math.log(0.25)]))
    assert outcome.decision.weights == pytest.approx(dict(zip("abd", w, strict=True)))
    again = veil(selection="score", k=2).round(server(2, state=outcome.state))
    second = next(again)
    assert second.task == PROPOSE and "model" in second.shared, "rows are asked for once; the model is sent"


def test_a_step_goes_by_the_rows_of_those_who_answered():
    state = {"rows": np.array([100.0]), "prior": np.array([0.5]), "chosen": np.array([2, 0])}
    work = veil(selection="select_then_fit", features=2, stages=3, lr=3.0).round(server(2, state=state))
    ask = next(work)
    assert ask.task == SCORES and ask.shared["features"].tolist() == [2, 0]
    outcome = ended(work, heard(ask, "ab", scores=[[1.0, 2.0, 0.5], [3.0, 0.0, 0.5]]))
    assert outcome.model.tolist() == pytest.approx([3 * 2 / 50, 0, 3 * 4 / 50, 3 * 1 / 50]), "half of a hundred rows"


def test_scores_from_a_centre_move_the_intercept_back_to_zero():
    """Stepping on x - m and then writing the model in x again: b + w m is where the step left it."""
    rng = np.random.default_rng(3)
    model, scores, centre = rng.normal(size=6), rng.normal(size=3), rng.normal(size=5)
    chosen = np.array([4, 1])
    found = fit_step(model, scores, chosen, rows=10, lr=2.0, curve=None, centre=centre)
    plain = fit_step(model, scores, chosen, rows=10, lr=2.0, curve=None)
    assert found[:-1].tolist() == plain[:-1].tolist()
    before, after = model[-1] + model[:-1] @ centre, found[-1] + found[:-1] @ centre
    assert after - before == pytest.approx(2.0 * scores[-1] / 10)


def test_what_follows_from_settings_and_is_easily_overlooked_is_noted():
    asked = {"selection": "paper", "claimed_epsilon": 5.0, "k": 1, "votes": "quorum", "quorum": 0.4}
    work = veil(rounds=10, **asked).round(server())
    ask = next(work)
    notes = ended(work, heard(ask, "abcd", votes=[[0], [1], [2], [0]])).decision.notes
    assert "at most 1.133 times as often" in notes[0], "e^(5 / 40)"
    assert "quorum is 40.0%, above k / d = 33.3%" in notes[1]


# The budget


def plan(selection, *, rounds=10, epsilon=5.0, secure=False, inputs=30, sites=8, **own):
    veil_settings = sections({"name": "veil", "veil": {"selection": selection, **own}})[0].veil
    budget = None if epsilon is None else SimpleNamespace(epsilon=epsilon, delta=1e-5)
    return plan_spending(veil_settings, rounds=rounds, inputs=inputs, sites=sites, budget=budget, secure=secure)


WAYS = [
    ("score", False),
    ("strongly_convex", False),
    ("non_expansive", False),
    ("select_then_fit", False),
    ("moments", False),
    ("select_then_fit", True),
    ("moments", True),
]
TERMS = {
    "default": {},
    "strict": {"rounds": 6, "epsilon": 0.1, "k": 2},
    "loose": {"rounds": 40, "epsilon": 10.0, "k": 8, "sites": 150, "inputs": 90},
    "nothing asked": {"rounds": 7, "epsilon": 1.0, "prior": 0.1, "weight": "uniform"},
    "much asked": {"rounds": 9, "epsilon": 1.0, "census_share": 0.4, "stages": 2, "features": 0},
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize(("selection", "secure"), WAYS)
def test_a_whole_run_uses_its_budget_up_and_never_passes_it(selection, secure, terms):
    found = plan(selection, secure=secure, **TERMS[terms])
    epsilon = TERMS[terms].get("epsilon", 5.0)
    budget = Budget(epsilon, 1e-5)
    for r in range(1, found.rounds + 1):
        budget.charge(found.events(r))  # would raise before it is overspent
    assert 0.95 * epsilon <= epsilon_of(budget.events, 1e-5) <= epsilon * (1 + 1e-9)


def sensitivity(found, task):
    """Of one patient, once more and by hand."""
    if task == "census":
        return math.sqrt(1**2 + 1**2 + (1**2 if found.selection == "select_then_fit" else 0))
    return math.sqrt(found.norm**4 + found.outcome**2 * found.norm**2) if task == "moments" else found.norm


@pytest.mark.parametrize("selection", ["select_then_fit", "moments"])
def test_the_noise_that_sites_are_told_is_what_is_charged(selection):
    found = plan(selection, norm=2.5, outcome=1.5)
    assert found.norm == 2.5 and found.outcome == 1.5 * 2.5
    census, first = found.events(1)
    assert found.census["noise"] == pytest.approx(census.sigma * sensitivity(found, "census"))
    assert found.site_config(1)["noise"] == pytest.approx(first.sigma * sensitivity(found, found.task(1)))
    for r in range(2, 11):
        (event,) = found.events(r)
        assert event.kind == "gaussian" and event.trust == "local"
        assert found.site_config(r)["noise"] == pytest.approx(event.sigma * sensitivity(found, found.task(r)))


def test_the_epsilon_that_sites_are_told_is_what_is_charged():
    found = plan("score", k=3)
    census, draws = found.events(1)
    assert census.kind == "laplace" and found.census == {"epsilon": census.epsilon}
    assert draws.kind == "exponential" and draws.count == 3 and found.site_config(1) == {"epsilon": draws.epsilon}


@pytest.mark.parametrize("selection", ["select_then_fit", "moments"])
@pytest.mark.parametrize("sites", [3, 12, 152])
def test_secure_sums_are_charged_for_at_least_what_their_ring_and_noise_give(selection, sites):
    """Whoever stays away beforehand: rounding is as fine, or finer, with fewer, and the noise is sized by them."""
    found = plan(selection, secure=True, sites=sites)
    m = found.inputs + 1
    for r in range(1, 5):
        task = found.task(r)
        event = found.events(r)[-1]
        assert event.kind == "skellam" and event.trust == "secure aggregation" and "noise" not in found.site_config(r)
        size = m * (m + 1) // 2 + m if task == "moments" else m
        for parties in {3, max(3, sites // 2), sites}:
            noise = found.noise(task)
            spare = Skellam(noise, fewest_honest(parties)).room(parties)
            step = Scale(STATISTIC_BITS, MAX_SUM_ENTRY, parties, spare=spare).step
            rho = skellam_rho(noise, sensitivity=sensitivity(found, task), step=step, dimension=size)
            assert 0.99 * event.rho <= rho <= event.rho * (1 + 1e-12)


def test_as_printed_nothing_is_promised():
    found = plan("paper", epsilon=None, claimed_epsilon=5.0, k=5)
    assert found.site_config(1) == {"epsilon": pytest.approx(5 / (10 * 5))}, "basic composition"
    assert epsilon_of([e for r in range(1, 11) for e in found.events(r)], 1e-5) == math.inf
    assert not found.counts, "as printed nobody is asked how many there are"


@pytest.mark.parametrize("selection", ["score", "select_then_fit", "moments"])
def test_without_a_budget_nothing_is_noised_and_nothing_promised(selection):
    found = plan(selection, epsilon=None)
    assert "noise" not in found.census and "epsilon" not in found.census
    assert all(not found.site_config(r) for r in range(1, 11))
    assert epsilon_of(found.events(1), 1e-5) == math.inf


def test_auto_goes_by_secure_sums():
    assert resolve_selection("auto", secure=True) == "select_then_fit" and resolve_selection("auto", secure=False) == "score"
    assert resolve_selection("moments", secure=False) == "moments"
    assert plan("auto", secure=True).selection == "select_then_fit"


@given(st.integers(1, 6), st.integers(0, 40), st.integers(2, 40), st.integers(1, 30))
@settings(max_examples=80, deadline=None)
def test_by_the_last_stage_all_wanted_features_are_selected(stages, more, features, inputs):
    rounds = 2 * stages + more
    found = plan("select_then_fit", epsilon=None, rounds=rounds, stages=stages, features=features, inputs=inputs)
    held, selected = 0, []
    for r in range(1, rounds + 1):
        if found.task(r) == "select":
            selected.append(found.wanted(r, inputs, selected=held))
            held += selected[-1]
            assert r < rounds and found.task(r + 1) == "fit", "what is selected is fitted"
    assert held == min(features, inputs) and len(selected) == stages
    assert max(selected) - min(selected) <= 1


def test_a_run_that_goes_on_for_longer_selects_no_more_than_was_asked_for():
    """Nine rounds of three stages selected all twenty; of eighteen, round 13 would be the last stage's."""
    longer = plan("select_then_fit", epsilon=None, rounds=18)
    assert longer.task(13) == "select" and longer.wanted(13, 30, selected=20) == 0


def test_rows_are_asked_for_only_where_they_count():
    """Steps by Newton's rule go by second moments: with a prior that is known nothing is left to ask."""
    assert not plan("moments", prior=0.1).counts and plan("moments").counts
    assert plan("select_then_fit", prior=0.1).counts
    assert not plan("score", prior=0.1, weight="uniform").counts and plan("score", prior=0.1).counts
