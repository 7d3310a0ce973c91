"""Intercepts of hospitals that never leave them: free and shrunk, compared with pooled rows that have dummies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import statsmodels.api as sm

from grandrounds.capabilities.statistics.glm_terms import GLMTerms
from grandrounds.capabilities.statistics.intercepts import own_intercept
from grandrounds.capabilities.statistics.question import Rows
from grandrounds.core.errors import BadInput
from tests.capabilities.statistics.hospital_rows import EICU, HEART, by_site, diabetes_rows, eicu_rows, heart_rows
from tests.capabilities.statistics.regressions import assert_equal_to_pooled, drive, errors_of

BINOMIAL, POISSON = sm.families.Binomial(), sm.families.Poisson()


def dummies(site: np.ndarray) -> np.ndarray:
    return (site[:, None] == np.unique(site)).astype(float)


def penalised_dummies(x: np.ndarray, y: np.ndarray, site: np.ndarray, tau2: float) -> tuple[np.ndarray, np.ndarray]:
    """Fit pooled rows with an intercept and one ridge-penalised dummy a hospital; return coefficients and information."""
    design = np.column_stack([np.ones(len(y)), x, dummies(site)])
    penalty = np.diag([0.0] * (1 + x.shape[1]) + [1 / tau2] * len(np.unique(site)))
    beta = np.zeros(design.shape[1])
    for _ in range(50):
        mu = 1 / (1 + np.exp(-design @ beta))
        information = (design * (mu * (1 - mu))[:, None]).T @ design + penalty
        beta = beta + np.linalg.solve(information, design.T @ (y - mu) - penalty @ beta)
    return beta, information


@pytest.mark.parametrize("way", ["clear", "ring"])
@pytest.mark.parametrize("family", ["logistic", "poisson", "linear"])
def test_free_intercepts_equal_a_pooled_fit_with_dummies(family, way):
    x, y, site = heart_rows()
    if family == "poisson":
        y = np.random.default_rng(1).poisson(np.exp(0.5 + 0.3 * x[:, 0] - 0.5 * x[:, 1] + 0.2 * site)).astype(float)
    if family == "linear":
        y = np.random.default_rng(1).normal(size=740) + x[:, 0] + site
    result, record = drive(way, GLMTerms(family, HEART, intercept="own"), by_site(x, y, site))
    design = np.column_stack([x, dummies(site)])
    model = sm.OLS(y, design) if family == "linear" else sm.GLM(y, design, POISSON if family == "poisson" else BINOMIAL)
    reference = model.fit() if family == "linear" else model.fit(tol=1e-14)
    assert_equal_to_pooled(result, reference, 13)
    assert record.exchanges <= (2 if family == "linear" else 7)
    assert result.facts["log_likelihood"] == pytest.approx(reference.llf, rel=1e-9)
    assert result.facts["aic"] == pytest.approx(reference.aic, rel=1e-9)
    assert result.facts["silent_sites"] == 0
    own = [own_intercept(np.r_[0.0, result.beta], rows, family=family) for rows in by_site(x, y, site).values()]
    np.testing.assert_allclose(own, reference.params[13:], rtol=1e-6)
    assert min(own) < result.facts["mean_intercept"] < max(own)


@pytest.mark.parametrize("errors", ["rows", "patients", "hospitals"])
def test_robust_errors_with_free_intercepts_equal_statsmodels(errors):
    x, y, site = heart_rows()
    patient = np.random.default_rng(3).integers(0, 300, 740)
    groups = {"rows": None, "patients": site * 1000 + patient, "hospitals": site}[errors]
    kind = {"cov_type": "HC0"}
    if groups is not None:
        kind = {"cov_type": "cluster", "cov_kwds": {"groups": groups, "use_correction": False}}
    reference = sm.GLM(y, np.column_stack([x, dummies(site)]), BINOMIAL).fit(tol=1e-14, **kind)
    terms = GLMTerms("logistic", HEART, intercept="own", errors=errors)
    result, _ = drive("clear", terms, by_site(x, y, site, patient=patient))
    assert_equal_to_pooled(result, reference, 13)


@pytest.mark.parametrize("family", ["logistic", "linear"])
def test_free_intercepts_can_stay_out_of_all_sums_and_new_hospitals_still_have_one(family):
    x, y, site = heart_rows()
    y = y if family == "logistic" else 130 + 20 * y + 5 * x[:, 0]
    terms = GLMTerms(family, HEART, intercept="own", mean_intercept=False)
    result, record = drive("clear", terms, by_site(x, y, site))
    names = {name for question in record.questions for name in question.blocks}
    assert not {"intercept", "intercept_weight"} & names
    asked, _ = drive("clear", GLMTerms(family, HEART, intercept="own"), by_site(x, y, site))
    np.testing.assert_array_equal(result.beta, asked.beta)
    expected = y.mean() if family == "linear" else np.log(y.mean() / (1 - y.mean()))
    assert result.facts["mean_intercept"] == pytest.approx(expected - x.mean(0) @ result.beta, rel=1e-9)
    near = 1e-9 if family == "linear" else 0.6
    assert result.facts["mean_intercept"] == pytest.approx(asked.facts["mean_intercept"], abs=near)


def test_hospitals_of_one_class_say_nothing_about_slopes_and_are_counted():
    x, y, site = heart_rows()
    site, y = site.copy(), y.copy()
    site[:40], y[:40] = 7, 1.0  # a fifth hospital, where all are ill
    site[40:60] = 8
    y[40:60] = 0.0
    result, _ = drive("clear", GLMTerms("logistic", HEART, intercept="own"), by_site(x, y, site))
    reference = sm.GLM(y[60:], np.column_stack([x, dummies(site)])[60:, :17], BINOMIAL).fit(tol=1e-14)
    assert_equal_to_pooled(result, reference, 13)
    assert result.facts["silent_sites"] == 2 and result.facts["n"] == 680
    assert any("2 of 6 hospitals say nothing about slopes" in note for note in result.notes)
    beta = np.r_[result.facts["mean_intercept"], result.beta]
    assert own_intercept(beta, Rows(x[:40], y[:40]), family="logistic") == beta[0]


def test_a_column_that_is_constant_within_every_hospital_is_named():
    x, y, site = heart_rows()
    x = np.column_stack([x, site == 1, np.zeros(740)])
    terms = GLMTerms("logistic", (*HEART, "teaching", "empty"), intercept="own")
    for way in ("clear", "ring"):
        result, _ = drive(way, terms, by_site(x, y, site))
        left = {c.name: c.reason for c in result.coefficients if c.estimate is None}
        assert left == {"teaching": "constant within every hospital", "empty": "no rows"}
        alone, _ = drive(way, GLMTerms("logistic", HEART, intercept="own"), by_site(x[:, :13], y, site))
        np.testing.assert_allclose(result.beta, alone.beta, rtol=1e-10)


@pytest.mark.parametrize("way", ["clear", "ring"])
def test_shrunk_intercepts_equal_pooled_rows_with_penalised_dummies(way):
    x, y, site = heart_rows()
    sites = by_site(x, y, site)
    result, record = drive(way, GLMTerms("logistic", HEART, intercept="random", tau2=(0.5,)), sites)
    beta, information = penalised_dummies(x, y, site, 0.5)
    np.testing.assert_allclose(result.beta, beta[:14], rtol=1e-6)
    np.testing.assert_allclose(errors_of(result), np.sqrt(np.diag(np.linalg.inv(information)))[:14], rtol=1e-6)
    own = [own_intercept(result.beta, rows, family="logistic", tau2=0.5) for rows in sites.values()]
    np.testing.assert_allclose(own, beta[0] + beta[14:], rtol=1e-6)
    assert record.exchanges <= 7 and result.facts["tau2"] == 0.5 and not result.facts["tau2_at_edge"]


@pytest.mark.parametrize("errors", ["rows", "hospitals"])
def test_robust_errors_with_shrunk_intercepts_are_the_sandwich_of_penalised_dummies(errors):
    x, y, site = heart_rows()
    terms = GLMTerms("logistic", HEART, intercept="random", tau2=(0.5,), errors=errors)
    result, _ = drive("clear", terms, by_site(x, y, site))
    beta, information = penalised_dummies(x, y, site, 0.5)
    design = np.column_stack([np.ones(740), x, dummies(site)])
    scores = design * (y - 1 / (1 + np.exp(-design @ beta)))[:, None]
    if errors == "hospitals":  # the prior of a hospital's intercept belongs to the hospital
        scores = dummies(site).T @ scores
        scores[:, 14:] -= np.diag(beta[14:]) / 0.5
    inverse = np.linalg.inv(information)
    expected = np.sqrt(np.diag(inverse @ scores.T @ scores @ inverse))[:14]
    np.testing.assert_allclose(errors_of(result), expected, rtol=1e-6)


@pytest.mark.parametrize("way", ["clear", "ring"])
def test_the_variance_of_the_intercepts_is_the_best_of_the_grid_by_laplaces_value(way):
    x, y, site = heart_rows()
    sites = by_site(x, y, site)
    result, record = drive(way, GLMTerms("logistic", HEART, intercept="random"), sites)
    values = {}
    for tau2 in (0.01, 0.1, 0.3, 1.0, 3.0, 10.0):
        beta, _ = penalised_dummies(x, y, site, tau2)
        design = np.column_stack([np.ones(740), x, dummies(site)])
        eta = design @ beta
        mu = 1 / (1 + np.exp(-eta))
        weight = dummies(site).T @ (mu * (1 - mu))
        joint = (y * eta - np.logaddexp(0, eta)).sum() - (beta[14:] ** 2).sum() / (2 * tau2)
        values[tau2] = joint - 0.5 * np.log1p(tau2 * weight).sum()
    best = max(values, key=lambda t: values[t])
    assert result.facts["tau2"] == best and result.facts["log_likelihood"] == pytest.approx(values[best], abs=1e-6)
    assert result.facts["mean_intercept"] == result.beta[0]
    assert record.exchanges <= 7 and record.numbers < 0.33 * 740 * 13  # variances that cannot win are not asked for
    fixed, _ = drive("clear", GLMTerms("logistic", HEART, intercept="random", tau2=(best,)), sites)
    np.testing.assert_allclose(result.beta, fixed.beta, rtol=1e-6)
    np.testing.assert_allclose(errors_of(result), errors_of(fixed), rtol=1e-6)


def test_shrunk_intercepts_of_a_linear_regression_equal_a_mixed_model_at_the_same_variance_ratio():
    x, _, site = heart_rows()
    rng = np.random.default_rng(5)
    site = np.arange(740) % 20
    y = x[:, 0] + rng.normal(size=740) + rng.normal(size=20)[site]
    sites = by_site(x[:, :4], y, site)
    result, record = drive("clear", GLMTerms("linear", HEART[:4], intercept="random"), sites)
    ratio = result.facts["tau2_ratio"]
    cover = np.eye(740) + ratio * (site[:, None] == site)  # generalised least squares with this covariance
    reference = sm.GLS(y, np.column_stack([np.ones(740), x[:, :4]]), sigma=cover).fit()
    np.testing.assert_allclose(result.beta, reference.params, rtol=1e-6)
    np.testing.assert_allclose(errors_of(result), reference.bse, rtol=1e-6)
    assert result.facts["log_likelihood"] == pytest.approx(reference.llf, rel=1e-9)
    mixed = sm.MixedLM(y, np.column_stack([np.ones(740), x[:, :4]]), groups=site).fit(reml=False)
    assert mixed.llf - 1 < result.facts["log_likelihood"] <= mixed.llf  # the grid has steps of a factor of three
    assert result.facts["tau2"] == pytest.approx(float(np.squeeze(mixed.cov_re)), rel=0.8)
    assert record.exchanges <= 4


def test_the_grid_is_extended_or_its_end_named():
    rng = np.random.default_rng(0)
    site = np.arange(900) % 9
    x = rng.normal(size=(900, 1))
    far = np.array([-9, -7, -5, -3, 0, 3, 5, 7, 9.0])
    y = (rng.random(900) < 1 / (1 + np.exp(-x[:, 0] - far[site]))).astype(float)
    wide, _ = drive("clear", GLMTerms("logistic", ("a",), intercept="random"), by_site(x, y, site))
    assert wide.facts["tau2"] > 10 and not wide.facts["tau2_at_edge"]
    y = (rng.random(900) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)
    none, _ = drive("clear", GLMTerms("logistic", ("a",), intercept="random"), by_site(x, y, site))
    assert none.facts["tau2"] == pytest.approx(0.001) and none.facts["tau2_at_edge"]
    assert any("hospitals hardly differ" in note for note in none.notes)
    common = sm.GLM(y, np.column_stack([np.ones(900), x]), BINOMIAL).fit(tol=1e-14)
    np.testing.assert_allclose(none.beta, common.params, atol=0.005)


def test_firth_goes_with_a_common_intercept_only():
    with pytest.raises(BadInput, match="common intercept"):
        drive("clear", GLMTerms("logistic", HEART, intercept="own", firth=True), {})


@pytest.mark.data("eicu_demo")
@pytest.mark.parametrize("way", ["clear", "ring"])
def test_free_intercepts_of_185_hospitals(way, data_folder: Path):
    x, y, site, _ = eicu_rows(data_folder)
    both = np.isin(site, [s for s in np.unique(site) if len(set(y[site == s])) == 2])
    result, record = drive(way, GLMTerms("logistic", EICU, intercept="own"), by_site(x, y, site))
    reference = sm.GLM(y[both], np.column_stack([x[both], dummies(site[both])]), BINOMIAL).fit(tol=1e-14)
    assert_equal_to_pooled(result, reference, 8)
    assert result.facts["silent_sites"] == 97 and record.exchanges <= 7


@pytest.mark.data("diabetes130")
@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_free_intercepts_of_18_payers(family, data_folder: Path):
    columns, names, y, payer, _ = diabetes_rows(data_folder)
    if family == "poisson":
        names = tuple(n for n in names if n != "time_in_hospital")
        y = columns["raw time_in_hospital"]
    x = np.column_stack([columns[n] for n in names])
    informative = payer != payer  # payers of one class are left out of the pooled fit
    for name in np.unique(payer):
        informative |= (payer == name) & (y[payer == name].min() < y[payer == name].max() or family == "poisson")
    result, record = drive("ring", GLMTerms(family, names, intercept="own"), by_site(x, y, payer))
    design = np.column_stack([x, dummies(payer)])[informative]
    design = design[:, (design != 0).any(0)]
    model = sm.GLM(y[informative], design, POISSON if family == "poisson" else BINOMIAL)
    assert_equal_to_pooled(result, model.fit(tol=1e-14), len(names))
    assert record.exchanges <= 7
