"""The command line. Heavy modules are imported inside commands, so that `rounds --help` answers at once."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

try:
    import typer
    import typer.main

    from grandrounds.cli import audit, compare, data, predict, privacy, report, reproduce, run, show, withdraw
    from grandrounds.cli.groups import RootGroup, sub_commands
    from grandrounds.cli.terminal import echo, echo_error
    from grandrounds.core.capability import collect, load
    from grandrounds.core.errors import GrandRoundsError
    from grandrounds.core.version import __version__
except KeyboardInterrupt:  # pressed while the program starts
    sys.exit(130)

app = typer.Typer(
    name="rounds",
    cls=RootGroup,
    help=(
        "Explainable, private and auditable federated learning for hospitals.\n\n"
        "Start with `rounds run` (ten simulated hospitals, built-in data), then your own table:\n\n"
        "`rounds run patients.csv --label died --site hospital`"
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        echo(f"rounds {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


for module in (run, compare, reproduce, show, privacy, report, predict, withdraw):
    module.register(app)
app.add_typer(data.app, name="data")
app.add_typer(audit.app, name="audit")
for name, command in collect("commands").items():
    added = load(command.add)
    if isinstance(added, typer.Typer):
        app.add_typer(added, name=name)
    else:
        added(app)


@cache
def _command() -> click.Command:
    """Build the command with every subcommand. Typer takes a tenth of a second, so a process does so once."""
    return typer.main.get_command(app)


_OTHER_SETTINGS = ("site", "provision")
"""Commands whose errors name settings of other files, policy.toml and consortium.toml, which `--set` does not change."""


def _hint(error: GrandRoundsError, arguments: list[str]) -> str:
    """Return the line that tells how to change the settings which an error names; "" where there is none."""
    from grandrounds.experiment.hints import CHANGED_FILES, hint

    if error.code in CHANGED_FILES:
        return ""
    command: click.Command = _command()
    words = list(arguments)
    while words and words[0] in sub_commands(command):
        command = sub_commands(command)[words.pop(0)]
    options = frozenset(option for parameter in command.params for option in parameter.opts)
    if "--set" not in options and arguments[:1] and arguments[0] in _OTHER_SETTINGS:
        return ""
    return hint(str(error), options)


def main() -> None:
    """Run the command `rounds`: errors become one sentence and an exit code, never a traceback."""
    try:
        _command()()
    except GrandRoundsError as e:
        echo_error(str(e), e.code)
        if line := _hint(e, sys.argv[1:]):
            echo(line, err=True)
        sys.exit(e.exit_code)
    except MemoryError:
        echo_error(
            "this machine has too little memory for that: use fewer rows, sites or hidden units", "too-little-memory"
        )
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
