"""Choice of the penalty by cross-validation over sites."""

from __future__ import annotations

import numpy as np
import pytest
from lifelines.utils import concordance_index

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.cox import CoxTerms, fit_cox, fit_rows
from grandrounds.capabilities.statistics.cox_penalty import choose_penalty, deal_folds
from grandrounds.capabilities.statistics.partial_likelihood import compute_score, place_by_own_times
from grandrounds.capabilities.statistics.question import Record, Rows, fit_in_memory
from grandrounds.core.errors import BadInput
from tests.capabilities.statistics.ring import fit_in_ring
from tests.capabilities.statistics.survival_sets import lung, make_set, tcga


def test_chosen_penalty_and_values_equal_a_search_with_one_fit_at_a_time():
    data = lung()
    penalties = (1.0, 10.0, 100.0)
    choice = fit_in_memory(choose_penalty(CoxTerms(data.names, ridge="cv", penalties=penalties)), data.sites, ANSWERS)
    folds = {site: deal_folds(rows, 5) for site, rows in data.sites.items()}
    expected = []
    for penalty in penalties:
        value = 0.0
        for k in range(5):
            kept = {
                s: Rows(r.x[folds[s] != k], r.y[folds[s] != k], r.time[folds[s] != k]) for s, r in data.sites.items()
            }
            beta = fit_in_memory(fit_cox(CoxTerms(data.names, ridge=penalty)), kept, ANSWERS).beta
            for site, rows in data.sites.items():
                value += compute_score(place_by_own_times(rows), beta, "efron").value
                value -= compute_score(place_by_own_times(kept[site]), beta, "efron").value
        expected.append(value)
    np.testing.assert_allclose(choice.values, expected, atol=0.02)
    assert choice.ridge == penalties[int(np.argmax(expected))]


def test_fit_with_cross_validation_equals_the_fit_with_the_chosen_penalty():
    data, record = lung(), Record()
    estimates = fit_in_ring(fit_cox(CoxTerms(data.names, ridge="cv")), data.sites, record)
    ridge = estimates.facts["ridge"]
    plain = fit_in_memory(fit_cox(CoxTerms(data.names, ridge=ridge)), data.sites, ANSWERS)
    np.testing.assert_allclose(estimates.beta, plain.beta, rtol=1e-6)
    assert estimates.facts["exchanges"] == record.exchanges <= 15
    assert estimates.facts["cross_validation"]["penalties"] == [1.0, 3.0, 10.0, 30.0, 100.0]


@pytest.mark.data("fed_tcga_brca")
@pytest.mark.parametrize(("baseline", "most"), [("strata", 15), ("grid", 25), ("days", 25)])
def test_tcga_reaches_the_published_c_index_without_a_seed(data_folder, baseline, most):
    train, test = tcga(data_folder / "fed_tcga_brca")
    record = Record()
    estimates = fit_in_ring(fit_cox(CoxTerms(train.names, baseline=baseline, ridge="cv")), train.sites, record)
    scores = {site: -(rows.x @ estimates.beta) for site, rows in test.sites.items()}
    pooled = concordance_index(
        np.concatenate([r.time for r in test.sites.values()]),
        np.concatenate(list(scores.values())),
        np.concatenate([r.y for r in test.sites.values()]),
    )
    by_site = [concordance_index(rows.time, scores[site], rows.y) for site, rows in test.sites.items()]
    assert record.exchanges <= most
    assert pooled >= 0.84
    assert np.mean(by_site) >= 0.81
    assert record.numbers / (len(train.table) * len(train.names)) < 1 or baseline == "days"


def test_folds_do_not_depend_on_the_order_of_rows_and_have_like_numbers_of_events():
    data = lung()
    for rows in data.sites.values():
        fold = deal_folds(rows, 5)
        counts = np.bincount(fold[rows.y == 1], minlength=5)
        assert counts.max() - counts.min() <= 1
        order = np.random.default_rng(1).permutation(len(rows))
        shuffled = Rows(rows.x[order], rows.y[order], rows.time[order])
        np.testing.assert_array_equal(deal_folds(shuffled, 5), fold[order])


def test_rows_of_one_patient_go_to_one_fold():
    data = lung()
    table = data.table.assign(patient=np.arange(len(data.table)) // 3)
    for rows in make_set(table, data.names).sites.values():
        fold = deal_folds(rows, 3)
        for patient in np.unique(rows.patient):
            assert len(set(fold[rows.patient == patient])) == 1


def test_one_sites_own_fit_needs_a_number():
    data = lung()
    with pytest.raises(BadInput, match="not 'cv'"):
        fit_rows(CoxTerms(data.names, ridge="cv"), next(iter(data.sites.values())))
