"""Stratified Cox regression: equal to lifelines on the pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
from lifelines import CoxPHFitter

from grandrounds.core.errors import BadInput
from grandrounds.statistics import ANSWERS
from grandrounds.statistics.cox import CoxTerms, fit_cox, fit_rows
from grandrounds.statistics.question import Record, Rows, fit_in_memory
from tests.statistics.survival_sets import SETS, lung

EXACT = {"precision": 1e-12}


@pytest.mark.parametrize("name", ["lung", "gbsg2"])
def test_stratified_cox_equals_lifelines_in_seven_exchanges(name):
    data = SETS[name]()
    record = Record()
    estimates = fit_in_memory(fit_cox(CoxTerms(data.names)), data.sites, ANSWERS, record)
    pooled = CoxPHFitter().fit(
        data.table[[*data.names, "time", "event", "site"]], "time", "event", strata=["site"], fit_options=EXACT
    )
    assert record.exchanges <= 7
    assert estimates.facts["exchanges"] == record.exchanges
    np.testing.assert_allclose(estimates.beta, pooled.params_, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.diag(estimates.covariance)), pooled.standard_errors_, rtol=1e-6)
    np.testing.assert_allclose([c.p for c in estimates.coefficients], pooled.summary["p"], atol=1e-6)
    assert estimates.facts["log_likelihood"] == pytest.approx(pooled.log_likelihood_, rel=1e-9)
    assert estimates.facts["events"] == data.table["event"].sum()


def test_a_site_without_events_answers_zeros_and_is_counted():
    data = lung()
    estimates = fit_in_memory(fit_cox(CoxTerms(data.names)), data.sites, ANSWERS)
    assert (estimates.facts["strata"], estimates.facts["sites_without_events"]) == (17, 1)


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
