"""The guard: fits of lines, the spread of intercepts, paired comparisons, folds, and the test for harm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import integrate, optimize, special

from grandrounds.methods.guard import choice, server
from grandrounds.methods.guard.candidates import fit_line, fit_linear, score_rows, spread_sums
from grandrounds.protocol.messages import Answers

CROSS_ENTROPY, SQUARED, POISSON = "cross_entropy", "squared", "poisson"


def rows_of_loss(loss: str, *, classes: int = 1, n: int = 80, seed: int = 0) -> tuple[Any, Any]:
    """Draw scores and targets of one loss."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, classes))
    if loss == SQUARED:
        return z, z + 0.7 + rng.normal(size=z.shape)
    if loss == POISSON:
        return 0.5 * z, rng.poisson(np.exp(0.5 * z + 0.4)).astype(float)
    if classes == 1:
        return z, (rng.random(z.shape) < special.expit(1.5 * z + 0.8)).astype(float)
    return z, np.eye(classes)[[rng.choice(classes, p=p) for p in special.softmax(z + np.arange(classes), axis=1)]]


@pytest.mark.parametrize("slope", [False, True])
@pytest.mark.parametrize(
    ("loss", "classes"), [(CROSS_ENTROPY, 1), (CROSS_ENTROPY, 3), (SQUARED, 1), (POISSON, 1)]
)
def test_lines_are_the_penalised_optimum(loss: str, classes: int, slope: bool) -> None:
    z, t = rows_of_loss(loss, classes=classes)
    line = fit_line(loss, z, t, variance=0.3, slope=slope)

    def objective(w: Any) -> float:
        moved = w[:classes] + (1 + (w[classes] if slope else 0.0)) * z
        penalty = (w[:classes] ** 2).sum() / 0.3 + ((w[classes] ** 2) if slope else 0.0)
        return float(score_rows(loss, moved, t).sum() + 0.5 * penalty)

    best = optimize.minimize(objective, np.zeros(classes + slope), method="BFGS", options={"gtol": 1e-9}).x
    assert np.allclose(line.intercept, best[:classes], atol=1e-6)
    assert line.slope == pytest.approx(1 + best[classes] if slope else 1.0, abs=1e-6)


def test_an_intercept_that_is_not_shrunk_equals_that_of_statsmodels() -> None:
    sm = pytest.importorskip("statsmodels.api")
    for loss, family in ((CROSS_ENTROPY, sm.families.Binomial()), (POISSON, sm.families.Poisson())):
        z, t = rows_of_loss(loss)
        fitted = sm.GLM(t[:, 0], np.ones((len(z), 1)), family=family, offset=z[:, 0]).fit(tol=1e-12)
        assert fit_line(loss, z, t, variance=1e12, slope=False).intercept[0] == pytest.approx(fitted.params[0], abs=1e-6)


def test_own_linear_model_equals_that_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression, Ridge

    rng = np.random.default_rng(3)
    x = rng.normal(size=(120, 4))
    y = (rng.random(120) < special.expit(x[:, 0] - 0.5)).astype(float)
    columns = np.column_stack([x, 10 * np.ones(120)])  # a column of 10 has the penalty of 0.01 that our intercept has
    theirs = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-12, max_iter=5000).fit(columns, y)
    ours = fit_linear(CROSS_ENTROPY, x, y[:, None])
    assert np.allclose(ours, [*theirs.coef_[0, :4], 10 * theirs.coef_[0, 4]], atol=1e-6)
    ridge = Ridge(alpha=1.0, fit_intercept=False, tol=1e-14).fit(columns, x[:, 1] + y)
    ours = fit_linear(SQUARED, x, (x[:, 1] + y)[:, None])
    assert np.allclose(ours, [*ridge.coef_[:4], 10 * ridge.coef_[4]], atol=1e-8)


def test_own_model_of_one_class_is_finite() -> None:
    x = np.random.default_rng(0).normal(size=(20, 3))
    assert np.isfinite(fit_linear(CROSS_ENTROPY, x, np.ones((20, 1)))).all()


@pytest.mark.parametrize(("loss", "n"), [(CROSS_ENTROPY, 4), (CROSS_ENTROPY, 80), (POISSON, 6), (SQUARED, 7)])
def test_likelihood_of_a_spread_equals_numerical_integration(loss: str, n: int) -> None:
    z, t = rows_of_loss(loss, n=n)
    variances = np.array([0.0, 0.05, 1.0, 8.0])
    losses, widths = spread_sums(loss, z, t, variances)
    for variance, ours in zip(variances[1:], -(losses + widths)[1:], strict=True):
        low = -score_rows(loss, z, t).sum()

        def density(a: float, v: float = variance, low: float = low) -> float:
            return float(np.exp(-score_rows(loss, z + a, t).sum() - 0.5 * a * a / v - low)) / np.sqrt(2 * np.pi * v)

        exact = low + np.log(integrate.quad(density, -30, 30, points=[0.0], limit=400)[0])
        assert ours == pytest.approx(exact, abs=1e-4)


