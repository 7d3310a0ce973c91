"""Runs that predict a number, a count or the time to an event: equal to pooled fits, on both kernels and by messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.errors import BadInput

pd = pytest.importorskip("pandas")

WHOLE = {
    "split.val": 0.0, "split.test": 0.0, "train.batch": 0, "train.epochs": 1, "engine.precision": "float64", "data.clip": 0.0,
    "explain.sketch": "none", "evaluation.every": 1000, "method.robust.guard": 0.0,
}  # fmt: skip
"""One step of gradient descent on all rows a round: FedAvg then descends the pooled loss."""


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(11)
    n = 240
    x = rng.normal(size=(n, 2))
    sex = rng.integers(0, 2, n)
    eta = 0.6 * x[:, 0] - 0.4 * x[:, 1] + 0.3 * sex
    death, censoring = rng.exponential(100 * np.exp(-eta)), rng.exponential(150, n)
    return pd.DataFrame(
        {
            "a": x[:, 0], "b": x[:, 1], "sex": np.where(sex == 1, "m", "f"), "hospital": np.array(list("NESW"))[np.arange(n) % 4],
            "los": 40 + 12 * eta + 3 * rng.normal(size=n), "visits": rng.poisson(np.exp(1.2 + 0.5 * eta)),
            "days": np.ceil(np.minimum(death, censoring)), "died": (death <= censoring).astype(int),
        }
    )  # fmt: skip


TASKS: dict[str, dict[str, Any]] = {
    "regression": {"label": "los", "drop": ["visits", "days", "died"]},
    "count": {"label": "visits", "task": "count", "drop": ["los", "days", "died"]},
    "survival": {"label": "died", "time": "days", "drop": ["los", "visits"]},
}


def run(frame, place, task: str, **settings):
    options = {**TASKS[task], "site": "hospital", "progress": False, "rounds": settings.pop("rounds", 2)}
    method = settings.pop("method", "fedavg")
    return gr.run(frame, **options, method=method, out=place, settings={k.replace("__", "."): v for k, v in settings.items()})


def pooled_run(frame, place, task: str, *, rounds: int, lr: float):
    """Descend the loss of all hospitals' rows; two standardised columns need few rounds."""
    options = {**TASKS[task], "drop": [*TASKS[task]["drop"], "sex"]}
    settings = {**WHOLE, "train.lr": lr}
    return gr.run(frame, **options, site="hospital", rounds=rounds, out=place, progress=False, settings=settings)


def test_fedavg_reaches_the_least_squares_solution(frame, tmp_path):
    made = pooled_run(frame, tmp_path / "run", "regression", rounds=25, lr=1.0)
    x = np.column_stack([np.ones(len(frame)), frame[["a", "b"]]])
    expected = x @ np.linalg.lstsq(x, frame["los"], rcond=None)[0]
    predicted = gr.predict(made, frame)
    assert list(predicted.columns) == ["predicted_los"]
    np.testing.assert_allclose(predicted["predicted_los"], expected, rtol=1e-8)
    assert made.summary["task"] == "regression" and made.summary["model"] == "linear"


def test_fedavg_reaches_the_poisson_regression_of_statsmodels(frame, tmp_path):
    sm = pytest.importorskip("statsmodels.api")
    made = pooled_run(frame, tmp_path / "run", "count", rounds=60, lr=0.6)
    expected = sm.GLM(frame["visits"], sm.add_constant(frame[["a", "b"]]), family=sm.families.Poisson()).fit().fittedvalues
    np.testing.assert_allclose(gr.predict(made, frame)["expected_visits"], expected, rtol=1e-7)


