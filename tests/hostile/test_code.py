"""A stranger's run folder names code, files and addresses: nothing runs or opens them unless its reader says so."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

import grandrounds as gr
from grandrounds.core import plugins, sources
from grandrounds.core.arrays import load, save
from grandrounds.core.section import NAMES_SOURCE, OwnCode
from grandrounds.experiment.experiment import Experiment
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
    "masks show": ("explain", "masks", "show", "RUN"),
    "maps show": ("explain", "maps", "show", "RUN"),
    "track": ("track", "RUN"),
    "compare": ("compare", "RUN", "RUN"),
    "resume": ("resume", "RUN", "--set", "method.rounds=3"),
    "audit verify": ("audit", "verify", "RUN", "--deep"),
    "recalibrate": ("recalibrate", "RUN", "--table", "patients.csv"),
    "withdraw": ("withdraw", "RUN", "--site", "a"),
    "card": ("card", "RUN"),
    "watch": ("watch", "RUN", "--table", "patients.csv", "--out", "W"),
    "watch --simulate": ("watch", "RUN", "--simulate", "--out", "W"),
    "dossier": ("dossier", "RUN", "--out", "D"),
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
    "method": ("resume", "attack", "explain --site"),
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

    from grandrounds.capabilities.console.app import create_app
    from grandrounds.capabilities.console.app_state import AppState
    from grandrounds.capabilities.console.cases.site_cases import SiteCases
    from grandrounds.capabilities.console.run_index import RunIndex
    from tests.capabilities.console.conftest import BASE, known_users
    from tests.capabilities.console.test_protection import routes

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


# --- files, addresses and queries -------------------------------------------------------------------------

WORDS = {
    "name", "data.sheet", "data.cohort.*", "data.label", "data.duration", "data.event", "data.positive", "data.site",
    "data.patient",
    "data.time", "data.part", "data.id", "data.drop.*", "data.features.*", "data.kinds.*", "data.kinds.*.*", "data.names.*",
    "data.units.*", "data.missing.*", "data.text_encoding", "data.separator", "data.ranges.*", "data.levels.*", "data.levels.*.*",
    "data.products.*.*", "data.sha256", "data.file", "data.scan.window", "data.scan.slices", "data.scan.series.*",
    "data.shift.clean.*", "data.shortcut.classes.*", "split.holdout.*", "split.without.*", "reference.*", "tasks.*",
    "tasks.*.classes.*", "tasks.*.classes.*.*", "tasks.*.sites.*", "model.options.*", "method.weigh.lambdas.*",
    "method.reference", "method.anchor_rows", "method.exact.group", "method.exact.columns.*", "method.exact.nonnormal.*",
    "method.gam.monotone.*", "method.trees.monotone.*", "method.watch.model", "method.watch.edges.*", "method.watch.shifts.*",
    "method.quality.bins.*", "method.quality.bins.*.levels.*", "method.quality.bins.*.unit", "method.quality.classes.*",
    "method.options.*", "train.class_weights.*", "train.objective_options.*", "explain.reference", "engine.absences.*",
    "engine.faults.nan.*", "engine.faults.slow.*", "evaluation.subgroup", "evaluation.subgroups.*", "evaluation.bands.*",
    "evaluation.rationale_set", "attacks.*.sites.*", "attacks.*.target", "code.*", "tune.metric", "tune.space.*",
}  # fmt: skip
"""Free text of a plan that is a name of a column, site, class, set or option: nothing opens or imports it."""


def texts(kind: object, key: str, marks: tuple[object, ...]) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield each setting of free text with its marks, from the types of an experiment."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield from texts(field.annotation, f"{key}.{name}".lstrip("."), tuple(field.metadata))
    elif origin is typing.Annotated:
        yield from texts(inner[0], key, (*marks, *kind.__metadata__))
    elif origin in (typing.Union, types.UnionType):
        for one in inner:
            yield from texts(one, key, marks)
    elif origin in (tuple, list, dict):
        for one in inner:
            yield from texts(one, f"{key}.*", marks)
    elif kind in (str, typing.Any, object):
        yield key, marks


def test_every_text_of_a_plan_is_code_a_source_or_a_word():
    marks: dict[str, set[str]] = {}
    for key, own in texts(Experiment, "", ()):
        kind = "code" if OwnCode in own else "source" if NAMES_SOURCE in own else "word"
        marks.setdefault(key, set()).add(kind)
    assert {k for k, kinds in marks.items() if kinds == {"source"}} == set(sources.FIELDS)
    code = {k.removesuffix(".*") for k, kinds in marks.items() if kinds == {"code"}}
    assert code == {".".join(field) for field in plugins._FIELDS}
    assert {k for k, kinds in marks.items() if kinds == {"word"}} == WORDS, "a new setting of free text: does anything open it?"


FOREIGN = "of_somebody_else"
_touched: list[str] = []


def _record(event: str, arguments: tuple[object, ...]) -> None:
    """Record what is opened below a stranger's folder. A hook of Python cannot be removed."""
    if event in ("open", "os.listdir", "os.scandir", "sqlite3.connect") and arguments and FOREIGN in str(arguments[0]):
        _touched.append(f"{event} {arguments[0]}")
    if event == "socket.connect" and "127.0.0.9" in str(arguments):
        _touched.append(f"connect {arguments}")