def test_likelihood_of_several_classes_does_not_count_the_direction_without_information() -> None:
    z, t = rows_of_loss(CROSS_ENTROPY, classes=2, n=60)
    both = spread_sums(CROSS_ENTROPY, z, t, np.array([0.0, 0.5]))
    one = spread_sums(CROSS_ENTROPY, z[:, 1:] - z[:, :1], t[:, 1:], np.array([0.0, 1.0]))  # a difference has twice the variance
    assert (both[0] + both[1])[1] == pytest.approx((one[0] + one[1])[1], abs=0.02)


@pytest.mark.parametrize(("loss", "spread"), [(CROSS_ENTROPY, 0.5), (CROSS_ENTROPY, 0.0), (SQUARED, 0.5), (POISSON, 0.5)])
def test_spread_of_simulated_hospitals_is_recovered(loss: str, spread: float) -> None:
    rng = np.random.default_rng(5)
    total: Any = 0
    for shift in rng.normal(scale=spread, size=120):
        z = rng.normal(size=(60, 1))
        moved = z + shift
        if loss == SQUARED:
            t, z = 3 * (moved + rng.normal(size=z.shape)), 3 * z  # in units of the residual deviation of 3 it is still 0.5
        elif loss == POISSON:
            t = rng.poisson(np.exp(moved)).astype(float)
        else:
            t = (rng.random(z.shape) < special.expit(moved)).astype(float)
        losses, widths = spread_sums(loss, z, t, server.VARIANCES)
        total = total + np.concatenate([losses, widths, [len(z)]])
    assert server.choose_spread(loss, total) == pytest.approx(spread, abs=0.1)


def test_spread_equals_that_of_a_mixed_model() -> None:
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(2)
    group = np.repeat(np.arange(30), 12)
    y = rng.normal(scale=0.8, size=30)[group] + rng.normal(scale=1.3, size=360)
    fitted = sm.MixedLM(y, np.ones((360, 1)), group).fit(reml=False)
    y = y - fitted.fe_params[0]  # the common model has the mean
    total = sum(
        np.concatenate([*spread_sums(SQUARED, np.zeros((12, 1)), y[group == g, None], server.VARIANCES), [12]])
        for g in range(30)
    )
    theirs = float(np.sqrt(fitted.cov_re[0, 0] / fitted.scale))
    assert server.choose_spread(SQUARED, np.asarray(total)) == pytest.approx(theirs, rel=0.11)  # half a step of the grid


def test_standard_error_of_a_paired_difference_by_hand() -> None:
    d = np.array([1.0, 2.0, 4.0, 5.0])
    mean, error = choice.paired_difference(d, np.arange(4))
    assert mean == 3.0
    assert error == pytest.approx(d.std(ddof=1) / 2)
    twice, clustered = choice.paired_difference(np.repeat(d, 2), np.repeat(np.arange(4), 2))
    assert (twice, clustered) == (mean, pytest.approx(error))  # a second row of each patient adds nothing
    assert choice.paired_difference(d, np.zeros(4)) == (0.0, 0.0)


def test_folds_keep_patients_together_and_are_balanced() -> None:
    patients = np.array([f"p{i // 3}" for i in range(69)])
    fold = choice.assign_folds(patients, seed=4, site="a")
    assert all(len(set(fold[patients == p])) == 1 for p in set(patients))
    sizes = np.bincount(fold, minlength=5) // 3
    assert sizes.max() - sizes.min() <= 1
    assert not np.array_equal(fold, choice.assign_folds(patients, seed=4, site="b"))
    assert np.array_equal(fold[::-1], choice.assign_folds(patients[::-1], seed=4, site="a"))  # the order of rows is irrelevant


def test_the_guard_stays_with_the_default_unless_another_is_clearly_better() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(1.0, 0.2, 100)
    lower = {"common": base, "intercept": base - 0.01, "own": base - 0.01 - rng.normal(0.01, 0.1, 100), "majority": base + 1}
    assert choice.choose(lower, np.arange(100)).choice == "intercept"
    lower["own"] = base - 0.01 - rng.normal(0.1, 0.1, 100)
    assert choice.choose(lower, np.arange(100)).choice == "own"
    assert choice.choose({n: v[:19] for n, v in lower.items()}, np.arange(19)).choice == "intercept"  # too few patients
    assert choice.choose(lower, np.arange(100), rarer=4).choice == "intercept"  # too few of one class
    assert choice.choose(lower, np.arange(100), rarer=5).choice == "own"
    lower["own"] = np.full(100, np.nan)
    assert choice.choose(lower, np.arange(100)).choice == "intercept"
    assert choice.choose({n: v for n, v in lower.items() if n != "intercept"}, np.arange(100)).choice == "common"
    assert choice.choose({"common": np.zeros(0)}, np.zeros(0)).choice == "common"


@pytest.mark.parametrize("n", [8, 25])
def test_false_alarms_of_harm_are_at_most_five_in_a_hundred(n: int) -> None:
    """Log losses of two forecasts of equal expected loss, and a third that is worse, at 200 hospitals without harm."""
    rng = np.random.default_rng(n)
    a, b = 0.2, 0.4217  # equal expected log loss where the risk is 0.3
    alarms = 0
    for site in range(200):
        y = rng.random(n) < 0.3
        loss = {p: -np.log(np.where(y, p, 1 - p)) for p in (a, b, 0.9)}
        alarms += choice.harm_p_value([loss[a] - loss[b], loss[a] - loss[0.9]], np.arange(n), seed=1, site=f"s{site}") <= 0.05
    assert alarms <= 10


