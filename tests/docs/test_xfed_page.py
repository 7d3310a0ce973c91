"""docs/xfed.md maps the paper's steps to functions: each of them exists in the file that the page names."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "xfed.md").read_text(encoding="utf-8")
NAMED = re.findall(r"^\|.*\| `([\w/]+)\.py` \| `([\w.]+)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("module", "name"), NAMED)
def test_a_function_that_the_page_names_exists(module, name):
    found = reduce(getattr, name.split("."), import_module(f"grandrounds.{module.replace('/', '.')}"))
    assert callable(found)


def test_every_step_of_the_paper_is_on_the_page():
    steps = ["1", "2", "3.1", "3.2", "3.3", "3.4", "4.1", "4.2", "5", "6"]
    assert len(NAMED) >= len(steps) and not [s for s in steps if f"| step {s}" not in PAGE]
