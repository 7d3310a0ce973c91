"""XFed on drawn shapes: its premise, its numbers on every surface, and the choices without masks."""

from __future__ import annotations

import json

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.records import Decision
from grandrounds.data.sets.drawn_shapes import draw
from grandrounds.methods.xfed.summary import left_out_sites
from tests.command import rounds
from tests.support import refused

pytest.importorskip("torch")

SITES = ("plain", "tied")
BASE = {
    "split": {"val": 0.0},
    "reference": {"scoring": {"source": "drawn-shapes-scoring", "sent": True}},
    "model": {"name": "small-cnn"},
    "method": {"name": "xfed", "rounds": 1, "xfed": {"grid": 0}},
    "train": {"optimizer": "adam", "lr": 0.002, "batch": 32, "epochs": 16},
    "engine": {"device": "cpu"},
    "explain": {"sketch": "none"},
}


def table(path, *, masks=False) -> str:
    """An .npz file of two sites; at one of them each shape has a background of its own."""
    site = np.repeat(SITES, 300)
    drawn = draw(600, seed=11, tied=(site == "tied") * 1.0).images("drawn", site.astype(object))
    more = {"masks": drawn.masks} if masks else {}
    np.savez(path, images=drawn.pixels, labels=drawn.label.astype(str), site=site, **more)
    return str(path)


def experiment(path, **changes) -> gr.Experiment:
    values = {"data": {"table": str(path)}, **BASE}
    return gr.Experiment.parse({**values, **{key: {**values.get(key, {}), **v} for key, v in changes.items()}})


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> gr.Run:
    place = tmp_path_factory.mktemp("drawn")
    return gr.run(experiment(table(place / "drawn.npz")), out=place / "r")


def test_a_model_that_learnt_backgrounds_looks_beside_the_shapes_and_is_not_sent(done):
    signals = done.rounds[0].decision.signals
    assert signals["xai"]["tied"] < signals["xai"]["plain"] - 0.15
    assert signals["accuracy"]["tied"] < 0.4, "its answers are those of the background"
    assert left_out_sites(done.rounds[0].decision, 0.9) == ("tied",)
    assert set(done.rounds[0].decision.weights) == {"plain"}


def test_the_selection_is_in_the_summary_the_terminal_and_the_report(done):
    numbers = done.summary.method_numbers
    assert numbers["left_out"]["tied"]["rounds"] == [1] and (numbers["saved"], numbers["uploads"]) == (1, 2)
    assert json.loads((done.folder / "summary.json").read_text())["method_numbers"] == numbers
    labels = {fact.label: fact for fact in done.method_facts}
    assert labels["model uploads saved"].value.startswith("1 of 2 (50.0%)")
    assert "shuffled weights" in labels["XAI accuracy"].note, "scored without evaluation.rationale_set"
    shown, page = rounds("show", done.folder).stdout, (done.folder / "report.html").read_text()
    for text in (shown, page):
        assert "tied in round 1" in text and "XAI accuracy" in text
    assert "Sites that trained and were not asked for their models" in page and "Selection of sites" in page


def test_without_masks_it_is_refused_unless_explanations_have_no_say(tmp_path):
    bare = {"reference": {"scoring": {"rows": 16, "sent": True}}, "train": {"epochs": 1}}
    path = table(tmp_path / "drawn.npz")
    with refused("no-truth-masks", match="data.masks.*score = 'grid'.*xai_share = 0"):
        gr.run(experiment(path, **bare), out=tmp_path / "masks")
    by_accuracy = {"method": {"xfed": {"grid": 0, "xai_share": 0}, "name": "xfed", "rounds": 1}}
    found = gr.run(experiment(path, **bare, **by_accuracy), out=tmp_path / "accuracy")
    decision: Decision = found.rounds[0].decision
    assert decision.signals["score"] == decision.signals["accuracy"] and "reasons" not in found.summary
    assert found.summary.method_numbers["changed"] == []


def test_rows_of_the_sites_are_scored_on_by_their_own_masks(tmp_path):
    path = table(tmp_path / "drawn.npz", masks=True)
    own = {"reference": {"scoring": {"rows": 16, "sent": True}}, "train": {"epochs": 1}}
    found = gr.run(experiment(path, **own), out=tmp_path / "r")
    assert found.summary.reasons["scored"] == 16