def test_false_alarms_of_strongly_skewed_differences_are_at_most_six_in_a_hundred() -> None:
    """Rare patients for whom the deployed model is far better: 12 of 200 hospitals without harm."""
    rng, alarms = np.random.default_rng(1), 0
    for site in range(200):
        differences = [1 - rng.exponential(size=25) for _ in range(2)]
        alarms += choice.harm_p_value(differences, np.arange(25), seed=site, site="x") <= 0.05
    assert alarms <= 12


def test_identical_hospitals_of_24_test_patients_are_called_harmed_in_at_most_five_of_a_hundred_runs() -> None:
    """200 runs of five hospitals with Holm's first step: a noisy own model beside a common one that is better and less sure of
    itself. Rare patients at whom the own model fails are often not among 24."""
    alarms, n, gain = 0, 24, 0.0
    for run in range(200):
        rng = np.random.default_rng(run)
        p_values = []
        for site in range(5):
            score = rng.normal(0, 2, n)
            y = rng.random(n) < 1 / (1 + np.exp(-score))
            own, deployed = (np.logaddexp(0, s) - y * s for s in (score + rng.normal(0, 1, n), 0.6 * score))
            gain += float((own - deployed).mean())
            p_values.append(choice.harm_p_value([deployed - own, deployed - np.log(2)], np.arange(n), seed=run, site=f"s{site}"))
        alarms += min(p_values) <= choice.LEVEL / 5
    assert gain > 0 and alarms <= 10


def test_few_patients_raise_fewer_false_alarms_than_a_bootstrap_of_means() -> None:
    rng, alarms, plain = np.random.default_rng(1), 0, 0
    for site in range(200):
        differences = rng.normal(size=(2, 10))
        alarms += choice.harm_p_value(list(differences), np.arange(10), seed=site, site="x") <= 0.05
        larger = max(differences, key=np.mean)
        means = larger[np.random.default_rng(site).integers(10, size=(500, 10))].mean(axis=1)
        plain += larger.mean() > 0 and (means <= 0).mean() <= 0.05
    assert alarms <= 10 and plain >= 2 * alarms


def test_harm_is_found_where_there_is_some_even_among_many_hospitals() -> None:
    rng = np.random.default_rng(0)
    worse = rng.normal(0.3, 0.3, 60)
    p = choice.harm_p_value([worse, worse - 1], np.arange(60), seed=1, site="a")
    assert p < 0.05 / 152
    assert choice.harm_p_value([worse - 1], np.arange(60), seed=1, site="a") == 1.0
    assert choice.harm_p_value([np.zeros(60)], np.arange(60), seed=1, site="a") == 1.0  # the deployed model is the own one
    assert choice.harm_p_value([np.full(3, 0.1) + worse[:3] / 100], np.arange(3), seed=1, site="a") > 0.01  # three patients
    several = choice.harm_p_value([np.repeat(worse[:6], 10)], np.repeat(np.arange(6), 10), seed=1, site="a")
    assert several == choice.harm_p_value([worse[:6]], np.arange(6), seed=1, site="a")  # patients are counted, not rows


def test_sites_whose_test_rows_show_nothing_are_not_counted_in_holms_rule() -> None:
    p = np.array([0.03, np.nan, 0.8, np.nan])
    sites = ("a", "b", "c", "d")
    work, levels, reply = server.find_harmed(sites, seed=0), [], None
    try:
        while True:
            ask = work.send(reply)
            levels.append(ask.shared["level"])
            asked = [sites.index(s) for s in ask.to or ()]
            yes = [np.nan if np.isnan(p[k]) else float(p[k] <= levels[-1]) for k in asked]
            reply = Answers(ask.to or (), {"harmed": np.array(yes)})
    except StopIteration as end:
        assert end.value == ((), ("a", "c"))
    assert levels == [0.05 / 4, 0.05 / 2]


def test_holm_by_yes_and_no_equals_holm_by_p_values() -> None:
    rng = np.random.default_rng(0)
    for case in range(60):
        p = rng.random(8) ** rng.integers(1, 6)
        sites = tuple(f"s{k}" for k in range(8))
        work, reply = server.find_harmed(sites, seed=0), None
        try:
            while True:
                ask = work.send(reply)
                yes = np.array([p[k] <= ask.shared["level"] for k in range(8)], np.uint8)
                reply = Answers(ask.to or (), {"harmed": yes})
        except StopIteration as end:
            harmed, tested = end.value
        assert tested == sites
        order = np.argsort(p)
        adjusted = np.maximum.accumulate(p[order] * np.arange(8, 0, -1))  # as statsmodels' multipletests(method="holm") has it
        expected = {sites[k] for k, value in zip(order, adjusted, strict=True) if value <= 0.05}
        assert harmed == tuple(s for s in sites if s in expected), case
