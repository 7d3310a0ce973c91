"""Differences from the common model: the statistic by hand and against statsmodels, its permutations, power and errors."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from grandrounds.capabilities.personal import score_test
from grandrounds.capabilities.personal.score_test import (
    NullModel,
    Patients,
    SiteRows,
    correct_misfit,
    find_differences,
    misfit_sums,
    score_statistics,
    to_normal,
)
from grandrounds.core.rng import generator

COLUMNS = 6
GROUPS = [np.array([i]) for i in range(COLUMNS)]


def expit(z):
    return 1 / (1 + np.exp(-z))


def site_rows(n=300, *, seed=0, planted=0.0, strength=1.0, rows=1, base=-0.5, loss="cross_entropy") -> SiteRows:
    """A hospital whose outcomes follow the common score, but for column 0, which counts `planted` more there."""
    rng = generator(seed, purpose="rows of a hospital")
    units = np.repeat(np.arange(n // rows), rows)
    x = rng.normal(size=(len(units), COLUMNS))
    x[:, 1] += 0.6 * x[:, 0]
    score = x @ np.array([0.5, -0.4, 0.3, 0.0, 0.6, 0.2]) + base
    real = strength * score + planted * x[:, 0] + 0.7
    if loss == "squared":
        target = real + rng.normal(size=len(real))
    elif loss == "poisson":
        target = rng.poisson(np.exp(0.5 * real)).astype(float)
        score = 0.5 * score
    else:
        target = (rng.random(len(real)) < expit(real)).astype(float)
    return SiteRows(loss, score[:, None], target[:, None], x, units)


def find(rows: SiteRows, seed=0, count=199):
    return find_differences(rows, GROUPS, generator(seed, purpose="test"), permutations=count)




def named(found) -> list[int]:
    return [f for f, effect in enumerate(found[:-1]) if effect is not None and effect.differs]


def test_the_statistic_is_that_of_a_calculation_by_hand():
    """Eight rows, a common score of 0 and one 0/1 column: after the own intercept the risk is 1/2, so every variance is 1/4.

    Three of four rows with the column have the event and one of four without. The score is 3 - 4/2 = 1, its variance
    8 * 1/4 * 1/4 = 1/2, so the statistic is 1 / (1/2) = 2.
    """
    x = np.array([1, 1, 1, 1, 0, 0, 0, 0.0])[:, None]
    y = np.array([1, 1, 1, 0, 1, 0, 0, 0.0])[:, None]
    rows = SiteRows("cross_entropy", np.zeros((8, 1)), y, x, np.arange(8))
    value, degrees, _, _ = score_statistics(NullModel(rows, x[:, None, :] - 0.5, []), [np.array([0])])
    assert value[0] == pytest.approx(2.0, rel=1e-6) and degrees.tolist() == [1]


def test_permuted_outcomes_have_the_probabilities_of_the_null_model():
    """Four patients with one event: it is at each with the probability of its odds, by exhaustive enumeration too."""
    z, y = np.array([[-1.0], [0.0], [0.5], [1.5]]), np.array([[0.0], [0.0], [1.0], [0.0]])
    dealt = next(Patients(np.arange(4)).permute(z, y, np.zeros((4, 1)), generator(1, purpose="test"), [20_000]))
    assert (dealt.sum(axis=0) == 1).all()
    weights = {order: np.exp(sum(z[i, 0] * y[j, 0] for i, j in enumerate(order))) for order in permutations(range(4))}
    at = [sum(w for order, w in weights.items() if y[order[i], 0]) / sum(weights.values()) for i in range(4)]
    assert np.allclose(at, np.exp(z[:, 0]) / np.exp(z[:, 0]).sum())
    assert np.abs(dealt[:, 0].mean(axis=1) - at).max() < 0.015


def test_counts_and_several_rows_are_dealt_by_the_same_rule():
    """Outcomes of the general path: counts, and patients with two rows, whose outcomes stay together and in order."""
    rng = generator(2, purpose="test")
    units = np.array([0, 0, 1, 1, 2, 2, 3])
    y = np.array([1, 2, 3, 4, 5, 6, 9.0])[:, None]
    dealt = next(Patients(units).permute(np.zeros((7, 1)), y, np.zeros((7, 1)), rng, [500]))[:, 0]
    assert (dealt[6] == 9).all(), "the only patient with one row has no one to change places with"
    pairs = {tuple(column[k : k + 2]) for column in dealt.T for k in (0, 2, 4)}
    assert pairs == {(1, 2), (3, 4), (5, 6)}
    z, counts = np.array([[0.0], [1.0]]), np.array([[0.0], [2.0]])
    dealt = next(Patients(np.arange(2)).permute(z, counts, np.zeros((2, 1)), rng, [20_000]))[:, 0]
    assert dealt[1].mean() / 2 == pytest.approx(expit(2.0), abs=0.01)


@pytest.mark.parametrize("loss", ["cross_entropy", "poisson", "squared"])
def test_the_statistic_is_rao_s_score_test_of_statsmodels(loss):
    sm = pytest.importorskip("statsmodels.api")
    rows = site_rows(2000, seed=5, planted=0.05, loss=loss)
    design = (rows.x - rows.x.mean(axis=0))[:, None, :]
    value, degrees, _, _ = score_statistics(NullModel(rows, design, []), [np.array([0]), np.array([2, 3])])
    family = {"cross_entropy": sm.families.Binomial, "poisson": sm.families.Poisson, "squared": sm.families.Gaussian}[loss]()
    fitted = sm.GLM(rows.target[:, 0], np.ones((2000, 1)), family=family, offset=rows.scores[:, 0]).fit()
    theirs = [fitted.model.score_test(fitted.params, exog_extra=rows.x[:, places])[0] for places in ([0], [2, 3])]
    dispersion = fitted.pearson_chi2 / fitted.df_resid if loss == "poisson" else 1.0  # counts may vary more than Poisson's
    assert degrees.tolist() == [1, 2]
    assert value == pytest.approx(np.ravel(theirs) / dispersion, rel=2e-3)


def test_a_difference_is_that_of_a_joint_fit():
    sm = pytest.importorskip("statsmodels.api")
    rows = site_rows(600, seed=3, planted=1.0)
    found = find(rows)
    assert named(found) == [0]
    fitted = sm.GLM(
        rows.target[:, 0], sm.add_constant(rows.x[:, :1]), family=sm.families.Binomial(), offset=rows.scores[:, 0]
    ).fit()
    low, high = fitted.conf_int()[1]
    assert [found[0].difference, found[0].low, found[0].high] == pytest.approx([fitted.params[1], low, high], rel=5e-3)
    assert found[0].common == pytest.approx(0.5, abs=1e-6) and found[0].deviation == pytest.approx(rows.x[:, 0].std())


@pytest.mark.parametrize("loss", ["cross_entropy", "poisson", "squared"])
def test_a_planted_difference_is_found_alone(loss):
    found = [named(find(site_rows(300, seed=s, planted=1.0, loss=loss), seed=s)) for s in range(100, 110)]
    assert sum(0 in names for names in found) >= 9
    assert sum(names != [0] for names in found) <= 2, "columns that go together with it are not named"


def test_outcomes_that_follow_the_common_model_raise_no_alarm():
    alarms = sum(bool(named(find(site_rows(80, seed=s, base=-1.0), seed=s, count=99))) for s in range(60))
    assert alarms <= 7  # 5% of 60 are 3; 8 or more have a chance below 1%


def test_a_common_model_that_is_too_timid_is_one_finding():
    found = find(site_rows(500, seed=3, strength=2.5))
    assert found[-1].differs and not named(found)
    assert found[-1].low < 1.5 < found[-1].high


def test_rows_of_one_patient_do_not_count_as_patients():
    """Every patient's row is there five times: as patients, the same rows would seem to differ."""
    once = site_rows(60, seed=11, planted=0.4)
    scores, target, x = (np.repeat(a, 5, axis=0) for a in (once.scores, once.target, once.x))
    five = SiteRows(once.loss, scores, target, x, np.arange(300))
    by_patient = SiteRows(five.loss, five.scores, five.target, five.x, np.repeat(np.arange(60), 5))
    alone, rows, together = (find(r)[0] for r in (once, five, by_patient))
    assert rows.p < 0.05 < together.p
    assert together.high - together.low == pytest.approx(alone.high - alone.low, rel=0.15)
    assert (rows.high - rows.low) < 0.6 * (together.high - together.low)


