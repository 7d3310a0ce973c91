"""Two processes and one run folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grandrounds.runs.folder import InUse, RunFolder
from tests.command import rounds
from tests.support import refused

LOADER = """
import time
from pathlib import Path
from grandrounds.data.sets.catalog import find_entry
def slowly():
    Path("reading").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    return find_entry("breast-cancer").load()
"""
SHORT = ("--set", "method.rounds=2", "--set", "split.sites=3", "--quiet")


@pytest.fixture
def reading(tmp_path) -> subprocess.Popen:
    """A run that reads its data until a file named go is there."""
    (tmp_path / "slow_rows.py").write_text(LOADER)
    command = [sys.executable, "-c", "from grandrounds.cli import main; main()", "run", "--out", "X", *SHORT]
    command += ["--seed", "1", "--set", "data.name=slow_rows:slowly", "--set", "data.label=diagnosis"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not (tmp_path / "reading").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def test_the_second_run_into_a_folder_is_refused_and_the_first_ends_whole(reading, tmp_path):
    done = rounds("run", "breast-cancer", "--out", "X", *SHORT, cwd=tmp_path)
    assert done.returncode == 2
    assert "X is being run by another process" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert Path(tmp_path / "X" / "checkpoint").is_dir()
    (tmp_path / "go").touch()
    _, err = reading.communicate()
    assert reading.returncode == 0, err
    assert '"seed": 1' in (tmp_path / "X" / "checkpoint" / "plan.json").read_text()
    assert rounds("audit", "verify", "X", "--deep", cwd=tmp_path).returncode == 0


def test_a_folder_of_a_killed_process_is_free_again(reading, tmp_path):
    os.kill(reading.pid, signal.SIGKILL)
    reading.wait()
    assert (tmp_path / "X").is_dir()
    done = rounds("run", "breast-cancer", "--out", "X", *SHORT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_folder_is_claimed_by_one_and_given_back(tmp_path):
    first, second = RunFolder(tmp_path / "deep" / "r"), RunFolder(tmp_path / "deep" / "r")
    first.create()
    with pytest.raises(InUse, match="being run by another process"):
        second.create()
    first.discard()
    assert not first.path.exists()
    second.create()
    first.release()
    second.release()
    third = RunFolder(tmp_path / "deep" / "r")
    third.create()
    third.release()


def test_a_link_or_a_file_in_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").write_text("mine")
    for name in ("link", "file"):
        with refused("folder-in-the-way"):
            RunFolder(tmp_path / name).create()
    assert (tmp_path / "file").read_text() == "mine"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_ctrl_c_while_the_program_starts_leaves_no_traceback():
    code = """
import sys
class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "grandrounds.cli.predict":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Pressed())
from grandrounds.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
