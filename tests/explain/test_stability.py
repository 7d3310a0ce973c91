from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import entropy, spearmanr

import grandrounds.explain.stability as module
from grandrounds.core.rng import generator
from grandrounds.explain.explainer import Importances
from grandrounds.explain.sketch import Sketches, simplex
from grandrounds.explain.stability import (
    consensus_drift,
    cross_site_drift,
    fidelity,
    jaccard_at_k,
    mean_rank_correlation,
    nsds,
    pairwise_drift,
    pairwise_jaccard,
    pairwise_rank_correlation,
    rank_correlation,
    sampling_drift,
    stability,
    to_consensus,
)
from tests.support import refused

pytestmark = pytest.mark.filterwarnings("error")

THREE = np.array([[0.5, 0.3, 0.2, 0.0], [0.2, 0.3, 0.5, 0.0], [0.0, 0.0, 0.4, 0.6]])


@st.composite
def several_sketches(draw, least: int = 2) -> np.ndarray:
    shape = draw(st.tuples(st.integers(least, 7), st.integers(1, 6)))
    few = st.integers(0, 4).map(float)  # ties are common
    return simplex(draw(hnp.arrays(float, shape, elements=st.one_of(few, st.floats(0, 1)))))[0]


def pairs(of, rows: np.ndarray) -> float:
    return float(np.mean([of(a, b) for a, b in combinations(rows, 2)]))


def overlap(k: int):
    def of(a: np.ndarray, b: np.ndarray) -> float:
        ranked = (sorted(range(len(v)), key=lambda f, v=v: (-v[f], f))[:k] for v in (a, b))
        one, other = ({f for f in top if v[f] > 0} for top, v in zip(ranked, (a, b), strict=True))
        return len(one & other) / len(one | other)

    return of


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    return 0.0 if len(set(a)) < 2 or len(set(b)) < 2 else float(spearmanr(a, b).statistic)


def crowd(sites: int, features: int, seed: int = 0) -> np.ndarray:
    return simplex(generator(seed, purpose="test").exponential(size=(sites, features)))[0]


def test_drift_by_hand():
    assert pairwise_drift(THREE) == pytest.approx(np.array([[0, 0.6, 1.6], [0.6, 0, 1.2], [1.6, 1.2, 0]]))
    assert cross_site_drift(THREE) == pytest.approx(3.4 / 3, rel=1e-14)
    assert to_consensus(THREE, np.array([0.25, 0.25, 0.25, 0.25])) == pytest.approx([0.6, 0.6, 1.0])
    assert consensus_drift(THREE[0], THREE[2]) == pytest.approx(1.6)


def test_sites_that_share_no_feature_are_two_apart():
    assert cross_site_drift(np.eye(5)) == 2.0
    assert jaccard_at_k(np.eye(5), 1) == 0.0


def test_overlap_by_hand():
    """Top two: {0, 1}, {2, 1}, {3, 2}: one, none and one shared of three, four and three."""
    assert pairwise_jaccard(THREE, 2) == pytest.approx(np.array([[1, 1 / 3, 0], [1 / 3, 1, 1 / 3], [0, 1 / 3, 1]]))
    assert jaccard_at_k(THREE, 2) == pytest.approx(2 / 9, rel=1e-14)
    assert jaccard_at_k(THREE, 99) == 0.5  # no more than count: {0, 1, 2} twice and {2, 3}
    assert jaccard_at_k(np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]), 1) == 0.0  # of equal shares the first
    assert jaccard_at_k(np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]), 3) == pytest.approx(1 / 3)  # zeros are nobody's


@settings(max_examples=120, deadline=None)
@given(several_sketches(), st.integers(1, 6))
def test_means_over_pairs_are_those_of_all_pairs_one_by_one(sketches, k):
    assert cross_site_drift(sketches) == pytest.approx(pairs(lambda a, b: np.abs(a - b).sum(), sketches), abs=1e-13)
    assert jaccard_at_k(sketches, k) == pytest.approx(pairs(overlap(k), sketches), abs=1e-13)
    assert mean_rank_correlation(sketches) == pytest.approx(pairs(spearman, sketches), abs=1e-12)


