"""Frames of a run hold the numbers of its records."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.runs.frames import PLOTS
from tests.support import patients, refused


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = {"explain.every": 1, "reference.rows.rows": 20, "engine.absences": {"b": [2, 2]}}
    options = {"label": "died", "site": "<b>x</b>", "rounds": 3, "settings": settings}
    table = patients([40, 30, 30])
    columns = {"<b>x</b>" if name == "hospital" else name: values for name, values in table.columns.items()}
    return gr.run(
        type(table)(columns, "<i>patients</i>.csv"), **options, out=tmp_path_factory.mktemp("frames") / "<run>"
    )


def test_history_is_the_rounds(run):
    history = run.history
    assert history.index.tolist() == [1, 2, 3] and history.index.name == "round"
    for r in run.rounds:
        assert history.loc[r.round, "test_auroc"] == r.test["auroc"]
        assert history.loc[r.round, "val_log_loss"] == r.val["log_loss"]
        assert history.loc[r.round, "bytes_up"] == r.decision.cost["bytes_up"]
        assert history.loc[r.round, "training_drift"] == r.explanation["training"]["drift"]
        assert history.loc[r.round, "asked"] == len(r.decision.asked)


def test_sites_are_the_summary(run):
    sites, summary = run.sites, run.summary
    assert sites.index.tolist() == ["a", "b", "c"]
    for site, scores in summary.per_site.items():
        assert sites.loc[site, "train_rows"] == summary.rows[site]["train"]
        for name, value in scores.items():
            assert np.isnan(sites.loc[site, name]) if value is None else sites.loc[site, name] == value
    assert sites["weight"].tolist() == [run.rounds[-1].decision.weights[s] for s in ("a", "b", "c")]
    assert sites["rounds_asked"].tolist() == [3, 2, 3]


def test_weights_are_rounds_by_sites(run):
    weights = run.weights
    assert weights.shape == (3, 3) and np.isnan(weights.loc[2, "b"])
    assert np.allclose(weights.sum(axis=1), 1)
    assert weights.loc[1].to_dict() == dict(run.rounds[0].decision.weights)


def test_plots_by_name(run):
    for name in set(PLOTS) - {"coefficients"}:
        assert run.plot(name)["data"]
    with refused("no-estimates", match="glm and cox have them"):
        run.plot("coefficients")
    assert run.plot().title == run.plot("curves").title
    with refused("unknown-choice", match="did you mean 'weights'"):
        run.plot("weight")


def test_html_escapes_every_name(run):
    html = run._repr_html_()
    assert "<run>" not in html and "&lt;run&gt;" in html and html.startswith("<table>")
    assert f"{run.summary.final['auroc']:.4f}" in html
