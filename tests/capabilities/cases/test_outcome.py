"""A predicted number, count or hazard explained: contributions add up, intervals are those of statsmodels, pages have no risk."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import grandrounds as gr
from grandrounds.analysis.compare import compare
from grandrounds.capabilities.cases.case import explain_case, near_misses
from grandrounds.capabilities.cases.outcome import OutcomeExplanation
from grandrounds.capabilities.cases.outcome_page import outcome_figure, outcome_page
from grandrounds.capabilities.tuning.trial import check_metric, make_goal
from grandrounds.runs.export import score_json, to_json, to_onnx
from grandrounds.runs.readable_model import readable
from tests.command import rounds
from tests.report.summaries import board_page
from tests.support import refused


def table() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    n = 240
    t = pd.DataFrame(
        {"age": rng.normal(60, 10, n).round(1), "sex": rng.choice(["f", "m"], n), "hospital": [*"abcd"] * 60}
    )
    eta = 0.04 * (t.age - 60) + 0.4 * (t.sex == "m")
    t["days"] = 20 + 5 * eta + rng.normal(0, 2, n)
    t["visits"] = rng.poisson(np.exp(0.5 + eta))
    t["died"], t["time"] = (rng.random(n) < 0.7).astype(int), rng.exponential(300 * np.exp(-eta)).round() + 1
    return t


LABELS = {
    "regression": {"label": "days"},
    "count": {"label": "visits", "task": "count"},
    "survival": {"label": "died", "duration": "time"},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of each task by sums, and one by averaging, made when it is asked for."""
    home, done = tmp_path_factory.mktemp("runs"), {}
    table().to_csv(home / "t.csv", index=False)

    def run(task: str, method: str = "exact") -> gr.Run:
        key = f"{task}-{method}"
        if key not in done:
            data = {"table": str(home / "t.csv"), "site": "hospital", "features": ["age", "sex"], **LABELS[task]}
            settings: dict = {"name": "fedavg", "rounds": 2}
            if method == "exact":
                data |= {"coding": "reference", "clip": 0.0}
                settings = {"name": "cox"} if task == "survival" else {"name": "glm", "exact": {"intercept": "common"}}
            split = {"val": 0.0, "test": 0.0} if method == "exact" else {}
            told = {"name": key, "data": data, "method": settings, "split": split}
            done[key] = gr.run(gr.Experiment.parse(told), out=home / key)
        return done[key]

    return run


@pytest.mark.parametrize("task", ["regression", "count"])
def test_the_prediction_and_its_interval_are_those_of_statsmodels(made, task):
    sm = pytest.importorskip("statsmodels.api")
    t, label = table(), LABELS[task]["label"]
    x = np.column_stack([np.ones(len(t)), t.age, t.sex == "m"]).astype(float)
    family = sm.families.Poisson() if task == "count" else sm.families.Gaussian()
    fit = (sm.GLM(t[label], x, family=family) if task == "count" else sm.OLS(t[label], x)).fit()
    theirs = fit.get_prediction(x[4:5]).summary_frame().iloc[0]
    case = explain_case(made(task), 5)
    assert isinstance(case, OutcomeExplanation) and case.label == label
    assert case.prediction == pytest.approx(theirs["mean"], rel=1e-6)
    assert case.prediction_interval == pytest.approx([theirs["mean_ci_lower"], theirs["mean_ci_upper"]], rel=1e-5)
    assert case.base + sum(r.contribution for r in case.attributions) == pytest.approx(case.score, abs=1e-6)


def test_a_hazard_is_relative_to_the_mean_patient(made):
    t, run = table(), made("survival")
    case = explain_case(run, 5)
    beta = {c["name"]: c for c in run.summary["estimates"]["original"]["coefficients"]}
    expected = beta["age"]["estimate"] * (t.age[4] - t.age.mean()) + beta["sex=m"]["estimate"] * (
        (t.sex[4] == "m") - (t.sex == "m").mean()
    )
    assert np.log(case.prediction) == pytest.approx(expected, rel=1e-4) and case.baseline == 1.0
    low, high = case.prediction_interval
    assert low < case.prediction < high and low * high == pytest.approx(case.prediction**2)
    age = next(r for r in case.attributions if r.column == "age")
    half = 1.959963985 * beta["age"]["error"] * abs(t.age[4] - t.age.mean())
    assert age.high - age.low == pytest.approx(2 * half, rel=1e-4)
    assert case.ratio(age) == pytest.approx(np.exp(age.contribution))


