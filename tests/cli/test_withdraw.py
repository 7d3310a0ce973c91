"""`rounds withdraw`, the commands that refuse a withdrawn model, and the console's pages of such a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import rounds
from tests.store import copied, finished, shared_folder

RUN = "runs/heart-fedavg-seed0"


@shared_folder
def withdrawn(root: Path) -> None:
    """A run from which a site withdrew, and the printed text."""
    copied(finished("heart", rounds=2), root / RUN)
    said = rounds("withdraw", RUN, "--site", "va", "--prove", cwd=root)
    assert said.returncode == 0, said.stderr
    (root / "printed.txt").write_text(said.stdout)


@pytest.fixture(scope="module")
def folder(withdrawn, tmp_path_factory):
    root = copied(withdrawn, tmp_path_factory.mktemp("commands"))
    return root, root / RUN, (root / "printed.txt").read_text()


def test_it_says_what_is_valid_what_remains_and_what_it_cost(folder):
    root, run, text = folder
    assert f"valid now: {run.relative_to(root)}-without-va" in text
    assert "influence: none" in text and "cost: 2 rounds" in text and "0.5 is guessing" in text
    summary = json.loads((root / f"{run}-without-va" / "summary.json").read_text())
    assert list(summary["per_site"]) == ["cleveland", "hungarian", "switzerland"]
    assert summary["withdrawal"]["repeats"]["folder"] == run.name
    assert f"model: sha256 {json.loads((run / 'withdrawn.json').read_text())['valid']['model']}" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "{run}", "--table", "rows.csv"),
        ("evaluate", "{run}", "--table", "rows.csv"),
        ("export", "{run}", "--to", "json"),
        ("card", "{run}"),
        ("explain", "{run}", "--case", "3"),
        ("report", "{run}"),
        ("show", "{run}", "--model"),
        ("track", "{run}"),
    ],
)
def test_commands_refuse_its_model_with_exit_code_2(folder, arguments):
    root, run, _ = folder
    said = rounds(*(a.format(run=run) for a in arguments), cwd=root)
    assert said.returncode == 2 and "[withdrawn-run]" in said.stderr and "va withdrew" in said.stderr


def test_the_option_uses_the_model_all_the_same(folder):
    root, run, _ = folder
    said = rounds("export", run, "--to", "json", "--out", "model.json", "--withdrawn", cwd=root)
    assert said.returncode == 0 and "warning: the model is not valid" in said.stderr
    assert rounds("report", run, "--withdrawn", cwd=root).returncode == 0
    assert "WITHDRAWN" in rounds("show", run, cwd=root).stdout
    assert rounds("audit", "verify", run, cwd=root).returncode == 0
    now = f"{run}-without-va"
    assert f"repeats {run.name} without va" in rounds("show", now, cwd=root).stdout
    assert "membership attack on va" in rounds("attack", now, cwd=root).stdout


def test_bad_input_ends_with_exit_code_2(folder):
    root, run, _ = folder
    for site, code in (("hungaria", "unknown-site"), ("va", "unknown-site")):
        said = rounds("withdraw", f"{run}-without-va", "--site", site, cwd=root)
        assert said.returncode == 2 and f"[{code}]" in said.stderr
    assert "[withdrawn-run]" in rounds("withdraw", run, "--site", "hungarian", cwd=root).stderr


def test_the_console_marks_the_run_and_refuses_its_model(folder):
    pytest.importorskip("fastapi")
    from grandrounds.capabilities.console.app import create_app
    from grandrounds.capabilities.console.app_state import AppState
    from grandrounds.capabilities.console.run_index import RunIndex
    from tests.capabilities.console.conftest import Signed, known_users

    root, run, _ = folder
    users, tokens = known_users()
    client = Signed(create_app(AppState(RunIndex(root / "runs"), users)), tokens).client("viewer")
    lines = {line["name"]: line["withdrawn"] for line in client.get("/api/runs").json()}
    assert "va withdrew" in lines[run.name] and not lines[f"{run.name}-without-va"]
    assert ">withdrawn</span>" in client.get("/").text
    assert "<b>Withdrawn:</b>" in client.get("/run", params={"run": run.name}).text
    from grandrounds.capabilities.console.cases.site_cases import SiteCases
    from tests.support import refused

    patients = SiteCases(RunIndex(root / "runs"), "cleveland")
    assert [entry.name for entry in patients.runs()] == [f"{run.name}-without-va"]
    with refused("withdrawn-run"):
        patients.open(run.name)
    for path in ("/card", "/shapes", "/api/run/card", "/api/run/shapes", "/api/run/estimates"):
        answer = client.get(path, params={"run": run.name})
        assert answer.status_code == 422 and "va withdrew" in answer.text
        assert client.get(path, params={"run": run.name, "withdrawn": True}).status_code == 200
