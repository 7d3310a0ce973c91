"""README and all pages of docs/, read together: they agree with each other, with the code and with the results."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from grandrounds.core.errors import install_extra

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
INSTALL = re.compile(r"pip install(?P<what>[^`\n#]*)")
ANOTHER_HAND = {"docs/exact.md", "docs/python.md"}
"""Pages whose install lines are changed together with their text on regressions."""


def sources() -> dict[str, str]:
    """Return the texts that people read or see: pages, programs, examples, benchmarks."""
    texts = {name: text for name, text in PAGES.items() if name not in ANOTHER_HAND}
    for folder in ("src", "examples", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".md", ".toml", ".html"):
                texts[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
    return texts


def test_no_line_installs_the_package_from_a_registry_that_does_not_have_it():
    named = {
        (name, found["what"].strip())
        for name, text in sources().items()
        for found in INSTALL.finditer(text)
        if re.search(r"\bgrandrounds\b(?!-)", found["what"].replace("/opt/grandrounds", ""))
    }
    assert not named


def test_install_lines_name_extras_that_exist():
    unknown = {
        (name, extra)
        for name, text in sources().items()
        for found in INSTALL.finditer(text)
        for group in re.findall(r"'\.\[([\w,]+)\]'", found["what"])
        for extra in group.split(",")
        if extra not in EXTRAS
    }
    called = {
        (name, extra)
        for name, text in sources().items()
        for extra in re.findall(r"install_extra\(['\"](\w+)['\"]\)", text)
        if extra not in EXTRAS
    }
    assert not unknown | called
    assert install_extra("console").endswith("`pip install '.[console]'`")


def test_the_page_on_installing_names_every_extra():
    section = PAGES["docs/index.md"].split("## Install\n")[1].split("\n## ")[0]
    listed = {extra for line in section.splitlines() if line.startswith("| `") for extra in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert listed == EXTRAS
