"""A hospital explains its own patients with a run that holds nobody's rows: beside its own, and the record says so."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import grandrounds as gr
from grandrounds.capabilities.cases.case import explain_case
from grandrounds.cli import app as command
from grandrounds.core.rng import generator
from grandrounds.data.dataset import read_new_rows
from grandrounds.data.image_files import read_npz
from grandrounds.data.readers import read_table
from grandrounds.explain.explainers.shapley import exact_shapley
from tests.capabilities.cases.at_hospitals import deployed, own_files
from tests.runs.test_run import frame
from tests.support import bright_squares, patients, refused

NET = {"model": {"name": "mlp", "hidden": [6]}}
AWAY = (
    "the run's rows are at its sites: compared with rows of a.csv alone, other hospitals' patients are not among them"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("hospitals")


@pytest.fixture(scope="module")
def table():
    return patients([150, 60, 40])


@pytest.fixture(scope="module")
def files(home, table):
    return own_files(home, table)


@pytest.fixture(scope="module")
def net(home, table):
    return deployed(home / "net", table, **NET)


@pytest.fixture(scope="module")
def logistic(home, table):
    return deployed(home / "logistic", table)


def inputs(run, file, rows) -> np.ndarray:
    """Rows of a file, from 0, as the model sees them."""
    return run.model.encoding.encode(read_new_rows(read_table(file).take(rows), run.model.schema), float)


def beside(run, case: int, count: int) -> np.ndarray:
    """The hundred rows that a patient is compared with, drawn by hand."""
    order = generator(run.plan["seed"], purpose="background").permutation(count)
    return order[order != case - 1][:100]


def logits(run, x) -> np.ndarray:
    return run.model.net.logits(run.model.theta.astype(float), x)


def test_a_run_of_real_hospitals_holds_no_rows_and_says_what_to_do(net):
    for asks in ({}, {"explainer": "lime"}):
        with refused("rows-not-available"):
            explain_case(net, 7, **asks)


def test_a_net_is_explained_beside_the_hospitals_own_rows(net, files):
    case = explain_case(net, 7, table=str(files["a"]))
    assert case.start == "the mean of 100 of the 149 other rows of a.csv"
    assert case.notes[-1] == AWAY
    x = inputs(net, files["a"], beside(net, 7, 150))
    assert len(x) == 100
    assert case.base == pytest.approx(float(logits(net, x).mean()), abs=1e-9)
    assert case.base + sum(r.contribution for r in case.attributions) + case.remainder == pytest.approx(case.score)
    assert case.remainder == pytest.approx(0, abs=0.01)
    assert case.probability == pytest.approx(float(net.model.predict(pd.read_csv(files["a"])).risk[6]))
    assert explain_case(net, 7, table=pd.read_csv(files["a"])).attributions == case.attributions, "a frame is as good as a file"
    few = explain_case(net, 7, table=str(files["c"]))
    assert few.start == "the mean of 39 other rows of c.csv"


def test_the_contributions_are_those_of_shaps_own_explainer_on_these_rows(net, files):
    import shap

    x, others = inputs(net, files["a"], [6]), inputs(net, files["a"], beside(net, 7, 150))
    theirs = shap.KernelExplainer(lambda r: logits(net, r)[:, 0], others)
    values = theirs.shap_values(x, nsamples=2000, silent=True)[0]
    np.testing.assert_allclose(values, exact_shapley(lambda r: logits(net, r), x, others)[0, 0], atol=1e-6)
    case = explain_case(net, 7, table=str(files["a"]), explainer="kernel")
    sources = np.array(net.model.encoding.sources)
    want = {c: float(values[sources == c].sum()) for c in dict.fromkeys(sources.tolist())}
    assert {r.column: r.contribution for r in case.attributions} == pytest.approx(want, abs=1e-6)
    assert case.base == pytest.approx(float(theirs.expected_value), abs=1e-6)


def test_of_one_patient_alone_a_net_cannot_be_explained_and_a_linear_model_can(net, logistic, files, tmp_path):
    pd.read_csv(files["b"]).head(1).to_csv(tmp_path / "one.csv", index=False)
    words = r"no other row of one.csv: give a file with more of the hospital's patients"
    with refused("no-comparison-rows", match=words):
        explain_case(net, 1, table=str(tmp_path / "one.csv"))
    case = explain_case(logistic, 1, table=str(tmp_path / "one.csv"))
    assert case.start == "the mean of the 167 training patients of all sites"
    assert not any("compared with" in note for note in case.notes)
    answer = CliRunner().invoke(
        command, ["explain", str(net.folder), "--case", "1", "--table", str(tmp_path / "one.csv")]
    )
    assert answer.exit_code != 0 and "give a file with more" in f"{answer.output} {answer.exception}"


def test_the_command_line_says_whom_a_patient_is_compared_with(net, files, tmp_path):
    asks = ["explain", str(net.folder), "--case", "7", "--table", str(files["a"]), "--out", str(tmp_path / "7.html")]
    answer = CliRunner().invoke(command, asks)
    assert answer.exit_code == 0, answer.output
    said = " ".join(answer.output.split())
    assert "(the mean of 100 of the 149 other rows of a.csv)" in said and AWAY in said
    assert "other hospitals&#x27; patients are not among them" in (tmp_path / "7.html").read_text()
    told = json.loads(CliRunner().invoke(command, [*asks[:6], "--json"]).output)
    assert told == json.loads(json.dumps(explain_case(net, 7, table=str(files["a"])).to_dict()))


def test_under_a_budget_a_hospitals_own_rows_are_its_to_look_at(home, table, files):
    private = {"privacy": {"epsilon": 8.0, "mechanism": "dp-sgd"}, "explain": {"sketch": "none"}}
    run = deployed(home / "private", table, **NET, **private)
    case = explain_case(run, 7, table=str(files["a"]))
    assert case.start == "the mean of 100 of the 149 other rows of a.csv"
    assert case.population.words == "no percentile: not released under the budget"


def test_a_task_of_the_sites_own_is_known_without_rows(home, table, files):
    own = {"tasks": {"end": {"classes": {"dead": ["1"], "alive": ["0"]}, "sites": ["b"]}}}
    run = deployed(home / "tasks", table, **NET, **own, engine={"kernel": "torch", "device": "cpu"})
    known = pd.read_csv(files["b"])["died"]
    case = explain_case(run, 3, table=str(files["b"]), site="b")
    assert case.classes == ("end: alive", "end: dead")
    assert case.outcome == ("end: dead" if known[2] else "end: alive")
    assert case.verdict in ("right", "near miss", "missed", "false alarm")
    assert explain_case(run, 3, table=str(files["b"]), site="a").outcome == str(int(known[2]))


def simulated(folder, table) -> gr.Run:
    """A run on one file of all hospitals, with a column that names them."""
    frame(table).to_csv(folder / "all.csv", index=False)
    data = {"table": str(folder / "all.csv"), "label": "died", "site": "hospital"}
    return gr.run(gr.Experiment.parse({"data": data, "method": {"rounds": 2}, **NET}), out=folder / "run")


def test_the_runs_own_rows_stand_in_as_long_as_they_are_there_and_the_same(tmp_path, table):
    run = simulated(tmp_path, table)
    shutil.copy(tmp_path / "all.csv", tmp_path / "new.csv")
    case = explain_case(run, 160, table=str(tmp_path / "new.csv"))
    assert case.start == "the mean of 100 of the 167 training rows of all sites" and case.notes == ()
    frame(table).assign(age=1.0).to_csv(tmp_path / "all.csv", index=False)
    for why in ("the run's own data have changed since", "the run's own all.csv is not here"):
        case = explain_case(gr.load_run(run.folder), 160, table=str(tmp_path / "new.csv"))
        assert (case.site, case.start) == ("b", "the mean of 59 other rows of b in new.csv"), "a's and c's are left out"
        assert case.notes[0].startswith(f"{why}: compared with rows of new.csv alone")
        mine = np.delete(np.arange(150, 210), 9)
        assert case.base == pytest.approx(float(logits(run, inputs(run, tmp_path / "new.csv", mine)).mean()), abs=1e-9)
        (tmp_path / "all.csv").unlink(missing_ok=True)
    with refused("file-not-found", match=r"all\.csv"):
        explain_case(run, 160)


def test_new_patients_of_a_run_from_memory_need_no_frame(tmp_path, table, files):
    data = {"label": "died", "site": "hospital"}
    run = gr.run(gr.Experiment.parse({"data": data, "method": {"rounds": 2}, **NET}), table=table, out=tmp_path / "run")
    alone = explain_case(run, 7, table=str(files["a"]))
    assert alone.start.endswith("of the 149 other rows of a.csv") and "data frame in memory" in alone.notes[0]
    assert explain_case(run, 7, table=str(files["a"]), data=table).start.endswith("training rows of all sites")


def test_pictures_are_explained_from_what_a_sites_keeper_takes(home, tmp_path):
    pytest.importorskip("torch")
    image = pytest.importorskip("PIL.Image")
    pictures = read_npz(bright_squares(home / "squares.npz", 48, ("north", "south"), purpose="at hospitals"))
    more = {"model": {"name": "small-cnn"}, "train": {"lr": 0.1, "batch": 16}, "engine": {"device": "cpu"}}
    run = deployed(home / "pictures", pictures, method={"rounds": 1}, **more)
    own = pictures.take(np.flatnonzero(pictures.site == "south"))
    np.savez(tmp_path / "south.npz", images=own.pixels, label=own.label.astype(str))
    case = explain_case(run, 3, table=str(tmp_path / "south.npz"))
    assert case.outcome == own.label[2] and set(case.heats) == {"grad_cam", "normgrad", "integrated_gradients"}
    (tmp_path / "own").mkdir()
    for k, pixels in enumerate(own.pixels):
        image.fromarray(pixels[..., 0]).save(tmp_path / "own" / f"{k}.png")
    held = pd.DataFrame({"file": [f"{k}.png" for k in range(len(own))], "label": own.label})
    held.to_csv(tmp_path / "own" / "labels.csv", index=False)
    same = explain_case(run, 3, table=str(tmp_path / "own"))
    np.testing.assert_array_equal(same.pixels, case.pixels)
    assert same.probabilities == case.probabilities
    with refused("wrong-data-kind"):
        explain_case(run, 3, table=str(tmp_path / "own" / "labels.csv"))