@pytest.mark.parametrize("task", LABELS)
@pytest.mark.parametrize("method", ["exact", "fedavg"])
def test_pages_have_the_words_of_the_task(made, task, method):
    run = made(task, method)
    case = explain_case(run, 5)
    page, record = outcome_page(case), case.to_dict()
    words = {
        "regression": "prediction of days",
        "count": "expected count of visits",
        "survival": "relative hazard of died",
    }
    assert words[task] in page and record["task"] == task and "odds_ratio" not in str(record)
    for absent in ("AUROC", "threshold", "log-odds", "flagged", "odds ratio"):
        assert (
            absent not in page.split("</style>")[1]
            and absent not in (run.folder / "report.html").read_text().split("</style>")[1].split("plotly-packed")[0]
        )
    card = board_page(run)
    assert not [absent for absent in ("AUROC", "flagged", "probability", "Calibration") if absent in card]
    assert ("95% CI" in page) == (method == "exact")
    assert outcome_figure(case, top=5).plotly().data
    text = rounds("explain", run.folder, "--case", 5, "--out", run.folder / "case.html")
    assert not text.returncode and words[task] in " ".join(text.stdout.split())


@pytest.mark.parametrize("task", LABELS)
def test_exports_predict_as_the_model_does(made, task):
    run, t = made(task, "fedavg"), table()
    values = to_json(run.model)
    predicted = run.model.predict(t).values
    assert values["task"] == task and "threshold" not in values and "classes" not in values
    for k in (0, 5):
        row = {"age": float(t.age[k]), "sex": t.sex[k]}
        assert score_json(values, row) == pytest.approx([predicted[k]], rel=1e-5)
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    session = runtime.InferenceSession(to_onnx(run.model).SerializeToString())
    feed = {"age": t[["age"]].to_numpy(np.float32), "sex": t[["sex"]].to_numpy(object)}
    (out,) = session.run(["prediction"], feed)
    assert out[:, 0] == pytest.approx(predicted, rel=1e-4)


def test_near_misses_are_refused(made):
    with refused("not-binary", match="near misses need two classes"):
        near_misses(made("regression", "fedavg"))


def test_runs_are_compared_by_the_metrics_of_their_task(made, tmp_path):
    number, count = made("regression", "fedavg"), made("count", "fedavg")
    assert compare([number]).metrics[0] == "r2" and "d2" in compare([count]).metrics
    with refused("several-tasks", match="count, regression"):
        compare([number, count])
    done = rounds("compare", number.folder, made("regression").folder, "--out", tmp_path / "both", "--quiet")
    assert done.returncode == 0 and (tmp_path / "both" / "report.html").exists()


@pytest.mark.parametrize("task, metric", [("regression", "r2"), ("count", "d2"), ("survival", "c_index")])
def test_tuning_maximises_the_headline_metric_of_the_task(task, metric):
    goal = make_goal(None, "auto", classes=40, task=task)
    assert goal.metric == metric and goal.maximize
    check_metric("rmse", "auto", ())
    assert not make_goal("rmse", "auto", classes=40, task=task).maximize


def test_a_linear_model_is_read_in_the_units_of_its_outcome(made):
    run, t = made("regression"), table()
    told = readable(run.model)
    fit = np.linalg.lstsq(np.column_stack([np.ones(len(t)), t.age, t.sex == "m"]).astype(float), t.days, rcond=None)[0]
    age = next(w for w in told.weights if w.feature == "age")
    assert age.weight / age.step == pytest.approx(fit[1], rel=1e-5)
    assert told.baseline == pytest.approx(fit[0] + fit[1] * t.age.mean(), rel=1e-5)
    assert "odds" not in str(told.to_dict()) and "prediction of days" in rounds("show", run.folder, "--model").stdout
    hazard = readable(made("survival").model).to_dict()
    assert hazard["weights"][0]["hazard_ratio"] > 0 and "intercept" not in hazard
