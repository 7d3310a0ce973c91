"""The guide for four hospitals: its commands are real ones, its files are read, and what comes before the server is run.

All of it takes minutes: `make test-slow`, or `python -m tests.capabilities.hospital.deploy.guide`.
"""

from __future__ import annotations

import shlex

import pytest
from typer.main import get_command

from grandrounds.capabilities.hospital.deploy.consortium import load
from grandrounds.capabilities.hospital.deploy.submit import deployed_plan
from grandrounds.cli import app
from grandrounds.data.agreement.schema import DataSchema
from tests.capabilities.hospital.deploy.guide import CTRL_C, FIRST_ROUND, PAGE, ROOT, Reader, commands, files, shows

TEXT = PAGE.read_text(encoding="utf-8")
ALL = list(commands(TEXT))
SHORT = FIRST_ROUND.read_text(encoding="utf-8")
POLICIES = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
TYPED = [*ALL, *commands(SHORT), *commands(POLICIES)]
START = next(i for i, c in enumerate(ALL) if c.line.startswith("rounds server start"))


def parsed(words: list[str]) -> str:
    """The command's name, if it takes these options and arguments; Click's own error if not."""
    command, context = get_command(app), None
    name = "rounds"
    while True:
        context = command.make_context(name, list(words), parent=context)
        if not hasattr(command, "resolve_command"):
            return context.command_path
        rest = [*context._protected_args, *context.args]
        name, command, words = command.resolve_command(context, rest)


@pytest.mark.parametrize("line", sorted({c.line.split(" | ")[0] for c in TYPED if c.line.startswith("rounds ")}))
def test_every_command_takes_what_it_is_given(line):
    assert parsed(shlex.split(line)[1:]).startswith("rounds ")


def test_a_wrong_option_would_be_found():
    with pytest.raises(Exception, match="No such option"):
        parsed(["server", "submit", "first.toml", "--sever", "heart"])


def test_the_page_has_the_whole_way():
    done = [c.line for c in ALL]
    for words in ("provision ", "site check", "server start", "site start", "server submit", "audit verify", "server stop"):
        assert any(line.startswith(f"rounds {words}") for line in done), words
    started = [c.terminal for c in ALL if c.line.startswith("rounds site start")]
    stopped = [c.terminal for c in ALL if c.line == CTRL_C]
    assert sorted(started) == sorted(stopped)
    assert len(set(started)) == 4


def test_its_files_are_read(tmp_path):
    for name, text in files(TEXT).items():
        (tmp_path / name).write_text(text)
    agreed = load(tmp_path / "consortium.toml")
    assert [site.name for site in agreed.sites] == ["cleveland", "hungarian", "switzerland", "va"]
    assert len(DataSchema.from_dict(agreed.data).columns) == 13
    assert deployed_plan(tmp_path / "first.toml", ["privacy.secure=true"])["method"]["rounds"] == 3


@pytest.mark.slow
def test_what_comes_before_the_server_is_as_shown(tmp_path):
    reader = Reader(tmp_path)
    for name, text in files(TEXT).items():
        (tmp_path / name).write_text(text)
    for command in ALL[:START]:
        reader.type(command)


@pytest.mark.slow
def test_every_command_does_what_the_page_shows(tmp_path):
    Reader(tmp_path).read(TEXT)


def test_the_way_to_the_first_round_has_at_most_ten_lines_of_files():
    lines = [line for text in files(SHORT).values() for line in text.splitlines() if line.strip()]
    assert len(lines) == 6, "the page says how many"
    assert "**six lines of files**" in SHORT


@pytest.mark.slow
def test_every_command_to_the_first_round_does_what_the_page_shows(tmp_path):
    Reader(tmp_path).read(SHORT)


@pytest.mark.slow
def test_every_command_of_the_page_of_policies_does_what_it_shows(tmp_path):
    Reader(tmp_path).read(POLICIES)


def test_lines_are_compared():
    assert shows(("a  1", "...", "c"), "a 1\nb\nc\n")
    assert not shows(("a", "...", "c"), "c\na\n")
    assert not shows(("AUROC 0.8729",), "AUROC 0.8730\n")
    assert not shows(("a",), "a\nb\n")
    assert shows(("run x (Flower's number: 6488973430138103321)",), "run x (Flower's number: 1204862706084437428)")
    assert shows(("run x (Flower's number: 6488973430138103321)",), "run x (Flower's number: 4463576142699766)")
