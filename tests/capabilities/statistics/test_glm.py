"""Logistic, linear and Poisson regression from sums, compared with statsmodels on pooled rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import statsmodels.api as sm

from grandrounds.capabilities.statistics.estimates import INTERCEPT, PATIENTS_APART
from grandrounds.capabilities.statistics.glm import fit_rows
from grandrounds.capabilities.statistics.glm_terms import GLMTerms
from grandrounds.capabilities.statistics.question import Rows
from grandrounds.core.errors import BadInput
from tests.capabilities.statistics.hospital_rows import EICU, HEART, by_site, diabetes_rows, eicu_rows, heart_rows
from tests.capabilities.statistics.regressions import assert_equal_to_pooled, drive, errors_of

DRIVES = ("clear", "ring")
BINOMIAL, POISSON = sm.families.Binomial(), sm.families.Poisson()


def heart_rate() -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return heart rate in beats a minute as an outcome of the other twelve columns of heart."""
    x, _, site = heart_rows()
    place = HEART.index("max_heart_rate")
    return np.delete(x, place, 1), x[:, place] * 25 + 137, site, HEART[:place] + HEART[place + 1 :]


def counts() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return heart's columns with counts that depend on two of them."""
    x, _, site = heart_rows()
    return x, np.random.default_rng(1).poisson(np.exp(0.5 + 0.3 * x[:, 0] - 0.5 * x[:, 1])).astype(float), site


def constant(x: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(x)), x])


@pytest.mark.parametrize("way", DRIVES)
def test_logistic_regression_of_four_hospitals_equals_pooled(way):
    x, y, site = heart_rows()
    assert len(y) == 740 and [(site == k).sum() for k in range(4)] == [303, 261, 46, 130]
    result, record = drive(way, GLMTerms("logistic", HEART), by_site(x, y, site))
    reference = sm.GLM(y, constant(x), BINOMIAL).fit(tol=1e-14)
    assert_equal_to_pooled(result, reference)
    assert result.coefficients[0].name == INTERCEPT
    assert record.exchanges == result.facts["exchanges"] == 6
    assert record.numbers * 8 < 5900
    assert result.facts["log_likelihood"] == pytest.approx(reference.llf, rel=1e-9)
    assert result.facts["aic"] == pytest.approx(reference.aic, rel=1e-9)
    assert result.facts["deviance"] == pytest.approx(reference.deviance, rel=1e-9)
    assert result.facts["n"] == pytest.approx(740) and result.facts["events"] == pytest.approx(y.sum())


@pytest.mark.parametrize("way", DRIVES)
@pytest.mark.parametrize("agreed", [False, True])
def test_linear_regression_takes_two_exchanges_and_has_t_tests(way, agreed):
    x, y, site, names = heart_rate()
    unit = {"centre": 140.0, "unit": 20.0} if agreed else {}
    result, record = drive(way, GLMTerms("linear", names, **unit), by_site(x, y, site))
    reference = sm.OLS(y, constant(x)).fit()
    assert_equal_to_pooled(result, reference)
    assert record.exchanges == 2 and result.degrees == 740 - 13
    assert result.facts["log_likelihood"] == pytest.approx(reference.llf, rel=1e-9)
    assert result.facts["aic"] == pytest.approx(reference.aic, rel=1e-9)
    assert result.facts["deviance"] == pytest.approx(reference.ssr, rel=1e-9)
    assert result.facts["dispersion"] == pytest.approx(reference.scale, rel=1e-9)


@pytest.mark.parametrize("way", DRIVES)
def test_poisson_regression_equals_pooled(way):
    x, y, site = counts()
    result, record = drive(way, GLMTerms("poisson", HEART), by_site(x, y, site))
    reference = sm.GLM(y, constant(x), POISSON).fit(tol=1e-14)
    assert_equal_to_pooled(result, reference)
    assert record.exchanges <= 7
    assert result.facts["log_likelihood"] == pytest.approx(reference.llf, rel=1e-9)
    assert result.facts["deviance"] == pytest.approx(reference.deviance, rel=1e-9)
    assert result.facts["events"] == pytest.approx(y.sum())
    assert result.facts["dispersion"] == pytest.approx(reference.pearson_chi2 / reference.df_resid, rel=1e-9)
    assert not any("dispersion" in note for note in result.notes)


