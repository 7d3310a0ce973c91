"""Error codes: each is a few words, and docs/errors.md lists them all."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def errors_page():
    return runpy.run_path(str(ROOT / "docs" / "errors_page.py"))


def test_the_page_is_up_to_date(errors_page):
    text = (ROOT / "docs" / "errors.md").read_text()
    assert text == errors_page["page"](), "run `python docs/errors_page.py --write`"
    assert "errors.md" in (ROOT / "mkdocs.yml").read_text()


@pytest.fixture(scope="module")
def codes(errors_page):
    return errors_page["collect"]()


def test_codes_are_words_joined_by_hyphens(codes):
    assert len(codes) > 100
    assert [code for code in codes if not re.fullmatch(r"[a-z]+(-[a-z0-9]+){1,4}", code)] == []


def test_codes_and_exit_codes_are_read_from_the_source(codes):
    exits, modules = codes["unknown-list"]
    assert (exits, modules) == ({2}, {"cli.show"})
    assert codes["too-little-memory"] == ({1}, {"cli.command_line"})
