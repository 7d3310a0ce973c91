"""Texts use the field's own words: `tools/language.py` finds nothing, and finds what it should in texts made by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "grandrounds"
PLACES = (
    *("README.md", "CONTRIBUTING.md", "docs", "examples", "reproductions/grandrounds_studies"),
    *sorted(p.relative_to(ROOT).as_posix() for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()),
    "src/grandrounds/recipes",
)
"""Pages and folders, each a test of its own. `python tools/language.py FOLDER` lists the texts of a folder that fails."""


@pytest.fixture(scope="module")
def language() -> ModuleType:
    spec = importlib.util.spec_from_file_location("language_tool", ROOT / "tools" / "language.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("place", PLACES)
def test_a_folder_has_no_private_words(place, language):
    found = [str(f) for path in language.find_files([ROOT / place]) for f in language.check(path)]
    assert not found, "\n".join(found[:20])


FOUND = [
    ("a.py", '"""What the model relies on."""\n', "begin with the subject"),
    ("a.py", '"""Whether a site takes part."""\n', "begin with the subject"),
    ("a.py", "x = 1  # Where the rows come from\n", "begin with the subject"),
    ("a.py", 'raise ValueError("the pictures of this site are black")\n', "write image"),
    ("a.py", 'raise ValueError(f"site {x} goes by the age alone")\n', "write relies on"),
    ("a.py", "x = 1  # paid for by the purse\n", "write site budget"),
    ("a.md", "# What left the sites\n", "write disclosed data"),
    ("a.md", "Reasons of the model are compared.\n", "write explanations"),
    ("a.md", "| under masks | 0.8 |\n", "write with secure aggregation"),
    ("a.toml", "rows = 3  # rows that are lent to sites\n", "write shared"),
    ("a.html", "<p>No formal promise</p>\n", "write guarantee"),
]

NOT_FOUND = [
    ("a.py", '"""Return the feature attributions of a site."""\n'),
    ("a.py", '"""What does the model rely on?"""\n'),
    ("a.py", 'pictures = {"pictures": 3}\n'),
    ("a.py", '"""Check images.\n\n    Args:\n        pictures: The images to check.\n    """\n'),
    ("a.py", 'x = "the pictures stay"  # language: ok\n'),
    ("a.py", '"""Set `data.pictures` to a folder."""\n'),
    ("a.md", "Set `data.pictures`.\n\n```\npictures = true\n```\n"),
    ("a.md", "Five reasons to use it.\n"),
    ("a.md", "What is a site? See the [glossary](pictures.md).\n\nWhat is a plan?\n"),
    ("a.toml", 'pictures = "scans"\n'),
    ("a.html", '<p class="pictures">Images</p>\n'),
]


@pytest.mark.parametrize(("name", "text", "advice"), FOUND, ids=[text[:30] for _, text, _ in FOUND])
def test_a_private_word_is_found(name, text, advice, language, tmp_path):
    (tmp_path / name).write_text(text)
    findings = list(language.check(tmp_path / name))
    assert any(advice in finding.advice for finding in findings), findings


@pytest.mark.parametrize(("name", "text"), NOT_FOUND, ids=[text[:30] for _, text in NOT_FOUND])
def test_a_name_or_a_plain_text_is_not(name, text, language, tmp_path):
    (tmp_path / name).write_text(text)
    assert list(language.check(tmp_path / name)) == []


def test_a_finding_names_file_line_and_word_to_write(language, tmp_path):
    (tmp_path / "a.md").write_text("Plain.\n\nThe pictures stay.\n")
    (finding,) = language.check(tmp_path / "a.md")
    assert finding.line == 3 and "pictures" in finding.found and str(finding).endswith("write image")
