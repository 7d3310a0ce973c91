"""Regressions that cannot be fitted as asked: aliased columns, separated outcomes, bad outcomes, sites that leave."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

from grandrounds.capabilities.statistics.answers import ANSWERS
from grandrounds.capabilities.statistics.glm import fit_glm
from grandrounds.capabilities.statistics.glm_terms import TAU2, GLMTerms, check_terms
from grandrounds.capabilities.statistics.question import Question, Total
from grandrounds.core.errors import BadInput, RunFailed
from tests.capabilities.statistics.hospital_rows import HEART, by_site, heart_rows
from tests.capabilities.statistics.regressions import assert_equal_to_pooled, drive, errors_of

BINOMIAL = sm.families.Binomial()


def constant(x: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(x)), x])


def sound_set(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 120 rows of three numbers and two categories, and outcomes that follow a logistic model."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(120, 3)), rng.random((120, 2)) < 0.3]).astype(float)
    return x, (rng.random(120) < 1 / (1 + np.exp(-x @ rng.normal(size=5)))).astype(float)


@pytest.mark.parametrize("way", ["clear", "ring"])
@pytest.mark.parametrize("family", ["logistic", "linear"])
def test_aliased_columns_are_left_out_and_named_and_the_rest_is_unchanged(way, family):
    x, y, site = heart_rows()
    more = np.column_stack([x[:, :3], x[:, 0] - 2 * x[:, 2], np.zeros(740), np.full(740, 3.0), x[:, 3:]])
    names = (*HEART[:3], "sum", "empty", "flat", *HEART[3:])
    result, _ = drive(way, GLMTerms(family, names), by_site(more, y, site))
    alone, _ = drive(way, GLMTerms(family, HEART), by_site(x, y, site))
    assert {c.name: c.reason for c in result.coefficients if c.estimate is None} == {
        "sum": "is a combination of columns before it",
        "empty": "no rows",
        "flat": "constant",
    }
    np.testing.assert_allclose(result.beta, alone.beta, rtol=1e-10)
    np.testing.assert_allclose(errors_of(result), errors_of(alone), rtol=1e-9)


def test_a_rare_category_whose_rows_are_all_ill_is_named():
    x, y = sound_set(0)
    x[:, 4] = 0.0
    x[:5, 4], y[:5] = 1.0, 1.0
    with pytest.raises(BadInput, match=r"separated by 'e'.*ridge.*merge.*firth") as caught:
        drive("clear", GLMTerms("logistic", tuple("abcde")), by_site(x, y, np.arange(120) % 3))
    assert caught.value.code == "outcome-separated"


def test_separation_is_seen_in_scaled_columns_by_their_range():
    x, y = sound_set(0)
    x[:, 4] = 0.0
    x[:5, 4], y[:5] = 10.0, 1.0  # a 0/1 column, divided by its standard deviation of 0.1
    spans = (4.0, 4.0, 4.0, 1.0, 10.0)
    with pytest.raises(BadInput, match="separated by 'e'"):
        drive("clear", GLMTerms("logistic", tuple("abcde"), spans=spans), by_site(x, y, np.arange(120) % 3))


def test_complete_separation_is_named_within_17_exchanges():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).astype(float)
    fit = fit_glm(GLMTerms("logistic", ("a", "b"), most_exchanges=17))
    sites = by_site(x, y, np.arange(120) % 3)
    with pytest.raises(BadInput, match="separated by 'a' and 'b'"):
        for _ in run_by_hand(fit, sites):
            pass


@pytest.mark.parametrize("intercept", ["own", "random"])
def test_separation_is_named_with_intercepts_of_hospitals(intercept):
    x, y = sound_set(1)
    x[:, 4] = 0.0
    x[:5, 4], y[:5] = 1.0, 1.0
    with pytest.raises(BadInput, match="separated by 'e'"):
        drive("clear", GLMTerms("logistic", tuple("abcde"), intercept=intercept), by_site(x, y, np.arange(120) % 6))


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 200), marks=pytest.mark.slow)])
def test_no_false_alarm_in_sound_sets(seeds):
    for seed in seeds:
        x, y = sound_set(seed)
        result, record = drive("clear", GLMTerms("logistic", tuple("abcde")), by_site(x, y, np.arange(120) % 3))
        assert record.exchanges <= 10
        reference = sm.GLM(y, constant(x), BINOMIAL).fit(tol=1e-14)
        np.testing.assert_allclose(result.beta, reference.params, rtol=1e-6, atol=1e-12)


def firth_of_pooled_rows(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Fit Firth's logistic regression with the leverage at the same beta."""
    design, beta = constant(x), np.zeros(x.shape[1] + 1)
    for _ in range(500):
        mu = 1 / (1 + np.exp(-design @ beta))
        weight = mu * (1 - mu)
        inverse = np.linalg.inv((design * weight[:, None]).T @ design)
        leverage = weight * np.einsum("ij,jk,ik->i", design, inverse, design)
        step = inverse @ (design.T @ (y - mu + leverage * (0.5 - mu)))
        beta = beta + step * min(1.0, 5 / np.abs(step).max())
        if np.abs(step).max() < 1e-12:
            break
    return beta


