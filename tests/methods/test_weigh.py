"""How answers are weighed: by hand, as properties, and with reference rows through a whole run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st

import grandrounds as gr
from grandrounds.core.errors import BadInput
from grandrounds.core.plan import Settings
from grandrounds.data.table import Table
from grandrounds.experiment.checks.methods import left_alone
from grandrounds.methods.base import Server
from grandrounds.methods.sse_agg.outliers import (
    BROKEN_MODEL_DISTANCE,
    COMPARABLE_MEDIAN,
    MAX_REMEMBERED_RATIO,
    MIN_DISTANCE,
    OUTLIER_SHARE,
    TOLERANCE,
    is_comparable,
    outlier_distance,
    outlier_ratio,
    outlier_weight,
    smoothed_ratio,
    trimmed_max,
)
from grandrounds.methods.sse_agg.printed import (
    SIGNALS,
    agreement_weights,
    apply_floor,
    blend,
    disagreement,
    exponential_weights,
    worst_site_weights,
)
from grandrounds.methods.weigh import RULES, data_size, distance_weights, model_distances, uniform_weights, weigh
from grandrounds.protocol.messages import Answers
from grandrounds.runs.federation import assemble
from grandrounds.runs.model import TrainedModel
from tests.support import patients, ready, refused, rounds, stack

THREE = Answers(
    ("a", "b", "c"), {"model": np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 6.0]]), "count": np.array([10, 30, 60])}
)


class Judge:
    """Reference rows that find what they are told to."""

    def __init__(self, *right: float) -> None:
        self.right = np.array(right)
        self.asked: list[np.ndarray] = []

    def accuracy(self, models):
        self.asked.append(models)
        return self.right

    def train(self, model, work):
        raise AssertionError("weighing trains nothing")


def weighed(rule: str, answers=THREE, *, reference=None):
    settings = Settings(gr.Experiment.parse({"method": {"weigh": rule}}).model_dump(mode="json")["method"]["weigh"])
    return weigh(settings, Server(1, np.zeros(2), answers.sites, 0, reference=reference), answers)


def explained(sketches, total=None) -> dict[str, np.ndarray]:
    """The columns of an answer that says how each local model reasons."""
    values = np.asarray(sketches, float)
    told = np.ones(len(values)) if total is None else np.asarray(total, float)
    return {"sketch": values, "sketch.flat": np.zeros(len(values), bool), "sketch.total": told}


# --- by hand ----------------------------------------------------------------------------------------


def test_data_size_by_hand():
    assert weighed("data_size").weights == pytest.approx([0.1, 0.3, 0.6])


def test_uniform_by_hand():
    got = weighed("uniform")
    assert got.weights == pytest.approx([1 / 3, 1 / 3, 1 / 3]) and got.signals == {}


def test_distance_by_hand():
    """The mean is (1, 2), so the distances are the roots of 5, 8 and 17."""
    d = np.sqrt([5.0, 8.0, 17.0])
    close = np.exp(-d / d.mean())
    got = weighed("distance")
    assert got.signals["distance"] == pytest.approx(d)
    assert got.weights == pytest.approx(close / close.sum())
    assert got.weights[0] > got.weights[1] > got.weights[2]


def test_distance_of_models_at_one_place_is_uniform():
    alike = Answers(("a", "b"), {"model": np.ones((2, 3)), "count": np.array([1, 9])})
    assert weighed("distance", alike).weights.tolist() == [0.5, 0.5]
    alone = Answers(("a",), {"model": np.ones((1, 3)), "count": np.array([7]), **explained([[0.5, 0.5]])})
    assert [weighed(rule, alone, reference=Judge(0.3)).weights.tolist() for rule in RULES] == [[1.0]] * len(RULES)


def test_reference_accuracy_by_hand():
    judge = Judge(0.9, 0.6, 0.0)
    got = weighed("reference_accuracy", reference=judge)
    assert got.weights == pytest.approx([0.6, 0.4, 0.0])
    assert got.signals["reference_accuracy"].tolist() == [0.9, 0.6, 0.0]
    np.testing.assert_array_equal(judge.asked[0], THREE["model"])


def test_where_no_model_is_ever_right_all_weigh_alike():
    assert weighed("reference_accuracy", reference=Judge(0, 0, 0)).weights == pytest.approx([1 / 3] * 3)


# --- properties -------------------------------------------------------------------------------------


@st.composite
def models(draw):
    """Models (K, P) of whole numbers, so that shifting them is exact, not all at one place."""
    sites, size = draw(st.integers(2, 7)), draw(st.integers(1, 4))
    cells = st.lists(st.integers(-9, 9), min_size=size, max_size=size)
    found = np.array(draw(st.lists(cells, min_size=sites, max_size=sites)), float)
    assume((found != found[0]).any())
    return found


@given(theta=models(), shift=st.integers(-50, 50), seed=st.integers(0, 99))
@examples(max_examples=80, deadline=None)
def test_distance_weights_follow_the_sites_and_not_the_place(theta, shift, seed):
    weights = distance_weights(model_distances(theta))
    assert weights.sum() == pytest.approx(1) and (weights > 0).all()
    np.testing.assert_allclose(distance_weights(model_distances(theta + shift)), weights, atol=1e-9)
    np.testing.assert_allclose(distance_weights(model_distances(3 * theta)), weights, atol=1e-9)
    order = np.random.default_rng(seed).permutation(len(theta))
    np.testing.assert_allclose(distance_weights(model_distances(theta[order])), weights[order], atol=1e-12)


@given(theta=models())
@examples(max_examples=80, deadline=None)
def test_the_further_from_the_mean_the_less_weight(theta):
    far = np.linalg.norm(theta - theta.mean(axis=0), axis=1)
    weights = distance_weights(model_distances(theta))
    for i in range(len(far)):
        for j in range(len(far)):
            if far[i] > far[j] + 1e-9:
                assert weights[i] < weights[j]


@given(
    counts=st.lists(st.integers(1, 10_000), min_size=1, max_size=9),
    right=st.lists(st.floats(0, 1), min_size=9, max_size=9),
    seed=st.integers(0, 99),
)
@examples(max_examples=60, deadline=None)
def test_every_rule_gives_shares_that_move_with_the_sites(counts, right, seed):
    sites = tuple("abcdefghi"[: len(counts)])
    theta = np.random.default_rng(seed).normal(size=(len(counts), 3))
    order = np.random.default_rng(seed).permutation(len(counts))
    reasons = np.random.default_rng(seed).dirichlet(np.ones(4), len(counts))
    for rule in RULES:
        one, other = (
            weighed(
                rule,
                Answers(
                    tuple(np.array(sites)[i]),
                    {"model": theta[i], "count": np.array(counts)[i], **explained(reasons[i], 1 + theta[i, 0] ** 2)},
                ),
                reference=Judge(*np.array(right)[i]),
            ).weights
            for i in (np.arange(len(counts)), order)
        )
        assert one.sum() == pytest.approx(1) and (one >= 0).all() and np.isfinite(one).all()
        np.testing.assert_allclose(other, one[order], atol=1e-12)


# --- SSE-AGG's signals, by hand (eq. 4-8 and 20-21) ---------------------------------------------------

PAIR = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
"""Two sites that go by the first feature and one that goes by the second: the mean is (2/3, 1/3)."""

FAR = np.array([2 / 3, 2 / 3, 4 / 3])


def test_disagreement_by_hand():
    np.testing.assert_allclose(disagreement(PAIR), FAR)
    np.testing.assert_allclose(disagreement(PAIR, consensus_sketches=PAIR[:2]), [0, 0, 2])
    np.testing.assert_allclose(disagreement(np.array([[0.5, 0.3, 0.2], [0.1, 0.7, 0.2]])), [0.4, 0.4])


def test_agreement_by_hand():
    """1 / D is 3/2, 3/2 and 3/4, so the shares are 2/5, 2/5 and 1/5; squared 4/9, 4/9, 1/9."""
    np.testing.assert_allclose(agreement_weights(disagreement(PAIR), eps=0), [0.4, 0.4, 0.2])
    np.testing.assert_allclose(agreement_weights(disagreement(PAIR), eps=0, sharpness=2), [4 / 9, 4 / 9, 1 / 9])
    c = 1 / (0.01 + FAR)
    np.testing.assert_allclose(agreement_weights(disagreement(PAIR), eps=0.01), c / c.sum())
    np.testing.assert_allclose(agreement_weights(FAR, eps=0.01), c / c.sum())


def test_a_site_on_the_consensus_does_not_take_all_of_the_weight():
    """Without eps its weight would be infinite."""
    np.testing.assert_allclose(agreement_weights(np.array([0.0, 0.01, 0.03]), eps=0.01), np.array([1, 1 / 2, 1 / 4]) / 1.75)


def test_exponential_by_hand():
    """exp(-tau 2/3) is one half for tau = 1.5 ln 2."""
    np.testing.assert_allclose(exponential_weights(FAR, tau=1.5 * np.log(2)), [0.4, 0.4, 0.2])
    np.testing.assert_allclose(exponential_weights(FAR, tau=0), [1 / 3] * 3)
    assert np.isfinite(exponential_weights(np.array([1.0, 1.9]), tau=1e4)).all()


def test_worst_site_and_calibration_by_hand():
    """The exp is in the denominator too (eq. 6-7), which Algorithm 1 leaves out: weights sum to 1."""
    losses = np.log([1.0, 2.0, 4.0])
    np.testing.assert_allclose(worst_site_weights(losses, beta=1.0), [1 / 7, 2 / 7, 4 / 7])
    np.testing.assert_allclose(worst_site_weights(losses, beta=2.0), [1 / 21, 4 / 21, 16 / 21])
    np.testing.assert_allclose(worst_site_weights(losses, beta=0.0), [1 / 3] * 3)
    np.testing.assert_allclose(worst_site_weights(np.array([800.0, 0.0]), beta=5.0), [1, 0])


def test_a_site_without_a_figure_counts_as_the_mean_of_the_others():
    np.testing.assert_allclose(worst_site_weights(np.log([1.0, np.nan, 4.0]), beta=1.0), [1 / 7, 2 / 7, 4 / 7])
    assert worst_site_weights(np.full(4, np.nan), beta=1.0).tolist() == [0.25] * 4


def test_blend_by_hand():
    signals = {"data": np.array([0.2, 0.8]), "agreement": np.array([0.5, 0.5]), "worst_site": np.array([1.0, 0.0])}
    np.testing.assert_allclose(blend(signals, {"data": 0.25, "agreement": 0.75}), [0.425, 0.575])
    np.testing.assert_allclose(blend(signals, {"data": 0.5, "agreement": 0.3, "worst_site": 0.2}), [0.45, 0.55])


def test_floor_by_hand():
    np.testing.assert_allclose(apply_floor(np.array([0.9, 0.09, 0.01]), 0.1), np.array([0.9, 0.1, 0.1]) / 1.1)
    above = np.array([0.7, 0.3])
    assert apply_floor(above, 0.1) is above and apply_floor(above, 0.0) is above


@pytest.mark.parametrize(
    ("sites", "spared"),
    [(1, 0), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 2), (9, 2), (10, 2), (11, 2), (12, 3)],
)
def test_widest_by_hand(sites, spared):
    """Sites at 0.1, 0.2 ...: the furthest quarter is left out, and one where there are fewer than eight."""
    far = np.random.default_rng(sites).permutation(np.arange(1, sites + 1) / 10)
    assert trimmed_max(far) == pytest.approx((sites - spared) / 10)
    assert trimmed_max(np.where(far > (sites - spared) / 10 + 0.05, 1e9, far)) == trimmed_max(far), "however far off they are"
    assert OUTLIER_SHARE == 4


def test_beyond_by_hand():
    """All but the furthest are within 0.2; by the tolerance of 1.5 0.3 passes unnoticed."""
    far = np.array([0.05, 0.1, 0.2, 0.1, 0.6])
    assert gr.Experiment().method.weigh.tolerance == TOLERANCE == 1.5
    np.testing.assert_allclose(outlier_ratio(far), far / 0.3)
    np.testing.assert_allclose(outlier_ratio(far, tolerance=2), [1 / 8, 1 / 4, 1 / 2, 1 / 4, 3 / 2])
    np.testing.assert_allclose(outlier_ratio(far, tolerance=3), [1 / 12, 1 / 6, 1 / 3, 1 / 6, 1])
    np.testing.assert_allclose(outlier_ratio(far, tolerance=2, peers=far[[0, 1, 3]]), far / 0.2)


def test_two_hospitals_of_five_that_see_other_patients_are_not_shut_out():
    """Where labels are skewed three happen to be alike; the median alone would call the two others odd."""
    np.testing.assert_array_less(outlier_ratio(np.array([0.11, 0.11, 0.10, 0.86, 1.07])), 1)
    one = outlier_ratio(np.array([0.11, 0.11, 0.10, 0.12, 1.07]))
    np.testing.assert_array_less(one[:4], 1)
    assert one[4] == pytest.approx(1.07 / (1.5 * 0.12))
    assert outlier_weight(one, sharpness=4)[4] < 0.001


@given(
    far=st.lists(st.floats(0, 20), min_size=2, max_size=12).map(np.array),
    tolerance=st.floats(1, 5),
    bad=st.floats(20, 1e9),
)
@examples(max_examples=150, deadline=None)
def test_one_in_four_can_stand_out_and_none_of_them_can_make_others_stand_out(far, tolerance, bad):
    """A quarter that goes further off frees nobody and takes nobody's weight; where one may be told at all, it is."""
    few = max(1, len(far) // 4)
    times = outlier_ratio(far, tolerance=tolerance)
    assert (times > 1).sum() <= few
    order = np.argsort(far, kind="stable")
    worse = far.copy()
    worse[order[-few:]] += bad
    after = outlier_ratio(worse, tolerance=tolerance)
    rest = order[:-few]
    assert trimmed_max(worse) == trimmed_max(far) and not (after[rest] > 1).any()
    if is_comparable(far) and is_comparable(worse):
        np.testing.assert_array_equal(after[rest], times[rest])
        assert (after[order[-few:]] > times[order[-few:]]).all()


def test_in_line_by_hand():
    """Up to 1 nobody loses anything; past it, twice as far leaves half of it, to the power of the sharpness."""
    times = np.array([0.0, 0.5, 1.0, 2.0, 4.0, np.nan])
    np.testing.assert_allclose(outlier_weight(times, sharpness=1), [1, 1, 1, 1 / 2, 1 / 4, 1])
    np.testing.assert_allclose(outlier_weight(times, sharpness=4), [1, 1, 1, 1 / 16, 1 / 256, 1])
    np.testing.assert_array_equal(outlier_weight(times, sharpness=0), np.ones(6))
    far = np.array([0.05, 0.1, 0.1, 0.1, 0.4, 0.1, 0.1, 0.8])
    np.testing.assert_allclose(outlier_weight(outlier_ratio(far, tolerance=2), sharpness=1), [1, 1, 1, 1, 0.5, 1, 1, 0.25])
    np.testing.assert_allclose(outlier_weight(outlier_ratio(far, tolerance=8), sharpness=1), np.ones(8))


def test_a_little_is_no_disagreement_however_close_the_others_are():
    close = np.array([0.0, 0.0, 0.0, MIN_DISTANCE / 2, 4 * MIN_DISTANCE])
    np.testing.assert_allclose(outlier_ratio(close), [0, 0, 0, 0.5, 4])
    np.testing.assert_allclose(outlier_weight(outlier_ratio(close), sharpness=2), [1, 1, 1, 1, 1 / 16])
    np.testing.assert_allclose(outlier_ratio(np.array([0.0, 0.0, MIN_DISTANCE])), [0, 0, 1])
    assert 0 < MIN_DISTANCE < COMPARABLE_MEDIAN


def test_where_most_are_far_apart_nothing_is_known():
    """A quarter of what all features count for is as far as sites may usually be for one of them to be called odd."""
    assert outlier_ratio(np.array([0.25, 0.2, 0.25, 2.5]))[3] == pytest.approx(2.5 / 0.375)
    assert is_comparable(np.array([0.25, 0.1, 0.9])) and not is_comparable(np.array([0.26, 0.1, 0.9]))
    assert COMPARABLE_MEDIAN == 0.25
    apart = outlier_ratio(np.array([0.3, 0.2, 0.3, 3.0]))
    np.testing.assert_array_equal(apart, np.full(4, np.nan), "neither who is far off nor who is near")
    np.testing.assert_array_equal(outlier_weight(apart, sharpness=4), np.ones(4))
    near = np.array([0.1, 0.1, 0.1])
    np.testing.assert_allclose(outlier_ratio(np.array([0.3, 0.3, 0.3, 30.0]), peers=near), [2, 2, 2, 200])


def test_a_broken_model_stands_out_even_where_sites_differ_widely():
    """Most sites lie 0.4 apart, so being different is no offence; a billion times as much as usual is."""
    assert BROKEN_MODEL_DISTANCE == 5
    times = outlier_ratio(np.array([0.4, 0.4, 0.5, 0.6, 1e9]))
    np.testing.assert_allclose(times, [np.nan] * 4 + [2e8])
    np.testing.assert_allclose(outlier_weight(times, sharpness=0.5), [1, 1, 1, 1, 2e8**-0.5])
    np.testing.assert_allclose(outlier_ratio(np.array([0.4, 0.4, 0.5, 4.0, 9.0])), [np.nan] * 4 + [1.5])
    np.testing.assert_array_equal(outlier_ratio(np.array([0.4, 0.4, 0.5, 8.0, 9.0])), np.full(5, np.nan))


def test_what_is_kept_in_mind_by_hand():
    """A quarter of what was, three quarters of what is; of a site never seen before what is, all of it."""
    now, before = np.array([4.0, 0.4, 2.0]), np.array([0.8, 4.0, np.nan])
    np.testing.assert_allclose(smoothed_ratio(now, before, 0.25), [3.2, 1.3, 2.0])
    np.testing.assert_allclose(smoothed_ratio(now, before, 0.75), [1.6, 3.1, 2.0])
    assert now.tolist() == [4.0, 0.4, 2.0] and before[:2].tolist() == [0.8, 4.0], "what it is given stays"


def test_a_round_that_says_nothing_of_a_site_leaves_what_was_found():
    """Nothing of the first and the third: 4 stays 4, 1,000 is not even forgiven, and who was never seen is not known."""
    now, before = np.array([np.nan, 2.0, np.nan, np.nan]), np.array([4.0, 4.0, 1000.0, np.nan])
    np.testing.assert_array_equal(smoothed_ratio(now, before, 0.5), [4, 3, 1000, np.nan])
    np.testing.assert_array_equal(smoothed_ratio(now, before, 0.0), [4, 2, 1000, np.nan])


def test_a_site_that_was_out_of_all_proportion_once_can_come_back():
    """A million times too far counts as ten: at half, 5, 2.5, 1.25 and then in line; this round's own is never cut."""
    assert MAX_REMEMBERED_RATIO == 10
    course = [smoothed_ratio(np.array([1e6]), np.array([np.nan]), 0.5)]
    for _ in range(4):
        course.append(smoothed_ratio(np.zeros(1), course[-1], 0.5))
    np.testing.assert_allclose(np.concatenate(course), [1e6, 5, 2.5, 1.25, 0.625])
    np.testing.assert_allclose(smoothed_ratio(np.array([1e6]), np.array([1e6]), 0.5), [5 + 5e5])


def test_standing_out_by_hand():
    """The median site counts 4 and 2; what uses half of both is half off, what uses none is wholly off."""
    importances = np.array([[4.0, 2.0], [4.0, 2.0], [1.0, 5.0], [4.0, 2.0], [2.0, 1.0], [0.0, 0.0]])
    far, whole = outlier_distance(importances, importances[:4])
    np.testing.assert_allclose(far, [0, 0, 1, 0, 0.5, 1])
    tenfold, ten = outlier_distance(10 * importances, 10 * importances[:4])
    np.testing.assert_allclose(tenfold, far)
    assert ten == pytest.approx(10 * whole)
    np.testing.assert_array_equal(outlier_distance(np.zeros((3, 2)))[0], np.zeros(3))


def test_a_bad_minority_cannot_pull_the_median_to_itself_as_it_can_the_mean():
    honest, bad = np.array([[0.5, 0.5, 0.0]] * 5), np.array([[0.0, 0.0, 100.0]] * 4)
    far, _ = outlier_distance(np.vstack([honest, bad]))
    assert far[:5].max() == 0 and far[5:].min() > 100
    assert disagreement(np.vstack([honest, bad / 100]))[:5].max() > 0.8


# --- SSE-AGG's signals, as properties -----------------------------------------------------------------


@st.composite
def sketches(draw):
    """Sketches (K, F) on the simplex with many ties, of two sites or more."""
    sites, features = draw(st.integers(2, 7)), draw(st.integers(2, 5))
    cells = st.lists(st.integers(0, 4), min_size=features, max_size=features).filter(any)
    found = np.array(draw(st.lists(cells, min_size=sites, max_size=sites)), float)
    return found / found.sum(axis=1, keepdims=True)


def every_signal(values, counts, losses, sharpness, tau):
    far = disagreement(values)
    return {
        "data": data_size(counts),
        "agreement": agreement_weights(disagreement(values), eps=0.01, sharpness=sharpness),
        "exponential": exponential_weights(far, tau=tau),
        "worst_site": worst_site_weights(losses, beta=tau),
        "floored": apply_floor(data_size(counts), 0.2),
    }


@given(
    values=sketches(),
    counts=st.lists(st.integers(1, 9999), min_size=7, max_size=7),
    losses=st.lists(st.floats(0, 50) | st.just(float("nan")), min_size=7, max_size=7),
    sharpness=st.floats(0, 8),
    tau=st.floats(0, 60),
    seed=st.integers(0, 99),
)
@examples(max_examples=80, deadline=None)
def test_every_signal_is_on_the_simplex_and_moves_with_the_sites(values, counts, losses, sharpness, tau, seed):
    n, f = np.array(counts[: len(values)]), np.array(losses[: len(values)])
    order = np.random.default_rng(seed).permutation(len(values))
    straight = every_signal(values, n, f, sharpness, tau)
    turned = every_signal(values[order], n[order], f[order], sharpness, tau)
    for name, weights in straight.items():
        assert np.isfinite(weights).all() and (weights >= 0).all(), name
        assert weights.sum() == pytest.approx(1), name
        np.testing.assert_allclose(turned[name], weights[order], atol=1e-9, err_msg=name)
    np.testing.assert_allclose(
        outlier_weight(outlier_ratio(disagreement(values)[order]), sharpness=sharpness),
        outlier_weight(outlier_ratio(disagreement(values)), sharpness=sharpness)[order],
        atol=1e-9,
    )


@given(values=sketches(), low=st.floats(0, 6), more=st.floats(0.1, 6), tolerance=st.floats(1, 5))
@examples(max_examples=80, deadline=None)
def test_the_sharper_the_less_for_whoever_is_furthest(values, low, more, tolerance):
    far = disagreement(values)
    worst = int(far.argmax())
    np.testing.assert_allclose(agreement_weights(far, eps=0.01, sharpness=0), uniform_weights(len(far)))
    np.testing.assert_array_equal(outlier_weight(outlier_ratio(far), sharpness=0), np.ones(len(far)))
    sharper, blunter = (agreement_weights(far, eps=0.01, sharpness=s)[worst] for s in (low + more, low))
    assert sharper <= blunter + 1e-12
    if far[worst] > far.min() + 1e-6:
        assert sharper < blunter
    one, other = (outlier_weight(outlier_ratio(far, tolerance=tolerance), sharpness=s) for s in (low, low + more))
    assert (other <= one + 1e-12).all() and (one <= 1).all() and (other >= 0).all()
    assert (one == 1).sum() >= len(far) - max(1, len(far) // 4), "no more than one in four can stand out"


@given(
    course=st.lists(
        st.lists(st.floats(0, 1e6) | st.just(float("nan")), min_size=3, max_size=3), min_size=1, max_size=8
    ).map(np.array),
    memory=st.floats(0, 1, exclude_max=True),
)
@examples(max_examples=80, deadline=None)
def test_what_is_kept_in_mind_lies_between_what_was_and_what_is(course, memory):
    held = np.full(3, np.nan)
    for now in course:
        spoken = ~np.isnan(now)
        alone = smoothed_ratio(now, held, 0.0)
        assert alone[spoken].tobytes() == now[spoken].tobytes(), "without memory a round speaks for itself"
        before = held
        held = smoothed_ratio(now, before, memory)
        np.testing.assert_array_equal(held[~spoken], before[~spoken])
        was = np.where(np.isnan(before), now, np.minimum(before, MAX_REMEMBERED_RATIO))
        slack = 1e-12 * now
        between = (held >= np.minimum(now, was) - slack) & (held <= np.maximum(now, was) + slack)
        assert between[spoken].all()
    calm = ~(course > 1).any(axis=0)
    assert not (held[calm] > 1 + 1e-12).any(), "who never stood out does not by adding up"


@given(values=sketches(), counts=st.lists(st.integers(1, 9999), min_size=7, max_size=7), e=st.floats(0, 1))
@examples(max_examples=60, deadline=None)
def test_a_blend_lies_between_its_signals_and_one_alone_is_itself_to_the_bit(values, counts, e):
    signals = {
        "data": data_size(np.array(counts[: len(values)])),
        "agreement": agreement_weights(disagreement(values), eps=0.01),
        "worst_site": uniform_weights(len(values)),
    }
    for name, signal in signals.items():
        alone = {other: float(other == name) for other in signals}
        assert blend(signals, alone).tobytes() == signal.tobytes()
        assert blend(signals, {name: 1.0}).tobytes() == signal.tobytes()
    mixed = blend(signals, {"data": 1 - e, "agreement": e})
    low, high = np.minimum(*list(signals.values())[:2]), np.maximum(*list(signals.values())[:2])
    assert (mixed >= low - 1e-12).all() and (mixed <= high + 1e-12).all()
    assert mixed.sum() == pytest.approx(1)


# --- lambdas that are no blend ------------------------------------------------------------------------

NO_BLEND = [
    ({"data": 1.2, "agreement": -0.2}, "the lambda of 'agreement' is -0.2, but none may be negative"),
    ({"data": 0.5, "agreement": 0.4}, "the lambdas sum to 0.9, but must sum to 1"),
    ({"data": 0.8, "agreement": 0.8}, "the lambdas sum to 1.6, but must sum to 1"),
    ({"data": 0.5, "agreemnt": 0.5}, "lambdas name the signal 'agreemnt'; did you mean 'agreement'"),
]


def test_what_is_no_number_is_refused_before_it_poisons_a_weight():
    """exp(-inf x 0) is no number, and a run would go on with it until every model is none."""
    with refused("bad-lambdas", match="'data'.*nan"):
        blend({"data": np.array([0.5, 0.5])}, {"data": float("nan")})
    for key in ("tau", "beta", "gamma", "sharpness", "tolerance", "memory", "explanation_weight"):
        with refused("bad-setting", match=rf"method\.weigh\.{key}"):
            gr.Experiment.parse({"method": {"weigh": {key: float("inf")}}})
    with refused("bad-setting", match=r"method\.weigh\.lambdas\.data"):
        gr.Experiment.parse({"method": {"weigh": {"lambdas": {"data": float("nan")}}}})


@pytest.mark.parametrize(("lambdas", "said"), NO_BLEND)
def test_lambdas_that_are_no_blend_are_refused_in_words(lambdas, said, tmp_path):
    with pytest.raises(BadInput) as here:
        blend({name: np.array([0.5, 0.5]) for name in SIGNALS}, lambdas)
    assert said in str(here.value)
    with pytest.raises(BadInput) as parsed:
        gr.Experiment.parse({"method": {"name": "sse-agg", "weigh": {"lambdas": lambdas}}})
    assert str(parsed.value).startswith("experiment: method.weigh: ") and said in str(parsed.value)
    file = tmp_path / "e.toml"
    table = ", ".join(f"{name} = {share}" for name, share in lambdas.items())
    file.write_text(f'[method]\nname = "sse-agg"\nweigh = {{ lambdas = {{ {table} }} }}\n')
    with pytest.raises(BadInput) as loaded:
        gr.Experiment.load(file)
    assert str(loaded.value).startswith(str(file)) and said in str(loaded.value)
    with pytest.raises(BadInput) as given_so:
        gr.Experiment().with_settings([f"method.weigh.lambdas={{ {table} }}"])
    assert said in str(given_so.value) and "\n" not in str(given_so.value)


@pytest.mark.parametrize("e", [0.0, 0.5])
def test_explanation_weight_is_short_for_lambdas_and_not_given_with_them(e):
    with refused("bad-setting", match=r"method\.weigh"):
        gr.Experiment.parse({"method": {"weigh": {"explanation_weight": e, "lambdas": {"data": 1.0}}}})
    with refused("bad-setting", match=r"method\.weigh"):
        gr.Experiment().with_settings([f"method.weigh.explanation_weight={e}", "method.weigh.lambdas.data=1.0"])


@pytest.mark.parametrize(
    ("method", "given_so", "by"),
    [
        ({"name": "fedavg", "weigh": {"explanation_weight": 0.5}}, "explanation_weight", "'fedavg' weights by data_size"),
        ({"name": "fedavg", "weigh": {"explanation_weight": 0.0}}, "explanation_weight", "'fedavg' weights by data_size"),
        ({"name": "fedprox", "weigh": {"lambdas": {"data": 1.0}}}, "lambdas", "'fedprox' weights by data_size"),
        ({"weigh": {"rule": "uniform", "lambdas": {"agreement": 1.0}}}, "lambdas", "'fedavg' weights by uniform"),
    ],
)  # fmt: skip
def test_shares_of_signals_that_nothing_weighs_by_are_left_alone_and_that_is_said(method, given_so, by):
    """Or a study of them would be one of FedAvg, and nobody would know."""

    def planned(**changes) -> Settings:
        return Settings(gr.Experiment.parse({"data": {"name": "digits"}, "method": {**method, **changes}}).plan())

    (warning,) = left_alone(planned())
    assert f"method.weigh.{given_so} " in warning and by in warning and "'sse-agg'" in warning
    ways_out = (
        {"weigh": {**method["weigh"], "rule": "explanations"}},
        {"name": "sse-agg", "weigh": {**method["weigh"], "rule": "auto"}},
    )
    for way_out in ways_out:
        assert planned(**way_out).method.weigh.rule == "explanations"
        assert left_alone(planned(**way_out)) == (), "the way out it names"
    assert left_alone(planned(weigh="data_size")) == (), "nothing was set"


@pytest.mark.parametrize(
    "setting",
    ["explanation_weight=1.5", "explanation_weight=-0.1", "floor=1.0", "tolerance=0", "memory=1", "memory=-0.1"],
)
def test_weights_out_of_bounds_are_refused_by_name(setting):
    with refused("bad-setting", match=rf"method\.weigh\.{setting.partition('=')[0]}"):
        gr.Experiment().with_settings([f"method.weigh.{setting}"])


# --- through the engine -----------------------------------------------------------------------------


@pytest.mark.parametrize("weigh", ["data_size", "uniform", "distance"])
def test_the_model_is_the_mean_by_these_weights(weigh):
    """One round's model against the mean of what the same sites train alone."""
    held = stack([12, 32, 52])
    theta, (decision,) = rounds(ready(held)[0], count=1, method={"weigh": weigh})
    state: dict = {}
    rounds(ready(held)[0], count=1, method={"name": "local"}, state=state)
    own = np.asarray(state["served"].models, float)
    if weigh == "distance":
        d = np.linalg.norm(own - own.mean(axis=0), axis=1)
        expected = np.exp(-d / d.mean()) / np.exp(-d / d.mean()).sum()
        assert decision.signals["distance"] == pytest.approx(dict(zip("abc", d, strict=True)), rel=1e-4)
    else:
        expected = np.array([10, 30, 50]) / 90 if weigh == "data_size" else np.full(3, 1 / 3)
    assert list(decision.weights.values()) == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(theta, expected @ own, atol=1e-6)
    assert decision.signals["data_size"] == {"a": 10, "b": 30, "c": 50}


# --- reference rows ---------------------------------------------------------------------------------


def one_turned(sizes=(90, 80, 150)) -> Table:
    """Three hospitals of one clear rule; the last and largest has all its labels turned round."""
    rng = np.random.default_rng(4)
    n = sum(sizes)
    x = rng.normal(size=(n, 3))
    y = x[:, 0] + 0.3 * rng.normal(size=n) > 0
    site = np.repeat(["a", "b", "c"], sizes)
    y = np.where(site == "c", ~y, y)
    return Table.from_mapping(
        {**{f"x{i}": x[:, i] for i in range(3)}, "hospital": site, "died": y.astype(float)}, source="turned.csv"
    )


def run(out, table, **method) -> gr.Run:
    plan = {
        "data": {"label": "died", "site": "hospital"},
        "method": {"rounds": 1, **method},
        "reference": {"root": {"rows": 60}},
        "seed": 3,
    }
    return gr.run(gr.Experiment.parse(plan), table=table, out=out)


def test_a_site_with_turned_labels_weighs_less_by_reference_rows_than_by_size(tmp_path):
    table = one_turned()
    sized = run(tmp_path / "sized", table).rounds[0]["decision"]
    judged = run(tmp_path / "judged", table, weigh="reference_accuracy").rounds[0]["decision"]
    right = judged["signals"]["reference_accuracy"]
    total = sum(right.values())
    assert judged["weights"] == pytest.approx({s: r / total for s, r in right.items()})
    assert sized["weights"]["c"] > 0.4
    assert judged["weights"]["c"] < 0.8 * sized["weights"]["c"]
    assert judged["weights"]["c"] < min(judged["weights"]["a"], judged["weights"]["b"])


def test_reference_accuracy_is_that_of_each_sites_own_model_on_the_servers_rows(tmp_path):
    """Method 'local' leaves the very models on disk that the first round weighs: they are scored here by hand."""
    table = one_turned()
    judged = run(tmp_path / "judged", table, weigh="reference_accuracy")
    alone = run(tmp_path / "alone", table, name="local")
    plan = Settings({**judged.plan, "data": {**judged.plan["data"], "sha256": None}})
    rows = assemble(plan, table).reference["root"].rows
    truth = table.take(rows).columns["died"]
    for site, file in alone.summary["models"].items():
        said = TrainedModel.load(alone.folder / file).predict(table.take(rows)).decisions.astype(float)
        found = judged.rounds[0]["decision"]["signals"]["reference_accuracy"][site]
        assert found == pytest.approx(np.mean(said == truth))


@pytest.mark.parametrize("method", [{"weigh": "reference_accuracy"}, {"robust": "fltrust"}])
def test_reference_rows_are_nobodys_rows(method, tmp_path):
    table = one_turned()
    done = run(tmp_path / "r", table, **method)
    plan = Settings({**done.plan, "data": {**done.plan["data"], "sha256": None}})
    held = assemble(plan, table)
    mine = np.concatenate([part for r in held.stack.rows for part in (r.train, r.val, r.test)])
    root = held.reference["root"].rows
    assert len(root) == 60 and not set(root.tolist()) & set(mine.tolist())
    assert sorted([*mine.tolist(), *root.tolist()]) == list(range(len(table)))
    assert sum(sum(r.values()) for r in done.summary["rows"].values()) == len(table) - 60
    assert done.summary["reference"]["root"]


def test_which_reference_is_meant_must_be_said_and_be_there(tmp_path):
    two = {"root": {"rows": 20}, "other": {"rows": 20}}
    base = {"data": {"label": "died", "site": "hospital"}}

    def tried(sets, **method):
        plan = {**base, "reference": sets, "method": {"rounds": 1, **method}}
        return gr.run(gr.Experiment.parse(plan), table=patients([60, 50]), out=tmp_path / "r")

    with refused("method-does-not-fit", match=r"reference\.root"):
        tried({}, weigh="reference_accuracy")
    with refused("method-does-not-fit", match=r"method\.reference"):
        tried(two, weigh="reference_accuracy")
    with refused("unknown-reference-set", match=r"method\.reference"):
        tried(two, weigh="reference_accuracy", reference="rot")
    with refused("unknown-reference-set", match=r"method\.reference"):
        tried({}, weigh="reference_accuracy", reference="root")
    assert not (tmp_path / "r").exists()
    named = tried(two, weigh="reference_accuracy", reference="other")
    assert named.rounds[0]["decision"]["signals"]["reference_accuracy"]


def test_the_first_site_that_learns_is_not_absurd():
    """Features count for 0.014 nats at the median site and for 0.139 at one: thirty times as far off, and nothing to fear."""
    far = np.array([0.5, 0.5, 0.7, 1.0, 2.0, 30.0])
    assert np.isnan(outlier_ratio(far, usual_total=0.014)).all()
    assert outlier_ratio(far, usual_total=0.5)[5] == pytest.approx(30 / 10)
    assert outlier_ratio(far, usual_total=3.0)[5] == outlier_ratio(far)[5] == pytest.approx(30 / BROKEN_MODEL_DISTANCE)
    assert outlier_ratio(1e6 * far, usual_total=0.014)[5] > 1, "a model a million times as loud is"
    assert np.isnan(outlier_ratio(far, usual_total=0.0)[:5]).all()
