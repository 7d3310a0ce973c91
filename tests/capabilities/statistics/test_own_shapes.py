"""A hospital's own shapes: kept where its rows differ from the common model, and almost never where they do not."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

from grandrounds.capabilities.statistics.models.columns import Column
from grandrounds.capabilities.statistics.models.gam import AdditiveModel
from grandrounds.capabilities.statistics.own_shapes import FALSE_ALARMS, INTERCEPT, fit_own_shapes

SPLINES = 6
COLUMNS = (
    Column("age", 0, 4),
    Column("bp", 1),
    Column("sex", 2),
    Column("ward", levels=(5, 6, 7), words=("a", "b", "c")),
)
MODEL = AdditiveModel(8, COLUMNS)


def common(rng):
    """Arrays of a common model over uniform ranks: a rising curve of age, a bow of blood pressure, sex, and wards."""
    t = np.linspace(-1, 1, SPLINES)
    knots = np.array([[0.0, 1.0], [0.0, 1.0], [0.5, np.finfo(float).max], [np.finfo(float).max] * 2])
    ranks = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    curve = np.vstack([1.2 * t, 0.8 * t**2, [-0.3, 0.3, 0, 0, 0, 0], np.zeros(SPLINES)])
    levels = np.vstack([np.zeros((3, 3)), [[-0.4, 0.0, 0.5]]])
    return {"knots": knots, "ranks": ranks, "sizes": np.array([2.0, 2.0, 1.0, 0.0]), "curve": curve, "levels": levels,
            "gaps": np.array([0.3, 0, 0, 0.0]), "intercept": np.array([-0.8])}  # fmt: skip


def hospital(rng, n=300, shift=0.0, age=0.0, family="logistic"):
    """Rows of a hospital; `age`: slope that is added to the common curve of age."""
    v = np.column_stack([rng.random(n), rng.random(n), rng.integers(0, 2, n), rng.integers(0, 3, n)]).astype(float)
    v[rng.random(n) < 0.15, 0] = np.nan
    arrays = common(rng)
    score = MODEL.scores(arrays, v)[:, 0]
    eta = score + shift + age * np.nan_to_num(v[:, 0] - 0.5)
    if family == "logistic":
        y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)
    else:
        y = rng.normal(eta, 0.7) if family == "linear" else rng.poisson(np.exp(eta)).astype(float)
    return arrays, v, y, score


def fit(rng, family="logistic", **more):
    arrays, v, y, score = hospital(rng, family=family, **more)
    return fit_own_shapes(arrays, COLUMNS, v, y, score, family=family)


@pytest.mark.parametrize("family", ["logistic", "linear", "poisson"])
def test_without_differences_a_shape_is_rarely_kept(family):
    """False alarms of 200 hospitals are at most those that are stated, up to three standard errors."""
    rng = np.random.default_rng(4)
    alarms = sum(bool(fit(rng, family).kept) for _ in range(200))
    assert alarms <= 200 * FALSE_ALARMS + 3 * np.sqrt(200 * FALSE_ALARMS * (1 - FALSE_ALARMS))
    assert alarms >= 2, "the tests are not merely conservative"


@pytest.mark.parametrize("family", ["logistic", "linear", "poisson"])
def test_a_different_age_curve_is_found_and_improves_predictions(family):
    rng = np.random.default_rng(5)
    found = [fit(rng, family, n=600, age=-4.0) for _ in range(10)]
    assert all("age" in own.kept for own in found)
    arrays, v, y, score = hospital(rng, n=600, age=-4.0, family=family)
    own = fit_own_shapes(arrays, COLUMNS, v, y, score, family=family)
    mixed = {name: arrays[name] + getattr(own, name) for name in ("curve", "levels", "gaps")}
    mixed = {**arrays, **mixed, "intercept": arrays["intercept"] + own.intercept}
    _, new, _, plain = hospital(rng, n=4000, age=-4.0, family=family)
    truth = plain - 4.0 * np.nan_to_num(new[:, 0] - 0.5)
    mine = MODEL.scores(mixed, new)[:, 0]
    assert np.mean((mine - truth) ** 2) < 0.2 * np.mean((plain - truth) ** 2)


def test_only_the_intercept_differs():
    own = fit(np.random.default_rng(6), n=400, shift=1.5)
    assert own.kept == (INTERCEPT,) and not own.curve.any() and not own.levels.any()
    assert 0.8 < own.intercept < 1.8


def test_the_score_test_is_that_of_statsmodels():
    """The p-value of sex (one coefficient) equals Rao's score test of a binomial GLM with an offset."""
    arrays, v, y, score = hospital(np.random.default_rng(7))
    own = fit_own_shapes(arrays, COLUMNS, v, y, score, family="logistic")
    base = sm.GLM(y, np.ones((len(y), 1)), family=sm.families.Binomial(), offset=score)
    _, p, _ = base.score_test(base.fit(tol=1e-12).params, exog_extra=v[:, 2:3])
    assert own.p_values["sex"] == pytest.approx(float(np.squeeze(p)), rel=1e-6)


def test_constrained_columns_and_small_hospitals_keep_the_common_model():
    rng = np.random.default_rng(8)
    arrays, v, y, score = hospital(rng, n=600, age=-4.0)
    kept = fit_own_shapes(arrays, COLUMNS, v, y, score, family="logistic", common=["age"])
    assert "age" not in kept.p_values and not kept.curve[0].any()
    few = fit_own_shapes(arrays, COLUMNS, v[:15], y[:15], score[:15], family="logistic")
    assert few.kept == () and not few.pack().any()
    one_class = fit_own_shapes(arrays, COLUMNS, v, np.zeros(600), score, family="logistic")
    assert not one_class.pack().any()


def test_effects_are_relative_to_the_hospitals_mean():
    arrays, v, y, score = hospital(np.random.default_rng(9), n=600, age=-4.0)
    own = fit_own_shapes(arrays, COLUMNS, v, y, score, family="logistic")
    added = {**arrays, "curve": own.curve, "levels": own.levels, "gaps": own.gaps, "intercept": np.array([own.intercept])}
    assert np.abs(MODEL.effects(added, v).mean(axis=0)).max() < 1e-9
