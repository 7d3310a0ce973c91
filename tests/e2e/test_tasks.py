"""Sites with different tasks, and sites that keep their own BatchNorm statistics."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.core.rng import generator
from grandrounds.data.image_files import read_npz
from grandrounds.models.dense import Dense
from grandrounds.models.heads import average_heads
from grandrounds.protocol.layout import Layout
from grandrounds.site.batches import BatchPlan
from grandrounds.site.stack import Part
from grandrounds.site.tasks import open_classes, penalty, tasks_of
from grandrounds.site.train_job import TrainConfig, TrainJob
from tests.runs.test_run import frame, own
from tests.support import patients, refused

pytest.importorskip("torch")

from grandrounds.models.torch_build import torch_dense
from grandrounds.site import torch_train
from tests.site.test_numpy_train import part

ROWS = {"top": ["top left", "top right"], "bottom": ["bottom left", "bottom right"]}


@pytest.fixture(scope="module")
def corners(tmp_path_factory):
    """A bright square in one of four corners, from four sites."""
    rng = generator(0, purpose="corners")
    n = 480
    y = rng.integers(0, 4, n)
    x = rng.integers(0, 60, (n, 16, 16, 1))
    for i in range(n):
        r, c = 2 + 8 * (y[i] // 2), 2 + 8 * (y[i] % 2)
        x[i, r : r + 5, c : c + 5] += 180
    words = np.array(["top left", "top right", "bottom left", "bottom right"])[y]
    path = tmp_path_factory.mktemp("npz") / "corners.npz"
    np.savez(path, images=x.astype(np.uint8), labels=words, site=np.array(["a", "b", "c", "d"])[np.arange(n) % 4])
    return path


def experiment(path, **changes):
    base = {
        "data": {"table": str(path)},
        "model": {"name": "small-cnn"},
        "method": {"rounds": 6},
        "train": {"lr": 0.1, "batch": 16},
        "engine": {"device": "cpu"},
        "tasks": {"row": {"classes": ROWS}},
    }
    return gr.Experiment.parse(base | changes)


def test_sites_take_tasks_in_turn_or_as_named():
    tasks = {"row": {"classes": ROWS, "sites": []}}
    assert tasks_of(tasks, ["a", "b", "c"]) == {"a": "", "b": "row", "c": ""}
    assert tasks_of({"row": {"classes": ROWS, "sites": ["c"]}}, ["a", "b", "c"]) == {"a": "", "b": "", "c": "row"}
    assert open_classes(["x", "y"], ["", ""], []) is None
    got = open_classes(["row: bottom", "row: top", "x"], ["", "row"], ["row"])
    np.testing.assert_array_equal(got, [[False, False, True], [True, True, False]])


def test_a_head_is_averaged_over_the_sites_that_trained_it():
    """Two sites of weight 1/4 and 3/4; output 0 was trained by the first alone, output 1 by nobody, the body by both."""
    layout = Layout((("body.weight", (1,)), ("head.weight", (2, 1)), ("head.bias", (2,))))
    models = np.array([[4.0, 8.0, 1.0, 2.0, 5.0], [8.0, 0.0, 1.0, 0.0, 5.0]])
    trained = np.array([[True, False], [False, False]])
    before = np.array([9.0, 9.0, 7.0, 9.0, 6.0])
    got = average_heads(models, np.array([0.25, 0.75]), before=before, layout=layout, last="head", trained=trained)
    np.testing.assert_allclose(got, [7.0, 8.0, 7.0, 2.0, 6.0])


def test_each_task_is_learnt_and_judged_within_its_own_classes(corners, tmp_path):
    run = gr.run(experiment(corners), out=tmp_path / "r")
    tasks = run.summary["tasks"]
    assert set(tasks) == {"main", "row"}
    assert (tasks["main"]["classes"], tasks["row"]["classes"]) == (4, 2)
    assert (tasks["main"]["sites"], tasks["row"]["sites"]) == (2, 2)
    assert tasks["main"]["accuracy"] > 0.9
    assert tasks["row"]["accuracy"] > 0.9
    assert 0.4 < tasks["row"]["majority"] < 0.65
    assert run.model.encoding.classes[-1] == "top right"
    assert len(run.model.encoding.classes) == 6
    pictures = read_npz(corners)
    main, row = run.model.predict(pictures), run.model.predict(pictures, task="row")
    assert len(main.classes) == 4
    assert (main.decisions == pictures.label).mean() > 0.9
    assert row.classes == ("row: bottom", "row: top")
    assert (row.decisions == [f"row: {word.split()[0]}" for word in pictures.label]).mean() > 0.9
    np.testing.assert_allclose(row.probabilities.sum(axis=1), 1)
    assert run.model.evaluate(pictures)["overall"]["accuracy"] > 0.9
    with refused("unknown-task", match="'rwo'"):
        run.model.predict(pictures, task="rwo")


def test_a_site_leaves_the_other_heads_alone():
    """Outputs 0 and 1 are another task's: after local training their weights are bit for bit where they started."""
    held = part([30], outputs=4)
    model = torch_dense(Dense((4, 6, 4)), device="cpu", precision="float64")
    work = TrainConfig(seed=0, round=1, lr=0.1, epochs=3, batch=8)
    one = np.zeros(1, int)
    keep = np.isin(held.y, [2, 3])
    rows = Part(held.x[keep], held.y[keep], held.target[keep], held.group[keep], np.array([0, keep.sum()]))
    start = model.init(0, np.float64)
    plan = BatchPlan.draw(rows, one, names=("a",), config=work)
    closed = penalty(np.array([[False, False, True, True]]), np.float64)
    done = torch_train.train(TrainJob(model, rows, one, start, work, penalty=closed), plan)
    before, after = model.layout.views(start), model.layout.views(done.theta[0])
    np.testing.assert_array_equal(after["layer1.weight"][:, :2], before["layer1.weight"][:, :2])
    np.testing.assert_array_equal(after["layer1.bias"][:2], before["layer1.bias"][:2])
    assert (after["layer1.weight"][:, 2:] != before["layer1.weight"][:, 2:]).any()
    assert (after["layer0.weight"] != before["layer0.weight"]).any()