@pytest.fixture
def foreign(place, monkeypatch) -> Path:
    """A folder with files that a plan may name, beside a run that somebody else made."""
    folder = place / FOREIGN
    shutil.copytree(place / "run", folder / "watched")
    shutil.copy(place / "patients.csv", folder / "patients.csv")
    shutil.copy(place / "run" / "model.safetensors", folder / "weights.safetensors")
    with sqlite3.connect(folder / "ward.db") as db:
        db.execute("CREATE TABLE stays (age real, died integer, hospital text)")
    db.close()
    sys.addaudithook(_record)
    monkeypatch.setattr(sources, "_opened", set())
    monkeypatch.setattr(sources, "_refused", {})
    _touched.clear()
    return folder


def name_source(run: Path, field: str, folder: Path) -> None:
    """Have a run folder name a file, an address or a query in one field."""
    file = run / "checkpoint" / "plan.json"
    plan = json.loads(file.read_text())
    table = str(folder / "patients.csv")
    values = {
        "data.table": {"data": {"table": table}},
        "data.query": {"data": {"table": f"sqlite:///{folder}/ward.db", "query": "SELECT * FROM stays"}},
        "data.pictures": {"data": {"table": table, "pictures": str(folder)}},
        "data.masks": {"data": {"table": table, "pictures": str(folder), "masks": str(folder)}},
        "reference.*.source": {"reference": {"rows": {"rows": 20, "labelled": True, "sent": False, "source": table}}},
        "model.weights": {"model": {"weights": str(folder / "weights.safetensors")}},
        "method.watch.run": {"method": {"name": "watch", "watch": {"run": str(folder / "watched")}}},
        "method.watch.table": {"method": {"name": "watch", "watch": {"table": table}}},
    }
    assert set(values) == set(sources.FIELDS)
    for section, changed in values[field].items():
        for key, value in changed.items():
            held = plan[section].setdefault(key, {}) if isinstance(value, dict) else None
            plan[section][key] = value if held is None else {**held, **value}
    file.write_text(json.dumps(plan))
    if field == "model.weights":
        arrays, meta = load(run / "model.safetensors")
        meta["spec"]["weights"] = str(folder / "weights.safetensors")
        save(run / "model.safetensors", arrays, meta)


SOURCES = [(field, command) for field in sources.FIELDS for command in COMMANDS]
THIN_SOURCES = [case for case in SOURCES if case[1] not in ("track", "attack --shadows")]


def check_nothing_opened(place: Path, foreign: Path, field: str, command: str) -> None:
    name_source(place / "run", field, foreign)
    done = rounds(*[a.replace("RUN", "run") for a in COMMANDS[command]], cwd=place)
    assert not _touched, (command, _touched, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1, 2, 3), done.stderr


@pytest.mark.parametrize(("field", "command"), THIN_SOURCES[::7])
def test_no_command_opens_what_a_stranger_names(place, foreign, field, command):
    check_nothing_opened(place, foreign, field, command)


@pytest.mark.slow
@pytest.mark.parametrize(("field", "command"), SOURCES)
def test_no_command_opens_what_any_field_names(place, foreign, field, command):
    check_nothing_opened(place, foreign, field, command)


@pytest.mark.parametrize("command", ["explain --case", "attack", "resume", "card"])
def test_a_command_that_needs_those_rows_is_refused_until_they_are_named(place, foreign, command):
    name_source(place / "run", "data.table", foreign)
    arguments = [a.replace("RUN", "run") for a in COMMANDS[command]]
    done = rounds(*arguments, cwd=place)
    assert done.returncode == 2 and "[source-not-opened]" in done.stderr, done.stderr
    assert not _touched


def test_rows_that_the_reader_names_are_read_and_trust_opens_the_rest(place, foreign):
    name_source(place / "run", "data.table", foreign)
    assert rounds("explain", "run", "--case", "3", "--table", "patients.csv", cwd=place).returncode == 0
    assert not _touched
    done = rounds("explain", "run", "--case", "3", "--trust-code", cwd=place)
    assert done.returncode == 0, done.stderr
    assert any("patients.csv" in one for one in _touched)


def test_a_copy_of_a_run_that_was_made_here_opens_its_own_table(place, monkeypatch):
    monkeypatch.setattr(sources, "_opened", set())
    assert rounds("explain", "run", "--case", "3", cwd=place).returncode == 0
    file = place / "run" / "checkpoint" / "plan.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "seed": 9}))
    monkeypatch.setattr(sources, "_opened", set())
    assert "[source-not-opened]" in rounds("explain", "run", "--case", "3", cwd=place).stderr


def test_a_plan_names_no_cohort_file(place):
    file = place / "run" / "checkpoint" / "plan.json"
    plan = json.loads(file.read_text())
    plan["data"]["cohort"] = str(place / "cohort.toml")
    file.write_text(json.dumps(plan))
    assert "[damaged-plan]" in rounds("explain", "run", "--case", "3", cwd=place).stderr


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


def test_a_run_without_code_of_its_own_lists_none(made):
    plan = json.loads((made / "run" / "checkpoint" / "plan.json").read_text())
    assert "code" not in plan
    assert "code" not in (made / "run" / "experiment.toml").read_text()
