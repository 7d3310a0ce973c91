"""Runs in MLflow: what is logged is read back from a real store, and what must not leave a run folder is looked for there."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

import grandrounds as gr
from grandrounds.audit.head import SignedHead
from grandrounds.capabilities.integrations.mlflow import NotLogged, Target, track
from grandrounds.capabilities.integrations.mlflow.contents import LONGEST_VALUE, build_tags, flatten_plan, identify
from grandrounds.capabilities.integrations.mlflow.target import hide_credentials
from grandrounds.core.errors import install_extra
from grandrounds.report.catalogue import RunRecord, list_figures
from grandrounds.runs.model import TrainedModel
from tests.command import rounds
from tests.support import refused

pytestmark = pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow-skinny is not installed")

PRIVATE = {
    "data": {"name": "breast-cancer"},
    "split": {"sites": 4},
    "reference": {"rows": {"rows": 40}},
    "method": {"rounds": 3},
    "privacy": {"mechanism": "dp-sgd", "epsilon": 4.0},
}


@pytest.fixture(scope="module")
def conducted(tmp_path_factory) -> gr.Run:
    return gr.run(gr.Experiment.parse(PRIVATE), out=tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture
def run(conducted, tmp_path) -> gr.Run:
    """A copy of the run for each test, under the test's own name, so that each has an MLflow run of its own."""
    return gr.load_run(shutil.copytree(conducted.folder, tmp_path / tmp_path.name))


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    """One SQLite store: MLflow takes seconds to make its tables."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path_factory):
    """MLflow puts files beside a SQLite store's process: into a folder of the tests."""
    monkeypatch.chdir(tmp_path_factory.getbasetemp())
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


@pytest.fixture
def client(store):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=store)


def artifacts(client, run_id: str, below: str | None = None) -> dict[str, Path]:
    """Every file that MLflow holds of a run, by its path there."""
    out = {}
    for held in client.list_artifacts(run_id, below):
        if held.is_dir:
            out |= artifacts(client, run_id, held.path)
        else:
            out[held.path] = Path(client.download_artifacts(run_id, held.path))
    return out


def history(client, run_id: str, name: str) -> dict[int, float]:
    told = client.get_metric_history(run_id, name)
    assert len({m.step for m in told}) == len(told), "a round is told once"
    return {m.step: m.value for m in told}


def closed_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_numbers_and_settings_are_those_of_the_run(run, store, client):
    told = track(run, f"mlflow:{store}")
    held = client.get_run(told.id)
    assert held.info.status == "FINISHED"
    assert client.get_experiment(held.info.experiment_id).name == run.plan["name"] == told.experiment
    assert held.data.params["method.rounds"] == "3"
    assert held.data.params["privacy.mechanism"] == "dp-sgd"
    assert held.data.params["model.hidden"] == "[64, 32]"
    tested = {r["round"]: r["test"]["auroc"] for r in run.rounds}
    assert history(client, told.id, "test/auroc") == pytest.approx(tested)
    worst = {r["round"]: max(v for v in r["sites"]["log_loss"].values() if v is not None) for r in run.rounds}
    assert history(client, told.id, "worst_site/log_loss") == pytest.approx(worst)
    spent = {r["round"]: r["decision"]["privacy"]["epsilon_spent"] for r in run.rounds}
    assert history(client, told.id, "privacy/epsilon") == pytest.approx(spent)
    assert list(spent.values()) == sorted(spent.values())
    assert history(client, told.id, "final/auroc") == {3: pytest.approx(run.summary["final"]["auroc"])}
    assert history(client, told.id, "final/privacy/epsilon") == {3: pytest.approx(run.summary["privacy"]["epsilon"])}
    drift = run.summary["explanation"]["training"]["drift"]
    assert history(client, told.id, "final/drift/training") == {3: pytest.approx(drift)}
    head = SignedHead.read(run.folder / "ledger.head.json").head
    assert held.data.tags["grandrounds.ledger.root"] == head.root.hex()
    assert held.data.tags["grandrounds.run"] == run.folder.name
    assert "Epsilon = " in held.data.tags["grandrounds.privacy"]


