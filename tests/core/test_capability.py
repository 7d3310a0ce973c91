"""Manifests of capabilities: what they name exists, and what is deleted is simply not there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import grandrounds
from grandrounds.core import capability
from grandrounds.core.capability import Capability, capabilities, collect, load
from grandrounds.core.errors import BadInput
from grandrounds.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = Path(grandrounds.__file__).parent


def import_paths(value: Any) -> Iterator[str]:
    """Yield the import paths of a manifest, in whatever member they are."""
    if isinstance(value, str):
        if re.fullmatch(r"grandrounds[\w.]*:\w+", value):
            yield value
    elif isinstance(value, dict | tuple | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from import_paths(part)


@pytest.mark.parametrize("manifest", capabilities(), ids=lambda c: c.name)
def test_what_a_manifest_names_exists(manifest):
    assert all(load(path) is not None for path in import_paths(asdict(manifest)))
    assert (DOCS / manifest.page).is_file() and manifest.budget > 0
    assert (SOURCE / "capabilities" / manifest.name).is_dir()


def test_each_folder_has_a_manifest_and_reading_all_of_them_loads_nothing_else():
    folders = {p.name for p in (SOURCE / "capabilities").iterdir() if p.is_dir() and not p.name.startswith("_")}
    assert {c.name for c in capabilities()} == folders
    code = (
        "import sys; from grandrounds.core.capability import capabilities; capabilities(); "
        "print(*sorted(m for m in sys.modules if m.startswith(('grandrounds', 'numpy')) and '.capabilities' not in m))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["grandrounds", *(f"grandrounds.core{m}" for m in ("", ".capability", ".errors", ".version"))]


def test_no_capability_has_more_lines_than_its_budget():
    for manifest in capabilities():
        sources = (SOURCE / "capabilities" / manifest.name).rglob("*.py")
        lines = sum(len(path.read_text().splitlines()) for path in sources)
        assert lines <= manifest.budget, f"{manifest.name} has {lines} lines: state them in its manifest, or write less"


def test_the_kernel_has_no_name_of_a_capability():
    assert not set(METHODS._kernel) & set(collect("methods"))
    assert set(collect("names")) < set(grandrounds.__all__)


def test_two_capabilities_with_one_name_are_an_error(monkeypatch):
    two = [Capability(n, "", 1, "index.md", methods={"ours": "a:B"}) for n in ("one", "two")]
    monkeypatch.setattr(capability, "capabilities", lambda: two)
    with pytest.raises(ValueError, match="'two' has methods 'ours'"):
        collect("methods")


def test_what_needs_a_capability_that_is_not_installed_says_so():
    with pytest.raises(BadInput) as error:
        capability.find("methods", "sorcery", what="the run was made with method 'sorcery'")
    assert error.value.code == "capability-not-installed"


def copy_with(folder: Path, *names: str) -> Path:
    """Copy the source with these capabilities alone."""
    source = folder / "source"
    shutil.copytree(SOURCE, source / "grandrounds", ignore=shutil.ignore_patterns("__pycache__", "capabilities"))
    for name in names:
        shutil.copytree(SOURCE / "capabilities" / name, source / "grandrounds" / "capabilities" / name)
    return source


def run(source: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from grandrounds.cli import main; main()", *arguments]
    env = {**os.environ, "PYTHONPATH": str(source)}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, check=False)


def test_the_kernel_runs_shows_and_audits_without_any_capability(tmp_path):
    source = copy_with(tmp_path)
    settings = ("--set", "method.rounds=2", "--set", "data.coding=reference")
    done = run(source, "run", "heart", *settings, "--out", "run", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").exists()
    assert "AUROC" in run(source, "show", "run", cwd=tmp_path).stdout
    assert run(source, "audit", "verify", "run", cwd=tmp_path).returncode == 0
    refused = run(source, "run", "heart", "--personal", "ditto", "--out", "ditto", cwd=tmp_path)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert run(source, "fit", "glm", cwd=tmp_path).returncode == 2
    options = [run(source, *command, "--help", cwd=tmp_path).stdout for command in (["run"], ["audit", "verify"])]
    assert all("--json" in shown and not re.search("--(track|rpc|contract)", shown) for shown in options)
    shown = run(source, "--help", cwd=tmp_path).stdout
    assert "│ show " in shown and "│ fit " not in shown and "│ watch " not in shown


def test_a_capability_works_without_the_others(tmp_path):
    (tmp_path / "tuning").mkdir()
    source = copy_with(tmp_path / "tuning", "tuning")
    search = ("tune", "breast-cancer", "--trials", "1", "--set", "method.rounds=1", "--out", "search", "--quiet")
    done = run(source, *search, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "personal").mkdir()
    source = copy_with(tmp_path / "personal", "personal")
    two_rounds = ("--set", "method.rounds=2", "--out", "ditto", "--quiet")
    done = run(source, "run", "heart", "--personal", "ditto", *two_rounds, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "statistics").mkdir()
    source = copy_with(tmp_path / "statistics", "statistics", "sources")
    done = run(source, "fit", "glm", "heart", "--features", "age,cholesterol", "--out", "fit", cwd=tmp_path)
    assert done.returncode == 0 and "age" in done.stdout, done.stderr


def test_a_finished_run_says_which_capability_is_missing(tmp_path):
    whole = run(SOURCE.parent, "fit", "glm", "heart", "--features", "age,cholesterol", "--out", "fit", "--quiet", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert json.loads((tmp_path / "fit" / "environment.json").read_text())["capabilities"] == ["statistics"]
    source = copy_with(tmp_path, "quality")
    for command in (["show", "fit"], ["report", "fit"], ["audit", "verify", "fit"]):
        refused = run(source, *command, cwd=tmp_path)
        assert refused.returncode == 2 and "[capability-not-installed]" in refused.stderr, refused.stderr
        assert "the capability 'statistics'" in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr
        assert not refused.stdout
    (tmp_path / "fit" / "environment.json").unlink()  # without it the sentence names the method alone
    refused = run(source, "show", "fit", cwd=tmp_path)
    assert refused.returncode == 2 and "method 'glm' of a capability" in refused.stderr
    assert run(source, "audit", "verify", "fit", "--ledger-only", cwd=tmp_path).returncode == 0


REFUSED = """
from grandrounds.capabilities.hospital.keeper.policy.rules import Policy
from grandrounds.protocol.messages import Ask
print([Policy().refuses(Ask(task, report=(report,)), None) for task, report in (("quality", "counts"), ("evaluate", "test"))])
"""


def test_a_hospital_refuses_a_task_of_a_capability_that_it_lacks(tmp_path):
    for more, expected in (((), "['task-not-allowed', '']"), (("quality",), "['', '']")):
        (tmp_path / str(len(more))).mkdir()
        env = {**os.environ, "PYTHONPATH": str(copy_with(tmp_path / str(len(more)), "hospital", "statistics", *more))}
        done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, env=env, check=False)
        assert done.stdout.strip() == expected, done.stderr


TOY = """
from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    "toy", "A toy", 10, "index.md", names={"greet": "toy:greet"}, commands={"greet": Command("toy:register", "Use", "predict")}
)


def greet() -> str:
    return "good morning"


def register(app):
    app.command("greet")(lambda: print(greet()))
"""


def test_a_capability_of_another_distribution_is_found_by_its_entry_point(tmp_path):
    (tmp_path / "toy.py").write_text(TOY)
    about = tmp_path / "toy-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[grandrounds.capabilities]\ntoy = toy:CAPABILITY\n")
    assert run(tmp_path, "greet", cwd=tmp_path).stdout == "good morning\n"
    panel = run(tmp_path, "--help", cwd=tmp_path).stdout.split("─ Use ─")[1].split("╰")[0]
    assert panel.index("│ predict ") < panel.index("│ greet ") < panel.index("│ evaluate ")
    code = "import grandrounds as gr; print(gr.greet(), 'greet' in gr.__all__)"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path, check=True)
    assert told.stdout == "good morning True\n"