def test_several_classes_are_tested_together():
    rng = generator(4, purpose="test")
    x = rng.normal(size=(400, COLUMNS))
    z = x @ rng.normal(size=(COLUMNS, 3)) * 0.4
    real = z + np.array([0.0, 0.0, 1.2]) * x[:, [0]]
    drawn = (real + rng.gumbel(size=real.shape)).argmax(axis=1)
    found = find(SiteRows("cross_entropy", z, np.eye(3)[drawn], x, np.arange(400)))
    assert named(found) == [0] and found[0].output == 2 and found[0].difference > 0.5
    drawn = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    assert not named(find(SiteRows("cross_entropy", z, np.eye(3)[drawn], x, np.arange(400))))


def test_columns_that_cannot_be_tested_are_left_out():
    rows = site_rows(200, seed=6, planted=1.2)
    x = rows.x.copy()
    x[:, 3] = 2.0  # constant
    x[:, 4] = 0.0
    x[:3, 4] = 1.0  # a level of three patients
    x[:, 5] = x[:, 0]  # a copy
    found = find(SiteRows(rows.loss, rows.scores, rows.target, x, rows.units))
    assert found[3] is None and found[4] is None
    assert named(found) == [0] and found[5] is None, "of two copies the first is named"
    levels = np.eye(3)[np.arange(200) % 3]
    found = find_differences(
        SiteRows(rows.loss, rows.scores, rows.target, levels, rows.units), [np.arange(3)], generator(0, purpose="test")
    )
    assert found[0] is not None and found[0].p > 0.05, "levels that add up to one are two degrees of freedom"


