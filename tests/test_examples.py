"""The examples run as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name: str, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_table(tmp_path):
    assert "risk" in run("own_table.py", cwd=tmp_path)


def test_what_leaves_a_site(tmp_path):
    text = run("what_leaves.py", cwd=tmp_path)
    assert "What can be read from them" in text
    assert "scores of test rows with their true class" in text


def test_the_experiment_file_and_the_pooled_check(tmp_path):
    import grandrounds as gr

    held = gr.run(gr.Experiment.load(EXAMPLES / "experiment.toml"), out=tmp_path / "r")
    text = run("pooled_check.py", str(held.folder), cwd=tmp_path)
    worst = max(float(line.split()[-1]) for line in text.splitlines() if line.startswith(("auroc", "auprc", "brier")))
    assert worst < 1e-3