@pytest.mark.parametrize("intercept", ["common", "own", "random"])
def test_over_dispersed_counts_are_told_from_poissons(intercept):
    x, _, site = heart_rows()
    rng = np.random.default_rng(1)
    y = rng.poisson(rng.gamma(0.5, 2 * np.exp(0.5 + 0.3 * x[:, 0]))).astype(float)
    result, _ = drive("ring", GLMTerms("poisson", HEART[:2], intercept=intercept), by_site(x[:, :2], y, site))
    hospitals = site[:, None] == np.arange(4) if intercept == "own" else np.ones((740, 1))
    reference = sm.GLM(y, np.column_stack([hospitals, x[:, :2]]).astype(float), POISSON).fit(tol=1e-14)
    expected = reference.pearson_chi2 / reference.df_resid
    assert result.facts["dispersion"] == pytest.approx(expected, rel=0.05 if intercept == "random" else 1e-6)
    (note,) = (note for note in result.notes if "dispersion" in note)
    assert f"dispersion {result.facts['dispersion']:.3g}" in note and "--errors rows" in note
    terms = GLMTerms("poisson", HEART[:2], intercept=intercept, errors="rows")
    robust, _ = drive("clear", terms, by_site(x[:, :2], y, site))
    assert robust.facts["dispersion"] == pytest.approx(result.facts["dispersion"], rel=1e-6)
    assert not any("dispersion" in note for note in robust.notes), "robust errors allow for it"


def test_offsets_and_weights_of_rows_are_used():
    x, y, site = counts()
    rng = np.random.default_rng(2)
    offset, weight = rng.normal(size=740) * 0.3, rng.integers(0, 4, 740).astype(float)
    rows = by_site(x, y, site, offset=offset, weight=weight)
    result, _ = drive("clear", GLMTerms("poisson", HEART, offset=True), rows)
    reference = sm.GLM(y, constant(x), POISSON, offset=offset, freq_weights=weight).fit(tol=1e-14)
    assert_equal_to_pooled(result, reference)
    with pytest.raises(BadInput, match="offset"):
        drive("clear", GLMTerms("poisson", HEART, offset=True), by_site(x, y, site))


def test_a_first_step_that_is_too_long_is_shortened_and_stays_within_the_bound_of_a_secure_sum():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2))
    x[:6, 0] += 40
    y = rng.poisson(np.exp(0.8 * np.minimum(x[:, 0], 4) + 0.2 * x[:, 1])).astype(float)
    sites = by_site(x, y, np.arange(600) % 3)
    result, record = drive("ring", GLMTerms("poisson", ("a", "b")), sites)
    reference = sm.GLM(y, constant(x), POISSON).fit(tol=1e-14, maxiter=200)
    np.testing.assert_allclose(result.beta, reference.params, rtol=1e-6)
    assert record.exchanges < reference.fit_history["iteration"] + 4


@pytest.mark.parametrize("family", ["logistic", "linear"])
@pytest.mark.parametrize("errors", ["rows", "patients", "hospitals"])
def test_robust_errors_equal_statsmodels_for_one_more_exchange(family, errors):
    x, y, site = heart_rows()
    names = HEART
    if family == "linear":
        x, y, site, names = heart_rate()
    patient = np.random.default_rng(3).integers(0, 300, 740)
    groups = {"rows": None, "patients": site * 1000 + patient, "hospitals": site}[errors]
    kind = {"cov_type": "HC0"}
    if groups is not None:
        kind = {"cov_type": "cluster", "cov_kwds": {"groups": groups, "use_correction": False}}
    model = sm.OLS(y, constant(x)) if family == "linear" else sm.GLM(y, constant(x), BINOMIAL)
    reference = model.fit(**kind) if family == "linear" else model.fit(tol=1e-14, **kind)
    sites = by_site(x, y, site, patient=patient)
    for way in DRIVES:
        result, record = drive(way, GLMTerms(family, names, errors=errors), sites)
        assert_equal_to_pooled(result, reference)
        assert record.exchanges == (3 if family == "linear" else 7) and result.errors == errors
        assert any("few clusters" in note for note in result.notes) == (errors == "hospitals")
        assert (PATIENTS_APART in result.notes) == (errors == "patients")
    corrected, _ = drive("clear", GLMTerms(family, names, errors=errors, correction=True), sites)
    clusters = 740 if groups is None else len(np.unique(groups))
    np.testing.assert_allclose(errors_of(corrected), errors_of(result) * np.sqrt(clusters / (clusters - 1)), rtol=1e-9)


def test_errors_by_patient_need_patients():
    x, y, site = heart_rows()
    with pytest.raises(BadInput, match="patient column"):
        drive("clear", GLMTerms("logistic", HEART, errors="patients"), by_site(x, y, site))


