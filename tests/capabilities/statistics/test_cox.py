"""Cox regression stratified by hospital: equal to lifelines and statsmodels on the pooled rows."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from lifelines import CoxPHFitter
from statsmodels.duration.hazard_regression import PHReg

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.cox import CoxTerms, fit_cox, fit_rows
from grandrounds.capabilities.statistics.question import Record, Rows, fit_in_memory
from grandrounds.core.errors import BadInput
from tests.capabilities.statistics.ring import fit_in_ring
from tests.capabilities.statistics.survival_sets import SETS, gbsg2, lung, make_set, tcga

EXACT = {"precision": 1e-12}


@cache
def fit_pooled(name):
    data = SETS[name]()
    table = data.table[[*data.names, "time", "event", "site"]]
    return CoxPHFitter().fit(table, "time", "event", strata=["site"], fit_options=EXACT)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize(("name", "most"), [("lung", 5), ("gbsg2", 7)])
def test_stratified_cox_equals_lifelines(name, most, is_masked):
    data, record = SETS[name](), Record()
    fit = fit_cox(CoxTerms(data.names))
    estimates = fit_in_ring(fit, data.sites, record) if is_masked else fit_in_memory(fit, data.sites, ANSWERS, record)
    pooled = fit_pooled(name)
    assert record.exchanges <= most
    assert estimates.facts["exchanges"] == record.exchanges
    np.testing.assert_allclose(estimates.beta, pooled.params_, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.diag(estimates.covariance)), pooled.standard_errors_, rtol=1e-6)
    np.testing.assert_allclose([c.p for c in estimates.coefficients], pooled.summary["p"], atol=1e-6)
    assert estimates.facts["log_likelihood"] == pytest.approx(pooled.log_likelihood_, rel=1e-9)
    assert estimates.facts["aic"] == pytest.approx(pooled.AIC_partial_, rel=1e-9)
    assert estimates.facts["events"] == data.table["event"].sum()


@pytest.mark.data("fed_tcga_brca")
def test_stratified_ridge_equals_lifelines_on_tcga(data_folder):
    train, _ = tcga(data_folder / "fed_tcga_brca")
    record = Record()
    estimates = fit_in_ring(fit_cox(CoxTerms(train.names, ridge=10.0)), train.sites, record)
    pooled = CoxPHFitter(penalizer=10 / len(train.table)).fit(
        train.table[[*train.names, "time", "event", "site"]], "time", "event", strata=["site"], fit_options=EXACT
    )
    assert record.exchanges <= 7
    np.testing.assert_allclose(estimates.beta, pooled.params_, rtol=1e-6)
    assert estimates.errors == "penalised" and estimates.coefficients[0].p is None


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_ties_equal_statsmodels(ties):
    data = lung()
    table = data.table.assign(time=np.ceil(data.table["time"] / 30))  # months: many ties
    coarse = make_set(table, data.names)
    estimates = fit_in_memory(fit_cox(CoxTerms(data.names, ties=ties)), coarse.sites, ANSWERS)
    x = coarse.table[list(data.names)].to_numpy()
    pooled = PHReg(table["time"], x, status=table["event"], strata=table["site"], ties=ties).fit()
    np.testing.assert_allclose(estimates.beta, pooled.params, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.diag(estimates.covariance)), pooled.bse, rtol=1e-6)


def test_a_site_without_events_answers_zeros_and_is_counted():
    data = lung()
    estimates = fit_in_memory(fit_cox(CoxTerms(data.names)), data.sites, ANSWERS)
    assert (estimates.facts["strata"], estimates.facts["sites_without_events"]) == (17, 1)


def test_aliased_columns_are_named_and_the_rest_equals_the_fit_without_them():
    data = gbsg2()
    table = data.table.assign(
        double=2 * data.table["age"] - data.table["tsize"], level=data.table["site"].astype(float)
    )
    whole = make_set(table, (*data.names[:5], "double", "level", *data.names[5:]))
    estimates = fit_in_ring(fit_cox(CoxTerms(whole.names)), whole.sites)
    left_out = {c.name: c.reason for c in estimates.coefficients if c.estimate is None}
    assert left_out == {"double": "is a combination of columns before it", "level": "constant"}  # constant at each site
    without = fit_in_ring(fit_cox(CoxTerms(data.names)), data.sites)
    np.testing.assert_allclose(estimates.beta, without.beta, rtol=1e-8)


def test_a_hazard_ratio_without_end_is_named():
    data = gbsg2()
    rare = np.zeros(len(data.table))
    rare[np.flatnonzero(data.table["event"] == 0)[:12]] = 1.0  # twelve patients without event
    whole = make_set(data.table.assign(rare=rare), (*data.names, "rare"))
    record = Record()
    with pytest.raises(BadInput, match="separated by 'rare': hazard ratios grow") as caught:
        fit_in_ring(fit_cox(CoxTerms(whole.names)), whole.sites, record)
    assert caught.value.code == "outcome-separated" and record.exchanges <= 10
    estimates = fit_in_ring(fit_cox(CoxTerms(whole.names, ridge=1.0)), whole.sites)
    assert estimates.coefficients[-1].estimate < 0


def test_an_input_that_puts_all_events_in_order_is_named():
    x = np.random.default_rng(5).normal(size=(60, 2))
    x[:, 0] = np.linspace(-1.5, 1.5, 60)
    rows = Rows(x, np.ones(60), np.arange(60.0, 0, -1))
    with pytest.raises(BadInput, match="separated by 'order'"):
        fit_in_memory(fit_cox(CoxTerms(("order", "noise"), exchanges=20)), {"one": rows}, ANSWERS)


def test_no_false_alarm_of_separation_in_small_sound_sets():
    rng = np.random.default_rng(7)
    for _ in range(30):
        x = rng.normal(size=(120, 3))
        time = rng.exponential(np.exp(-x @ [0.5, -0.5, 0.0]))
        sites = {str(k): Rows(x[k::4], (time < 1.5)[k::4].astype(float), np.minimum(time, 1.5)[k::4]) for k in range(4)}
        fit_in_memory(fit_cox(CoxTerms(("a", "b", "c"))), sites, ANSWERS)


def test_own_fit_of_one_site_equals_lifelines():
    data = lung()
    rows = Rows(data.table[["age", "sex"]].to_numpy(), data.table["event"].to_numpy(), data.table["time"].to_numpy())
    beta, covariance = fit_rows(CoxTerms(("age", "sex")), rows)
    pooled = CoxPHFitter().fit(data.table[["age", "sex", "time", "event"]], "time", "event", fit_options=EXACT)
    np.testing.assert_allclose(beta, pooled.params_, rtol=1e-6)
    np.testing.assert_allclose(covariance, pooled.variance_matrix_, rtol=1e-6, atol=1e-10)
    assert fit_rows(CoxTerms(data.names), data.sites["2.0"]) is None  # five rows


def test_too_few_events_are_refused():
    rows = Rows(np.arange(12.0).reshape(6, 2) % 5, np.array([1, 1, 0, 1, 1, 0.0]), np.arange(6.0))
    with pytest.raises(BadInput, match="4 events over all sites") as caught:
        fit_in_memory(fit_cox(CoxTerms(("a", "b"))), {"one": rows}, ANSWERS)
    assert caught.value.code == "few-events"


@pytest.mark.parametrize(
    "wrong",
    [
        {"ties": "exact"},
        {"ridge": -1.0},
        {"ridge": "best"},
        {"errors": "days"},
        {"baseline": "none"},
        {"start": (1.0,)},
    ],
)
def test_bad_terms_are_refused(wrong):
    with pytest.raises(BadInput) as caught:
        CoxTerms(("a", "b"), **wrong)
    assert caught.value.code == "bad-setting"