def test_the_files_are_those_of_the_run_and_the_model_scores_as_it_did(run, store, client):
    told = track(run, f"mlflow:{store}")
    held = artifacts(client, told.id)
    for name in ("experiment.toml", "report.html", "ledger.head.json"):
        assert held[name].read_bytes() == (run.folder / name).read_bytes()
    assert held["model/schema.json"].read_bytes() == (run.folder / "schema.json").read_bytes()
    rows = load_breast_cancer(as_frame=True).data.rename(columns=lambda name: name.replace(" ", "_"))
    there = TrainedModel.load(held["model/model.safetensors"]).predict(rows)
    np.testing.assert_array_equal(there.probabilities, run.model.predict(rows).probabilities)
    seen = RunRecord(run.rounds, run.summary, run.explanations)
    figures = {f"figures/{name}.json": entry.make(seen) for name, entry in list_figures(seen).items()}
    assert figures
    assert {name: json.loads(path.read_text()) for name, path in held.items() if name in figures} == figures


def test_nothing_of_a_patient_and_no_key_leaves_the_folder(run, store, client):
    secret = "a value of patient 4711"
    for name in (
        "explain/case-12.html",
        "at_sites/site-01/maps-3.npz",
        "checkpoint/keys.json",
        "server.key",
        "notes.txt",
    ):
        path = run.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(secret)
    summary = json.loads((run.folder / "summary.json").read_text())
    summary["models"] = {"site-01": "explain/case-12.html", "site-02": "../../elsewhere.safetensors"}
    (run.folder / "summary.json").write_text(json.dumps(summary))
    held = artifacts(client, track(gr.load_run(run.folder), f"mlflow:{store}").id)
    named = {name for name in held if not name.startswith("figures/")}
    assert named == {
        "experiment.toml",
        "report.html",
        "ledger.head.json",
        "model/model.safetensors",
        "model/schema.json",
    }
    assert not any(secret.encode() in path.read_bytes() for path in held.values())


def test_logged_again_it_is_the_same_mlflow_run(run, store, client):
    first = track(run, f"mlflow:{store}")
    before = history(client, first.id, "test/accuracy")
    again = track(gr.load_run(run.folder), f"mlflow:{store}")
    assert (first.again, again.again) == (False, True)
    assert again.id == first.id
    assert again.unchanged == ()
    assert history(client, first.id, "test/accuracy") == before