def test_fedavg_reaches_the_cox_regression_stratified_by_hospital(frame, tmp_path):
    phreg = pytest.importorskip("statsmodels.duration.hazard_regression").PHReg
    made = pooled_run(frame, tmp_path / "run", "survival", rounds=50, lr=1.5)
    x = frame[["a", "b"]].to_numpy()
    fit = phreg(frame["days"], x, status=frame["died"], strata=frame["hospital"], ties="breslow").fit()
    score = gr.predict(made, frame)["risk_score"].to_numpy()
    np.testing.assert_allclose(score - score.mean(), (x - x.mean(axis=0)) @ fit.params, atol=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_kernels_messages_and_secure_sums_agree(frame, tmp_path, task):
    pytest.importorskip("torch")
    settings = {"engine__precision": "float64", "model__name": "mlp", "model__hidden": [4]}
    plain = run(frame, tmp_path / "numpy", task, **settings)
    theta = plain.model.theta
    wire = run(frame, tmp_path / "wire", task, engine__wire=True, **settings)
    np.testing.assert_array_equal(wire.model.theta, theta)
    assert wire.summary["final"] == pytest.approx(plain.summary["final"], rel=1e-9)
    torch = run(frame, tmp_path / "torch", task, engine__kernel="torch", **settings)
    np.testing.assert_allclose(torch.model.theta, theta, atol=1e-9)
    secure = run(frame, tmp_path / "secure", task, privacy__secure=True, **settings)
    np.testing.assert_allclose(secure.model.theta, theta, atol=1e-5)
    for name, value in plain.summary["final"].items():
        assert secure.summary["final"][name] == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize("method", ["fedprox", "scaffold", "fedadam", "feddyn", "fedbuff", "clustered", "local", "pooled"])
@pytest.mark.parametrize("task", TASKS)
def test_methods_of_averaging_learn_every_task(frame, tmp_path, task, method):
    made = run(frame, tmp_path / "run", task, method=method, rounds=3, explain__sketch="none")
    metric = {"regression": "r2", "count": "d2", "survival": "c_index"}[task]
    assert made.summary["final"][metric] > (0.5 if task == "survival" else -0.5)


@pytest.mark.parametrize("sketch", ["permutation", "coefficients", "shap"])
@pytest.mark.parametrize("task", TASKS)
def test_explanations_find_the_feature_that_matters(frame, tmp_path, task, sketch):
    made = run(frame, tmp_path / "run", task, rounds=6, explain__sketch=sketch)
    assert made.summary["explanation"]["top"][0]["feature"] == "a"
    torch = run(frame, tmp_path / "self", task, rounds=6, explain__sketch="permutation", explain__score="self")
    assert torch.summary["explanation"]["top"][0]["feature"] == "a"


def test_early_stopping_follows_the_loss_of_the_task(frame, tmp_path):
    made = run(frame, tmp_path / "run", "survival", rounds=40, train__early_stop=2, train__lr=1.0, explain__sketch="none")
    losses = [r["val"]["cox_loss"] for r in made.rounds]
    assert made.summary["stopped"] and f"round {1 + int(np.argmin(losses))} is kept" in made.summary["stopped"]


def test_an_interrupted_run_resumes_with_the_same_bits(frame, tmp_path):
    whole = run(frame, tmp_path / "whole", "survival", rounds=4)
    half = run(frame, tmp_path / "half", "survival", rounds=2)
    resumed = gr.resume(half.folder, settings={"method.rounds": 4}, table=frame, progress=False)
    np.testing.assert_array_equal(resumed.model.theta, whole.model.theta)


def test_dp_sgd_clips_numbers_and_counts(frame, tmp_path):
    ranges = {"a": [-3, 3], "b": [-3, 3], "los": [0, 80], "visits": [0, 12]}
    settings = {
        "privacy__mechanism": "dp-sgd", "privacy__epsilon": 8.0, "privacy__min_rows": 20, "data__encoding": "public",
        "data__ranges": ranges, "data__levels": {"sex": ["f", "m"]}, "explain__sketch": "none",
    }  # fmt: skip
    for task in ("regression", "count"):
        made = run(frame, tmp_path / task, task, **settings)
        assert made.summary["privacy"]["epsilon"] <= 8.0
    levels = {"sex": ["f", "m"], "died": ["0", "1"]}
    with pytest.raises(BadInput, match="the Cox loss couples patients") as error:
        run(frame, tmp_path / "survival", "survival", **{**settings, "data__levels": levels})
    assert error.value.code == "task-does-not-fit"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "veil"}, "method 'veil'"),
        ({"method": "fedxchain"}, "method 'fedxchain'"),
        ({"train__class_weights": "balanced"}, "train.class_weights"),
        ({"evaluation__calibrate": "platt"}, "evaluation.calibrate"),
        ({"evaluation__threshold": "youden"}, "evaluation.threshold"),
        ({"model__name": "forest"}, "model.name is 'forest'"),
        ({"explain__score": "accuracy"}, "explain.score"),
        ({"data__event": "1"}, "data.event"),
    ],
)
def test_settings_for_classes_are_refused_in_a_sentence(frame, tmp_path, settings, words):
    with pytest.raises(BadInput, match=words.replace(".", r"\.")):
        run(frame, tmp_path / "run", "regression", **settings)
    assert not (tmp_path / "run").exists()


def test_a_linear_model_is_not_for_classes(frame, tmp_path):
    with pytest.raises(BadInput, match="use 'logistic'"):
        gr.run(frame, label="died", site="hospital", drop=["days"], model="linear", out=tmp_path / "run", progress=False)


def test_the_report_shows_the_scores_of_the_task(frame, tmp_path):
    made = run(frame, tmp_path / "run", "survival", evaluation__subgroup="sex")
    page = (made.folder / "report.html").read_text(encoding="utf-8")
    assert "C-index" in page and "lowest AUROC" not in page
    assert set(made.summary["subgroups"]) == {"f", "m"}
    overall = gr.evaluate(made, frame).overall
    assert overall["events"] == frame["died"].sum()


def test_runs_of_one_task_are_compared_and_of_two_are_not(frame, tmp_path):
    fast = {"explain__sketch": "none"}
    numbers = [run(frame, tmp_path / f"r{k}", "regression", method=m, **fast) for k, m in enumerate(("fedavg", "fedprox"))]
    table = gr.compare([made.folder for made in numbers]).frame
    assert set(table.index.get_level_values("metric")) == {"r2", "rmse", "mae"}
    survival = run(frame, tmp_path / "s", "survival", **fast)
    with pytest.raises(BadInput) as error:
        gr.compare([numbers[0].folder, survival.folder])
    assert error.value.code == "several-tasks"


def test_membership_attacks_are_for_classes(frame, tmp_path):
    from grandrounds.analysis.membership.attack import attack_run

    made = run(frame, tmp_path / "run", "count", explain__sketch="none")
    with pytest.raises(BadInput) as error:
        attack_run(made, data=frame)
    assert error.value.code == "not-classification"
