"""`gr.run` and `gr.resume`: every source gives the same run as the command line's experiment."""

from __future__ import annotations

import numpy as np
import pytest

import grandrounds as gr
from grandrounds.recipes import load_recipe
from grandrounds.runs.run import run as run_experiment
from tests.support import refused


def same_model(a: gr.Run, b: gr.Run) -> bool:
    return a.model.theta.tobytes() == b.model.theta.tobytes() and a.summary.final == b.summary.final


def test_a_frame_and_its_file_give_the_same_bits(frame, run, tmp_path):
    for name, write in (("p.csv", frame.to_csv), ("p.parquet", frame.to_parquet)):
        write(tmp_path / name, index=False)
        path = tmp_path / name
        source = path if name.endswith("csv") else str(path)
        other = gr.run(source, label="died", site="hospital", rounds=2, out=tmp_path / f"run-{name}")
        assert same_model(run, other)
        assert other.summary.name == "p"


def test_a_recipe_by_name_is_the_recipe(tmp_path):
    ours = gr.run("breast-cancer", rounds=2, seed=1, out=tmp_path / "a")
    theirs = run_experiment(
        load_recipe("breast-cancer").with_settings(["method.rounds=2", "seed=1"]), out=tmp_path / "b"
    )
    assert same_model(ours, theirs)
    assert ours.plan == theirs.plan


def test_a_file_an_experiment_and_a_data_set_by_name(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text('name = "mine"\n[data]\nname = "breast-cancer"\n[method]\nrounds = 9\n')
    section = gr.config.Method(name="fedprox", rounds=2, mu=0.1)
    built = gr.Experiment(data=gr.config.Data(name="breast-cancer"), method=section, train=gr.config.Train(lr=0.05))
    first = gr.run(built, out=tmp_path / "a")
    again = gr.run(file, method=section, settings={"train.lr": 0.05}, out=tmp_path / "b")
    nested = {"method": {"mu": 0.1}, "train": {"lr": 0.05}}
    third = gr.run(str(file), method="fedprox", rounds=2, settings=nested, out=tmp_path / "c")
    assert same_model(first, again) and same_model(first, third)
    assert again.summary.name == "mine" and first.plan["method"]["mu"] == 0.1


def test_resume_takes_settings_as_a_dict(frame, tmp_path):
    short = gr.run(frame, label="died", site="hospital", rounds=1, out=tmp_path / "r")
    longer = gr.resume(short.folder, settings={"method.rounds": 2}, table=frame)
    assert longer.summary.rounds == 2
    assert (
        longer.model.theta.tobytes()
        == gr.run(frame, label="died", site="hospital", rounds=2, out=tmp_path / "s").model.theta.tobytes()
    )


def test_the_old_form_with_an_experiment_and_a_table(frame, tmp_path):
    built = gr.Experiment(data={"label": "died", "site": "hospital"}, method={"rounds": 2, "robust": {"guard": 10.0}})
    other = gr.run(built, table=frame, out=tmp_path / "r")
    assert other.summary.rows == {k: dict(v) for k, v in other.summary.rows.items()} and other.summary.rounds == 2


@pytest.mark.parametrize(
    ("source", "options", "code", "match"),
    [
        ("hart", {}, "unknown-recipe", "did you mean 'heart'"),
        (3, {}, "unknown-source", "type int"),
        (np.zeros((3, 3)), {"label": "x"}, "unknown-source", "ndarray"),
        ("nowhere.csv", {"label": "x"}, "file-not-found", "nowhere.csv"),
        ("heart", {"settings": {"method.round": 3}}, "unknown-setting", "did you mean 'rounds'"),
        ("heart", {"settings": {3: 3}}, "bad-setting-flag", "3"),
        ("heart", {"settings": "method.rounds=3"}, "bad-setting-flag", "method.rounds=3"),
        ("heart", {"method": {"nme": "fedprox"}}, "unknown-setting", "did you mean 'name'"),
        ("heart", {"method": "fedprx"}, "bad-setting", "did you mean 'fedprox'"),
        ("heart", {"rounds": "many"}, "bad-setting", "method.rounds is 'many'"),
    ],
)
def test_a_wrong_argument_is_one_sentence(source, options, code, match):
    with refused(code, match=match) as caught:
        gr.run(source, **options)
    assert "\n" not in str(caught.value)


def test_a_frame_without_a_label_lists_its_columns(frame):
    with refused("label-not-set", match="age, lactate, pressure, ward, hospital, died"):
        gr.run(frame)
    with refused("unknown-column", match="did you mean 'died'"):
        gr.run(frame, label="dead", site="hospital")
    with refused("two-data-sources"):
        gr.run(frame, label="died", table=frame)


def test_wrong_sections_are_one_sentence():
    with refused("unknown-setting", match="method: unknown key 'round'; did you mean 'rounds'"):
        gr.config.Method(round=3)
    with refused("unknown-setting", match="experiment: unknown key 'reference.rows.row'"):
        gr.Experiment(reference={"rows": {"row": 3}})
    with refused("unknown-choice", match="mechanism is 'dpsgd'; did you mean 'dp-sgd'"):
        gr.config.Privacy(mechanism="dpsgd")
