"""Cox regression with a common baseline: exact on single days, near on intervals that obey the small-cell rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from lifelines import CoxPHFitter

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.brier import Baseline
from grandrounds.capabilities.statistics.cox import CoxTerms, fit_cox
from grandrounds.capabilities.statistics.cox_intervals import merge_cells
from grandrounds.capabilities.statistics.question import Record, Rows, fit_in_memory
from grandrounds.core.errors import BadInput
from tests.capabilities.statistics.ring import fit_in_ring
from tests.capabilities.statistics.survival_sets import SETS, gbsg2, lung, tcga

EXACT = {"precision": 1e-12}


def fit_pooled(data, **kwargs):
    return CoxPHFitter(**kwargs).fit(data.table[[*data.names, "time", "event"]], "time", "event", fit_options=EXACT)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize(("name", "most"), [("lung", 8), ("gbsg2", 10)])
def test_single_days_equal_lifelines(name, most, is_masked):
    data, record = SETS[name](), Record()
    fit = fit_cox(CoxTerms(data.names, baseline="days"))
    estimates = fit_in_ring(fit, data.sites, record) if is_masked else fit_in_memory(fit, data.sites, ANSWERS, record)
    pooled = fit_pooled(data)
    assert record.exchanges <= most
    np.testing.assert_allclose(estimates.beta, pooled.params_, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.diag(estimates.covariance)), pooled.standard_errors_, rtol=1e-6)
    np.testing.assert_allclose([c.p for c in estimates.coefficients], pooled.summary["p"], atol=1e-6)
    assert "rows of single patients can be read" in estimates.notes[0]


def test_single_days_tell_that_times_within_a_day_are_not_used():
    data = lung()
    sites = {name: replace(rows, time=rows.time + 0.5 * (np.arange(len(rows)) % 2)) for name, rows in data.sites.items()}
    off = sum(len(rows) // 2 for rows in sites.values())
    found = fit_in_memory(fit_cox(CoxTerms(data.names, baseline="days")), sites, ANSWERS)
    (note,) = (n for n in found.notes if "whole numbers" in n)
    assert note.startswith(f"{off} times")
    whole = fit_in_memory(fit_cox(CoxTerms(data.names, baseline="days")), data.sites, ANSWERS)
    assert not any("whole numbers" in n for n in whole.notes)
    np.testing.assert_allclose(found.beta, whole.beta, rtol=1e-9)  # moved to the start of their day


@pytest.mark.parametrize(("name", "intervals", "shift"), [("lung", 27, 0.17), ("gbsg2", 55, 0.07)])
def test_intervals_have_five_events_and_shift_estimates_by_a_fraction_of_their_errors(name, intervals, shift):
    data, record = SETS[name](), Record()
    estimates = fit_in_memory(fit_cox(CoxTerms(data.names, baseline="grid")), data.sites, ANSWERS, record)
    pooled = fit_pooled(data)
    assert record.exchanges <= 10
    assert estimates.facts["intervals"] == intervals
    assert (np.abs(estimates.beta - pooled.params_) / pooled.standard_errors_).max() < shift
    kinds = [q.kind for q in record.questions]
    assert kinds[:2] == ["cox.times", "cox.times"] and set(kinds[2:-1]) == {"cox.grid"}
    edges = np.asarray(record.questions[2].values["edges"])
    inside = np.searchsorted(edges, data.table["time"][data.table["event"] == 1], "right") - 1
    assert np.bincount(inside, minlength=len(edges)).min() >= 5
    assert all("D1" not in q.blocks for q in record.questions), "sums over the events of one interval stay at sites"
    assert {q.kind: q.cells for q in record.questions[:-1]} == {"cox.times": ("events", "leavers"), "cox.grid": ("d",)}


@pytest.mark.data("fed_tcga_brca")
def test_ridge_on_single_days_equals_lifelines_on_tcga(data_folder):
    train, _ = tcga(data_folder / "fed_tcga_brca")
    record = Record()
    estimates = fit_in_memory(fit_cox(CoxTerms(train.names, baseline="days", ridge=10.0)), train.sites, ANSWERS, record)
    pooled = fit_pooled(train, penalizer=10 / len(train.table))
    assert record.exchanges <= 10
    np.testing.assert_allclose(estimates.beta, pooled.params_, rtol=1e-5)


def test_common_baseline_hazard_equals_breslows():
    data = lung()
    estimates = fit_in_memory(fit_cox(CoxTerms(data.names, baseline="days", ties="breslow")), data.sites, ANSWERS)
    hazard = estimates.facts["baseline_hazard"]
    x, beta = data.table[list(data.names)].to_numpy(), estimates.beta
    time, event = data.table["time"].to_numpy(), data.table["event"].to_numpy()
    by_hand = [event[time == t].sum() / np.exp(x[time >= t] @ beta).sum() for t in hazard["times"]]
    np.testing.assert_allclose(hazard["hazard"], np.cumsum(by_hand), rtol=1e-9)


def test_cells_are_merged_until_each_interval_has_enough_events():
    grid = merge_cells(
        np.arange(6.0), 6.0, np.array([2.0, 3, 0, 7, 1, 2]), np.array([1.0, 0, 4, 0, 0, 2]), least=5, intervals=100
    )
    np.testing.assert_array_equal(grid.edges, [0, 2])
    np.testing.assert_array_equal(grid.events, [5, 10])
    np.testing.assert_array_equal(grid.leavers, [1, 6])
    np.testing.assert_array_equal(grid.at_risk, [22, 16])


def test_few_rows_without_event_are_refused():
    rows = Rows(np.random.default_rng(0).normal(size=(40, 2)), np.array([0.0] * 3 + [1.0] * 37), np.arange(1.0, 41))
    with pytest.raises(BadInput, match="3 rows leave without event") as caught:
        fit_in_memory(fit_cox(CoxTerms(("a", "b"), baseline="grid")), {"one": rows}, ANSWERS)
    assert caught.value.code == "small-cell"


def test_common_baseline_on_intervals_predicts_survival_near_that_of_single_days():
    data = gbsg2()
    curves = [
        Baseline.from_dict(
            fit_in_memory(fit_cox(CoxTerms(data.names, baseline=b)), data.sites, ANSWERS).facts["baseline_hazard"]
        )
        for b in ("days", "grid")
    ]
    times = np.array([365.0, 730.0, 1095.0, 1460.0, 1825.0])
    exact, near = (np.exp(-curve.at(times)) for curve in curves)
    np.testing.assert_allclose(near, exact, atol=0.01)
