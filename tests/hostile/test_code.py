"""A stranger's run folder names code: no command and no page of the console runs it unless its reader says so."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds.core import plugins
from grandrounds.core.arrays import load, save
from grandrounds.runs.model import TrainedModel
from tests.command import rounds
from tests.support import patients, refused, without_ledger

MODULE = "a_strangers_code"
SOURCE = """
from pathlib import Path
Path({marker!r}).write_text("executed")
from grandrounds.methods.fedavg import FedAvg
class Thing(FedAvg):
    pass
from grandrounds.site.objective import LocalObjective
class Term(LocalObjective):
    pass
def rows():
    import pandas
    return pandas.read_csv({table!r})
def deal(y, *, sites, rng):
    import numpy as np
    return [np.arange(len(y))[k::sites] for k in range(sites)]
def metric(tally):
    return 1.0
def Net(*, inputs, outputs):
    from torch import nn
    return nn.Linear(inputs[0], outputs)
"""
FIELDS = {
    "method": ("method", "name", f"{MODULE}:Thing"),
    "data": ("data", "name", f"{MODULE}:rows"),
    "partition": ("split", "partition", f"{MODULE}:deal"),
    "metrics": ("evaluation", "metrics", [f"{MODULE}:metric"]),
    "model": ("model", "name", f"{MODULE}:Net"),
    "objective": ("train", "objective", f"{MODULE}:Term"),
}
HOSTILE = (*FIELDS, "model file", "torch.hub")
COMMANDS = {
    "report": ("report", "RUN"),
    "show": ("show", "RUN"),
    "show --model": ("show", "RUN", "--model"),
    "show --round": ("show", "RUN", "--round", "1", "--site", "a"),
    "show --schema": ("show", "RUN", "--schema"),
    "explain --case": ("explain", "RUN", "--case", "3"),
    "explain --site": ("explain", "RUN", "--site", "a", "--by", "permutation"),
    "explain --table": ("explain", "RUN", "--case", "3", "--table", "patients.csv"),
    "explain --near-misses": ("explain", "RUN", "--near-misses"),
    "predict": ("predict", "RUN", "--table", "patients.csv"),
    "evaluate": ("evaluate", "RUN", "--table", "patients.csv"),
    "export": ("export", "RUN", "--to", "json"),
    "attack": ("attack", "RUN"),
    "attack --shadows": ("attack", "RUN", "--shadows", "4", "--jobs", "1"),
    "privacy": ("privacy", "RUN"),
    "masks show": ("masks", "show", "RUN"),
    "maps show": ("maps", "show", "RUN"),
    "track": ("track", "RUN"),
    "compare": ("compare", "RUN", "RUN"),
    "resume": ("resume", "RUN", "--set", "method.rounds=3"),
    "audit verify": ("audit", "verify", "RUN", "--deep"),
}
EVERY = [(field, command) for field in HOSTILE for command in COMMANDS]
THIN = [case for case in EVERY if case[1] not in ("track", "attack --shadows")]  # mlflow takes seconds to import


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a table and a run of it."""
    place = tmp_path_factory.mktemp("made")
    columns = patients([60, 50, 40]).columns
    lines = [",".join(columns), *(",".join("" if v != v else str(v) for v in row) for row in zip(*columns.values(), strict=True))]
    (place / "patients.csv").write_text("\n".join(lines) + "\n")
    arguments = ("--label", "died", "--site", "hospital", "--set", "method.rounds=2", "--out", "run", "--quiet")
    assert rounds("run", "--table", "patients.csv", *arguments, cwd=place).returncode == 0
    return place


@pytest.fixture
def place(made, tmp_path) -> Path:
    """A copy of it beside a module that leaves a mark when it is imported."""
    without_ledger(shutil.copytree(made / "run", tmp_path / "run"))  # as a stranger would send it
    shutil.copy(made / "patients.csv", tmp_path)
    source = SOURCE.format(marker=str(tmp_path / "marker"), table=str(tmp_path / "patients.csv"))
    (tmp_path / f"{MODULE}.py").write_text(source)
    yield tmp_path
    sys.modules.pop(MODULE, None)
    sys.path[:] = [p for p in sys.path if p != str(tmp_path)]