@pytest.mark.parametrize("case", ["few", "alike", "infinite"])
def test_a_hospital_without_enough_patients_is_not_tested(case):
    rows = site_rows(score_test.FEWEST_PATIENTS - 1 if case == "few" else 60)
    target = np.ones_like(rows.target) if case == "alike" else rows.target
    scores = rows.scores + np.inf if case == "infinite" else rows.scores
    assert find(SiteRows(rows.loss, scores, target, rows.x, rows.units)) is None


def test_statistics_of_several_degrees_of_freedom_are_on_one_scale():
    """The 95% and 99% quantiles of chi-squared distributions, from tables."""
    for degrees, quantiles in ((1, (3.841, 6.635)), (4, (9.488, 13.277)), (10, (18.307, 23.209))):
        for value, normal in zip(quantiles, (1.645, 2.326), strict=True):
            assert to_normal(np.array([value]), np.array([degrees]))[0] == pytest.approx(normal, abs=0.06)


def test_a_common_model_that_is_off_everywhere_is_corrected_by_sums():
    """Three hospitals of which none differs, and a common model without column 4: the sums find the missing coefficient.

    Reference: the penalised optimum of a regression with an intercept for each hospital, by Newton's method to the end.
    """
    sites = [site_rows(400, seed=s) for s in range(3)]
    wrong = [SiteRows(r.loss, r.scores - 0.6 * r.x[:, 4:5], r.target, r.x, r.units) for r in sites]
    change = correct_misfit(sum(misfit_sums(r) for r in wrong), COLUMNS)
    assert change.shape == (COLUMNS, 1)
    assert change[4, 0] == pytest.approx(0.6, abs=0.15) and np.abs(np.delete(change[:, 0], 4)).max() < 0.2
    for _ in range(6):  # further steps change little
        moved = [SiteRows(r.loss, r.scores + r.x @ change, r.target, r.x, r.units) for r in wrong]
        sums = np.asarray(sum(misfit_sums(r) for r in moved)).copy()
        weight, curvature = sums[-1], sums[COLUMNS:-1].reshape(COLUMNS, COLUMNS)
        sums[:COLUMNS] -= 4 * np.diag(curvature) / weight * change[:, 0]
        change = change + correct_misfit(sums, COLUMNS)
    assert correct_misfit(sum(misfit_sums(r) for r in wrong), COLUMNS)[:, 0] == pytest.approx(change[:, 0], abs=0.08)
    assert named(find(wrong[0])) == [4], "without the correction the column is named at a hospital"
    fixed = SiteRows(wrong[0].loss, wrong[0].scores + wrong[0].x @ change, wrong[0].target, wrong[0].x, wrong[0].units)
    assert not named(find(fixed))


def test_a_hospital_with_outcomes_that_are_all_alike_adds_nothing_to_the_sums():
    rows = site_rows(60)
    alike = SiteRows(rows.loss, rows.scores, np.ones_like(rows.target), rows.x, rows.units)
    assert not misfit_sums(alike).any() and len(misfit_sums(alike)) == COLUMNS + COLUMNS**2 + 1


def test_one_extreme_patient_is_not_evidence():
    """A patient with a value of 40 standard deviations has the event: without a bound this would decide the test."""
    rows = site_rows(200, seed=2, base=-2.5)
    x, target = rows.x.copy(), rows.target.copy()
    x[0, 3], target[0] = 40.0, 1.0
    found = find(SiteRows(rows.loss, rows.scores, target, x, rows.units))
    assert not found[3].differs and found[3].p > 0.05


def separated(events: int, *, seed: int = 0, n: int = 45) -> SiteRows:
    """A hospital whose few events have a far higher common score than all other patients: the model is sure, and right."""
    rng = generator(seed, purpose="rows of a hospital")
    x = rng.normal(size=(n, COLUMNS))
    x[:events, 0] += 2.0
    target = (np.arange(n) < events).astype(float)
    score = np.where(target > 0, 20.0, -20.0) + rng.normal(size=n)
    return SiteRows("cross_entropy", score[:, None], target[:, None], x, np.arange(n))


def test_two_events_that_the_model_tells_apart_are_no_difference():
    """The permuted statistics differed by rounding alone, and p was 0.001 beside an interval of -3.9 to +4.0."""
    assert find(separated(2)) is None, "too few patients with the event"
    for seed in range(3):
        assert named(find(separated(8, seed=seed))) == [], "every outcome is as expected: no permutation differs"


def test_a_named_difference_has_an_interval_without_zero():
    for seed in range(4):
        for effect in find(site_rows(80, seed=seed, planted=1.2)):
            if effect is not None and effect.differs:
                assert effect.low > 0 or effect.high < 0
