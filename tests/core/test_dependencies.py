"""Dependencies: each has an upper bound, and the lock file has a version of each within its range."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def declared() -> list[Requirement]:
    """Every requirement of the package and of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(one for of in project["optional-dependencies"].values() for one in of)]
    return [r for r in map(Requirement, lines) if r.name != "grandrounds"]


def locked() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}


def test_every_dependency_has_an_upper_bound():
    assert [str(r) for r in declared() if not any(s.operator in ("<", "<=", "==") for s in r.specifier)] == []


def test_the_lock_file_has_every_dependency_within_its_range():
    held = locked()
    assert [str(r) for r in declared() if r.name.lower() not in held] == []
    assert [str(r) for r in declared() if not r.specifier.contains(held[r.name.lower()])] == []


def test_the_lock_file_names_no_machine_and_no_index():
    text = (ROOT / "constraints.txt").read_text()
    assert "@" not in text and "://" not in text and "+" not in text
