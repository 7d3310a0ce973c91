"""FederatedClassifier: scikit-learn's own checks, and the same probabilities as a run."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import grandrounds as gr
from tests.support import refused


def expected_failures(estimator):
    """Checks that fail, with the reason; none does."""
    return {}


@parametrize_with_checks([gr.FederatedClassifier(rounds=1)], expected_failed_checks=expected_failures)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_probabilities_are_those_of_the_run(frame, tmp_path):
    X, y = frame.drop(columns="died"), frame["died"]
    model = gr.FederatedClassifier(rounds=2, settings={"train.lr": 0.3}).fit(X, y, site="hospital")
    settings = {"split.val": 0.0, "split.test": 0.0, "train.lr": 0.3}
    run = gr.run(frame, label="died", site="hospital", event=1, rounds=2, settings=settings, out=tmp_path / "r")
    assert model.model_.theta.tobytes() == run.model.theta.tobytes()
    assert np.array_equal(model.predict_proba(X), run.model.predict(X).probabilities)
    assert model.sites_.tolist() == ["a", "b", "c"] and model.summary_.rows["a"]["train"] == 40
    assert model.feature_names_in_.tolist() == ["age", "lactate", "pressure", "ward"] and model.n_features_in_ == 4
    assert model.score(X, y) == (model.predict(X) == y).mean() and model.run_ is None
    without = X.drop(columns="hospital")
    assert np.array_equal(model.predict_proba(without), model.predict_proba(X))
    by_array = clone(model).fit(without, y, site=X["hospital"].to_numpy())
    assert np.array_equal(by_array.predict_proba(X.drop(columns="hospital")), model.predict_proba(X))


def test_classes_are_the_users_own(frame):
    X = frame[["age", "lactate"]].fillna(0).to_numpy()
    for classes in (np.array(["well", "ill"]), np.array([-1, 7]), np.array([True, False]), np.array([0.0, 2.0])):
        y = classes[frame["died"]]
        model = gr.FederatedClassifier(rounds=1, sites=3).fit(X, y)
        assert model.classes_.tolist() == sorted(set(classes.tolist())) and set(model.predict(X)) <= set(
            classes.tolist()
        )
        assert model.summary_.sites["all"] == 3
        ours = model.predict_proba(X)[:, list(model.classes_).index(classes[1])]
        assert np.corrcoef(ours, frame["died"])[0, 1] > 0.2


@pytest.mark.parametrize(("method", "model"), [("gam", "logistic"), ("pooled", "trees"), ("trees", {"name": "trees"})])
def test_models_of_whole_columns_need_no_number_of_rounds(frame, method, model):
    settings = {"method.trees.rounds": 2, "method.trees.depth": 2, "method.trees.parallel": 2}
    X, y = frame.drop(columns="died"), frame["died"]
    if isinstance(model, dict):  # a section is taken as it is
        settings |= {"method.rounds": 50}
    fitted = gr.FederatedClassifier(method, model=model, settings=settings).fit(X, y, site="hospital")
    assert fitted.model_.net.kernel == ("gam" if method == "gam" else "trees")
    assert np.corrcoef(fitted.predict_proba(X)[:, 1], y)[0, 1] > 0.2


def test_a_folder_keeps_the_whole_run(frame, tmp_path):
    X, y = frame[["age", "lactate"]], frame["died"]
    model = gr.FederatedClassifier("fedprox", rounds=1, out=tmp_path / "r").fit(X, y, site=frame["hospital"])
    assert (tmp_path / "r" / "report.html").exists() and model.run_.summary.method == "fedprox"
    assert np.array_equal(gr.load_run(tmp_path / "r").model.predict(X).probabilities, model.predict_proba(X))


def test_scikit_learns_tools(frame):
    X, y = frame[["age", "lactate"]].to_numpy(), frame["died"].to_numpy()
    assert len(cross_val_score(gr.FederatedClassifier(rounds=1, sites=2), X, y, cv=2)) == 2
    changed = gr.FederatedClassifier().set_params(method="scaffold", rounds=3)
    assert clone(changed).get_params()["method"] == "scaffold" and changed.get_params()["rounds"] == 3


def test_sites_travel_through_scikit_learn(frame):
    X, y, site = frame[["age", "lactate"]].to_numpy(), frame["died"].to_numpy(), frame["hospital"].to_numpy()
    with config_context(enable_metadata_routing=True):
        model = gr.FederatedClassifier(rounds=1).set_fit_request(site=True)
        fitted = make_pipeline(StandardScaler(), model).fit(X, y, site=site)
    assert fitted[-1].sites_.tolist() == ["a", "b", "c"]


def test_columns_of_any_type_and_columns_without_values(frame):
    X = pd.DataFrame(
        {
            "age": frame["age"],
            "ward": pd.Categorical(frame["ward"]),
            "count": pd.array([1, 2, None] * 40, dtype="Int64"),
            "flag": [True, False] * 60,
        }
    )
    model = gr.FederatedClassifier(rounds=1).fit(X, frame["died"], site=frame["hospital"])
    assert model.predict_proba(X).shape == (120, 2) and model.summary_.event["label"] == "died"
    with pytest.raises(ValueError, match="infinity"):
        model.predict(X.assign(age=np.inf))
    empty = np.column_stack([frame["age"], np.full(120, np.nan), np.ones(120)])
    assert gr.FederatedClassifier(rounds=1).fit(empty, frame["died"]).n_features_in_ == 3


def test_wrong_arguments(frame):
    X, y = frame.drop(columns="died"), frame["died"]
    with pytest.raises(ValueError, match="site='clinic' is no column of X"):
        gr.FederatedClassifier().fit(X, y, site="clinic")
    with pytest.raises(ValueError, match="X is not a data frame"):
        gr.FederatedClassifier().fit(X[["age"]].to_numpy(), y, site="hospital")
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        gr.FederatedClassifier().fit(X[["age"]], y, site=["a"])
    with pytest.raises(ValueError, match="at least two classes"):
        gr.FederatedClassifier().fit(X[["age"]], np.zeros(len(y), int))
    with refused("unknown-setting", match="train.lrr"):
        gr.FederatedClassifier(settings={"train.lrr": 1}).fit(X, y, site="hospital")
