"""Groups of commands: help panels, and commands that have sub-commands."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

from grandrounds.core.capability import collect

if TYPE_CHECKING:
    import click  # for types alone: from version 0.26 on, Typer has a copy of its own, whose classes are others

KERNEL: dict[str, tuple[str, ...]] = {
    "Train": ("run", "resume", "plan", "init", "compare"),
    "Inspect": ("list", "show", "report"),
    "Use": ("predict", "evaluate", "export"),
    "Trust": ("audit", "privacy", "withdraw"),
    "Data": ("data",),
    "Deploy": (),
    "Research": ("reproduce",),
}
"""Panels of `rounds --help`, and the commands in them that no capability adds."""


@cache
def panels() -> dict[str, tuple[str, ...]]:
    """Return the panels of `rounds --help` with their commands, in the order in which they are shown."""
    out = {panel: list(names) for panel, names in KERNEL.items()}
    waiting = {name: command for name, command in collect("commands").items() if command.panel}
    while waiting:
        known = {name for names in out.values() for name in names}
        ready = [name for name, c in waiting.items() if not c.after or c.after in known] or list(waiting)
        for name in ready:
            command = waiting.pop(name)
            names = out.setdefault(command.panel, [])
            place = names.index(command.after) + 1 if command.after in names else 0 if not command.after else len(names)
            names.insert(place, name)
    return {panel: tuple(names) for panel, names in out.items() if names}


def sub_commands(command: click.Command) -> dict[str, click.Command]:
    """Return the sub-commands of a command by name; none where it has none."""
    found: dict[str, click.Command] = getattr(command, "commands", {})
    return found


def _as_settings(option: str, words: list[str], context: click.Context | None) -> list[str]:
    """Return how to set the setting that an unknown option names; nothing where the command has no `--set`."""
    from grandrounds.experiment.hints import option_settings

    if context is None or all("--set" not in parameter.opts for parameter in context.command.params):
        return []
    place = next((i for i, word in enumerate(words) if word.partition("=")[0] == option), len(words))
    given, follows = "".join(words[place : place + 1]), "".join(words[place + 1 : place + 2])
    value = given.partition("=")[2] or ("" if follows.startswith("--") else follows)
    return option_settings(option, value)


class ParentCommand(TyperCommand):
    """A command with arguments of its own that has sub-commands too: `rounds explain RUN`, `rounds explain maps show RUN`.

    A first argument that is the name of a sub-command selects it. A folder of that name is written `./maps`.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.commands: dict[str, click.Command] = {}

    def add(self, name: str, command: click.Command) -> None:
        """Add a sub-command, and name it at the end of the help."""
        command.name = name
        self.commands[name] = command
        line = f"- `rounds {self.name} {name}`: {command.get_short_help_str(limit=200)}"
        self.epilog = f"{self.epilog}\n\n{line}" if self.epilog else f"Sub-commands:\n\n{line}"

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Make the context of the sub-command that the first argument names, or else of this command."""
        if args and args[0] in self.commands:
            name = args[0]
            return self.commands[name].make_context(f"{info_name} {name}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


class RootGroup(TyperGroup):
    """The command `rounds`: its commands in panels, sub-commands below their command.

    A command that is registered as `explain maps` becomes the sub-command `maps` of `explain`, after those that it has.
    """

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        for path in [name for name in self.commands if " " in name]:
            parent, name = path.split(" ")
            self._add_sub_command(parent, name, self.commands.pop(path))
        for panel, names in panels().items():
            for name in names:
                self.commands[name].rich_help_panel = panel  # type: ignore[attr-defined]  # Typer's commands have it

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an unknown option that has the name of a setting is answered with its `--set`."""
        words = [*ctx._protected_args, *ctx.args]
        try:
            return super().invoke(ctx)
        except Exception as e:
            error: Any = e  # of click or of Typer's copy of it
            if hasattr(error, "option_name") and hasattr(error, "possibilities"):
                error.possibilities = _as_settings(error.option_name, words, error.ctx) or error.possibilities
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands panel by panel."""
        return [name for names in panels().values() for name in names]

    def _add_sub_command(self, parent: str, name: str, command: click.Command) -> None:
        above = self.commands[parent]
        if isinstance(above, TyperGroup):
            command.name = name
            above.add_command(command)
        else:
            assert isinstance(above, ParentCommand), f"`rounds {parent}` is registered without cls=ParentCommand"
            above.add(name, command)