@pytest.mark.slow
def test_tasks_through_bytes_and_after_a_resume(corners, tmp_path):
    whole = gr.run(experiment(corners, method={"rounds": 3}), out=tmp_path / "whole")
    wired = gr.run(
        experiment(corners, method={"rounds": 3}, engine={"device": "cpu", "wire": True}), out=tmp_path / "w"
    )
    np.testing.assert_allclose(wired.model.theta, whole.model.theta, atol=1e-5)
    short = gr.run(experiment(corners, method={"rounds": 1}), out=tmp_path / "short")
    gone_on = gr.resume(short.folder, settings=["method.rounds=3"])
    np.testing.assert_array_equal(gone_on.model.theta, whole.model.theta)


@pytest.mark.parametrize(
    ("tasks", "code"),
    [
        ({"row": {"classes": {"top": ["top left"], "bottom": ["bottom left"]}}}, "label-without-task"),
        ({"row": {"classes": ROWS, "sites": ["z"]}}, "unknown-site"),
        ({"row": {"classes": {"all": ["top left"]}}}, "too-few-classes"),
    ],
)
def test_wrong_tasks_are_refused_in_words(corners, tmp_path, tasks, code):
    with refused(code):
        gr.run(experiment(corners, tasks=tasks), out=tmp_path / "r")


def test_tasks_need_the_torch_kernel(tmp_path):
    table = frame(patients([60, 60, 60, 60], classes=3))
    tasks = {"severe": {"classes": {"no": ["0"], "yes": ["1", "2"]}}}
    with refused("method-does-not-fit", match=r"engine\.kernel"):
        own(table, tmp_path / "a", tasks=tasks)
    run = own(table, tmp_path / "b", tasks=tasks, engine={"kernel": "torch", "device": "cpu"})
    assert run.summary["tasks"]["severe"]["classes"] == 2


def batch_norm(path, statistics, out, *, rounds=2, **changes):
    model = {"name": "deep-cnn", "norm": "batch", "statistics": statistics}
    few = {"train": {"lr": 0.1, "batch": 16, "steps": 2}, "explain": {"sketch": "none"}}
    return gr.run(experiment(path, tasks={}, model=model, method={"rounds": rounds}, **few, **changes), out=out)


@pytest.mark.slow
def test_sites_may_keep_their_own_batch_norm_statistics(corners, tmp_path):
    averaged = batch_norm(corners, "averaged", tmp_path / "averaged")
    kept = batch_norm(corners, "site", tmp_path / "site")
    assert not np.array_equal(averaged.model.theta, kept.model.theta)
    wired = batch_norm(corners, "site", tmp_path / "wired", engine={"device": "cpu", "wire": True})
    np.testing.assert_allclose(wired.model.theta, kept.model.theta, atol=1e-5)
    assert wired.summary["per_site"]["a"]["log_loss"] == pytest.approx(
        kept.summary["per_site"]["a"]["log_loss"], abs=1e-4
    )
    longer = gr.resume(kept.folder, settings=["method.rounds=3"])
    straight = batch_norm(corners, "site", tmp_path / "straight", rounds=3)
    np.testing.assert_array_equal(longer.model.theta, straight.model.theta)
    assert longer.summary["final"] == straight.summary["final"]
