"""The tutorials are true: every command does what its page shows, and every address says what its page says."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from grandrounds.cli import app
from tests.e2e.tutorials import CODE, Look, Reader, Type, shows, steps, surroundings
from tests.support import slow

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "tutorials").glob("*.md"))}


def test_there_is_one_for_each_kind_of_user():
    assert set(PAGES) == {"researcher", "engineer", "clinician", "auditor", "flower", "records"}


@pytest.mark.parametrize("name", ["auditor", "clinician", "engineer", "records", slow("flower"), slow("researcher")])
def test_a_reader_gets_what_the_page_shows(name, tmp_path, monkeypatch):
    for variable, value in surroundings().items():
        monkeypatch.setenv(variable, value)
    if name == "flower" and importlib.util.find_spec("ray") is None:
        pytest.skip("flwr's simulation needs ray: pip install 'flwr[simulation]'")
    attempts = 2 if name == "flower" else 1  # on a busy machine Ray, which its simulation needs, may not start in time
    for attempt in range(1, attempts + 1):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        if name == "records":
            shutil.copy(ROOT / "examples" / "omop_hospitals.py", folder)
        try:
            Reader(folder).read(PAGES[name])
            break
        except AssertionError:
            if attempt == attempts:
                raise


@pytest.mark.parametrize("name", sorted(PAGES))
def test_commands_that_are_only_mentioned_exist(name):
    """Commands in the text, which nobody runs: their names and options are those of the program."""
    root = get_command(app)
    for line in re.findall(r"`(rounds [a-z][^`]*)`", PAGES[name]):
        words = line.split()[1:]
        command = root
        while words and hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert command is not root, f"there is no `{line}`"
        known = {option for p in command.params for option in p.opts}
        assert not {w for w in words if w.startswith("--")} - known, f"`{line}` has an option that there is not"


def test_pages_are_told_apart_from_what_is_printed():
    """The reader is strict: a changed digit, a line too few and lines out of order are found."""
    text = "a 1\nb 2\nc 3\nd 4\n"
    assert shows(["a 1", "...", "c 3", "d 4"], text)
    assert shows(["...", "b 2", "..."], text)
    for wrong in (
        ["a 1", "b 2", "c 3"],
        ["a 1", "...", "c 4", "..."],
        ["...", "c 3", "...", "b 2", "..."],
        ["b 2", "..."],
    ):
        assert not shows(wrong, text)


def test_pages_do_something():
    for name, page in PAGES.items():
        typed = [s for s in steps(page) if isinstance(s, Type) and s.line != CODE]
        assert typed, name
        assert any(s.shown for s in typed), name
    assert {name for name, page in PAGES.items() if any(isinstance(s, Look) for s in steps(page))} == {
        "auditor",
        "clinician",
    }


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="needs pip install '.[docs]'")
def test_the_documentation_builds_without_a_warning(tmp_path):
    mkdocs = shutil.which("mkdocs", path=str(Path(sys.executable).parent))
    done = subprocess.run(
        [mkdocs, "build", "--strict", "--site-dir", str(tmp_path / "site")],  # --quiet would hide warnings from --strict
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "tutorials" / "researcher" / "index.html").exists()
