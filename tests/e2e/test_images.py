"""Pictures and forests through the whole machine: run, wire, resume, predict, and what is refused in words."""

from __future__ import annotations

import json

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.plan import Settings
from grandrounds.core.rng import generator
from grandrounds.data.image_files import read_npz
from grandrounds.runs.federation import assemble
from tests.runs.test_run import frame, own
from tests.support import bright_squares, patients, refused

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Bright squares on the left or on the right, from three sites, as an .npz file."""
    names = ("north", "south", "west")
    return bright_squares(tmp_path_factory.mktemp("npz") / "squares.npz", 240, names, purpose="pictures")


def experiment(path, **changes):
    base = {
        "data": {"table": str(path)},
        "model": {"name": "small-cnn"},
        "method": {"rounds": 3},
        "train": {"lr": 0.1, "batch": 16},
        "engine": {"device": "cpu"},
    }
    return gr.Experiment.parse(base | changes)


def test_a_net_learns_pictures_from_their_own_sites(pictures, tmp_path):
    run = gr.run(experiment(pictures), out=tmp_path / "r")
    assert set(run.summary["per_site"]) == {"north", "south", "west"}
    assert run.summary["inputs"] == [1, 16, 16]
    assert run.summary["final"]["accuracy"] > 0.9
    made = run.model.predict(read_npz(pictures))
    truth = read_npz(pictures).label
    assert (made.decisions == truth).mean() > 0.9
    with refused("model-needs-images"):
        run.model.predict(frame(patients([5])))
    with refused("model-not-exportable"):
        from grandrounds.runs.export import export

        export(run.model, "json", tmp_path / "m.json")


def test_pictures_through_bytes_and_after_a_resume_give_the_same_model(pictures, tmp_path):
    changes = {"train": {"lr": 0.003, "batch": 16, "augment": "shift", "optimizer": "adam", "keep_optimizer": True}}
    whole = gr.run(experiment(pictures, **changes), out=tmp_path / "whole")
    spread = whole.model.predict(read_npz(pictures)).risk
    assert np.ptp(spread) > 1e-3, "a net whose answer does not depend on the picture would prove nothing here"
    wired = gr.run(experiment(pictures, **changes, engine={"device": "cpu", "wire": True}), out=tmp_path / "wired")
    np.testing.assert_allclose(wired.model.theta, whole.model.theta, atol=2e-4)  # Adam magnifies float32 rounding
    short = gr.run(experiment(pictures, **changes, method={"rounds": 1}), out=tmp_path / "short")
    gone_on = gr.resume(short.folder, settings=["method.rounds=3"])
    np.testing.assert_array_equal(gone_on.model.theta, whole.model.theta)


def test_shift_and_shortcut_change_the_pictures_and_nothing_else(pictures, tmp_path):
    plain = gr.run(experiment(pictures), out=tmp_path / "plain")
    data = {"table": str(pictures), "shift": {"strength": 1.0}, "shortcut": {"p": 0.9, "classes": ["benign"]}}
    bent = gr.run(experiment(pictures, data=data), out=tmp_path / "bent")
    assert bent.plan["data"]["sha256"] == plain.plan["data"]["sha256"], "the hash is of the pictures as they were read"
    assert not np.array_equal(bent.model.theta, plain.model.theta)
    assert bent.summary["rows"] == plain.summary["rows"]
    with refused("missing-setting", match=r"data\.shortcut\.classes"):
        experiment(pictures, data={"table": str(pictures), "shortcut": {"p": 0.5}}).plan()


@pytest.mark.slow
def test_batch_norm_statistics_are_averaged_with_the_weights(pictures, tmp_path):
    model = {"name": "deep-cnn", "norm": "batch"}
    run = gr.run(experiment(pictures, model=model, method={"rounds": 2}), out=tmp_path / "r")
    names = [n for n in run.model.parameters if n.endswith("running_var")]
    assert names
    assert all((run.model.parameters[n] > 0).all() for n in names)
    assert any((run.model.parameters[n] != 1).any() for n in names)


def test_starting_weights_come_from_a_file(pictures, tmp_path):
    first = gr.run(experiment(pictures), out=tmp_path / "a")
    model = {"name": "small-cnn", "weights": str(first.folder / "model.safetensors")}
    train = {"lr": 1e-6, "batch": 16}
    second = gr.run(experiment(pictures, model=model, train=train, method={"rounds": 1}), out=tmp_path / "b")
    np.testing.assert_allclose(second.model.theta, first.model.theta, atol=1e-3)
    with refused("cannot-read"):
        gr.run(experiment(pictures, model={"name": "small-cnn", "weights": "none.safetensors"}), out=tmp_path / "c")


def test_models_and_data_must_fit(pictures, tmp_path):
    with refused("model-does-not-fit", match="'logistic'"):
        gr.run(experiment(pictures, model={"name": "logistic"}), out=tmp_path / "a")
    with refused("model-does-not-fit", match="'small-cnn'"):
        own(frame(patients([40, 40])), tmp_path / "b", model={"name": "small-cnn"})
    with refused("method-does-not-fit", match=r"engine\.precision"):
        own(frame(patients([40, 40])), tmp_path / "c", engine={"precision": "bf16"})


def test_a_dense_model_runs_on_either_kernel(tmp_path):
    table = frame(patients([40, 50]))
    settings = {"model": {"name": "mlp", "hidden": [6]}, "engine": {"precision": "float64"}}
    one = own(table, tmp_path / "numpy", **settings)
    other = own(
        table, tmp_path / "torch", **settings | {"engine": {"precision": "float64", "kernel": "torch", "device": "cpu"}}
    )
    np.testing.assert_allclose(other.model.theta, one.model.theta, atol=1e-5)


def test_forests_join_as_a_weighted_union_of_trees(tmp_path):
    table = frame(patients([300, 250, 200]))
    forest = {"model": {"name": "forest", "trees": 7, "depth": 4}, "method": {"rounds": 1}}
    run = own(table, tmp_path / "r", **forest)
    assert run.summary["final"]["auroc"] > 0.6
    weights = run.model.net.layout.views(run.model.theta)["weight"]
    assert len(weights) == 21
    by_site = weights.reshape(3, 7).sum(axis=1)
    assert by_site == pytest.approx(list(run.rounds[0]["decision"]["weights"].values()))
    wired = own(table, tmp_path / "w", **forest, engine={"wire": True})
    np.testing.assert_array_equal(wired.model.theta, run.model.theta)
    again = own(table, tmp_path / "again", **forest)
    assert (again.folder / "model.safetensors").read_bytes() == (run.folder / "model.safetensors").read_bytes()
    risk = run.model.predict(table).risk
    assert ((risk >= 0) & (risk <= 1)).all()
    assert json.loads((run.folder / "summary.json").read_text())["model"] == "forest"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"method": {"name": "fedprox", "rounds": 1}}, "FedProx"),
        ({"evaluation": {"calibrate": "temperature"}}, "evaluation.calibrate"),
        ({"train": {"keep_optimizer": True}}, "optimi"),
    ],
)
def test_what_a_forest_cannot_do_is_refused_in_words(changes, word, tmp_path):
    with refused("method-does-not-fit", match=word):
        own(frame(patients([40, 40])), tmp_path / "r", model={"name": "forest"}, **changes)
    assert not (tmp_path / "r").exists()


def test_a_set_with_its_own_test_part_is_read_as_such(tmp_path):
    rng = generator(1, purpose="parts")
    y = rng.integers(0, 2, 150)
    x = rng.integers(0, 60, (150, 16, 16))
    x[np.arange(150), :, 3 + 8 * y] += 180
    path = tmp_path / "published.npz"
    np.savez(path, x_train=x[:120].astype(np.uint8), y_train=y[:120], x_test=x[120:].astype(np.uint8), y_test=y[120:])
    run = gr.run(
        experiment(path, split={"sites": 3}, data={"table": str(path), "masks": "strokes"}), out=tmp_path / "r"
    )
    assert run.summary["final"]["count"] == 30
    assert sum(r["train"] + r["val"] for r in run.summary["rows"].values()) == 120
    apart = gr.run(experiment(path, split={"sites": 3, "official": False}), out=tmp_path / "s")
    assert sum(sum(r.values()) for r in apart.summary["rows"].values()) == 150


def test_a_file_that_names_patients_is_split_by_patient_without_being_told(tmp_path):
    rng = generator(3, purpose="patients in a file")
    x = rng.integers(0, 255, (60, 8, 8, 1), dtype=np.uint8)
    label = np.array(["a", "b"])[np.arange(60) % 2]
    np.savez(tmp_path / "p.npz", images=x, labels=label, patient=np.repeat(np.arange(15), 4))
    values = {"data": {"table": str(tmp_path / "p.npz")}, "split": {"sites": 2}, "model": {"name": "small-cnn"}}
    plan = gr.Experiment.parse(values).plan()
    assert plan["split"]["by"] == "patient"
    held = assemble(Settings(plan))
    for rows in held.stack.rows:
        parts = [set(held.data.patient[r].tolist()) for r in (rows.train, rows.val, rows.test)]
        assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
