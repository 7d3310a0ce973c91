"""`gr.compare` and `gr.tune`: the values of the command line, as frames."""

from __future__ import annotations

import json

import pytest

import grandrounds as gr
from tests.support import refused

OPTIONS = {"label": "died", "site": "hospital"}


def test_methods_on_a_frame(frame, tmp_path):
    out = tmp_path / "c"
    options = {**OPTIONS, "seeds": 1, "references": False, "metrics": ["auroc"], "out": out, "jobs": 1}
    settings = {"method.rounds": 1, "method.mu": 5.0}
    result = gr.compare(frame, methods=["fedavg", "fedprox"], settings=settings, **options)
    assert list(result.frame.index) == [("fedavg", "auroc"), ("fedprox", "auroc")]
    runs = [gr.load_run(out / f"{method}-seed0") for method in ("fedavg", "fedprox")]
    assert result.frame["mean"].tolist() == [r.summary.final["auroc"] for r in runs]
    rows = json.loads((out / "comparison.json").read_text())["rows"]
    assert [r["mean"] for r in rows] == result.frame["mean"].tolist()
    assert not (out / ".rows").exists() and (out / "report.html").exists()  # no patients' rows stay behind
    alone = gr.run(frame, **OPTIONS, rounds=1, settings={"method.mu": 5.0}, out=tmp_path / "r")
    assert alone.model.theta.tobytes() == runs[0].model.theta.tobytes()
    other = gr.run(frame, **OPTIONS, rounds=1, seed=1, settings={"method.mu": 5.0}, out=tmp_path / "s")
    assert gr.compare(alone, other, runs[1].folder, metrics="auroc").frame["n"].tolist() == [2, 1]
    assert "<table" in result._repr_html_()


def test_what_cannot_be_compared(run):
    with refused("too-few-runs"):
        gr.compare(run)
    with refused("not-a-run-folder"):
        gr.compare([run, 3])
    with refused("unknown-metric", match="did you mean 'auroc'"):
        gr.compare("heart", methods=["fedavg"], metrics=["aurc"])
    with refused("conflicting-options"):
        gr.compare("heart", "digits", methods=["fedavg"])


@pytest.mark.slow
def test_tuning_a_frame(frame, tmp_path):
    pytest.importorskip("optuna")
    space = {"train.lr": [0.01, 0.1]}
    result = gr.tune(frame, **OPTIONS, rounds=1, trials=2, space=space, out=tmp_path / "t")
    assert list(result.frame.index) == [0, 1]
    assert result.frame["value"].tolist() == [t.value for t in result.trials]
    assert result.frame["train.lr"].tolist() == [t.settings["train.lr"] for t in result.trials]
    assert result.experiment.train.lr == result.best.settings["train.lr"]
    assert "<table" in result._repr_html_()