@pytest.mark.parametrize("way", ["clear", "ring"])
def test_firth_equals_pooled_firth_in_15_exchanges(way):
    x, y, site = heart_rows()
    result, record = drive(way, GLMTerms("logistic", HEART, firth=True), by_site(x, y, site))
    np.testing.assert_allclose(result.beta, firth_of_pooled_rows(x, y), rtol=1e-6)
    assert record.exchanges <= 15 and result.facts["firth"]
    eta = constant(x) @ result.beta
    assert result.facts["log_likelihood"] == pytest.approx((y * eta - np.logaddexp(0, eta)).sum(), rel=1e-9)
    mu = 1 / (1 + np.exp(-eta))
    inverse = np.linalg.inv((constant(x) * (mu * (1 - mu))[:, None]).T @ constant(x))
    np.testing.assert_allclose(errors_of(result), np.sqrt(np.diag(inverse)), rtol=1e-6)


@pytest.mark.parametrize("rare", [True, False])
def test_firth_gives_finite_estimates_of_separated_outcomes(rare):
    x, y = sound_set(0)
    if rare:
        x[:, 4] = 0.0
        x[:5, 4], y[:5] = 1.0, 1.0
    else:
        x, y = x[:60, :2], (x[:60, 0] + 0.5 * x[:60, 1] > 0).astype(float)
    names = tuple("abcde")[: x.shape[1]]
    result, record = drive("clear", GLMTerms("logistic", names, firth=True), by_site(x, y, np.arange(len(y)) % 3))
    np.testing.assert_allclose(result.beta, firth_of_pooled_rows(x, y), rtol=1e-6)
    assert record.exchanges <= 90


def test_firth_of_one_two_by_two_table_adds_half_to_each_cell():
    x = np.repeat([0.0, 1.0], 20)[:, None]
    y = np.r_[np.repeat([1.0, 0.0], [6, 14]), np.ones(20)]
    result, _ = drive("clear", GLMTerms("logistic", ("group",), firth=True), by_site(x, y, np.arange(40) % 3))
    first = np.log(6.5 / 14.5)
    np.testing.assert_allclose(result.beta, [first, np.log(20.5 / 0.5) - first], rtol=1e-8)


@pytest.mark.parametrize(
    ("terms", "y", "words"),
    [
        (GLMTerms("logistic", HEART), lambda y: y + 2 * (np.arange(740) == 3), "must be 0 or 1"),
        (GLMTerms("logistic", HEART), lambda y: np.where(np.arange(740) == 3, np.nan, y), "must be 0 or 1"),
        (GLMTerms("logistic", HEART), np.ones_like, "same outcome"),
        (GLMTerms("poisson", HEART), lambda y: y - 2 * (np.arange(740) == 3), "count of zero or more"),
        (GLMTerms("poisson", HEART), np.zeros_like, "all counts"),
        (GLMTerms("linear", HEART), lambda y: np.where(np.arange(740) == 3, np.inf, y), "finite"),
    ],
)
def test_bad_outcomes_are_refused_on_sums_in_one_sentence(terms, y, words):
    x, outcome, site = heart_rows()
    with pytest.raises(BadInput, match=words) as caught:
        drive("clear", terms, by_site(x, y(outcome), site))
    assert "\n" not in str(caught.value)


