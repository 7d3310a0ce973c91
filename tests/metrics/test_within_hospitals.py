"""AUROC within hospitals: its value by hand, the interval of the pooled one less it, and hospitals with few patients."""

from __future__ import annotations

import numpy as np
import pytest

from grandrounds.metrics import ScoredRows, scores, tally
from grandrounds.metrics.within_hospitals import gap_margin, mean_auroc, score_sites


def area(z, y):
    above = z[y == 1][:, None] - z[y == 0][None, :]
    return ((above > 0) + 0.5 * (above == 0)).mean()


def within(groups):
    pairs = np.array([(y == 1).sum() * (y == 0).sum() for _, y in groups])
    return sum(n * area(z, y) for n, (z, y) in zip(pairs, groups, strict=True)) / pairs.sum()


def hospitals(rng, sizes=((40, 0.2, -1.5), (50, 0.8, 1.5))):
    """Hospitals of n patients with a share of events, where a risk follows the hospital and, a little, the patient."""
    for n, share, base in sizes:
        y = (rng.random(n) < share).astype(int)
        yield rng.normal(size=n) + 0.4 * y + base, y


def test_hospitals_count_by_their_pairs():
    site = {"auroc_low": 0.5, "auroc_high": 1.0}
    sites = {
        "a": {"count": 15.0, "events": 5.0, "auroc": 0.8, "auroc_low": 0.7, "auroc_high": 0.9},
        "b": {"count": 30.0, "events": 15.0, "auroc": 0.6, "auroc_low": 0.4, "auroc_high": 0.8},
        "few": {"count": 9.0, "events": 1.0, "auroc": None, **site},
        "none": {"count": 0.0, "events": None, "auroc": None, **site},
    }
    found = mean_auroc(sites)
    assert found["auroc_within"] == pytest.approx((50 * 0.8 + 225 * 0.6) / 275)
    assert found["auroc_within_hospitals"] == 2
    half = np.hypot(50 * 0.1, 225 * 0.2) / 275
    assert found["auroc_within_high"] - found["auroc_within"] == pytest.approx(half)
    assert mean_auroc({"a": sites["a"]}) == {}  # of one hospital it is the AUROC
    assert mean_auroc({"few": sites["few"], "none": sites["none"]}) == {}
    many = {str(k): {"count": 10.0, "events": 1.0, "auroc": None, **site} for k in range(5)}
    assert mean_auroc({**sites, **many}) == {}, "45 of 104 test patients are at hospitals with an AUROC"


def test_a_hospital_with_fewer_than_five_patients_of_a_class_has_no_auroc():
    y = np.array([0] * 10 + [1] * 4 + [0] * 10 + [1] * 5)
    owner = np.repeat([0, 1], [14, 15])
    z = np.random.default_rng(0).normal(size=len(y))[:, None]
    exact = ScoredRows.from_logits(z, y, classes=2).exact_tally(owner, (2,))
    found = score_sites(exact, threshold=0.5, only=("auroc", "auroc_low", "log_loss"))
    assert np.isnan(found["auroc"]).tolist() == np.isnan(found["auroc_low"]).tolist() == [True, False]
    assert np.isfinite(found["log_loss"]).all()
    assert np.isfinite(scores(exact, only=("auroc",))["auroc"]).all()  # of other rows the metric is as it was


def test_the_interval_of_the_difference_is_that_of_a_bootstrap_of_patients_within_hospitals():
    rng = np.random.default_rng(3)
    groups = list(hospitals(rng))
    half = gap_margin([tally(z[:, None], y, classes=2) for z, y in groups])
    differences = []
    for _ in range(2000):
        drawn = [(z[i], y[i]) for z, y in groups for i in [rng.integers(0, len(y), len(y))]]
        differences.append(area(*map(np.concatenate, zip(*drawn, strict=True))) - within(drawn))
    assert half == pytest.approx(1.96 * np.std(differences), rel=0.1)
    gap = area(*map(np.concatenate, zip(*groups, strict=True))) - within(groups)
    assert gap - half > 0


def test_hospitals_without_an_auroc_are_pairs_of_the_pooled_one_only():
    rng = np.random.default_rng(4)
    groups = [*hospitals(rng), (np.array([2.0, 3.0, 1.0]), np.array([1, 1, 1]))]
    tallies = [tally(z[:, None], y, classes=2) for z, y in groups]
    assert gap_margin(tallies) > 0
    assert np.isnan(gap_margin(tallies[2:]))
