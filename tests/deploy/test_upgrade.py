"""A consortium of the version before this one, upgraded in the middle of a run: no round is lost, no charge is made twice.

The earlier code comes from the repository's history; a source archive has none, and the tests are skipped.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from grandrounds.core.toml import dumps
from grandrounds.data.table import Table
from grandrounds.runs.run import Run
from tests.deploy.faulty import PRIVATE, Faulty, Outcome, fixed_noise
from tests.deploy.piped import Piped
from tests.deploy.real import ROUNDS, until
from tests.deploy.test_hospitals_for_real import table

ROOT = Path(__file__).parents[2]
PREVIOUS = "ecddba7c056b62a6b3b5040ab26cb86425243b75"
"""The last commit with protocol 1, whose messages were signed and not encrypted."""

PLAN = {"name": "run", "method": {"name": "fedavg", "rounds": 12}, **PRIVATE}


def checkout(commit: str, folder: Path) -> Path:
    """Write the package as of a commit; gives the folder for PYTHONPATH."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("the earlier version comes from git, and this is no clone of the repository")
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True)
    if archive.returncode:
        pytest.skip(f"commit {commit[:8]} is not in this clone: git fetch --unshallow")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


class Upgraded(Faulty):
    """A consortium that an earlier version provisions. `before` is the folder of its package."""

    before = Path()

    def environment_before(self) -> dict[str, str]:
        later = os.environ.get("PYTHONPATH", "")
        return {"PYTHONPATH": os.pathsep.join([str(self.before), str(ROOT), later])}

    def provision(self) -> None:
        words = [ROUNDS, "provision", str(self.folder / "consortium.toml"), "--out", str(self.out)]
        subprocess.run(words, env={**os.environ, **self.environment_before()}, check=True, capture_output=True, timeout=180)


@contextmanager
def at_work(consortium: Upgraded, **more):
    piped = Piped(consortium, **more)
    try:
        yield piped
    finally:
        piped.close()


def finish(piped: Piped) -> Outcome:
    assert piped.run is not None
    assert piped.run.wait(600) == 0, piped.consortium.end_of_log("run")
    return piped.consortium.outcome(Run(piped.consortium.link.runs / "run"))


def two_sites() -> Table:
    rows = table()
    return rows.take(np.flatnonzero(np.asarray(rows.columns["hospital"]) != "St Mary"))


def test_a_run_begun_by_the_version_before_ends_with_the_same_bits_and_charges(tmp_path):
    Upgraded.before = checkout(PREVIOUS, tmp_path / "before")
    with fixed_noise():
        consortium = Upgraded(tmp_path, two_sites(), limit=600)
        (tmp_path / "run.toml").write_text(dumps(PLAN))
        with at_work(consortium) as piped:
            piped.start_run("run")
            calm = finish(piped)
        consortium.put_aside()
        with at_work(consortium, environment=consortium.environment_before()) as piped:
            piped.start_run("run")
            until(lambda: len(consortium.rounds_of("run")) >= 2, seconds=300, what="rounds")
            piped.stop_run()
        done = len(consortium.rounds_of("run"))
        assert 2 <= done < 12, "too quick to be upgraded in time"
        with at_work(consortium) as piped:
            piped.start_run("run")
            upgraded = finish(piped)
    assert "uses another version" not in str(upgraded.decisions)
    upgraded.check_same(calm)