def test_free_intercepts_need_a_hospital_with_both_outcomes():
    x, _, site = heart_rows()
    with pytest.raises(BadInput, match="use random or common intercepts"):
        drive("clear", GLMTerms("logistic", HEART, intercept="own"), by_site(x, (site > 1).astype(float), site))


@pytest.mark.parametrize("intercept", ["common", "own", "random"])
def test_a_regression_without_columns_has_an_intercept(intercept):
    _, y, site = heart_rows()
    result, _ = drive("clear", GLMTerms("logistic", (), intercept=intercept), by_site(np.zeros((740, 0)), y, site))
    if intercept == "common":
        np.testing.assert_allclose(result.beta, [np.log(y.mean() / (1 - y.mean()))], rtol=1e-9)
    assert len(result.coefficients) == (intercept != "own")


def test_counts_that_are_not_whole_are_noted():
    x, y, site = heart_rows()
    result, _ = drive("clear", GLMTerms("poisson", HEART), by_site(x, y + 0.5, site))
    assert any("not whole" in note for note in result.notes)


def test_many_columns_are_noted_and_too_many_refused():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 9)), rng.normal(size=30)
    sites = by_site(x, y, np.arange(30) % 3)
    with pytest.raises(BadInput, match="10 coefficients for 30 rows") as caught:
        drive("clear", GLMTerms("linear", tuple("abcdefghi")), sites)
    assert caught.value.code == "too-many-columns"
    few = by_site(x[:, :4], y, np.arange(30) % 3)
    assert any(
        "5 coefficients for 30 rows" in note for note in drive("clear", GLMTerms("linear", tuple("abcd")), few)[0].notes
    )


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"family": "probit"}, "no regression family 'probit'"),
        ({"ridge": -1.0}, "ridge = -1.0 must be zero or more"),
        ({"errors": "hospital"}, "did you mean 'hospitals'"),
        ({"intercept": "none"}, "intercept = 'none'"),
        ({"tau2": (0.0,)}, "variances above zero"),
        ({"firth": True, "ridge": 1.0}, "Firth's correction"),
        ({"unit": 2.0}, "linear regression"),
        ({"spans": (1.0,)}, "1 spans do not match 13 columns"),
    ],
)
def test_bad_terms_are_refused_before_the_first_exchange(bad, words):
    with pytest.raises(BadInput, match=words):
        check_terms(GLMTerms(**{"family": "logistic", "names": HEART, **bad}))


def run_by_hand(fit, sites, leave=None):
    """Drive a fit; `leave` maps the number of an exchange to the site that leaves before it is answered."""
    left, roster, question, number = dict(leave or {}), dict(sites), next(fit), 0
    while True:
        number += 1
        gone = left.pop(number, None)
        if gone is not None:
            del roster[gone]
        yield question, tuple(roster)
        answers = [ANSWERS[question.kind](question, rows) for rows in roster.values()]
        values = {name: np.sum([a[name] for a in answers], axis=0) for name in question.blocks}
        try:
            question = fit.send(Total(values, tuple(roster), is_new_roster=gone is not None))
        except StopIteration as end:
            yield end.value, tuple(roster)
            return


@pytest.mark.parametrize("when", [2, 3, 6, 7])
@pytest.mark.parametrize("errors", ["model", "rows"])
@pytest.mark.parametrize("intercept", ["common", "own", "random"])
def test_a_site_that_leaves_changes_the_fit_to_that_of_the_sites_left(when, errors, intercept):
    x, y, site = heart_rows()
    sites = by_site(x, y, site)
    grid = (0.5,) if errors == "rows" else TAU2
    terms = GLMTerms("logistic", HEART, errors=errors, intercept=intercept, tau2=grid)
    *asked, (result, roster) = run_by_hand(fit_glm(terms), sites, {when: "1"})
    if "1" in roster:
        assert len(asked) < when  # the fit was over before
        return
    expected, _ = drive("clear", terms, {name: rows for name, rows in sites.items() if name != "1"})
    np.testing.assert_allclose(result.beta, expected.beta, rtol=1e-6)
    np.testing.assert_allclose(errors_of(result), errors_of(expected), rtol=1e-6)
    assert result.facts["log_likelihood"] == pytest.approx(expected.facts["log_likelihood"], rel=1e-9)
    assert result.facts.get("tau2") == expected.facts.get("tau2")
    assert any("dropped out" in note and "over the 3 sites left" in note for note in result.notes)
    rosters: dict[str, set[tuple[str, ...]]] = {}
    for question, answered in asked:
        beta = question.values.get("beta", np.zeros(0))
        rosters.setdefault(question.kind + str(np.asarray(beta).tobytes()), set()).add(answered)
    assert all(len(r) == 1 for r in rosters.values())  # no question was answered by two rosters


