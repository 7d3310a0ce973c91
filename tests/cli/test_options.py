"""Options that commands share: Typer is shown the fields of a dataclass in its place, and the command gets one object."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from grandrounds import cli
from grandrounds.cli import options
from grandrounds.cli.options import AddedOptions, Columns, Quiet, Reading, Set, build_experiment, expand_options
from grandrounds.cli.terminal import reads_run
from grandrounds.core.capability import Capability
from tests.command import rounds
from tests.support import refused

seen: list[tuple[str, Columns, Reading, bool]] = []


@expand_options
def command(
    table: str, columns: Columns = Columns(), reading: Reading = Reading(), quiet: Quiet = False  # noqa: B008
) -> None:
    """A command with two groups of options."""
    seen.append((table, columns, reading, quiet))


@pytest.fixture(params=[command, reads_run(command)], ids=["as it is", "guarded"])
def app(request):
    made = typer.Typer()
    made.command()(request.param)
    seen.clear()
    return made


def test_fields_stand_in_the_place_of_their_group():
    names = ["table", "cohort", "label", "event", "task", "duration", "site", "patient", "drop", "images"]
    names += ["decimal", "text_encoding", "separator", "missing", "censored", "sheet", "quiet"]
    assert list(inspect.signature(command).parameters) == names


def test_a_command_gets_the_groups_as_objects(app):
    given = ["own.csv", "--label", "died", "--drop", "a, b", "--missing", "-999", "--missing", "?", "-q"]
    assert CliRunner().invoke(app, given).exit_code == 0
    assert seen == [("own.csv", Columns(label="died", drop="a, b"), Reading(missing=["-999", "?"]), True)]


@dataclass(frozen=True)
class Shout:
    """An option that a capability adds."""

    shout: Annotated[bool, typer.Option("--shout")] = False

    def finish(self, result: str, *, quiet: bool) -> str:
        return result.upper() if self.shout and not quiet else result


def test_a_capability_adds_an_option_and_gets_the_result(monkeypatch):
    manifests = [Capability(n, "", 1, "index.md", options=o) for n, o in (("none", {}), ("toy", {"greet": f"{__name__}:Shout"}))]
    monkeypatch.setattr(options, "capabilities", lambda: manifests)

    @expand_options
    def greet(name: str, added: AddedOptions = AddedOptions("greet"), quiet: Quiet = False) -> None:  # noqa: B008
        print(added.finish(f"good morning {name}", quiet=quiet))

    made = typer.Typer()
    made.command()(greet)
    assert list(inspect.signature(greet).parameters) == ["name", "shout", "quiet"]
    assert CliRunner().invoke(made, ["anna"]).output == "good morning anna\n"
    assert CliRunner().invoke(made, ["anna", "--shout"]).output == "GOOD MORNING ANNA\n"
    assert CliRunner().invoke(made, ["anna", "--shout", "-q"]).output == "good morning anna\n"


def test_what_is_not_given_is_not_set(app):
    assert CliRunner().invoke(app, ["own.csv"]).exit_code == 0
    (_, columns, reading, quiet) = seen[0]
    assert (columns.settings(), reading.merge([]), quiet) == ({}, {}, False)


def test_settings_of_data():
    assert Columns(label="died", drop="a, ,b").settings() == {"label": "died", "drop": ["a", "b"]}
    reading = Reading(decimal=",", missing=["?", "-999"])
    assert (reading.format_settings(), reading.first_flag()) == ({"decimal": ","}, "--decimal")
    assert reading.merge(["", "?"]) == {"decimal": ",", "missing": ["", "?", "-999"]}
    assert Reading(separator=";").merge(["?"]) == {"separator": ";"}
    assert (Reading(missing=["?"]).first_flag(), Reading().first_flag()) == ("--missing", None)


@dataclass(frozen=True)
class Both:
    """Options with a required one, and with another group among them."""

    table: Annotated[str, typer.Option("--table")]
    columns: Columns = field(default_factory=Columns)
    settings: Set = field(default_factory=list)


def test_a_group_may_hold_a_group():
    groups: list[Both] = []

    @expand_options
    def nested(options: Both) -> None:
        groups.append(options)

    app = typer.Typer()
    app.command()(nested)
    arguments = ["--table", "own.csv", "--label", "died", "--set", "seed=1"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert groups == [Both("own.csv", Columns(label="died"), ["seed=1"])]
    assert CliRunner().invoke(app, []).exit_code == 2, "the table is required"


def test_how_a_table_is_read_goes_with_a_table():
    with refused("missing-option", match="--text-encoding"):
        build_experiment("breast-cancer", reading=Reading(text_encoding="cp1252"))


def test_no_module_imports_click_when_it_runs():
    """Typer 0.26 and newer have a copy of click: a class of the other copy is no command to it."""
    files = sorted((Path(cli.__file__).parent).glob("*.py"))
    assert len(files) > 10
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        checked = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
        for_types = {id(inner) for block in checked for inner in ast.walk(block)}
        found = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom) and id(n) not in for_types]
        names = [getattr(n, "module", None) or n.names[0].name for n in found]
        assert not [name for name in names if name.split(".")[0] == "click"], file.name


@pytest.mark.parametrize(
    ("given", "suggested"),
    [
        (("run", "heart", "--rounds", "5"), "--set method.rounds=5"),
        (("run", "heart", "--lr=0.5"), "--set train.lr=0.5"),
        (("fit", "glm", "heart", "--rounds"), "--set method.rounds=N"),
    ],
)
def test_an_unknown_option_with_the_name_of_a_setting_is_answered_with_it(given, suggested):
    done = rounds(*given, env={"COLUMNS": "200"})
    assert done.returncode == 2 and suggested in done.stderr and "--subgroups" not in done.stderr
