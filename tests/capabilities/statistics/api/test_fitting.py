"""`gr.glm` and `gr.cox`: coefficients in original units equal those of statsmodels and lifelines on the pooled raw rows."""

from __future__ import annotations

import csv
import io

import numpy as np
import pandas as pd
import pytest

import grandrounds as gr
from tests.capabilities.statistics.pooled_regressions import NUMBERS, WORDS, complete, heart, raw_design
from tests.support import refused

FEATURES = [*NUMBERS, *WORDS]


@pytest.fixture(scope="module")
def logistic(tmp_path_factory) -> gr.Regression:
    """A logistic regression on the heart data set with one intercept."""
    return gr.glm("heart", features=FEATURES, out=tmp_path_factory.mktemp("glm") / "run")


@pytest.fixture(scope="module")
def pooled():
    """The same by statsmodels on pooled rows."""
    import statsmodels.api as sm

    frame = complete(heart(), FEATURES)
    y = (frame["disease"] == "yes").astype(float)
    return sm.GLM(y, raw_design(frame, NUMBERS, WORDS), sm.families.Binomial()).fit(tol=1e-13)


def test_a_logistic_regression_equals_statsmodels(logistic, pooled):
    frame = logistic.to_frame()
    assert list(frame.index) == list(pooled.params.index)
    np.testing.assert_allclose(frame["coef"], pooled.params, rtol=1e-6)
    np.testing.assert_allclose(frame["std_err"], pooled.bse, rtol=1e-6)
    np.testing.assert_allclose(frame["p"], pooled.pvalues, atol=1e-6)
    np.testing.assert_allclose(frame[["low", "high"]], pooled.conf_int(), rtol=1e-6)
    np.testing.assert_allclose(frame["odds_ratio"].iloc[1:], np.exp(pooled.params.iloc[1:]), rtol=1e-6)
    facts = logistic.estimates.facts
    assert facts["n"] == pooled.nobs
    assert facts["log_likelihood"] == pytest.approx(pooled.llf, rel=1e-9)
    assert facts["aic"] == pytest.approx(pooled.aic, rel=1e-9)
    assert logistic.exchanges["fit"] <= 7


def test_the_result_reads_as_text_csv_latex_and_html(logistic, pooled, tmp_path):
    text = logistic.summary()
    line = next(row for row in text.splitlines() if row.startswith("age"))
    assert line.split()[1] == f"{pooled.params['age']:.4f}" and str(logistic) == text
    rows = list(csv.DictReader(io.StringIO(logistic.to_csv(tmp_path / "c.csv"))))
    assert float(rows[1]["coef"]) == logistic.estimates.coefficients[1].estimate
    assert (tmp_path / "c.csv").read_text() == logistic.to_csv()
    assert r"\begin{tabular}" in logistic.to_latex(tmp_path / "c.tex")
    assert "resting_bp" in logistic._repr_html_()
    with refused("cannot-write"):
        logistic.to_csv(tmp_path / "no" / "c.csv")


def test_a_saved_run_gives_the_same_result(logistic):
    from grandrounds.capabilities.statistics.api.fitting import read_regression

    again = read_regression(gr.load_run(logistic.run.folder))
    assert again.summary() == logistic.summary()


def test_columns_that_cannot_be_estimated_are_named(tmp_path):
    frame = heart().assign(fixed=1.0, twice=2 * heart()["age"] + 1, rare=(np.arange(len(heart())) < 3).astype(float))
    features = ["age", "fixed", "twice", "rare"]
    result = gr.glm(frame, label="disease", features=features, site="hospital", out=tmp_path / "run")
    reasons = result.to_frame()["left_out"]
    assert reasons["twice"] == "is a combination of columns before it"
    assert reasons["rare"] == "all but fewer than 5 rows have one value"
    assert "column 'fixed' is left out: one value only (1)".casefold() in result.summary().casefold()
    assert np.isnan(result.to_frame()["coef"]["rare"])