def spoil(run: Path, field: str, *, listed: bool = False) -> None:
    """Have a run folder name code, as somebody would who made it."""
    if field in ("model file", "torch.hub"):
        arrays, meta = load(run / "model.safetensors")
        meta["spec"] |= {"name": FIELDS["model"][2], "weights": None, "options": {}}
        if field == "torch.hub":
            meta["spec"] |= {"name": "torch.hub:load", "options": {"repo_or_dir": str(run), "model": "net", "source": "local"}}
            (run / "hubconf.py").write_text((run.parent / f"{MODULE}.py").read_text() + "net = Net\n")
        save(run / "model.safetensors", arrays, meta)
        return
    file = run / "checkpoint" / "plan.json"
    plan = json.loads(file.read_text())
    section, key, value = FIELDS[field]
    plan[section][key] = value
    if field == "data":
        plan["data"]["table"] = None
    if listed:
        module = run.parent / f"{MODULE}.py"
        plan["code"] = {MODULE: hashlib.sha256(module.read_bytes()).hexdigest()}
    file.write_text(json.dumps(plan))


def check(place: Path, command: str) -> None:
    arguments = [a.replace("RUN", "run") for a in COMMANDS[command]]
    done = rounds(*arguments, cwd=place)
    assert not (place / "marker").exists(), f"{command} ran the code"
    assert MODULE not in sys.modules
    assert "Traceback" not in done.stderr
    if done.returncode:  # a command that needs none of this code may do its work
        last = done.stderr.strip().splitlines()
        assert done.returncode in (2, 3), done.stderr
        assert done.returncode == 3 or any(line.startswith("error: ") for line in last), done.stderr


@pytest.mark.parametrize(("field", "command"), THIN[::8])
def test_no_command_runs_a_strangers_code(place, field, command):
    spoil(place / "run", field)
    check(place, command)


@pytest.mark.slow
@pytest.mark.parametrize(("field", "command"), EVERY)
def test_no_command_runs_code_that_any_field_names(place, field, command):
    spoil(place / "run", field)
    check(place, command)


