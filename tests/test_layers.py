"""The order of packages: a package imports only from those before it, whether at the top, in a function or for types alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tools.structure import Structure

import grandrounds
from grandrounds.methods import METHODS

SOURCE = Path(grandrounds.__file__).parent
ORDER = (
    "core", "protocol", "metrics", "data", "models", "explain", "privacy", "audit", "site", "methods", "engine", "experiment",
    "recipes", "report", "runs", "analysis", "api", "cli", "capabilities",
)  # fmt: skip
"""From the ground up: a package may import those to its left."""

FILES = sorted(SOURCE.rglob("*.py"))


@cache
def imports(file: Path) -> tuple[tuple[str, str], ...]:
    """Every module that a file imports, with the name that is taken from it ("" for the module itself); read once."""
    return tuple(_imports(ast.parse(file.read_text())))


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)


def package_of(module: str, name: str) -> str:
    """The first folder below grandrounds of an import; "" for the package itself and for others' modules."""
    parts = [*module.split("."), name]
    return parts[1] if parts[0] == "grandrounds" and len(parts) > 1 and parts[1] in ORDER else ""


def test_every_package_has_its_place_and_the_root_holds_two_modules():
    assert {p.name for p in SOURCE.iterdir() if (p / "__init__.py").exists()} == set(ORDER)
    assert {p.name for p in SOURCE.glob("*.py")} == {"__init__.py", "job.py"}


@pytest.mark.parametrize("package", ORDER)
def test_imports_point_down(package):
    rank = ORDER.index(package)
    wrong = [
        f"{file.relative_to(SOURCE)}: {module}"
        for file in FILES
        if file.relative_to(SOURCE).parts[0] == package
        for module, name in imports(file)
        if (other := package_of(module, name)) and ORDER.index(other) > rank
        if (package, other) != ("report", "capabilities")
    ]
    assert not wrong


def test_no_capability_is_named_by_the_kernel_and_its_pages_import_none_when_they_are_loaded(structure):
    """Pages of statistics are of their capability from the next step on; until then they import its values late, or for types."""
    upward = [i for i in structure.imports if is_of_capability(i.imported) and not is_of_capability(i.importer)]
    named = [i for i in upward if i.importer not in ("", "report") and not i.importer.startswith("report.")]
    assert not named
    assert all(i.for_types or i.late for i in upward)
    assert len([i for i in upward if i.importer]) <= 21


def is_of_capability(module: str) -> bool:
    return module.startswith("capabilities.")


def test_capabilities_know_few_of_each_other(structure):
    """Counts that may only fall; the goals are 40 imports and no pair."""
    crossing = [
        (i.importer.split(".")[1], i.imported.split(".")[1])
        for i in structure.imports
        if is_of_capability(i.importer) and is_of_capability(i.imported)
    ]
    crossing = [(a, b) for a, b in crossing if a != b]
    assert len(crossing) <= 86
    assert {(a, b) for a, b in crossing if a < b and (b, a) in crossing} <= {("hospital", "watch")}


def test_no_private_name_is_imported_from_another_package():
    wrong = [
        f"{file.relative_to(SOURCE)}: {module}.{name}"
        for file in FILES
        for module, name in imports(file)
        if name.startswith("_") and not name.startswith("__")
        if (other := package_of(module, name)) and other != file.relative_to(SOURCE).parts[0]
    ]
    assert not wrong


def test_nothing_in_the_package_imports_its_reproductions():
    wrong = [f for f in FILES for module, _ in imports(f) if module.startswith("grandrounds_studies")]
    assert not wrong


@pytest.fixture(scope="module")
def structure() -> Structure:
    return Structure(SOURCE)


def test_no_files_need_each_other(structure):
    assert structure.circles() == []


MOST = {"folders that import each other": 21, "imports inside functions": 1000, "functions over 50 lines": 140}
"""Counts that may only fall; whoever lowers one lowers it here. Goals: 0, 150 and 60."""


def test_what_makes_the_code_hard_to_follow_only_falls(structure):
    counts = {
        "folders that import each other": len(structure.mutual_folders()),
        "imports inside functions": structure.late_imports(),
        "functions over 50 lines": len(structure.long_functions()),
    }
    assert {name: count for name, count in counts.items() if count > MOST[name]} == {}


def test_a_method_is_imported_without_the_others():
    code = "import sys, grandrounds.methods.fedavg; print(*(m for m in sys.modules if m.startswith('grandrounds')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(loaded) < 40
    others = {path.partition(":")[0] for path in METHODS.paths.values()} - {METHODS.paths["fedavg"].partition(":")[0]}
    assert not others & set(loaded)
