"""`make bench-smoke`: it finds every script of bench/, and tells success, failure and absence apart."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = {
    "good": "import os; assert os.environ['BENCH_SMOKE'] == '1'; open('written', 'w')",
    "bad": "print('before'); raise ValueError('it broke')",
    "absent": "from smoke import need; need('no_such_package')",
}


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("bench_smoke", ROOT / "tools" / "bench_smoke.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_file_of_bench_is_a_script_or_imported_by_one(tool):
    listed = {path.stem for path in tool.list_scripts([])}
    helpers = {path.stem for path in (ROOT / "bench").glob("*.py")} - listed
    texts = [path.read_text() for path in (ROOT / "bench").rglob("*.py")]
    assert listed >= {"anchors", "harm", "sites"}
    assert all(any(f"from {name} import" in text for text in texts) for name in helpers)


def test_failed_and_absent_scripts_are_told_apart_and_write_nothing_beside_them(tool, tmp_path, monkeypatch, capsys):
    bench = tmp_path / "bench"
    bench.mkdir()
    (bench / "smoke.py").write_text((ROOT / "bench" / "smoke.py").read_text())
    for name, text in SCRIPTS.items():
        (bench / f"{name}.py").write_text(f'if __name__ == "__main__":\n    {text}\n')
    files = set(bench.iterdir())
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench_smoke.py"])
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert tool.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 passed, 1 failed, 1 skipped"
    assert any(line.startswith("good ") and line.endswith("ok") for line in lines)
    assert any(line.startswith("absent ") and line.endswith("not here: no_such_package is not installed") for line in lines)
    assert any("ValueError: it broke" in line for line in lines)
    assert set(bench.iterdir()) == files