def test_an_interrupted_fit_resumes_with_the_same_bits(tmp_path):
    from grandrounds.capabilities.statistics.api.fitting import read_regression

    def stop(event):
        if event["event"] == "round" and event["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gr.glm("heart", features=["age", "sex"], out=tmp_path / "a", progress=stop)
    resumed = read_regression(gr.resume(tmp_path / "a"))
    assert resumed.to_csv() == gr.glm("heart", features=["age", "sex"], out=tmp_path / "b").to_csv()


def test_a_formula_with_products_equals_statsmodels(tmp_path):
    import statsmodels.api as sm

    formula = "disease ~ age * C(sex) + resting_bp + I(resting_bp**2)"
    result = gr.glm("heart", formula=formula, intercept="common", out=tmp_path / "run").to_frame()
    frame = complete(heart(), ["age", "sex", "resting_bp"])
    x = raw_design(frame, ["age", "resting_bp"], {"sex": "female"})
    x["age:sex=male"], x["resting_bp^2"] = x["age"] * x["sex=male"], x["resting_bp"] ** 2
    scale = x.abs().max()  # statsmodels itself needs tame columns
    pooled = sm.GLM((frame["disease"] == "yes").astype(float), x / scale, sm.families.Binomial()).fit(tol=1e-13)
    np.testing.assert_allclose(result["coef"][x.columns], pooled.params / scale, rtol=1e-6)
    np.testing.assert_allclose(result["std_err"][x.columns], pooled.bse / scale, rtol=1e-6)


def test_secure_sums_give_the_same_numbers(logistic, tmp_path):
    result = gr.glm("heart", features=FEATURES, intercept="common", secure=True, out=tmp_path / "run")
    np.testing.assert_allclose(result.to_frame()["coef"], logistic.to_frame()["coef"], rtol=1e-6)
    np.testing.assert_allclose(result.to_frame()["std_err"], logistic.to_frame()["std_err"], rtol=1e-6)
    assert not result.record.by_site


def test_the_default_of_real_hospitals_is_the_fit_of_the_pooled_rows(logistic):
    assert logistic.run.plan["split"]["partition"] == "column"
    assert logistic.estimates.facts["intercept"] == "common"


@pytest.mark.parametrize(("intercept", "word"), [("common", ""), ("own", "too large"), ("random", "too small")])
def test_intercepts_of_small_hospitals_are_warned_of(intercept, word, tmp_path):
    rng = np.random.default_rng(0)
    site = np.repeat(np.arange(30), 10)
    frame = pd.DataFrame({"x": rng.normal(size=300), "hospital": [f"h{k}" for k in site]})
    frame["died"] = (rng.random(300) < 1 / (1 + np.exp(-frame["x"] - rng.normal(size=30)[site]))).astype(int)
    options = {"label": "died", "features": ["x"], "site": "hospital", "intercept": intercept}
    text = gr.glm(frame, out=tmp_path / "run", **options).summary()
    assert ("the median hospital has 10 rows".casefold() in text.casefold()) == bool(word) and word in text


def test_robust_errors_equal_statsmodels(tmp_path):
    import statsmodels.api as sm

    result = gr.glm("heart", features=NUMBERS, intercept="common", errors="rows", out=tmp_path / "run")
    frame = complete(heart(), NUMBERS)
    y = (frame["disease"] == "yes").astype(float)
    pooled = sm.GLM(y, raw_design(frame, NUMBERS, {}), sm.families.Binomial()).fit(tol=1e-13, cov_type="HC0")
    np.testing.assert_allclose(result.to_frame()["std_err"], pooled.bse, rtol=1e-6)


@pytest.mark.parametrize("family", ["linear", "poisson"])
def test_numbers_and_counts_equal_statsmodels(family, tmp_path):
    import statsmodels.api as sm

    frame = complete(heart(), ["age", "resting_bp", "sex", "max_heart_rate"])
    frame = frame.assign(age=frame["age"].round())
    settings = {"label": "age", "features": ["resting_bp", "sex", "max_heart_rate"], "site": "hospital"}
    result = gr.glm(frame, family=family, intercept="common", out=tmp_path / "run", **settings).to_frame()
    x = raw_design(frame, ["resting_bp", "max_heart_rate"], {"sex": "female"})
    model = sm.OLS(frame["age"], x) if family == "linear" else sm.GLM(frame["age"], x, sm.families.Poisson())
    pooled = model.fit() if family == "linear" else model.fit(tol=1e-13)
    np.testing.assert_allclose(result["coef"], pooled.params, rtol=1e-6)
    np.testing.assert_allclose(result["std_err"], pooled.bse, rtol=1e-6)
    assert ("t" if family == "linear" else "z") in result.columns


@pytest.fixture(scope="module")
def lung() -> pd.DataFrame:
    """The lung cancer rows that come with lifelines: 18 institutions."""
    from lifelines.datasets import load_lung

    frame = load_lung().dropna(subset=["inst", "age", "sex", "ph.ecog"])
    return frame.assign(inst=frame["inst"].astype(int).astype(str), sex=frame["sex"].map({1: "male", 2: "female"}))


def test_a_stratified_cox_regression_equals_lifelines(lung, tmp_path):
    from lifelines import CoxPHFitter

    columns = {"time": "time", "event": "status", "site": "inst", "features": ["age", "sex", "ph.ecog"]}
    result = gr.cox(lung, out=tmp_path / "run", **columns)
    x = raw_design(lung, ["age", "ph.ecog"], {"sex": "female"}).drop(columns="(intercept)")
    held = x.assign(time=lung["time"], status=lung["status"], inst=lung["inst"])
    pooled = CoxPHFitter().fit(held, "time", "status", strata=["inst"], fit_options={"precision": 1e-12})
    frame = result.to_frame()
    np.testing.assert_allclose(frame["coef"], pooled.params_[frame.index], rtol=1e-6)
    np.testing.assert_allclose(frame["std_err"], pooled.standard_errors_[frame.index], rtol=1e-6)
    assert "hospitals have fewer than 5 rows" in result.summary()
    assert "hazard ratio" in result.summary() and "time until status" in result.summary()


def test_a_survival_formula_names_time_and_event(lung, tmp_path):
    result = gr.cox(lung, formula="Surv(time, status) ~ age + C(sex)", site="inst", out=tmp_path / "run")
    assert list(result.to_frame().index) == ["age", "sex=male"]


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        ({"label": "disease", "features": ["agee"]}, "unknown-column", "agee"),
        ({"features": ["age"]}, "label-not-set", "label"),
        ({"label": "disease", "formula": "disease ~ age"}, "conflicting-options", "formula"),
        ({"formula": "Surv(age, disease) ~ sex"}, "bad-formula", "cox"),
        ({"label": "disease", "family": "gamma"}, "unknown-family", "gamma"),
        ({"label": "age", "features": ["resting_bp"]}, "label-not-classes", "poisson"),
        ({"label": "disease", "features": ["age"], "ridge": -1.0}, None, "ridge"),
        ({"label": "disease", "features": ["age"], "intercept": "fixed"}, None, "intercept"),
        ({"label": "chest_pain", "features": ["age"]}, None, "chest_pain"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(options, code, named, tmp_path):
    with pytest.raises(gr.BadInput, match=named) as caught:
        gr.glm(heart(), site="hospital", out=tmp_path / "run", **options)
    assert code is None or caught.value.code == code
    assert "\n" not in str(caught.value)


def test_two_hospitals_are_refused(tmp_path):
    two = heart()[heart()["hospital"].isin(["hungarian", "cleveland"])]
    assert two["hospital"].nunique() == 2
    with pytest.raises(gr.BadInput, match="2 "):
        gr.glm(two, label="disease", features=["age"], site="hospital", out=tmp_path / "run")


def test_a_run_without_estimates_is_refused(tmp_path):
    from grandrounds.capabilities.statistics.api.fitting import read_regression

    run = gr.run("heart", rounds=1, out=tmp_path / "run")
    with refused("no-estimates", match="fedavg"):
        read_regression(run)


@pytest.mark.parametrize("absent", ["weights", "freq_weights", "offset", "exposure"])
def test_weights_and_offsets_are_refused_before_a_run(absent, tmp_path):
    frame = heart()
    with refused("not-offered"):
        gr.glm(frame, label="disease", features=["age"], out=tmp_path / "run", **{absent: frame["age"]})
    with pytest.raises(TypeError, match="familly"):
        gr.glm(frame, label="disease", familly="logistic")
    assert not (tmp_path / "run").exists()


def test_what_the_command_line_warns_of_is_in_the_summary_and_a_python_warning(tmp_path):
    rng = np.random.default_rng(0)
    n = 400
    frame = pd.DataFrame({"hospital": [f"H{k % 4}" for k in range(n)], "days": rng.exponential(size=n) + 0.1})
    frame["dz"] = np.where(np.arange(n) < 2, "Very rare", np.where(rng.random(n) < 0.3, "Cirrhosis", "Cancer"))
    frame["crea"] = rng.normal(size=n)
    frame.loc[frame["hospital"] == "H0", "crea"] = np.nan
    frame["died"] = rng.integers(0, 2, n)
    options = {"features": ["dz", "crea"], "site": "hospital"}
    fits = {
        "glm": lambda **more: gr.glm(frame, label="died", out=tmp_path / f"glm{len(more)}", **options, **more),
        "cox": lambda **more: gr.cox(frame, time="days", event="died", out=tmp_path / f"cox{len(more)}", **options, **more),
    }
    cirrhosis = int((frame["dz"][frame["crea"].notna()] == "Cirrhosis").sum())
    for fit in fits.values():
        with pytest.warns(gr.GrandRoundsWarning) as caught:
            text = fit().summary()
        said = [str(w.message) for w in caught]
        assert all(w.filename == __file__ for w in caught)
        assert any("at H0: left out of the run" in s for s in said)
        assert any(f"other = Cirrhosis ({cirrhosis} rows) and a level with fewer than 5 rows" in s for s in said)
        assert all(f"warning: {s}" in text for s in said)
        with pytest.warns(gr.GrandRoundsWarning, match="'crea': 100 missing values were filled with the median"):
            fit(settings=["data.complete=false"])


def test_a_fraction_as_a_count_is_refused_with_the_option_that_there_is(tmp_path):
    frame = heart().assign(half=np.arange(len(heart())) % 7 + 0.5)
    with refused("label-not-counts") as e:
        gr.glm(frame, label="half", features=["age"], site="hospital", family="poisson", out=tmp_path / "run")
    assert "--family linear" in str(e.value) and "--task" not in str(e.value)


def test_copies_are_told_of_a_fit_without_test_rows(tmp_path):
    twice = pd.concat([heart(), heart()[:3]], ignore_index=True)
    with pytest.warns(gr.GrandRoundsWarning, match="rows are copies of another row: copies count twice"):
        gr.glm(twice, label="disease", features=["age"], site="hospital", out=tmp_path / "run")
