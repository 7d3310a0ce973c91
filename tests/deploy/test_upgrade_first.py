"""Folders and a run of version 0.1, opened by this version: shown, verified, and used for a new run. `make test-faults`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from grandrounds.core.toml import dumps
from tests.deploy.faulty import PRIVATE, Faulty
from tests.deploy.real import ROUNDS, rounds
from tests.deploy.test_hospitals_for_real import gateway, table
from tests.deploy.test_upgrade import checkout

pytestmark = [pytest.mark.faults, gateway]

FIRST = "de52749bc4e2726b6427bb5e3cc983ba1973c7b0"
"""A commit of version 0.1.0."""

PLAN = {"method": {"name": "fedavg", "rounds": 2}, **PRIVATE}
OLD_PRIVACY = {"mechanism": "dp-sgd", "epsilon": 8.0, "delta": 1e-5, "rate": 0.2, "fewest_rows": 10}
"""The same in the words of version 0.1."""


@contextmanager
def version(package: Path) -> Iterator[None]:
    """Start processes of another version."""
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = str(package)
    try:
        yield
    finally:
        os.environ["PYTHONPATH"] = before


class First(Faulty):
    """A consortium whose commands are those of version 0.1."""

    def provision(self) -> None:
        rounds("provision", str(self.folder / "consortium.toml"), "--out", str(self.out))


def charges(consortium: Faulty) -> dict[str, set[str]]:
    files = {name: consortium.site_folder(name) / "state" / "purse.json" for name in consortium.names}
    return {name: set(json.loads(path.read_text())["keys"]) for name, path in files.items()}


def test_folders_and_a_run_of_the_first_version_are_used_by_this_one(tmp_path):
    package = checkout(FIRST, tmp_path / "first")
    with version(package):
        consortium = First(tmp_path, table(), limit=600)
        with consortium.at_work():
            (tmp_path / "old.toml").write_text(dumps({"name": "old", **PLAN, "privacy": OLD_PRIVACY}))
            rounds("submit", str(tmp_path / "old.toml"), "--server", str(consortium.out), "--name", "old")
            consortium.done("old", seconds=600)
    before, run = charges(consortium), consortium.link.runs / "old"
    assert all(before.values())
    assert "round" in rounds("show", str(run)).lower()
    verified = subprocess.run([ROUNDS, "audit", "verify", str(run)], capture_output=True, text=True, timeout=180)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    with consortium.at_work():
        new = consortium.outcome(consortium.run("new", PLAN, seconds=900))
    assert new.missing == [{}, {}]
    after = charges(consortium)
    for name in consortium.names:
        assert before[name] < after[name], "charges of earlier runs stay"
        assert len(after[name] - before[name]) == 2

