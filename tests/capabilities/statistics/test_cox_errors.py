"""Robust errors of Cox regression, and fits that a site leaves."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from lifelines import CoxPHFitter

from grandrounds.capabilities.statistics import cox_penalty
from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.cox import CoxTerms, compute_own_baseline, fit_cox
from grandrounds.capabilities.statistics.question import Question, Record, Rows, Total, check_blocks, fit_in_memory
from grandrounds.core.errors import BadInput
from tests.capabilities.statistics.ring import fit_in_ring
from tests.capabilities.statistics.survival_sets import gbsg2, lung, make_set

EXACT = {"precision": 1e-12}


@cache
def lung_without_ties():
    data = lung()
    table = data.table.drop_duplicates("time").reset_index(drop=True)
    table["patient"] = table["site"] * 1000 + table.groupby("site").cumcount() // 2  # two rows a patient
    return make_set(table, data.names)


def fit_robust(data, cluster, strata):
    columns = [*data.names, "time", "event", *({"site"} & set(strata or ())), *([cluster] if cluster else [])]
    table = data.table[list(dict.fromkeys(columns))]
    if cluster in (strata or ()):
        table = table.assign(cluster=table[cluster])
        cluster = "cluster"
    return CoxPHFitter().fit(table, "time", "event", strata=strata, robust=True, cluster_col=cluster, fit_options=EXACT)


@pytest.mark.parametrize("baseline", ["strata", "days"])
@pytest.mark.parametrize(("errors", "cluster"), [("rows", None), ("patients", "patient"), ("hospitals", "site")])
def test_robust_errors_equal_lifelines(baseline, errors, cluster):
    data, record, plain = lung_without_ties(), Record(), Record()
    terms = CoxTerms(data.names, ties="breslow", baseline=baseline, errors=errors)
    estimates = fit_in_ring(fit_cox(terms), data.sites, record)
    pooled = fit_robust(data, cluster, ["site"] if baseline == "strata" else None)
    np.testing.assert_allclose(estimates.beta, pooled.params_, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.diag(estimates.covariance)), pooled.standard_errors_, rtol=1e-6)
    fit_in_ring(fit_cox(CoxTerms(data.names, ties="breslow", baseline=baseline)), data.sites, plain)
    assert record.exchanges <= plain.exchanges + 1
    if errors == "hospitals":
        assert any("18 hospitals; below 20" in note for note in estimates.notes)


def test_score_rows_with_ties_do_not_depend_on_who_has_the_rows():
    data = gbsg2()
    whole = {"all": Rows(*(np.concatenate([getattr(r, k) for r in data.sites.values()]) for k in ("x", "y", "time")))}
    one = fit_in_memory(fit_cox(CoxTerms(data.names, errors="rows")), whole, ANSWERS)
    five = fit_in_memory(fit_cox(CoxTerms(data.names, baseline="days", errors="rows")), data.sites, ANSWERS)
    np.testing.assert_allclose(five.covariance, one.covariance, rtol=1e-6, atol=1e-9)
    plain = fit_in_memory(fit_cox(CoxTerms(data.names)), whole, ANSWERS)
    ratio = np.sqrt(np.diag(one.covariance) / np.diag(plain.covariance))
    assert ((ratio > 0.7) & (ratio < 1.6)).all()


def test_errors_by_patient_need_a_patient_column():
    data = lung()
    with pytest.raises(BadInput, match="need a patient column"):
        fit_in_memory(fit_cox(CoxTerms(data.names, errors="patients")), data.sites, ANSWERS)


def drive(fit, sites: dict[str, Rows], leaver: str, exchange: int) -> tuple[object, list[Question]]:
    """Drive a fit that one site leaves: it does not answer the given exchange, nor any after it."""
    questions = [next(fit)]
    try:
        while True:
            question = questions[-1]
            here = {s: r for s, r in sites.items() if s != leaver or len(questions) < exchange}
            answers = [check_blocks(question, ANSWERS[question.kind](question, rows)) for rows in here.values()]
            total = {name: np.sum([a[name] for a in answers], axis=0) for name in question.blocks}
            questions.append(fit.send(Total(total, tuple(here), len(questions) == exchange)))
    except StopIteration as end:
        return end.value, questions


def asked_of_both(questions: list[Question], exchange: int) -> bool:
    """Tell if a question about coefficients was put to both rosters."""
    before, after = questions[: exchange - 1], questions[exchange - 1 :]
    betas = [[np.asarray(q.values["beta"]).tobytes() for q in part if "beta" in q.values] for part in (before, after)]
    return bool(set(betas[0]) & set(betas[1]))


@pytest.mark.parametrize(
    ("baseline", "errors", "exchange"),
    [
        ("strata", "model", 3),
        ("strata", "model", 1),
        ("strata", "rows", 8),
        ("days", "model", 5),
        ("days", "rows", 10),
        ("days", "model", 2),
        ("days", "model", 1),
    ],
)
def test_a_fit_that_a_site_leaves_equals_a_fresh_fit_of_the_others(baseline, errors, exchange):
    data = gbsg2()
    terms = CoxTerms(data.names, baseline=baseline, errors=errors)
    estimates, questions = drive(fit_cox(terms), data.sites, "3", exchange)
    others = {s: r for s, r in data.sites.items() if s != "3"}
    fresh = fit_in_memory(fit_cox(terms), others, ANSWERS)
    np.testing.assert_allclose(estimates.beta, fresh.beta, rtol=1e-6)
    np.testing.assert_allclose(estimates.covariance, fresh.covariance, rtol=1e-6, atol=1e-10)
    assert estimates.facts["n"] == sum(map(len, others.values()))
    assert sum("A site left during the fit" in note for note in estimates.notes) == 1
    assert not asked_of_both(questions, exchange)


@pytest.mark.parametrize("exchange", [5, 10])  # a step; the errors
def test_intervals_keep_their_events_when_a_site_leaves(exchange):
    data = gbsg2()
    estimates, questions = drive(fit_cox(CoxTerms(data.names, baseline="grid")), data.sites, "3", exchange)
    assert questions[exchange - 1].kind == ("cox.grid" if exchange == 5 else "cox.grid.errors")
    edges = np.asarray(questions[-1].values["edges"])
    others = [r for s, r in data.sites.items() if s != "3"]
    events = np.concatenate([r.time[r.y == 1] for r in others])
    assert np.bincount(np.searchsorted(edges, events, "right") - 1).min() >= 5
    assert estimates.facts["intervals"] == len(edges) < len(np.asarray(questions[2].values["edges"]))
    assert any("Intervals were merged" in note for note in estimates.notes)
    fresh = fit_in_memory(
        fit_cox(CoxTerms(data.names, baseline="days")), {s: r for s, r in data.sites.items() if s != "3"}, ANSWERS
    )
    assert (np.abs(estimates.beta - fresh.beta) / np.sqrt(np.diag(fresh.covariance))).max() < 0.2


@pytest.mark.parametrize(("exchange", "most"), [(3, 10), (4, 4)])  # in time; in the last exchange that was left
def test_cross_validation_begins_again_when_a_site_leaves(exchange, most, monkeypatch):
    data = gbsg2()
    others = {s: r for s, r in data.sites.items() if s != "3"}
    fresh = fit_in_memory(fit_cox(CoxTerms(data.names, ridge="cv")), others, ANSWERS)
    monkeypatch.setattr(cox_penalty, "_MOST_STEPS", most)
    estimates, questions = drive(fit_cox(CoxTerms(data.names, ridge="cv")), data.sites, "3", exchange)
    assert questions[exchange - 1].kind == questions[exchange].kind == "cox.folds" and "H" in questions[exchange].blocks
    assert estimates.facts["ridge"] == fresh.facts["ridge"]
    np.testing.assert_allclose(estimates.beta, fresh.beta, rtol=1e-6)


def test_own_baseline_equals_lifelines():
    data = lung()
    rows = Rows(data.table[["age", "sex"]].to_numpy(), data.table["event"].to_numpy(), data.table["time"].to_numpy())
    pooled = CoxPHFitter().fit(data.table[["age", "sex", "time", "event"]], "time", "event", fit_options=EXACT)
    baseline = compute_own_baseline(rows, pooled.params_.to_numpy(), "breslow")
    expected = pooled.baseline_cumulative_hazard_["baseline cumulative hazard"]
    times = np.array(baseline.times)
    shift = np.exp(-(data.table[["age", "sex"]].mean() @ pooled.params_))  # lifelines' baseline is at the means
    np.testing.assert_allclose(baseline.at(times), expected.loc[times] * shift, rtol=1e-6)