@settings(max_examples=120, deadline=None)
@given(several_sketches(least=3), st.integers(1, 6))
def test_distances_are_a_metric_and_overlaps_a_similarity(sketches, k):
    drift, shared, ranks = pairwise_drift(sketches), pairwise_jaccard(sketches, k), pairwise_rank_correlation(sketches)
    for found, low, high in ((drift, 0, 2), (shared, 0, 1), (ranks, -1, 1)):
        assert (found == found.T).all()
        assert found.min() >= low - 1e-12
        assert found.max() <= high + 1e-12
    assert (np.diag(drift) == 0).all()
    assert (np.diag(shared) == 1).all()
    assert (drift[:, :, None] + drift[None] + 1e-12 >= drift[:, None, :]).all()


@settings(max_examples=60, deadline=None)
@given(several_sketches(), st.randoms(use_true_random=False))
def test_the_order_of_sites_and_of_features_does_not_matter(sketches, random):
    sites, features = list(range(sketches.shape[0])), list(range(sketches.shape[1]))
    random.shuffle(sites)
    random.shuffle(features)
    for of in (cross_site_drift, mean_rank_correlation):
        assert of(sketches[sites]) == pytest.approx(of(sketches), abs=1e-12)
        assert of(sketches[:, features]) == pytest.approx(of(sketches), abs=1e-12)
    assert jaccard_at_k(sketches[sites], 2) == jaccard_at_k(sketches, 2)
    assert (pairwise_drift(sketches[sites]) == pairwise_drift(sketches)[np.ix_(sites, sites)]).all()


def test_the_order_of_features_does_not_matter_to_overlap_without_ties():
    sketches, order = crowd(20, 9), generator(1, purpose="test").permutation(9)
    assert jaccard_at_k(sketches[:, order], 4) == jaccard_at_k(sketches, 4)


@pytest.mark.parametrize("sites", [2, 3, 1000])
def test_equal_models_have_no_drift_at_all(sites):
    same = np.tile(crowd(1, 37), (sites, 1))
    assert cross_site_drift(same) == 0.0
    assert not pairwise_drift(same[:50]).any()
    assert jaccard_at_k(same, 5) == 1.0
    assert mean_rank_correlation(same) == pytest.approx(1.0, abs=1e-12)
    assert (pairwise_rank_correlation(same[:50]) == 1.0).all()
    assert nsds(same, same[0]).max() == 0.0


@pytest.mark.slow
def test_ten_thousand_sites_have_the_mean_of_their_pairs():
    """Sites in two camps: pairs across are 1.0 apart and share one of three top features, pairs within are equal."""
    one, other = np.zeros(100), np.zeros(100)
    one[:2], other[:3] = (0.5, 0.5), (0.0, 0.5, 0.5)
    sketches = np.concatenate([np.tile(one, (4000, 1)), np.tile(other, (6000, 1))])
    across = 2 * 4000 * 6000 / (10_000 * 9_999)
    assert cross_site_drift(sketches) == pytest.approx(across, rel=1e-12)
    assert jaccard_at_k(sketches, 2) == pytest.approx(1 - across * 2 / 3, rel=1e-12)


def test_block_by_block_gives_what_one_block_gives(monkeypatch):
    sketches = crowd(83, 12)
    whole = pairwise_drift(sketches), jaccard_at_k(sketches, 4)
    monkeypatch.setattr(module, "_NUMBERS", 83 * 12 * 7)
    assert (pairwise_drift(sketches) == whole[0]).all()
    monkeypatch.setattr(module, "_NUMBERS", 83 * 7)
    assert jaccard_at_k(sketches, 4) == whole[1]


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 8).flatmap(lambda n: hnp.arrays(float, (2, n), elements=st.integers(-3, 3).map(float))))
def test_rank_correlation_is_spearmans(two):
    a, b = two
    assert rank_correlation(a, b) == pytest.approx(spearman(a, b), abs=1e-12)
    assert rank_correlation(a, a) == (0.0 if len(set(a)) < 2 else 1.0)
    assert rank_correlation(a, -b) == -rank_correlation(a, b)
    assert rank_correlation(np.exp(a), b) == rank_correlation(a, b)


