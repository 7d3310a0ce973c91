"""A plan carried to a bare machine: NumPy and the standard library, nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import grandrounds as gr
from grandrounds.data.row_files import read_bundle, write_bundle
from grandrounds.job import main as job
from tests.command import rounds
from tests.support import patients

BARE = """
import sys
allowed = set(sys.stdlib_module_names) | {"numpy", "grandrounds"}
class OnlyNumpy:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in allowed and not name.startswith("_"):
            raise ImportError(f"{name} is not on this machine")
sys.meta_path.insert(0, OnlyNumpy())
from grandrounds.job import main
sys.exit(main(sys.argv[1:]))
"""


def bare(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", BARE, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_plan_runs_with_numpy_alone_and_gives_the_same_bits(tmp_path, model):
    settings = ["--set", f"model.name={model}", "--set", "method.rounds=4", "--set", "evaluation.calibrate=temperature"]
    planned = rounds("plan", "breast-cancer", *settings, "--with-data", "--out", tmp_path / "plan.json")
    assert planned.returncode == 0, planned.stderr
    assert (tmp_path / "plan.rows.safetensors").exists()
    done = bare(tmp_path / "plan.json", "--out", tmp_path / "there")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("round ") == 4
    here = rounds("run", "breast-cancer", *settings, "--out", tmp_path / "here", "--quiet")
    assert here.returncode == 0, here.stderr
    models = [gr.load_run(tmp_path / where).model for where in ("here", "there")]
    assert (models[0].theta == models[1].theta).all()
    assert gr.load_run(tmp_path / "there").summary["final"] == gr.load_run(tmp_path / "here").summary["final"]
    assert (tmp_path / "there" / "report.html").exists()


def test_bad_plans_are_refused_in_one_sentence(tmp_path, capsys):
    for text, message in (
        ("{", "is not JSON"),
        ("[1]", "is not a resolved plan"),
        ('{"data": {}}', "is not a resolved plan"),
    ):
        (tmp_path / "plan.json").write_text(text)
        assert job([str(tmp_path / "plan.json"), "--out", str(tmp_path / "run")]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and said.count("\n") == 1 and message in said
    done = bare(tmp_path / "none.json", "--out", tmp_path / "run")
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_what_a_bare_machine_or_an_older_plan_lacks_is_said(tmp_path):
    """A plan of a version before there were cohorts, and one whose cohorts take scikit-learn."""
    asked = ("--set", "method.rounds=1", "--set", "method.cohorts=2")
    assert rounds("plan", "sse-agg", *asked, "--with-data", "--out", tmp_path / "plan.json").returncode == 0
    done = bare(tmp_path / "plan.json", "--out", tmp_path / "there")
    assert done.returncode == 2 and "sklearn is not on this machine" in done.stderr and "Traceback" not in done.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    del plan["method"]["cohorts"]
    (tmp_path / "old.json").write_text(json.dumps(plan))
    done = bare(tmp_path / "old.json", "--out", tmp_path / "old")
    assert done.returncode == 2 and "the plan has no 'cohorts': create it with this version's" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_finished_job_is_not_run_again(tmp_path):
    asked = ("--set", "method.rounds=1", "--with-data", "--out", tmp_path / "plan.json")
    assert rounds("plan", "breast-cancer", *asked).returncode == 0
    first = bare(tmp_path / "plan.json", "--out", tmp_path / "run")
    before = (tmp_path / "run" / "summary.json").stat().st_mtime_ns
    again = bare(tmp_path / "plan.json", "--out", tmp_path / "run")
    assert (first.returncode, again.returncode) == (0, 0)
    assert (tmp_path / "run" / "summary.json").stat().st_mtime_ns == before


def test_an_embedded_set_without_its_package_is_refused_with_the_way_out(tmp_path):
    plan = gr.Experiment.parse({"data": {"name": "breast-cancer"}, "method": {"rounds": 2}}).plan()
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    done = bare(tmp_path / "plan.json", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "rounds plan --with-data" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bundled_table_is_the_same_table(tmp_path):
    table = patients([30, 20]).with_columns({"note": ["a", None] * 25})
    path = write_bundle(table, tmp_path / "plan.json")
    assert read_bundle(path).sha256() == table.sha256()
    assert read_bundle(path).names == table.names