@pytest.mark.parametrize("intercept", ["common", "own", "random"])
def test_a_column_whose_rows_were_at_the_site_that_left_is_left_out(intercept):
    x, y, site = heart_rows()
    ward = (site == 1) & (np.arange(740) % 3 == 0)
    sites = by_site(np.column_stack([x, ward]), y, site)
    terms = GLMTerms("logistic", (*HEART, "ward"), intercept=intercept, tau2=(0.5,))
    *_, (result, _) = run_by_hand(fit_glm(terms), sites, {4: "1"})
    left = {name: rows for name, rows in by_site(x, y, site).items() if name != "1"}
    expected, _ = drive("clear", GLMTerms("logistic", HEART, intercept=intercept, tau2=(0.5,)), left)
    np.testing.assert_allclose(result.beta, expected.beta, rtol=1e-6)
    assert [c.name for c in result.coefficients if c.estimate is None] == ["ward"]


@pytest.mark.parametrize("separated", [False, True])
def test_firth_is_that_of_the_sites_left(separated):
    x, y = sound_set(0)
    if separated:
        x, y = x[:60, :2], (x[:60, 0] + 0.5 * x[:60, 1] > 0).astype(float)
    sites = by_site(x, y, np.arange(len(y)) % 4)
    terms = GLMTerms("logistic", tuple("abcde")[: x.shape[1]], firth=True)
    for when in (3, 14, 15):
        *_, (result, roster) = run_by_hand(fit_glm(terms), sites, {when: "1"})
        left = np.arange(len(y)) % 4 != 1
        if "1" not in roster:
            np.testing.assert_allclose(result.beta, firth_of_pooled_rows(x[left], y[left]), rtol=1e-6)


def test_linear_regression_takes_one_more_exchange_when_a_site_leaves():
    x, _, site = heart_rows()
    sites = by_site(x[:, 1:], x[:, 0], site)
    terms = GLMTerms("linear", HEART[1:])
    *asked, (result, _) = run_by_hand(fit_glm(terms), sites, {2: "0"})
    assert len(asked) == 3
    left = site != 0
    assert_equal_to_pooled(result, sm.OLS(x[left, 0], constant(x[left][:, 1:])).fit())


def test_a_fit_gives_up_after_the_most_exchanges():
    x, y, site = heart_rows()
    with pytest.raises(RunFailed, match="within 3 exchanges") as caught:
        drive("clear", GLMTerms("logistic", HEART, most_exchanges=3), by_site(x, y, site))
    assert caught.value.code == "not-converged"


def test_a_fit_is_a_function_of_its_totals():
    x, y, site = heart_rows()
    sites = by_site(x, y, site)
    terms = GLMTerms("logistic", HEART, intercept="random", errors="hospitals")
    first, second = (list(run_by_hand(fit_glm(terms), sites)) for _ in range(2))
    assert first[-1][0] == second[-1][0]
    for (a, _), (b, _) in zip(first[:-1], second[:-1], strict=True):
        assert isinstance(a, Question) and a.kind == b.kind and a.step == b.step
        assert np.asarray(a.values.get("beta", 0)).tobytes() == np.asarray(b.values.get("beta", 0)).tobytes()


def test_a_step_that_lowers_the_log_likelihood_is_halved():
    from grandrounds.capabilities.statistics.newton import Path

    path = Path(np.zeros(1), np.zeros(1))
    path.advance(np.array([4.0]), np.eye(1), -10.0)
    assert path.beta[0] == 4.0
    path.advance(np.array([-1.0]), np.eye(1), -11.0)  # lower: go back half
    assert path.beta[0] == 2.0
    path.advance(np.array([0.5]), np.eye(1), -9.0)
    assert path.beta[0] == 2.5
    with pytest.raises(RunFailed, match="10 halvings"):
        for _ in range(11):
            path.advance(np.array([0.5]), np.eye(1), -20.0)