def test_rank_correlation_goes_along_the_last_axis_and_broadcasts():
    a, b = crowd(4, 11, seed=1), crowd(3, 11, seed=2)
    found = rank_correlation(a[:, None], b)
    assert found.shape == (4, 3)
    assert found == pytest.approx(np.array([[spearman(x, y) for y in b] for x in a]), abs=1e-12)
    assert pairwise_rank_correlation(a) == pytest.approx(rank_correlation(a[:, None], a), abs=1e-15)


def test_what_ranks_nothing_correlates_with_nothing():
    sketches = np.array([[0.25] * 4, [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])
    assert pairwise_rank_correlation(sketches).tolist() == [[0, 0, 0], [0, 1, -1], [0, -1, 1]]
    assert mean_rank_correlation(sketches) == pytest.approx(-1 / 3)


def test_the_worked_example_of_fedxchain():
    local, agreed = np.array([0.8, 0.2, 0.0, 0.1]), np.array([0.45, 0.45, 0.15, 0.05])
    assert nsds(local, agreed) == pytest.approx(0.3340, abs=5e-5)  # the paper prints 0.427
    assert nsds(-local, agreed) == nsds(local, agreed)  # of raw SHAP values the size counts
    assert nsds(np.stack([local, 3 * agreed]), agreed) == pytest.approx([0.3340, 0.0], abs=5e-5)


@settings(max_examples=100, deadline=None)
@given(several_sketches())
def test_divergence_is_the_entropy_of_smoothed_attributions(sketches):
    found = nsds(sketches, sketches[0])
    expected = [entropy(row + 1e-10, sketches[0] + 1e-10) for row in sketches]
    assert found == pytest.approx(expected, abs=1e-12)
    assert found.min() >= 0
    assert nsds(5.0 * sketches, sketches[0]) == pytest.approx(found, abs=1e-7)


def test_fidelity_compares_sizes():
    coefficients = np.array([2.0, -3.0, 0.5, 0.0])
    assert fidelity(np.array([0.3, 0.5, 0.2, 0.0]), coefficients) == 1.0
    assert fidelity(np.array([0.2, 0.0, 0.5, 0.9]), coefficients) == pytest.approx(-1.0)
    assert fidelity(np.array([[0.3, 0.5, 0.2, 0.0], [0.25] * 4]), coefficients).tolist() == [1.0, 0.0]


def test_fidelity_of_a_linear_models_shap_values_is_one():
    """SHAP of independent standardised inputs is w_j (x_j - mean_j): its mean size ranks features as |w| does."""
    x = generator(2, purpose="test").normal(size=(4000, 6))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    w = np.array([1.0, -2.0, 0.1, 3.0, -0.5, 0.0])
    assert fidelity(np.abs(w * x).mean(axis=0), w) == 1.0


def test_sampling_drift_by_hand():
    """Blurs of 3, 4 and 0 hundredths: pairs 5, 3 and 4; the mean is 4. No pair lies farther apart than 2."""
    assert sampling_drift(np.array([0.03, 0.04, 0.0])) == pytest.approx(0.04, rel=1e-12)
    assert sampling_drift(np.array([1.9, 1.9])) == 2.0


def test_of_very_many_sites_some_stand_for_all():
    blur = generator(5, purpose="test").uniform(0, 0.5, 5000)
    few = sampling_drift(blur[:512])
    assert sampling_drift(blur) == pytest.approx(few, rel=0.05) and sampling_drift(blur) != few


@pytest.mark.parametrize("clipped", [False, True])
def test_equal_sites_measured_on_rows_of_their_own_drift_by_sampling_alone(clipped):
    rng = generator(3, purpose="test")
    truth, rows = np.array([0.4, 0.3, 0.2, 0.1]), 250
    draws = rng.gamma(2.0, truth / 2, (300, rows, 4)) + (rng.normal(size=(300, rows, 4)) if clipped else 0)
    halves = np.stack([draws[:, ::2].sum(axis=1), draws[:, 1::2].sum(axis=1)])
    raw = Importances(draws.mean(axis=1), draws.std(axis=1) / np.sqrt(rows), halves)
    found = stability(Sketches.from_importances([str(k) for k in range(300)], "abcd", raw), k=2)
    assert found.sampling == pytest.approx(found.drift, rel=0.1)


def test_one_site_or_none_has_nothing_to_differ_from():
    for sketches in (THREE[:1], THREE[:0]):
        assert cross_site_drift(sketches) == 0.0
        assert sampling_drift(sketches[:, 0]) == 0.0
        assert jaccard_at_k(sketches, 2) == 1.0
        assert mean_rank_correlation(sketches) == 1.0
        assert pairwise_drift(sketches).shape == (len(sketches), len(sketches))


def measured(raw: np.ndarray, **settings) -> module.Stability:
    sites = [f"site {k}" for k in range(len(raw))]
    return stability(Sketches.from_importances(sites, "abcd", Importances(raw, 0.01 * raw)), **settings)


def test_a_measurement_holds_every_number():
    raw = np.concatenate([THREE, np.zeros((1, 4))])
    found = measured(raw, k=2, before=np.array([0.25] * 4))
    values = found.sketches.values
    assert found.flat == ("site 3",)
    assert found.consensus == pytest.approx(THREE.mean(axis=0))
    assert found.drift == pytest.approx((3.4 + 0.6 + 0.6 + 1.0) / 6)  # the flat site counts with its uniform sketch
    assert found.to_consensus[3] == pytest.approx(np.abs(THREE.mean(axis=0) - 0.25).sum())
    assert found.consensus_drift == pytest.approx(found.to_consensus[3])
    assert found.jaccard == jaccard_at_k(values, 2)
    assert found.rank_correlation == mean_rank_correlation(values)
    assert (found.nsds == nsds(values, found.consensus)).all()
    assert found.sampling is None, "on shared rows sampling puts no site apart from another"
    assert measured(raw, k=2).consensus_drift is None


def test_a_measurement_is_plain_json():
    raw = np.concatenate([THREE / 0.3, np.zeros((1, 4))])
    found = measured(raw, k=2)
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told == found.to_dict()
    assert list(told) == [
        "sketches", "error", "flat", "consensus", "drift", "pairs", "to_consensus", "consensus_drift", "jaccard", "k",
        "density", "rank_correlation", "nsds", "sampling", "blur",
    ]  # fmt: skip
    assert told["density"] == np.count_nonzero([*THREE, [0.25] * 4]) / 16
    assert told["sketches"] == dict(zip(found.sites, [*THREE.tolist(), [0.25] * 4], strict=True))
    assert told["error"]["site 0"] == pytest.approx(found.sketches.error[0], rel=1e-5)
    assert told["flat"] == ["site 3"]
    assert told["pairs"]["sites"] == list(found.sites)
    assert told["pairs"]["drift"][0][:3] == [0.0, 0.6, 1.6]
    assert told["pairs"]["jaccard"][0] == [1.0, 0.333333, 0.0, 1.0]
    assert told["nsds"]["site 2"] == found.nsds[2]
    assert told["to_consensus"]["site 1"] == found.to_consensus[1]
    assert told["consensus_drift"] is None


def test_of_many_sites_the_pairs_are_left_out():
    many = stability(Sketches.from_importances([str(k) for k in range(65)], "abcd", both(crowd(65, 4))), k=2)
    assert many.pairs is None
    assert many.to_dict()["pairs"] is None
    fewer = stability(Sketches.from_importances([str(k) for k in range(64)], "abcd", both(crowd(64, 4))), k=2)
    assert fewer.pairs is not None
    assert fewer.pairs.sum() / (64 * 63) == pytest.approx(fewer.drift)


def both(values: np.ndarray) -> Importances:
    return Importances(values, values / 100)


def test_what_cannot_be_compared_is_refused():
    with refused("bad-sketch-shape", match=r"shape \(4,\)"):
        cross_site_drift(THREE[0])
    with refused("not-finite"):
        cross_site_drift(np.array([[np.nan, 1.0], [0.5, 0.5]]))
    with refused("no-features"):
        cross_site_drift(np.empty((3, 0)))
    with refused("bad-top-count"):
        jaccard_at_k(THREE, 0)
    with refused("mismatched-shapes", match="4 and of 3 features"):
        nsds(THREE, np.array([0.2, 0.3, 0.5]))
    with refused("mismatched-shapes", match="4 and of 3 features"):
        consensus_drift(THREE[0], np.array([0.2, 0.3, 0.5]))
    with refused("mismatched-shapes", match="4 and of 2 features"):
        rank_correlation(THREE, np.array([0.5, 0.5]))
    with refused("bad-sketch-shape"):
        to_consensus(THREE, THREE)
