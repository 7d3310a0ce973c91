"""The page of the command line, docs/cli.md, from the commands themselves.

python docs/cli_page.py            print the page
python docs/cli_page.py --write    write it
python docs/cli_page.py --check    exit 1 where it differs
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import typer.main

from grandrounds.cli import app
from grandrounds.cli.groups import panels

PAGE = Path(__file__).with_name("cli.md")

HEAD = """# Command line

```shell
rounds run                                            # simulated hospitals
rounds run patients.csv --label died --site hospital  # your own table
rounds show runs/patients-fedavg-seed0 --verbose      # every score of a run
rounds console                                        # runs in the browser
```

`rounds --help` lists the commands, `rounds COMMAND --help` their options. This page has the same texts.

- `--set section.name=value` changes a [setting](experiments.md) of an experiment and can be repeated. An error that names a
  setting shows the flag or the `--set` that changes it.
- `--json` prints one JSON document on standard output. Progress, notes and errors are printed on standard error.
- An error is one sentence with a code in brackets. Exit code 2 is bad input; [error codes](errors.md) lists all of them.
- In the tables, an option without a value in capitals is a switch. A default is in the last column.

"""

TITLES = {
    "Train": "Train models, compare methods, search for settings.",
    "Inspect": "Look at finished runs and explain them.",
    "Use": "Apply the model of a finished run, or log the run.",
    "Trust": "Verify the record, the privacy guarantee and its limits.",
    "Data": "Data sets, cohorts from records, medical images, and the quality of sites' data.",
    "Deploy": "Run a consortium of real hospitals.",
    "Research": "Reproductions of papers.",
}
SHARED = 3
"""Commands that an option is shared by before it is described once for all."""
CORES = {("attack", "jobs"), ("compare", "jobs")}
"""Options whose default is the number of cores of the machine."""


def page() -> str:
    """Return the page."""
    root = typer.main.get_command(app)
    assert isinstance(root, click.Group)
    shared = shared_rows(root)
    lines: list[str] = []
    for panel, names in panels().items():
        lines += [f"## {panel}", "", TITLES[panel], ""]
        for name in names:
            lines += describe(name, root.commands[name], shared)
    lines += ["## Shared options", "", "Options that several commands have.", "", *table(shared)]
    return HEAD + "\n".join(lines) + "\n"


def describe(path: str, command: click.Command, shared: Sequence[Row]) -> Iterator[str]:
    """Describe a command and its sub-commands.

    Args:
        path: The words after `rounds`.
        command: The command.
        shared: Options that are described once for all commands.

    Returns:
        Lines of Markdown.
    """
    yield from (f"### rounds {path}" if " " not in path else f"#### rounds {path}", "")
    for paragraph in (command.help or "").split("\n\n"):
        text = " ".join(inspect.cleandoc(paragraph).split())
        if text:
            yield from (text.replace(" -- ", ", "), "")
    if not isinstance(command, click.Group):
        yield from ("```text", usage(path, command), "```", "")
        yield from options(path, command, shared)
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from describe(f"{path} {name}", child, shared)


def usage(path: str, command: click.Command) -> str:
    """Return the usage line of a command."""
    context = click.Context(command, info_name=f"rounds {path}")
    return f"rounds {path} {' '.join(command.collect_usage_pieces(context))}"


Row = tuple[str, str, str]
"""An argument or option: how it is typed, its meaning, its default."""


def rows(path: str, command: click.Command) -> Iterator[Row]:
    """List the arguments and options of a command."""
    context = click.Context(command, info_name=f"rounds {path}")
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        if isinstance(parameter, click.Argument):
            name = parameter.make_metavar(context)
        else:
            switches = ", ".join([*parameter.opts, *parameter.secondary_opts])
            name = switches if getattr(parameter, "is_flag", False) else f"{switches} {parameter.make_metavar(context)}"
        meaning = " ".join((getattr(parameter, "help", None) or "").split())
        if getattr(parameter, "multiple", False) and "repeat" not in meaning:
            meaning += " Repeatable."
        yield f"`{name}`", meaning, default(path, parameter)


def commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """List a command and its sub-commands with their paths, without groups and hidden ones."""
    if not isinstance(command, click.Group):
        yield path, command
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from commands(f"{path} {name}".strip(), child)


def shared_rows(root: click.Group) -> list[Row]:
    """List the options that at least `SHARED` commands have with the same meaning, in the order of their first use."""
    found: Counter[Row] = Counter()
    for name in (n for names in panels().values() for n in names):
        for path, command in commands(name, root.commands[name]):
            found.update(row for row in rows(path, command) if row[0].startswith("`--"))
    return [row for row, count in found.items() if count >= SHARED]


def table(listed: Sequence[Row]) -> Iterator[str]:
    """Tabulate arguments and options."""
    yield from ("| argument or option | meaning | default |", "|---|---|---|")
    for row in listed:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


def options(path: str, command: click.Command, shared: Sequence[Row]) -> Iterator[str]:
    """Tabulate the arguments and options of a command; name those that several commands share."""
    listed = list(rows(path, command))
    apart = [row for row in listed if row not in shared]
    if apart:
        yield from table(apart)
    if len(apart) < len(listed):
        names = ", ".join(f"`{row[0].strip('`').split()[0].rstrip(',')}`" for row in listed if row in shared)
        yield from (f"[Shared options](#shared-options): {names}.", "")


def default(path: str, parameter: click.Parameter) -> str:
    """Return the default of a parameter as text; empty for none."""
    if (path, parameter.name) in CORES:
        return "number of CPU cores"
    value: Any = parameter.default
    if parameter.required:
        return "required"
    if value is None or callable(value) or isinstance(value, bool) or value in ("", [], ()) or "UNSET" in repr(value).upper():
        return ""
    return f"`{value}`"


def main(how: str = "") -> int:
    text = page()
    if how == "--write":
        PAGE.write_text(text, encoding="utf-8")
    elif not how:
        print(text)
    return int(how == "--check" and PAGE.read_text(encoding="utf-8") != text)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
