"""The policy against what runs on pictures ask: XFed's two steps, heat maps, a shortcut's clean test rows."""

from __future__ import annotations

import pytest

import grandrounds as gr
from grandrounds.site.stack import CLEAN
from tests.capabilities.hospital.keeper.test_policy import asked, hold_against  # noqa: F401
from tests.support import bright_squares

pytest.importorskip("torch")

BASE = {"model": {"name": "small-cnn"}, "train": {"lr": 0.1, "batch": 16, "steps": 1}, "engine": {"device": "cpu"}}
RUNS = {
    "xfed": {
        "method": {"name": "xfed", "rounds": 1, "xfed": {"steps": 1, "samples": 1, "score": "grid"}},
        "reference": {"scoring": {"rows": 16, "sent": True}},
        "explain": {"sketch": "none"},
    },
    "maps": {"method": {"name": "fedavg", "rounds": 1}, "explain": {"sketch": "none", "maps": ["saliency"], "maps_rows": 4}},
}


@pytest.mark.parametrize("name", RUNS)
def test_pictures(name, asked, tmp_path):  # noqa: F811
    squares = bright_squares(tmp_path / "squares.npz", 120, "abc", purpose="squares")
    done = gr.run(gr.Experiment.parse({"data": {"table": str(squares)}, **BASE, **RUNS[name]}), out=tmp_path / "r")
    hold_against(asked, done.plan)


def test_a_shortcut_is_judged_on_clean_rows_too(asked, tmp_path):  # noqa: F811
    squares = bright_squares(tmp_path / "squares.npz", 120, "abc", purpose="squares")
    planted = {"data": {"table": str(squares), "shortcut": {"p": 0.5, "classes": ["malignant"]}}}
    done = gr.run(
        gr.Experiment.parse({**planted, **BASE, "method": {"rounds": 1}, "explain": {"sketch": "none"}}), out=tmp_path / "r"
    )
    assert any(CLEAN in a.report for a in asked)
    hold_against(asked, done.plan)
