"""Meta-analysis from sums: by hand, and equal to statsmodels' combine_effects on the hospitals' own estimates."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.meta_analysis import combine_effects

from grandrounds.capabilities.statistics import meta
from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.meta import (
    MetaAnalysis,
    MetaTerms,
    answer_meta,
    choose_errors,
    estimate_site,
    fit_meta,
)
from grandrounds.capabilities.statistics.question import Record, Rows, Total, fit_in_memory
from tests.capabilities.statistics.hospital_rows import HEART, by_site, heart_rows
from tests.capabilities.statistics.ring import fit_in_ring
from tests.support import refused


def combine(monkeypatch, estimates, variances, **terms):
    """Drive the analysis over given estimates, (k, p) each, in place of fits."""
    rows = {f"s{k}": Rows(np.zeros((1, 1)), np.array([float(k)])) for k in range(len(estimates))}
    own = [np.reshape(np.asarray(v, float), (len(estimates), -1)) for v in (estimates, variances)]
    monkeypatch.setattr(meta, "estimate_site", lambda model, names, rows, **_: tuple(v[int(rows.y[0])] for v in own))
    names = tuple(f"x{j}" for j in range(own[0].shape[1]))
    return fit_in_memory(fit_meta(MetaTerms("logistic", names, **terms)), rows, ANSWERS)


def test_by_hand(monkeypatch):
    c = combine(monkeypatch, [0.0, 1.0, 2.0], [0.25, 0.5, 0.25])["x0"]
    # weights 4, 2, 4: mean 1, Q = 4 + 0 + 4 = 8, C = 10 - 36/10 = 6.4, tau2 = (8 - 2) / 6.4 = 15/16
    assert (c.fixed, c.fixed_error) == pytest.approx((1.0, 10**-0.5))
    assert (c.q, c.i2, c.tau2) == pytest.approx((8.0, 0.75, 15 / 16))
    assert c.q_p == pytest.approx(np.exp(-4))  # chi-squared with 2 degrees of freedom
    r = 2 / (0.25 + 15 / 16) + 1 / (0.5 + 15 / 16)
    assert (c.estimate, c.error) == pytest.approx((1.0, r**-0.5))
    wide = stats.t(1).ppf(0.975) * np.sqrt(15 / 16 + 1 / r)
    assert (c.prediction_low, c.prediction_high) == pytest.approx((1 - wide, 1 + wide))


def test_equal_to_statsmodels(monkeypatch):
    rng = np.random.default_rng(3)
    b, v = rng.normal(0.4, 0.5, (9, 3)), rng.uniform(0.01, 0.2, (9, 3))
    b[:, 2] = 0.4 + rng.normal(0, 0.01, 9)  # no heterogeneity: tau2 is 0
    for about in ((), (0.3, 0.5, -2.0)):
        result = combine(monkeypatch, b, v, about=about)
        for j, c in enumerate(result.coefficients):
            expected = combine_effects(b[:, j], v[:, j], method_re="dl")
            table = expected.summary_frame()
            # statsmodels does not cut a negative tau2 off at 0, as DerSimonian and Laird do: random effects are then fixed
            random = "random effect" if expected.tau2 > 0 else "fixed effect"
            assert (expected.tau2 > 0) == (j < 2)
            for found, row in (
                ((c.fixed, c.fixed_error, c.fixed_low, c.fixed_high), "fixed effect"),
                ((c.estimate, c.error, c.low, c.high), random),
            ):
                assert found == pytest.approx(table.loc[row, ["eff", "sd_eff", "ci_low", "ci_upp"]].tolist(), rel=1e-9)
            homogeneity = expected.test_homogeneity()
            assert (c.q, c.q_p) == pytest.approx((homogeneity.statistic, homogeneity.pvalue), rel=1e-9)
            assert (c.tau2, c.i2) == pytest.approx((max(expected.tau2, 0), max(expected.i2, 0)), rel=1e-9)


def test_estimates_of_sites_are_those_of_statsmodels():
    x, y, site = heart_rows()
    sites = by_site(x[:, :6], y, site)
    record = Record()
    result = fit_in_memory(fit_meta(MetaTerms("logistic", HEART[:6])), sites, ANSWERS, record)
    assert (record.exchanges, record.numbers) == (2, 2 * 7 * 6)
    for name in ("0", "1", "3"):
        fit = sm.GLM(sites[name].y, sm.add_constant(sites[name].x), family=sm.families.Binomial()).fit(tol=1e-12)
        own = result.by_site[name]
        assert [own[n].estimate for n in HEART[:6]] == pytest.approx(fit.params[1:], rel=1e-6)
        assert [own[n].error for n in HEART[:6]] == pytest.approx(fit.bse[1:], rel=1e-6)
        assert [own[n].low for n in HEART[:6]] == pytest.approx(fit.conf_int()[1:, 0], rel=1e-6)
    assert result.by_site["2"] == {}, "3 of 46 patients in Switzerland have no disease"
    assert result.notes == ("3 of 4 hospitals could fit all coefficients",)
    expected = combine_effects(
        np.array([result.by_site[s]["age"].estimate for s in "013"]),
        np.array([result.by_site[s]["age"].error ** 2 for s in "013"]),
        method_re="dl",
    )
    assert result["age"].estimate == pytest.approx(expected.mean_effect_re, rel=1e-9)


def test_secure_sums_give_the_same_and_no_hospital():
    x, y, site = heart_rows()
    sites = by_site(x, y, site)
    clear = fit_in_memory(fit_meta(MetaTerms("logistic", HEART)), sites, ANSWERS)
    secure = fit_in_ring(fit_meta(MetaTerms("logistic", HEART)), sites)
    assert secure.by_site == {}
    for a, b in zip(clear.coefficients, secure.coefficients, strict=True):
        assert a.sites == b.sites
        if a.estimate is not None:
            assert (b.estimate, b.error, b.q) == pytest.approx((a.estimate, a.error, a.q), rel=1e-6, abs=1e-8)


def test_separation_leaves_the_other_coefficients():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=200), np.arange(200) < 6])
    y = (rng.random(200) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)
    y[:6] = 1.0  # all rows of the level have the event: its log-odds are infinite
    b, v = estimate_site("logistic", ("a", "level"), Rows(x, y))
    without = sm.GLM(y[6:], sm.add_constant(x[6:, :1]), family=sm.families.Binomial()).fit()
    assert np.isnan(b[1]) and np.isnan(v[1])
    assert (b[0], np.sqrt(v[0])) == pytest.approx((without.params[1], without.bse[1]), rel=1e-3)


def test_a_column_that_is_constant_at_a_site():
    x, y, site = heart_rows()
    rows = by_site(x[:, :3], y, site)["0"]
    rows.x[:, 1] = 1.0
    b, _ = estimate_site("logistic", ("a", "b", "c"), rows)
    fit = sm.GLM(rows.y, sm.add_constant(rows.x[:, [0, 2]]), family=sm.families.Binomial()).fit(tol=1e-12)
    assert np.isnan(b[1]) and b[[0, 2]] == pytest.approx(fit.params[1:], rel=1e-6)
    b, _ = estimate_site("logistic", ("a", "b", "c"), replace(rows, x=rows.x[:, [0, 2, 0]]))
    assert np.isnan(b).all(), "a combination changes the meaning of the other coefficients"


def test_other_models():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(80, 2))
    linear = x @ [1.0, -2] + rng.normal(size=80)
    b, v = estimate_site("linear", ("a", "b"), Rows(x, linear))
    fit = sm.OLS(linear, sm.add_constant(x)).fit()
    assert (*b, *v) == pytest.approx((*fit.params[1:], *fit.bse[1:] ** 2), rel=1e-8)
    count = rng.poisson(np.exp(0.3 * x[:, 0])).astype(float)
    b, v = estimate_site("poisson", ("a", "b"), Rows(x, count))
    fit = sm.GLM(count, sm.add_constant(x), family=sm.families.Poisson()).fit(tol=1e-12)
    assert (*b, *v) == pytest.approx((*fit.params[1:], *fit.bse[1:] ** 2), rel=1e-6)
    time = rng.exponential(np.exp(-0.5 * x[:, 0]))
    b, v = estimate_site("cox", ("a", "b"), Rows(x, np.ones(80), time=time))
    fit = sm.PHReg(time, x, np.ones(80)).fit()
    assert (*b, *v) == pytest.approx((*fit.params, *fit.bse**2), rel=1e-5)


@pytest.mark.parametrize("model", ["poisson", "logistic", "linear"])
def test_robust_variances_are_those_of_statsmodels(model):
    rng = np.random.default_rng(5)
    x, family = rng.normal(size=(80, 2)), {"poisson": sm.families.Poisson(), "logistic": sm.families.Binomial()}.get(model)
    x[:, 1] = x[:, 1] > 1.2
    noisy = 0.5 * x[:, 0] + rng.normal(size=80)
    y = {"poisson": rng.poisson(np.exp(noisy)), "logistic": noisy > 0, "linear": noisy}[model].astype(float)
    b, v = estimate_site(model, ("a", "b"), Rows(x, y), errors="rows")
    fit = sm.GLM(y, sm.add_constant(x), family=family).fit(tol=1e-14)
    w = fit.family.variance(fit.mu)
    q = sm.add_constant(x) * np.sqrt(w)[:, None]
    leverage = np.einsum("ij,ij->i", q @ np.linalg.inv(q.T @ q), q)
    middle = q * ((y - fit.mu) / np.sqrt(w) / (1 - leverage))[:, None]
    expected = np.linalg.inv(q.T @ q) @ middle.T @ middle @ np.linalg.inv(q.T @ q)
    assert (*b, *v) == pytest.approx((*fit.params[1:], *np.diag(expected)[1:]), rel=1e-6)
    if model == "linear":
        assert v == pytest.approx(sm.OLS(y, sm.add_constant(x)).fit(cov_type="HC3").bse[1:] ** 2, rel=1e-8)
    patient = np.arange(80) // 2
    _, by_patient = estimate_site(model, ("a", "b"), Rows(x, y, patient=patient), errors="patients")
    middle = middle.reshape(40, 2, -1).sum(axis=1)
    expected = np.linalg.inv(q.T @ q) @ middle.T @ middle @ np.linalg.inv(q.T @ q)
    assert by_patient == pytest.approx(np.diag(expected)[1:], rel=1e-6)
    with refused("no-patients"):
        estimate_site(model, ("a", "b"), Rows(x, y), errors="patients")


def test_the_only_row_of_a_level_says_nothing_of_its_robust_variance():
    rng = np.random.default_rng(5)
    x = np.column_stack([rng.normal(size=60), np.arange(60) == 7])
    y = rng.poisson(np.exp(0.5 + 0.3 * x[:, 0])).astype(float)
    y[7] = 4
    b, v = estimate_site("poisson", ("a", "b"), Rows(x, y), errors="rows")
    kept = np.arange(60) != 7
    expected = estimate_site("poisson", ("a",), Rows(x[kept, :1], y[kept]), errors="rows")
    assert np.isnan(v[1]) and (b[0], v[0]) == pytest.approx((expected[0][0], expected[1][0]), rel=1e-6)


@pytest.mark.parametrize("over", [False, True])
def test_counts_that_vary_more_than_poissons_are_no_difference_between_hospitals(over):
    claims = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(1500, 3))
        mean = np.exp(1 + x @ [0.3, 0.2, 0.0])
        y = rng.poisson(rng.gamma(0.7, mean / 0.7) if over else mean).astype(float)
        terms = MetaTerms("poisson", ("a", "b", "c"), errors=choose_errors("poisson", "model"))
        result = fit_in_memory(fit_meta(terms), by_site(x, y, np.arange(1500) % 5), ANSWERS)
        claims += any(c.q_p < 0.05 / 3 for c in result.coefficients)
    assert claims <= 1, "of 20 consortia of hospitals that are alike; 5% would be 1"


def test_hospitals_are_compared_by_robust_errors_where_the_fit_has_them():
    assert [choose_errors("logistic", e) for e in ("model", "rows", "patients", "hospitals")] == [
        "model", "rows", "patients", "rows",
    ]  # fmt: skip
    assert [choose_errors("poisson", e) for e in ("model", "patients")] == ["rows", "patients"]


def test_few_hospitals_give_no_estimate(monkeypatch):
    nan = np.nan
    result = combine(monkeypatch, [[0.1, 1], [0.2, 2], [nan, 3], [nan, 4]], [[0.1, 1]] * 4)
    assert (result["x0"].sites, result["x0"].estimate) == (2, None)
    assert result["x1"].estimate == pytest.approx(2.5)
    assert result.notes == ("2 of 4 hospitals could fit x0; at least 3 are needed",)
    assert set(result.by_site["s3"]) == {"x1"}
    assert "x0" in result.summary() and "nan" not in result.summary()


def test_a_site_that_leaves_between_exchanges():
    x, y, site = heart_rows()
    sites = by_site(x[:, :2], y, site)
    fit = fit_meta(MetaTerms("logistic", HEART[:2]))
    question, rosters = next(fit), (("0", "1", "2", "3"), ("0", "1", "3"), ("0", "1", "3"))
    for k, roster in enumerate(rosters):
        blocks = [answer_meta(question, sites[s]) for s in roster]
        total = Total({n: np.sum([b[n] for b in blocks], axis=0) for n in question.blocks}, roster, k == 1)
        if k < 2:
            question = fit.send(total)
    with pytest.raises(StopIteration) as end:
        fit.send(total)
    expected = fit_in_memory(
        fit_meta(MetaTerms("logistic", HEART[:2])), {s: sites[s] for s in ("0", "1", "3")}, ANSWERS
    )
    assert end.value.value.coefficients == expected.coefficients


def test_json_and_other_units(monkeypatch):
    result = combine(monkeypatch, [0.0, 1.0, 2.0], [0.25, 0.5, 0.25])
    assert MetaAnalysis.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    tenth = result.rescale({"x0": -0.1})["x0"]
    c = result["x0"]
    assert (tenth.estimate, tenth.error, tenth.tau2) == pytest.approx((-c.estimate / 10, c.error / 10, c.tau2 / 100))
    assert (tenth.low, tenth.prediction_high) == pytest.approx((-c.high / 10, -c.prediction_low / 10))
    assert (tenth.q, tenth.i2, tenth.p) == (c.q, c.i2, c.p)
    assert result.rescale({"x0": 2.0}).by_site["s1"]["x0"].estimate == 2.0


def test_bad_terms():
    with refused("bad-value"):
        MetaTerms("probit", ("a",))
    with refused("no-features"):
        MetaTerms("logistic", ())
    with refused("bad-value"):
        MetaTerms("logistic", ("a", "b"), about=(1.0,))
