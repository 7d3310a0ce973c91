"""examples/notebook.py runs from start to end."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.py"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(EXAMPLE))
    assert names["model"].score(names["X"], names["y"]) > 0.9
    assert (tmp_path / "notebook" / "weights.html").stat().st_size > 10_000
    assert f"{names['run'].summary.final['auroc']}" in capsys.readouterr().out