REFUSED = {
    "method": ("resume", "attack", "privacy", "explain --site"),
    "data": ("explain --case", "attack"),
    "partition": ("explain --case",),
    "model": ("attack --shadows", "resume"),
    "metrics": ("resume",),
    "model file": ("predict", "show --model", "export"),
    "torch.hub": ("predict",),
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_needs_that_code_is_refused_in_one_sentence(place, field):
    spoil(place / "run", field)
    for command in REFUSED[field]:
        done = rounds(*[a.replace("RUN", "run") for a in COMMANDS[command]], cwd=place)
        assert done.returncode == 2, (command, done.stdout, done.stderr)
        said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(said) == 1
        assert MODULE in said[0] or "torch.hub" in said[0]
        assert "Traceback" not in done.stderr


def test_the_console_runs_no_code_at_all(place):
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from grandrounds.console.app import create_app
    from grandrounds.console.app_state import AppState
    from grandrounds.console.cases.site_cases import SiteCases
    from grandrounds.console.run_index import RunIndex
    from tests.console.conftest import BASE, known_users
    from tests.console.test_protection import routes

    for field in FIELDS:
        spoil(place / "run", field)
    spoil(place / "run", "model file")
    users, tokens = known_users()
    run_index = RunIndex(place)
    for data in (None, str(place / "patients.csv")):
        cases = SiteCases(run_index, "a", data=data)
        app = create_app(AppState(run_index, users, cases=cases))
        client = TestClient(app, base_url=BASE, follow_redirects=False, raise_server_exceptions=True)
        client.headers["authorization"] = f"Bearer {tokens['all']}"
        seen = 0
        for route in routes(app):
            if "GET" in route.methods and "{" not in route.path and "stream" not in route.path and "live" not in route.path:
                given = {"run": "run", "round": "1", "site": "a", "case": "1", "kind": "rounds", "name": "run", "arm": "run"}
                answer = client.get(route.path, params=given)
                assert answer.status_code != 500, route.path
                seen += 1
        assert seen > 15
        assert not (place / "marker").exists()
    with refused("data-do-not-fit", match=r"model\.name"):
        cases.check()
    assert not (place / "marker").exists()


# --- with the reader's trust ------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["method", "metrics"])
def test_trusted_code_runs_from_modules_that_the_plan_lists(place, field):
    spoil(place / "run", field, listed=True)
    done = rounds("resume", "run", "--set", "method.rounds=3", "--quiet", cwd=place)
    assert done.returncode == 2
    assert "was not made here" in done.stderr and "--trust-code" in done.stderr
    assert not (place / "marker").exists()
    done = rounds("resume", "run", "--set", "method.rounds=3", "--quiet", "--trust-code", cwd=place)
    assert (place / "marker").exists(), done.stderr


def test_trust_does_not_reach_to_modules_that_changed_or_are_not_listed(place):
    spoil(place / "run", "method")
    done = rounds("resume", "run", "--set", "method.rounds=3", "--trust-code", cwd=place)
    assert done.returncode == 2
    assert f"does not list the SHA-256 of module {MODULE}" in done.stderr
    spoil(place / "run", "method", listed=True)
    with (place / f"{MODULE}.py").open("a") as f:
        f.write("# another line\n")
    done = rounds("resume", "run", "--set", "method.rounds=3", "--trust-code", cwd=place)
    assert done.returncode == 2
    assert f"module {MODULE} " in done.stderr and "has changed since the run was made" in done.stderr
    assert not (place / "marker").exists()


def test_a_package_of_this_machine_is_not_an_authors_module(place):
    spoil(place / "run", "torch.hub")
    file = place / "run" / "checkpoint" / "plan.json"
    _, meta = load(place / "run" / "model.safetensors")
    plan = json.loads(file.read_text())
    plan["model"] |= {"name": "torch.hub:load", "options": meta["spec"]["options"]}
    plan["code"] = plugins.hashes(["torch.hub:load"])
    file.write_text(json.dumps(plan))
    done = rounds("predict", "run", "--table", "patients.csv", "--trust-code", cwd=place)
    assert done.returncode == 2
    assert "part of this machine's Python" in done.stderr
    assert not (place / "marker").exists()


def test_a_model_file_outside_a_run_folder_imports_nothing(place):
    spoil(place / "run", "model file")
    shutil.copy(place / "run" / "model.safetensors", place)
    with refused("code-not-run"):
        TrainedModel.load(place / "model.safetensors", trust_code=True)
    assert not (place / "marker").exists()


# --- runs that were made here -----------------------------------------------------------------------------

NET = """
import torch
class Net(torch.nn.Linear):
    def __init__(self, *, inputs, outputs, **_):
        super().__init__(inputs[0], outputs)
"""


@pytest.fixture
def own(made, tmp_path, monkeypatch) -> Path:
    """A run with a model of the user's own, in a process that has since forgotten it."""
    shutil.copy(made / "patients.csv", tmp_path)
    (tmp_path / "own_net_here.py").write_text(NET)
    arguments = ("--label", "died", "--site", "hospital", "--set", "method.rounds=1", "--out", "run", "--quiet")
    done = rounds("run", "--table", "patients.csv", *arguments, "--set", "model.name=own_net_here:Net", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    forget(tmp_path)
    yield tmp_path
    forget(tmp_path)


def forget(place: Path) -> None:
    """As a new process would be."""
    sys.modules.pop("own_net_here", None)
    sys.path[:] = [p for p in sys.path if p != str(place)]
    plugins._decided.clear()


def predict(place: Path, *more: str):
    return rounds("predict", "run", "--table", "patients.csv", *more, cwd=place)


def test_a_run_that_was_made_here_needs_no_flag(own):
    assert predict(own).returncode == 0
    plan = json.loads((own / "run" / "checkpoint" / "plan.json").read_text())
    assert plan["code"] == {"own_net_here": hashlib.sha256(NET.encode()).hexdigest()}
    forget(own)
    assert rounds("resume", "run", "--set", "method.rounds=2", "--quiet", cwd=own).returncode == 0
    forget(own)
    assert predict(own).returncode == 0, "a resume stamps the plan that it wrote"
    (own / "run").rename(own / "moved")
    forget(own)
    assert rounds("predict", "moved", "--table", "patients.csv", cwd=own).returncode == 0, "a folder may be moved"
    assert rounds("audit", "verify", "moved", "--deep", cwd=own).returncode == 0


def test_a_run_that_was_made_here_refuses_another_module_and_another_plan(own):
    (own / "own_net_here.py").write_text(NET + "# changed\n")
    done = predict(own)
    assert done.returncode == 2
    assert "module own_net_here " in done.stderr and "has changed since the run was made" in done.stderr
    (own / "own_net_here.py").write_text(NET)
    file = own / "run" / "checkpoint" / "plan.json"
    plan = json.loads(file.read_text())
    file.write_text(json.dumps({**plan, "seed": 7}))
    done = predict(own, "--unverified")
    assert done.returncode == 2
    assert "was not made here" in done.stderr


def test_a_model_file_with_other_options_than_the_plan_is_refused(own):
    arrays, meta = load(own / "run" / "model.safetensors")
    meta["spec"]["options"] = {"path": "/etc/passwd"}
    save(own / "run" / "model.safetensors", arrays, meta)
    done = predict(own, "--trust-code", "--unverified")
    assert done.returncode == 2
    assert "not the model.name and model.options of its run's plan" in done.stderr


def test_another_user_needs_trust(own, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    assert "was not made here" in predict(own).stderr
    assert predict(own, "--trust-code").returncode == 0
    forget(own)
    with refused("code-not-run"):
        _ = gr.load_run(own / "run").model
    monkeypatch.chdir(own)
    assert gr.load_run(own / "run", trust_code=True).model.net is not None


def test_the_secret_is_private_and_one_that_others_could_read_is_not_used(own):
    key = plugins.key_file()
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    try:
        assert "was not made here" in predict(own).stderr
    finally:
        key.chmod(0o600)


def test_where_no_secret_can_be_stored_the_run_says_so_and_holds_in_its_process(made, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(plugins, "_own_key", [])
    (tmp_path / "own_net_here.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    settings = {"data": {"name": "breast-cancer"}, "split": {"sites": 3}, "method": {"rounds": 1}}
    held = gr.run(gr.Experiment.parse({**settings, "model": {"name": "own_net_here:Net"}}), out=tmp_path / "r")
    assert any("--trust-code" in w for w in held.summary["warnings"])
    assert held.model.net is not None
    forget(tmp_path)


def test_an_experiment_file_of_a_run_pins_its_modules(own):
    again = ("run", "run/experiment.toml", "--out", "again", "--quiet")
    (own / "own_net_here.py").write_text(NET + "# changed\n")
    done = rounds(*again, cwd=own)
    assert done.returncode == 2
    assert "own_net_here" in done.stderr and "remove [code]" in done.stderr
    (own / "own_net_here.py").write_text(NET)
    assert rounds(*again, cwd=own).returncode == 0


def test_a_run_without_code_of_its_own_has_no_trace_of_this(made):
    plan = json.loads((made / "run" / "checkpoint" / "plan.json").read_text())
    assert "code" not in plan
    assert "code" not in (made / "run" / "experiment.toml").read_text()
    assert not (made / "run" / "checkpoint" / plugins.STAMP).exists()
