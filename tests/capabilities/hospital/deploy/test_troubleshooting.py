"""The operator's page explains every code that an operator or a site can meet, by commands that exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import typer

from grandrounds.cli.command_line import app
from grandrounds.cli.groups import sub_commands

DOCS = Path(__file__).parents[4] / "docs"


@pytest.fixture(scope="module")
def page():
    return runpy.run_path(str(DOCS / "troubleshooting_codes.py"))


def test_every_code_is_explained(page):
    assert page["operator_codes"]() - page["explained_codes"]() == set()


def test_explained_codes_exist(page):
    raised = set(runpy.run_path(str(DOCS / "errors_page.py"))["collect"]())
    assert page["explained_codes"]() - raised - page["operator_codes"]() == set()


def test_commands_of_the_page_exist():
    root = typer.main.get_command(app)
    text = (DOCS / "troubleshooting.md").read_text()
    named = set(re.findall(r"(?m)(?:`|^)rounds ([a-z]+) ([a-z-]+)", text))
    assert len(named) > 8
    for group, command in named:
        assert command in sub_commands(sub_commands(root)[group]), f"rounds {group} {command}"
