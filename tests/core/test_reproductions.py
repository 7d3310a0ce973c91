"""The second distribution: found by entry point, and where it is missing one sentence says how to get it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from grandrounds.core.reproductions import is_installed, load_part

HIDDEN = "import grandrounds.core.reproductions as r; r.entry_points = lambda **_: ()\n"
"""A process in which the second distribution is not installed."""


def test_every_part_is_found():
    assert is_installed()
    assert all(callable(load_part(name)) for name in ("command", "reproduce", "titles", "printed_figures"))


@pytest.mark.parametrize("words", [["reproduce", "veil/table-1", "--quick"], ["reproduce", "--list"], ["list", "studies"]])
def test_without_it_a_command_says_how_to_get_it(words):
    program = f"import sys; sys.argv = ['rounds', *{words!r}]\n{HIDDEN}from grandrounds.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ") and "pip install ./reproductions" in done.stderr and "Traceback" not in done.stderr


def test_without_it_python_says_so_too():
    program = f"{HIDDEN}import grandrounds as gr\ntry:\n    gr.reproduce\nexcept gr.BadInput as e:\n    print(e)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install ./reproductions" in done.stdout