def test_one_that_was_logged_half_is_finished(run, store, client):

    place = client.create_experiment(f"half {run.folder.name}")
    begun = client.create_run(place, tags=build_tags(run, identify(run)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_EXPERIMENT_NAME", f"half {run.folder.name}")
        told = track(run, f"mlflow:{store}")
    assert told.id == begun.info.run_id
    assert len(history(client, told.id, "test/accuracy")) == 3


def test_a_run_that_went_on_is_the_same_one_and_what_mlflow_cannot_change_is_said(tmp_path, store, client):
    asked = gr.Experiment.parse({"data": {"name": "breast-cancer"}, "method": {"rounds": 1}})
    first = track(gr.run(asked, out=tmp_path / "grows"), f"mlflow:{store}")
    root = client.get_run(first.id).data.tags["grandrounds.ledger.root"]
    again = track(gr.resume(tmp_path / "grows", settings=["method.rounds=2"]), f"mlflow:{store}")
    assert again.id == first.id
    assert again.unchanged == ("method.rounds",)
    held = client.get_run(first.id)
    assert held.data.params["method.rounds"] == "1", "MLflow never changes a parameter"
    assert held.data.tags["grandrounds.now.method.rounds"] == "2"
    assert held.data.tags["grandrounds.ledger.root"] != root
    assert list(history(client, first.id, "test/auroc")) == [1, 2]


@pytest.mark.slow
def test_another_run_of_that_name_is_another_one(run, store, tmp_path):
    other = gr.run(
        gr.Experiment.parse({**PRIVATE, "seed": 1, "method": {"rounds": 1}}),
        out=tmp_path / "elsewhere" / run.folder.name,
    )
    assert track(other, f"mlflow:{store}").id != track(run, f"mlflow:{store}").id


def test_the_commands(run, store, tmp_path):
    done = rounds("track", run.folder, "--to", f"mlflow:{store}")
    assert done.returncode == 0
    assert done.stdout.startswith(f"{run.folder}: logged as run ")
    out = tmp_path / "new"
    arguments = ("run", "breast-cancer", "--set", "method.rounds=1", "--out", out, "--json", "--track", "mlflow")
    done = rounds(*arguments, env={"MLFLOW_TRACKING_URI": store})
    assert done.returncode == 0
    assert json.loads(done.stdout)["rounds"] == 1, "standard output is the summary and nothing else"
    done = rounds("resume", out, "--set", "method.rounds=2", "--track", "mlflow", env={"MLFLOW_TRACKING_URI": store})
    assert done.returncode == 0
    assert "tracked: updated" in done.stderr
    assert "these have changed: method.rounds" in done.stderr


def test_a_server_that_is_away_costs_no_run_and_no_secret(tmp_path):
    uri = f"http://ann:hunter2@127.0.0.1:{closed_port()}/?token=geheim"
    out = tmp_path / "new"
    done = rounds("run", "breast-cancer", "--set", "method.rounds=1", "--out", out, "-q", "--track", f"mlflow:{uri}")
    assert done.returncode == 0
    assert done.stdout.strip() == str(out)
    assert gr.load_run(out).finished
    assert len(done.stderr.splitlines()) == 1
    assert "Connection refused; log it later" in done.stderr
    assert f"log it later with `rounds track {out} --to mlflow:http://***@127.0.0.1" in done.stderr
    later = rounds("track", out, env={"MLFLOW_TRACKING_URI": uri})
    assert later.returncode == 1
    for text in (done.stderr, later.stderr):
        assert "hunter2" not in text
        assert "geheim" not in text
        assert "ann" not in text.replace("cannot", "")


@pytest.mark.slow
def test_mlflow_tells_its_makers_nothing(run):
    """In a process of its own, that does not look like a test: MLflow asks once, as it is imported."""
    code = f"""if True:
        import grandrounds as gr
        from grandrounds.capabilities.integrations.mlflow import NotLogged, track
        try:
            track(gr.load_run({str(run.folder)!r}), "mlflow:http://127.0.0.1:{closed_port()}")
        except NotLogged:
            from mlflow.telemetry import get_telemetry_client
            from mlflow.telemetry.utils import _IS_IN_CI_ENV_OR_TESTING
            print(get_telemetry_client(), _IS_IN_CI_ENV_OR_TESTING)"""
    env = {"PATH": os.environ["PATH"], "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["None", "False"], done.stderr


def test_a_wrong_word_or_no_mlflow_is_said_before_anything_is_trained(tmp_path, monkeypatch):
    out = tmp_path / "new"
    done = rounds("run", "--out", out, "--track", "mlfow")
    assert done.returncode == 2
    assert "did you mean 'mlflow'?" in done.stderr
    monkeypatch.setitem(sys.modules, "mlflow", None)
    done = rounds("run", "--out", out, "--track", "mlflow")
    assert done.returncode == 2
    assert install_extra("tracking") in done.stderr
    assert not out.exists()


def test_a_run_that_is_not_finished_is_not_logged(run, store):
    (run.folder / "summary.json").unlink()
    with refused("run-not-finished"):
        track(gr.load_run(run.folder), f"mlflow:{store}")


def test_a_damaged_run_is_said_to_be(run, store):
    (run.folder / "round_logs.json").write_text('{"rounds": [{"round": 1}]}')
    with refused("damaged-file", match="rounds.0.decision"):
        track(gr.load_run(run.folder), f"mlflow:{store}")


def test_figures_are_of_a_known_form(run, store):
    with refused("unknown-figure-format", match="unknown format of figures 'pgn'; did you mean 'png'"):
        track(run, f"mlflow:{store}", figures="pgn")


def test_an_experiment_that_was_deleted_is_said(run, store, client, monkeypatch):
    client.delete_experiment(client.create_experiment("gone"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "gone")
    with refused("deleted-experiment", match="experiment 'gone' was deleted", kind=NotLogged):
        track(run, f"mlflow:{store}")


def test_settings_become_names_that_mlflow_takes():
    said = flatten_plan(
        {
            "seed": 0,
            "method": {"rounds": 3, "lambdas": {"data": 0.5}, "reference": None},
            "data": {"kinds": {"Größe (cm)": "numeric", "age": "numeric"}, "drop": [], "table": "x" * 9000},
            "engine": {"wire": False},
        }
    )
    assert said["method.lambdas.data"] == "0.5"
    assert said["engine.wire"] == "false"
    assert json.loads(said["data.kinds"]) == {"Größe (cm)": "numeric", "age": "numeric"}
    assert len(said["data.table"]) == LONGEST_VALUE
    assert said["data.table"].endswith("x ...")
    assert set(said) == {"seed", "method.rounds", "method.lambdas.data", "data.kinds", "data.table", "engine.wire"}


@pytest.mark.parametrize(
    ("uri", "printed"),
    [
        ("https://ann:pa@ss@tracker.example/x?key=1", "https://***@tracker.example/x"),
        ("postgresql://token@db.example/mlflow", "postgresql://***@db.example/mlflow"),
        ("sqlite:///mlflow.db", "sqlite:///mlflow.db"),
    ],
)
def test_a_uri_is_printed_without_its_secrets(uri, printed):
    assert hide_credentials(uri) == printed
    assert str(Target(uri, named=True)) == f"mlflow:{printed}"
