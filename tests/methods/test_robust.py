from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from grandrounds.methods import robust
from grandrounds.methods import robust_kernels as robust_coordinate
from grandrounds.methods import robust_kernels as robust_distance
from grandrounds.methods.robust import NEEDS_REFERENCE, ONE_VOTE, RULES, RobustResult, RobustRule, aggregate_robust
from tests.support import refused, thinned

pytestmark = pytest.mark.filterwarnings("error")


def judge(rule: str, updates, weights=None, *, root=None, history=None, **options) -> RobustResult:
    """The rule's verdict on updates given as lists; sites weigh alike unless told."""
    u = updates if isinstance(updates, np.ndarray) else np.array(updates, float)
    w = np.full(len(u), 1 / len(u)) if weights is None else np.array(weights, float)
    if rule in NEEDS_REFERENCE and root is None:
        root = np.ones(u.shape[1])
    return aggregate_robust(u, w, RobustRule(rule, **options), root=root, history=history)


@st.composite
def rounds(draw, *, least=4, most=8, coordinates=5):
    """Updates (K, P) of small integers, so that ties and duplicates are common, and weights (K,)."""
    sites, size = draw(st.integers(least, most)), draw(st.integers(1, coordinates))
    cells = st.lists(st.integers(-4, 4), min_size=size, max_size=size)
    updates = np.array(draw(st.lists(cells, min_size=sites, max_size=sites)), float)
    weights = np.array(draw(st.lists(st.integers(1, 9), min_size=sites, max_size=sites)), float)
    return updates, weights / weights.sum()


