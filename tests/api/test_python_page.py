"""docs/python.md: every example runs, one after the other, and prints what the page shows."""

from __future__ import annotations

import re
import runpy
import warnings
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
MARK = "-- end of an example --"
MOST_WORDS = 1800


def run_examples(blocks, folder, capsys):
    """Run the blocks as one script, with a mark after the output of each, and compare what each printed."""
    script = folder / "page.py"
    script.write_text("".join(f"{code}\nprint({MARK!r})\n" for code, _ in blocks), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rows that the model was trained on
        runpy.run_path(str(script), run_name="page")
    *printed, rest = capsys.readouterr().out.split(f"{MARK}\n")
    assert len(printed) == len(blocks) and not rest
    for (code, shown), text in zip(blocks, printed, strict=True):
        assert [line.rstrip() for line in text.splitlines()] == [line.rstrip() for line in shown.splitlines()], code


def test_examples_print_what_the_page_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE.read_text())
    quick = [block for block in blocks if "gr.compare(" not in block[0]]  # that one starts other processes
    assert len(blocks) == len(quick) + 1 > 8
    run_examples(quick, tmp_path, capsys)


@pytest.mark.slow
def test_every_example_prints_what_the_page_shows(tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    run_examples(BLOCK.findall(PAGE.read_text()), tmp_path, capsys)


def test_the_page_is_short_and_starts_with_an_example():
    text = PAGE.read_text()
    assert len(text.split()) <= MOST_WORDS
    assert text.startswith("# Python\n\n```python\n")
