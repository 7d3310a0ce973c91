"""The pages of the five systems: every file and function that their tables name exists, and the recipes that they show run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from grandrounds.recipes import recipes

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "grandrounds"
PAGES = ("sse-agg", "veil", "fedxchain", "fl-xai")
PLACE = re.compile(r"`(?P<file>[\w/]+\.py)::(?P<name>\w+)(?:\.(?P<member>\w+))?`")


def read_page(system: str) -> str:
    return (ROOT / "docs" / f"{system}.md").read_text(encoding="utf-8")


def table_rows(page: str) -> list[list[str]]:
    """Return the cells of the rows of tables whose last column names files and functions."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")]
    return [row for row in rows if PLACE.search(row[-1])]


def defined(file: Path) -> dict[str, set[str]]:
    """Return the functions, classes and constants of a module; for a class the names in its body."""
    out: dict[str, set[str]] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            out[node.name] = set()
        elif isinstance(node, ast.ClassDef):
            out[node.name] = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            out |= {t.id: set() for t in targets if isinstance(t, ast.Name)}
    return out


@pytest.mark.parametrize("system", PAGES)
def test_every_file_and_function_of_the_algorithms_table_exists(system):
    rows = table_rows(read_page(system))
    assert len(rows) >= 6, "the table of the paper's algorithm has a row for each step"
    missing = []
    for row in rows:
        for place in PLACE.finditer(row[-1]):
            file = SOURCE / place["file"]
            names = defined(file) if file.is_file() else {}
            known = place["name"] in names and (place["member"] is None or place["member"] in names[place["name"]])
            missing += [] if known else [place[0]]
    assert not missing


@pytest.mark.parametrize("system", PAGES)
def test_a_page_shows_how_to_run_it_as_printed_and_by_default(system):
    page = read_page(system)
    named = set(re.findall(rf"rounds run ({re.escape(system)}(?:/[\w-]+)?)", page))
    assert {system, f"{system}/printed"} <= named
    assert named <= set(recipes())
    assert f"results/{system}.md" in page