def test_ridge_is_that_of_scikit_learn_and_has_no_p_values():
    from sklearn.linear_model import LogisticRegression

    x, y, site = heart_rows()
    result, record = drive("clear", GLMTerms("logistic", HEART, ridge=10.0), by_site(x, y, site))
    reference = LogisticRegression(C=0.1, tol=1e-12, max_iter=10_000).fit(x, y)
    np.testing.assert_allclose(result.beta, [*reference.intercept_, *reference.coef_[0]], rtol=1e-6)
    assert result.errors == "penalised" and all(c.p is None and c.statistic is None for c in result.coefficients)
    design = constant(x)
    mu = 1 / (1 + np.exp(-design @ result.beta))
    information = (design * (mu * (1 - mu))[:, None]).T @ design
    inverse = np.linalg.inv(information + np.diag([0.0] + [10.0] * 13))
    np.testing.assert_allclose(errors_of(result), np.sqrt(np.diag(inverse @ information @ inverse)), rtol=1e-6)
    assert record.exchanges <= 7


def test_one_site_alone_fits_its_own_rows_or_says_that_it_cannot():
    x, y, site = heart_rows()
    own = site == 0
    beta, covariance = fit_rows(GLMTerms("logistic", HEART[:5], intercept="random"), Rows(x[own][:, :5], y[own]))
    reference = sm.GLM(y[own], constant(x[own][:, :5]), BINOMIAL).fit(tol=1e-14)
    np.testing.assert_allclose(beta, reference.params, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), reference.bse, rtol=1e-6)
    terms = GLMTerms("logistic", HEART[:5])
    assert fit_rows(terms, Rows(x[:12, :5], y[:12])) is None  # too few rows
    assert fit_rows(terms, Rows(x[own][:, :5], np.ones(own.sum()))) is None  # one class
    flat = x[own][:, :5].copy()
    flat[:, 2] = 1.0
    assert fit_rows(terms, Rows(flat, y[own])) is None  # a column is constant there


@pytest.mark.data("eicu_demo")
@pytest.mark.parametrize("way", DRIVES)
def test_logistic_regression_of_185_hospitals_equals_pooled(way, data_folder: Path):
    x, y, site, patient = eicu_rows(data_folder)
    assert len(y) == 1571 and y.sum() == 138 and len(np.unique(site)) == 185
    sites = by_site(x, y, site, patient=patient)
    result, record = drive(way, GLMTerms("logistic", EICU), sites)
    assert_equal_to_pooled(result, sm.GLM(y, constant(x), BINOMIAL).fit(tol=1e-14))
    assert record.exchanges <= 7 and record.numbers * 8 < 3300
    robust, _ = drive(way, GLMTerms("logistic", EICU, errors="hospitals"), sites)
    kind = {"cov_type": "cluster", "cov_kwds": {"groups": site, "use_correction": False}}
    assert_equal_to_pooled(robust, sm.GLM(y, constant(x), BINOMIAL).fit(tol=1e-14, **kind))
    assert not robust.notes


@pytest.mark.data("diabetes130")
@pytest.mark.parametrize("family", ["logistic", "poisson", "linear"])
def test_regressions_of_99340_stays_equal_pooled(family, data_folder: Path):
    columns, names, readmitted, payer, patient = diabetes_rows(data_folder)
    y = readmitted
    if family != "logistic":
        names = tuple(n for n in names if n != "time_in_hospital")
        y = columns["raw time_in_hospital"]
    x = np.column_stack([columns[n] for n in names])
    assert len(y) == 99_340 and len(np.unique(payer)) == 18
    sites = by_site(x, y, payer, patient=patient)
    design = constant(x)
    model = sm.OLS(y, design) if family == "linear" else sm.GLM(y, design, POISSON if family == "poisson" else BINOMIAL)
    reference = model.fit() if family == "linear" else model.fit(tol=1e-14)
    for way in DRIVES:
        result, record = drive(way, GLMTerms(family, names), sites)
        assert_equal_to_pooled(result, reference)
        assert record.exchanges <= {"logistic": 7, "poisson": 9, "linear": 2}[family]
    if family == "logistic":
        groups = np.unique(np.char.add(payer, patient.astype(str)), return_inverse=True)[1]
        result, _ = drive("clear", GLMTerms(family, names, errors="patients"), sites)
        kind = {"cov_type": "cluster", "cov_kwds": {"groups": groups, "use_correction": False}}
        assert_equal_to_pooled(result, model.fit(tol=1e-14, **kind))