def attacked(seed: int, *, size: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Seven honest sites around a true update, then three that send it turned round and ten times as long."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=size)
    honest = true + 0.5 * rng.normal(size=(7, size))
    bad = -10 * true + 0.01 * rng.normal(size=(3, size))
    return np.vstack([honest, bad]), honest.mean(axis=0)


# By hand


def test_krum_takes_the_site_in_the_middle_of_the_crowd():
    verdict = judge("krum", [[0], [1], [3], [5], [40]], attackers=1)
    assert verdict.signals["krum_score"].tolist() == [1 + 9, 1 + 4, 4 + 4, 4 + 16, 35**2 + 37**2]
    assert verdict.update.tolist() == [1]
    assert verdict.weights.tolist() == [0, 1, 0, 0, 0]
    assert verdict.why == "Krum took the one update closest to its 2 nearest others"


def test_krum_shares_between_sites_that_tie():
    verdict = judge("krum", [[9], [0], [2], [50]], attackers=1)
    assert verdict.weights.tolist() == [0, 0.5, 0.5, 0]
    assert verdict.update.tolist() == [1]
    assert "mean of 2 updates that tie as the closest to their nearest other" in verdict.why
    assert "guarantee needs more than 4 sites, not 4" in verdict.why


def test_multi_krum_averages_the_best_by_weight():
    verdict = judge("multi-krum", [[0], [1], [3], [5], [40]], [0.1, 0.2, 0.3, 0.2, 0.2], attackers=1, keep=2)
    np.testing.assert_allclose(verdict.weights, [0, 0.4, 0.6, 0, 0])
    np.testing.assert_allclose(verdict.update, [0.4 * 1 + 0.6 * 3])


def test_multi_krum_keeps_what_its_proof_allows_unless_told():
    updates = [[0], [1], [3], [5], [40]]
    assert (judge("multi-krum", updates, attackers=1).weights > 0).sum() == 5 - 1 - 2
    assert "its proof allows at most" not in judge("multi-krum", updates, attackers=1).why
    assert "its proof allows at most" in judge("multi-krum", updates, attackers=1, keep=3).why


def test_multi_krum_that_keeps_everyone_is_the_weighted_mean():
    updates, weights = [[0.0], [1.0], [3.0], [5.0]], [0.1, 0.2, 0.3, 0.4]
    np.testing.assert_allclose(judge("multi-krum", updates, weights, keep=4).update, np.dot(weights, updates))


def test_median_of_an_odd_number_is_one_site_a_parameter():
    verdict = judge("median", [[1, 9, 5], [2, 8, 0], [100, 7, 4]])
    assert verdict.update.tolist() == [2, 8, 4]
    np.testing.assert_allclose(verdict.weights, [0, 2 / 3, 1 / 3])


def test_median_of_an_even_number_is_two_sites_half_each():
    verdict = judge("median", [[1, 0], [2, 10], [4, 20], [90, 30]])
    assert verdict.update.tolist() == [3, 15]
    np.testing.assert_allclose(verdict.weights, [0, 0.5, 0.5, 0])


def test_sites_with_the_middle_value_share_it():
    np.testing.assert_allclose(judge("median", [[1], [1], [7]]).weights, [0.5, 0.5, 0])
    np.testing.assert_allclose(judge("median", [[1], [1], [7], [7]]).weights, [0.25] * 4)
    np.testing.assert_allclose(judge("trimmed-mean", [[1], [1], [5], [7]], trim=0.25).weights, [0.25, 0.25, 0.5, 0])


def test_trimmed_mean_cuts_both_ends():
    verdict = judge("trimmed-mean", [[-50, 3], [1, 4], [3, 99], [5, 2], [70, 0]], trim=0.2)
    assert verdict.update.tolist() == [3, 3]
    np.testing.assert_allclose(verdict.weights, [1 / 6, 2 / 6, 1 / 6, 2 / 6, 0])


def test_trimmed_mean_says_when_it_cuts_too_few():
    assert "without the 0 largest and 0 smallest; to tolerate 1 of 5 sites" in judge("trimmed-mean", [[1.0]] * 5).why
    assert "raise trim" not in judge("trimmed-mean", [[1.0]] * 5, trim=0.2).why


def test_geometric_median_of_a_line_is_its_weighted_median():
    verdict = judge("geometric-median", [[0], [1], [100]], [0.3, 0.4, 0.3])
    np.testing.assert_allclose(verdict.update, [1], atol=1e-4)
    heavy = judge("geometric-median", [[0], [1], [100]], [0.6, 0.2, 0.2])
    np.testing.assert_allclose(heavy.update, [0], atol=1e-4)


def test_geometric_median_of_a_square_with_a_point_inside_is_that_point():
    verdict = judge("geometric-median", [[0, 0], [4, 0], [4, 4], [0, 4], [2, 2]])
    np.testing.assert_allclose(verdict.update, [2, 2], atol=1e-9)
    np.testing.assert_allclose(verdict.signals["distance"], [8**0.5] * 4 + [0], atol=1e-9)


def test_fltrust_rescales_and_weighs_by_cosine():
    verdict = judge("fltrust", [[5, 0], [3, 4], [-7, 0], [0, 2]], root=np.array([2.0, 0.0]))
    np.testing.assert_allclose(verdict.signals["trust"], [1, 0.6, 0, 0])
    np.testing.assert_allclose(verdict.signals["similarity"], [1, 0.6, -1, 0])
    np.testing.assert_allclose(verdict.weights, [1 / 1.6, 0.6 / 1.6, 0, 0])
    np.testing.assert_allclose(verdict.update, (np.array([2, 0]) + 0.6 * np.array([1.2, 1.6])) / 1.6)


@pytest.mark.parametrize("root", [[1.0, 0.0], [0.0, 0.0]])
def test_fltrust_that_trusts_nobody_stands_still(root):
    verdict = judge("fltrust", [[-1, 3], [-2, 0], [0, 5]], root=np.array(root))
    assert verdict.update.tolist() == [0, 0]
    assert verdict.weights.tolist() == [0, 0, 0]
    assert verdict.why.startswith("no site is trusted")


def test_foolsgold_by_hand():
    """Cosines .8 (1, 2), .6 (1, 3), 0 (2, 3): v = .8, .8, .6; site 3 is pardoned to .6 * .6 / .8 = .45."""
    verdict = judge("foolsgold", [[4, 3], [8, 0], [0, 2]], [0.2, 0.3, 0.5])
    stretched = 0.2 / 0.55
    rate = np.log(stretched / (1 - stretched)) + 0.5
    np.testing.assert_allclose(verdict.signals["similarity"], [0.8, 0.8, 0.6])
    assert rate < 0
    np.testing.assert_allclose(verdict.signals["trust"], [0, 0, 1], atol=1e-12)
    assert verdict.weights.tolist() == [0, 0, 1]


def test_foolsgold_lets_part_of_a_site_through():
    """Cosine .5 (1, 2), else 0: alphas .5, .5, 1, and ln(.5 / .5) + .5 = .5."""
    verdict = judge("foolsgold", [[2, 0, 0], [1, 3**0.5, 0], [0, 0, 7]], [0.5, 0.25, 0.25])
    np.testing.assert_allclose(verdict.signals["trust"], [0.5, 0.5, 1])
    np.testing.assert_allclose(verdict.weights, [0.4, 0.2, 0.4])


def test_foolsgold_judges_by_history_and_adds_this_round():
    updates, past = [[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], np.array([[3.0, 0.0], [0.0, 2.0], [0.0, 5.0]])
    verdict = judge("foolsgold", updates, history=past)
    assert verdict.weights.tolist() == [1, 0, 0]
    assert verdict.update.tolist() == [1, 0]
    np.testing.assert_allclose(judge("foolsgold", updates).weights, [1 / 3] * 3)


def test_foolsgold_trusts_nobody_where_all_are_copies():
    direction = np.random.default_rng(0).normal(size=50)
    verdict = judge("foolsgold", np.outer([1.0, 2.0, 0.3], direction).astype(np.float32))
    assert not verdict.update.any()
    assert not verdict.weights.any()
    assert verdict.why.startswith("no site is trusted")


def test_clip_cuts_long_updates_to_the_bound():
    verdict = judge("clip", [[3, 4], [0, 1]], [0.25, 0.75], norm=2)
    np.testing.assert_allclose(verdict.update, 0.25 * np.array([1.2, 1.6]) + 0.75 * np.array([0, 1]))
    assert verdict.signals["norm"].tolist() == [5, 1]
    np.testing.assert_allclose(verdict.signals["clipped"], [0.6, 0])


def test_clip_without_a_bound_takes_the_median_length():
    verdict = judge("clip", [[1], [-2], [30]])
    np.testing.assert_allclose(verdict.update, [(1 - 2 + 2) / 3])
    assert verdict.why == "updates were clipped to the norm 2: 1 of 3"


def test_no_rule_is_the_weighted_mean():
    verdict = judge("none", [[1, 2], [3, 6]], [0.75, 0.25])
    assert verdict.update.tolist() == [1.5, 3]
    assert verdict.weights.tolist() == [0.75, 0.25]


# Properties


def test_every_rule_is_named_once():
    assert set(RULES) == set(robust._RULE_FUNCTIONS)
    assert set(RULES) >= ONE_VOTE | NEEDS_REFERENCE


@pytest.mark.parametrize("rule", thinned(RULES, 2))
@settings(max_examples=80, deadline=None)
@given(round=rounds(), data=st.data())
def test_the_order_of_sites_does_not_matter(rule, round, data):
    updates, weights = round
    order = data.draw(st.permutations(range(len(updates))))
    history = np.cumsum(updates, axis=1) if rule == "foolsgold" else None
    one = judge(rule, updates, weights, history=history, trim=0.3)
    other = judge(rule, updates[order], weights[order], history=None if history is None else history[order], trim=0.3)
    np.testing.assert_allclose(other.update, one.update, atol=1e-6)
    np.testing.assert_allclose(other.weights, one.weights[order], atol=1e-6)
    for name, signal in one.signals.items():
        np.testing.assert_allclose(other.signals[name], signal[order], atol=1e-6)


@pytest.mark.parametrize("rule", thinned(RULES, 2))
@settings(max_examples=60, deadline=None)
@given(round=rounds())
def test_weights_are_shares(rule, round):
    updates, weights = round
    verdict = judge(rule, updates, weights)
    assert verdict.weights.min() >= 0
    if verdict.weights.any():
        assert verdict.weights.sum() == pytest.approx(1, abs=1e-9)
    else:
        assert rule in {"fltrust", "foolsgold"}
        assert not verdict.update.any()
    assert np.isfinite(verdict.update).all()
    assert all(s.shape == (len(updates),) and np.isfinite(s).all() for s in verdict.signals.values())


@pytest.mark.parametrize("rule", sorted(ONE_VOTE))
@settings(max_examples=30, deadline=None)
@given(round=rounds())
def test_one_vote_rules_ignore_weights(rule, round):
    updates, weights = round
    np.testing.assert_array_equal(judge(rule, updates, weights).update, judge(rule, updates).update)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("rule", ["none", "krum", "multi-krum", "median", "trimmed-mean", "geometric-median"])
@settings(max_examples=60, deadline=None)
@given(round=rounds(), shift=st.integers(-1000, 1000))
def test_a_shift_of_all_shifts_the_result(rule, round, shift):
    updates, weights = round
    one, other = judge(rule, updates, weights), judge(rule, updates + shift, weights)
    np.testing.assert_allclose(other.update, one.update + shift, atol=1e-6)
    np.testing.assert_allclose(other.weights, one.weights, atol=1e-6)


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("unit", [1e-9, 1e6])
def test_the_unit_of_updates_does_not_matter(rule, unit):
    updates, _ = attacked(3)
    root = updates[0]
    one = judge(rule, updates, root=root, attackers=3)
    other = judge(rule, updates * unit, root=root * unit, attackers=3)
    np.testing.assert_allclose(other.update, one.update * unit, rtol=1e-6, atol=1e-9 * unit)


@settings(max_examples=100, deadline=None)
@given(round=rounds(least=5, most=9), bad=st.integers(1, 4), push=st.floats(-1e6, 1e6))
def test_few_bad_sites_cannot_leave_the_honest_range(round, bad, push):
    updates, weights = round
    assume(2 * bad < len(updates))
    updates[:bad] = push
    low, high = updates[bad:].min(axis=0), updates[bad:].max(axis=0)
    trim = bad / len(updates) + 1e-9
    for verdict in (judge("median", updates, weights), judge("trimmed-mean", updates, weights, trim=trim)):
        assert (verdict.update >= low - 1e-9).all()
        assert (verdict.update <= high + 1e-9).all()


@settings(max_examples=80, deadline=None)
@given(round=rounds(), bound=st.floats(0.01, 100))
def test_a_clipped_mean_is_no_longer_than_the_bound(round, bound):
    verdict = judge("clip", *round, norm=bound)
    assert np.linalg.norm(verdict.update) <= bound * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(round=rounds())
def test_geometric_median_is_least_far_from_all(round):
    updates, weights = round

    def far(z):
        return weights @ np.linalg.norm(updates - z, axis=1)

    found = far(judge("geometric-median", updates, weights).update)
    assert found <= min(far(update) for update in updates) + 1e-5
    assert found <= optimize.minimize(far, updates.mean(axis=0), method="Nelder-Mead").fun + 1e-5


def test_a_heavy_site_outweighs_a_crowd_of_light_ones():
    verdict = judge("geometric-median", [[0], [1], [1], [1]], [0.55, 0.15, 0.15, 0.15])
    np.testing.assert_allclose(verdict.update, [0], atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(round=rounds(least=1, most=9), cut=st.integers(0, 4))
def test_shares_of_a_trimmed_mean_rebuild_the_places_kept(round, cut):
    """With one parameter and no ties the shares are 1 / (K - 2 cut) for the sites kept and rebuild the mean."""
    updates = round[0][:, :1] + np.arange(len(round[0]))[:, None] * 1e-3
    assume(2 * cut < len(updates))
    mean, shares = robust_coordinate.trimmed_mean(updates, cut=cut)
    np.testing.assert_allclose(shares @ updates, mean)


def test_blocks_do_not_show(monkeypatch):
    updates, _ = attacked(5, size=101)
    whole = {rule: judge(rule, updates, trim=0.3, attackers=3) for rule in RULES}
    monkeypatch.setattr(robust_coordinate, "BLOCK_SIZE", 70)
    for rule, verdict in whole.items():
        again = judge(rule, updates, trim=0.3, attackers=3)
        np.testing.assert_allclose(again.update, verdict.update, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(again.weights, verdict.weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.slow
def test_memory_stays_far_below_a_copy_of_the_updates(rule):
    updates = np.random.default_rng(0).normal(size=(10, 1_000_000)).astype(np.float32)
    root = updates[0].copy()
    tracemalloc.start()
    judge(rule, updates, root=root)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < updates.nbytes * 0.75


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", RULES)
def test_the_result_has_the_type_of_the_updates(rule, dtype):
    updates = attacked(1)[0].astype(dtype)
    verdict = judge(rule, updates)
    assert verdict.update.dtype == dtype
    assert verdict.weights.dtype == np.float64


# Edges


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_sites_that_all_say_the_same(rule, value):
    verdict = judge(rule, np.full((6, 4), value))
    expected = 0.0 if rule == "foolsgold" else value
    if rule == "fltrust":
        expected = float(value > 0)
    np.testing.assert_allclose(verdict.update, expected)
    assert np.isfinite(verdict.weights).all()
    if verdict.weights.any():
        np.testing.assert_allclose(verdict.weights, 1 / 6)


@pytest.mark.parametrize("rule", sorted(set(RULES) - {"krum", "multi-krum"}))
def test_a_single_site_is_taken_as_it_is(rule):
    verdict = judge(rule, [[1.0, -2.0]], root=np.array([1.0, -2.0]))
    np.testing.assert_allclose(verdict.update, [1, -2])
    np.testing.assert_allclose(verdict.weights, [1])


@pytest.mark.parametrize("length", [1e10, 1e30])
@pytest.mark.parametrize("rule", ["krum", "multi-krum", "geometric-median"])
def test_a_huge_update_does_not_blur_the_honest_ones(rule, length):
    """About zero, squares of 1e30 would leave no digit of the distances between honest sites."""
    updates, honest = attacked(2)
    updates[7:] = length * np.random.default_rng(0).normal(size=(3, 200))
    worst = np.linalg.norm(updates[:7] - honest, axis=1).max()
    verdict = judge(rule, updates.astype(np.float32), attackers=3)
    assert np.linalg.norm(verdict.update - honest) <= worst
    if rule != "geometric-median":
        assert verdict.weights[7:].tolist() == [0, 0, 0]
        distance = np.sum((updates[:7, None] - updates[None, :7]) ** 2, axis=2)
        np.testing.assert_allclose(verdict.signals["krum_score"][:7], np.sort(distance)[:, 1:6].sum(axis=1), rtol=1e-5)


@pytest.mark.parametrize("spoilt", [np.nan, np.inf, 1e300, 1e150])
@pytest.mark.parametrize("rule", RULES)
def test_an_update_without_a_length_is_left_out(rule, spoilt):
    updates, weights = [[1.0, 2.0], [2.0, 1.5], [1.5, 1.0], [2.5, 2.0]], [0.1, 0.2, 0.3, 0.4]
    alone = judge(rule, updates, weights)
    verdict = judge(rule, [*updates[:2], [spoilt, 0.0], *updates[2:]], [0.05, 0.1, 0.5, 0.15, 0.2])
    np.testing.assert_allclose(verdict.update, alone.update)
    np.testing.assert_allclose(np.delete(verdict.weights, 2), alone.weights)
    assert verdict.weights[2] == 0
    assert verdict.signals["left_out"].tolist() == [0, 0, 1, 0, 0]
    assert "1 of 5 updates had no finite norm" in verdict.why


def test_a_history_without_a_length_is_left_out():
    history = np.array([[1.0, 0.0], [0.0, 1.0], [1e300, 0.0]])
    verdict = judge("foolsgold", [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], history=history)
    np.testing.assert_allclose(verdict.weights, [0.5, 0.5, 0])


def test_nobody_with_a_length_means_no_step():
    verdict = judge("median", np.full((3, 2), np.nan))
    assert verdict.update.tolist() == [0, 0]
    assert verdict.weights.tolist() == [0, 0, 0]


def test_a_search_that_does_not_settle_is_told(monkeypatch):
    monkeypatch.setattr(robust_distance, "MAX_STEPS", 1)
    assert "the iteration was stopped" in judge("geometric-median", [[0, 0], [1, 0], [0, 5], [9, 9]]).why


def test_half_bad_sites_are_told():
    for rule in ("median", "trimmed-mean", "geometric-median"):
        assert "fewer than half bad sites, not 2 of 4" in judge(rule, [[0.0], [1.0], [2.0], [3.0]], attackers=2).why
        assert "fewer than half" not in judge(rule, [[0.0], [1.0], [2.0], [3.0]], attackers=1).why


# Failures


@pytest.mark.parametrize("rule", ["krum", "multi-krum"])
def test_krum_refuses_too_few_sites(rule):
    with refused("too-few-sites", match=f"{rule} .* 2 .* 5 sites, .* 4 "):
        judge(rule, [[1.0]] * 4, attackers=2)
    judge(rule, [[1.0]] * 5, attackers=2)


def test_multi_krum_refuses_to_keep_more_than_answered():
    with refused("too-few-sites", match="6 .* 5 sites"):
        judge("multi-krum", [[1.0]] * 5, keep=6)


def test_an_unknown_rule_is_refused_with_a_hint():
    with refused("unknown-rule", match="'medain'.*'median'"):
        judge("medain", [[1.0]])


def test_fltrust_refuses_to_work_without_reference_data():
    with refused("missing-reference-set", match="'fltrust'"):
        aggregate_robust(np.ones((2, 2)), np.full(2, 0.5), RobustRule("fltrust"))


def test_fltrust_refuses_a_reference_that_went_astray():
    with refused("update-not-finite"):
        judge("fltrust", [[1.0, 2.0]], root=np.array([np.nan, 1.0]))


@pytest.mark.parametrize("option", [{"attackers": -1}, {"keep": -1}, {"norm": -1.0}, {"trim": 0.5}, {"trim": -0.1}])
def test_settings_out_of_range_are_refused(option):
    with refused("setting-out-of-range", match=next(iter(option))):
        judge("median", [[1.0]] * 5, **option)


@pytest.mark.parametrize("shape", [(3,), (0, 2), (2, 0)])
def test_updates_must_be_a_table(shape):
    with pytest.raises(ValueError, match="updates must be"):
        aggregate_robust(np.zeros(shape), np.ones(shape[0]), RobustRule("none"))


# Attacks


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("rule", sorted(set(RULES) - {"none"}))
def test_three_attackers_of_ten_do_little_harm(rule, seed):
    updates, honest = attacked(seed)
    root = honest + 0.5 * np.random.default_rng(seed + 100).normal(size=honest.size)
    verdict = judge(rule, updates, attackers=3, trim=0.3, root=root)
    error = np.linalg.norm(verdict.update - honest)
    plain = np.linalg.norm(judge("none", updates).update - honest)
    assert error < plain * (0.2 if rule == "clip" else 0.15)


@pytest.mark.parametrize("rule", ["krum", "multi-krum", "fltrust", "foolsgold"])
def test_rules_that_choose_sites_give_attackers_nothing(rule):
    updates, honest = attacked(4)
    verdict = judge(rule, updates, attackers=3, root=honest)
    assert verdict.weights[7:].tolist() == [0, 0, 0]


# Other people's code


def numpy_foolsgold(history: np.ndarray) -> np.ndarray:
    """FoolsGold site by site, in the order of the paper's Algorithm 1."""
    sites = len(history)
    cs = np.zeros((sites, sites))
    for i in range(sites):
        for j in range(sites):
            if i != j:
                cs[i, j] = history[i] @ history[j] / np.linalg.norm(history[i]) / np.linalg.norm(history[j])
    v = cs.max(axis=1)
    for i in range(sites):
        for j in range(sites):
            if v[j] > v[i]:
                cs[i, j] *= v[i] / v[j]
    alpha = np.clip(1 - cs.max(axis=1), 0, 1)
    alpha = alpha / alpha.max()
    alpha[alpha == 1] = 0.99
    with np.errstate(divide="ignore"):
        alpha = np.log(alpha / (1 - alpha)) + 0.5
    return np.clip(alpha, 0, 1)


@pytest.mark.parametrize("seed", range(5))
def test_foolsgold_agrees_with_its_algorithm_box(seed):
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(9, 4)) + np.array([0.5, 0, 0, 0])
    np.testing.assert_allclose(judge("foolsgold", updates).signals["trust"], numpy_foolsgold(updates), atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sites", [1, 2, 5, 10])
def test_median_agrees_with_numpy(sites, dtype):
    updates = np.random.default_rng(sites).normal(size=(sites, 1000)).astype(dtype)
    np.testing.assert_allclose(judge("median", updates).update, np.median(updates, axis=0), rtol=1e-6)


@pytest.mark.parametrize("trim", [0.0, 0.1, 0.29, 0.3, 0.49])
@pytest.mark.parametrize("sites", [1, 3, 10, 100])
def test_trimmed_mean_agrees_with_scipy(sites, trim):
    updates = np.random.default_rng(sites).normal(size=(sites, 200))
    expected = stats.trim_mean(updates, trim, axis=0)
    np.testing.assert_allclose(judge("trimmed-mean", updates, trim=trim).update, expected, rtol=1e-9, atol=1e-12)


def in_flower(strategy, updates: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """What a Flower strategy makes of the same updates, sent as two layers in the replies of K nodes."""
    from flwr.app import ArrayRecord, Message, Metadata, MetricRecord, RecordDict

    replies = []
    for node, (update, count) in enumerate(zip(updates, counts, strict=True)):
        layers = ArrayRecord([update[:6].reshape(2, 3), update[6:]])
        content = RecordDict({"arrays": layers, "metrics": MetricRecord({"num-examples": int(count)})})
        replies.append(Message(content, metadata=Metadata(1, "", node, 0, "", "", 0.0, 60.0, "train")))
    arrays, _ = strategy.aggregate_train(1, replies)
    return np.concatenate([layer.ravel() for layer in arrays.to_numpy_ndarrays()])


FLOWER = {
    "krum-2": ("Krum", {"num_malicious_nodes": 2}, {"rule": "krum", "attackers": 2}),
    "krum-0": ("Krum", {"num_malicious_nodes": 0}, {"rule": "krum", "attackers": 0}),
    "multi-krum": (
        "MultiKrum",
        {"num_malicious_nodes": 2, "num_nodes_to_select": 4},
        {"rule": "multi-krum", "attackers": 2, "keep": 4},
    ),
    "median": ("FedMedian", {}, {"rule": "median"}),
    "trimmed-0.2": ("FedTrimmedAvg", {"beta": 0.2}, {"rule": "trimmed-mean", "trim": 0.2}),
    "trimmed-0.29": ("FedTrimmedAvg", {"beta": 0.29}, {"rule": "trimmed-mean", "trim": 0.29}),
    "mean": ("FedAvg", {}, {"rule": "none"}),
}


@pytest.mark.thinned(3)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sites", [7, 10])
@pytest.mark.parametrize("case", FLOWER)
def test_flower_comes_to_the_same_update(case, sites, dtype):
    strategies = pytest.importorskip("flwr.serverapp.strategy")
    name, theirs, ours = FLOWER[case]
    for seed in range(5):
        rng = np.random.default_rng([seed, sites])
        updates = rng.normal(size=(sites, 40)).astype(dtype)
        updates[:2] *= 5
        counts = rng.integers(50, 500, size=sites)
        expected = in_flower(getattr(strategies, name)(**theirs), updates, counts)
        verdict = aggregate_robust(updates, counts / counts.sum(), RobustRule(**ours))
        np.testing.assert_allclose(verdict.update, expected, rtol=1e-6, atol=1e-6)
