"""`gr.survival_scores`: scores of a Cox regression on rows of all hospitals."""

from __future__ import annotations

import numpy as np
import pytest
from lifelines.datasets import load_lung
from lifelines.utils import concordance_index

import grandrounds as gr
from grandrounds.capabilities.statistics.survival_rows import SurvivalRequest
from grandrounds.capabilities.statistics.survival_run import run_survival_scores
from grandrounds.data.table import Table
from grandrounds.report import figures
from tests.support import refused


@pytest.fixture(scope="module")
def frame():
    d = load_lung()[["time", "status", "inst", "age", "sex", "ph.ecog"]].dropna()
    return d.assign(inst=d["inst"].astype(int).astype(str))


@pytest.fixture(scope="module")
def fitted(frame, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cox") / "run"
    columns = {"time": "time", "event": "status", "site": "inst", "features": ["age", "sex", "ph.ecog"]}
    return gr.cox(frame, **columns, out=folder, progress=False)


def test_scores_of_a_cox_regression(fitted, frame):
    scores = gr.survival_scores(fitted, frame, across=True)
    risk = gr.predict(fitted.run, frame)["risk_score"].to_numpy()
    assert scores.across.index == pytest.approx(concordance_index(frame["time"], -risk, frame["status"]), abs=0.002)
    assert scores.rows == len(frame)
    assert scores.brier.integrated < scores.brier.integrated_null
    assert any("optimistic" in note for note in scores.notes)
    assert figures.survival_calibration(scores, unit="days").title.startswith("Calibration at")


def test_new_rows_are_scored_with_the_baseline_of_training_rows(fitted, frame):
    new = frame.iloc[::2]
    scores = gr.survival_scores(str(fitted.run.folder), new, training=frame, horizons=[180, 360], horizon=180)
    assert scores.rows == len(new) and scores.across is None
    assert scores.brier.horizons == (180, 360)
    assert not any("optimistic" in note for note in scores.notes)


def test_a_run_without_times_has_no_survival_scores(frame, tmp_path):
    done = gr.glm(
        frame, label="status", features=["age"], site="inst", intercept="common", out=tmp_path / "r", progress=False
    )
    with refused("wrong-task"):
        gr.survival_scores(done, frame)


def test_scores_must_fit_the_rows(frame):
    table, request = Table.from_pandas(frame), SurvivalRequest("time", "status", "inst")
    with refused("length-mismatch"):
        run_survival_scores(table, request, np.zeros(3))
    with refused("infinite-value"):
        run_survival_scores(table, request, np.full(len(table), np.inf))
