"""The reference of the command line is made from the commands."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cli_page():
    return runpy.run_path(str(ROOT / "docs" / "cli_page.py"))


def test_the_page_is_up_to_date(cli_page):
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert text == cli_page["page"](), "run `python docs/cli_page.py --write`"
    assert "cli.md" in (ROOT / "mkdocs.yml").read_text()


def test_every_command_and_sub_command_is_on_it(cli_page):
    text = cli_page["page"]()
    for path in ("run", "explain", "explain masks check", "console users add", "server stop-run", "privacy budget"):
        assert f"# rounds {path}\n" in text
    assert "`--label TEXT`" in text
