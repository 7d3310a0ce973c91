"""Options that several commands share: the experiment they are about, the columns of a table, and how its text is written.

Options that always come together are fields of a dataclass. A command takes the dataclass as one parameter, and
`expand_options` shows Typer the fields in its place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

if TYPE_CHECKING:
    from grandrounds.experiment.experiment import Experiment

R = TypeVar("R")

Set = Annotated[list[str], typer.Option("--set", help="Change a setting: --set method.rounds=50 (repeatable).")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the run folder and nothing else.")]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        help="Run the run's own code (a model or method of its author's) though the run was made elsewhere: read it first. "
        "Modules must be those whose SHA-256 the plan lists.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")]
Source = Annotated[
    str, typer.Argument(metavar="[RECIPE | FILE.toml]", help="A recipe (`rounds list recipes`) or a TOML file.")
]
TableFile = Annotated[
    str | None, typer.Option("--table", help="Your own data: .csv, .csv.gz, .tsv, .parquet or a SQL URL.")
]
Label = Annotated[str | None, typer.Option("--label", help="Column to predict.")]
EventClass = Annotated[
    str | None,
    typer.Option("--event", help="Class of the label whose probability is the risk: --event died (default: by known words)."),
]
SiteColumn = Annotated[str | None, typer.Option("--site", help="Column that names the hospital of each row.")]
Patient = Annotated[str | None, typer.Option("--patient", help="Column that names the patient.")]
Drop = Annotated[str | None, typer.Option("--drop", help="Columns to leave out: col,col.")]
Query = Annotated[str | None, typer.Option("--query", help="SELECT or table name, for a SQL URL.")]
Decimal = Annotated[
    str | None,
    typer.Option("--decimal", help="Decimal mark where a cell such as 1,234 can be read in two ways: , or ."),
]
TextEncoding = Annotated[
    str | None, typer.Option("--text-encoding", help="Encoding of a text file: utf-8, cp1252, latin-1, utf-16 ...")
]
Separator = Annotated[str | None, typer.Option("--separator", help="Separator of a text file: , ; | or tab.")]
Missing = Annotated[
    list[str] | None,
    typer.Option("--missing", help="One more word that means 'no value' (repeatable): --missing -999."),
]
Censored = Annotated[
    str | None, typer.Option("--censored", help="What '<5' and '>200' stand for: value (default), half or missing.")
]

GUARD = 10.0
"""`method.robust.guard` of an experiment on an own table: one site's update cannot outweigh all others by its length."""

DEFAULT_RECIPE = "breast-cancer"
"""The recipe of `rounds run` without a name: one that sends no patient's row to anybody."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table of one's own, as `[data]` names them."""

    label: Label = None
    event: EventClass = None
    site: SiteColumn = None
    patient: Patient = None
    drop: Drop = None

    def settings(self) -> dict[str, Any]:
        """Return the keys of [data] that are set."""
        values: dict[str, Any] = {"label": self.label, "event": self.event, "site": self.site, "patient": self.patient}
        values = {name: value for name, value in values.items() if value is not None}
        if self.drop:
            values["drop"] = [c.strip() for c in self.drop.split(",") if c.strip()]
        return values


@dataclass(frozen=True)
class Reading:
    """How the text of a table is written."""

    decimal: Decimal = None
    text_encoding: TextEncoding = None
    separator: Separator = None
    missing: Missing = None
    censored: Censored = None

    def settings(self) -> dict[str, Any]:
        """Return the keys of [data] that are set; `missing` has the words to add."""
        values: dict[str, Any] = {
            "decimal": self.decimal,
            "text_encoding": self.text_encoding,
            "separator": self.separator,
            "censored": self.censored,
        }
        values = {name: value for name, value in values.items() if value is not None}
        return values | ({"missing": self.missing} if self.missing else {})

    def merged(self, missing: Iterable[str]) -> dict[str, Any]:
        """Return the keys of [data] that are set, with words for missing values added to `missing`, which are known."""
        values = self.settings()
        if "missing" in values:
            values["missing"] = list(dict.fromkeys([*missing, *values["missing"]]))
        return values


def expand_options(command: Callable[..., R]) -> Callable[..., R]:
    """Replace each parameter of a command that is a dataclass of options by the options of that dataclass.

    Args:
        command: The command; such a parameter is annotated with the dataclass and has an instance as its default.

    Returns:
        The command as Typer is to see it: it takes keywords, and calls `command` with instances of the dataclasses.
    """
    groups: dict[str, Any] = {}
    shown: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if not is_dataclass(parameter.annotation):
            shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = parameter.annotation
        hints = get_type_hints(parameter.annotation, include_extras=True)
        shown += [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
            for f in fields(parameter.annotation)
        ]

    @functools.wraps(command)
    def expanded(**given: Any) -> R:
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in fields(group)})
        return command(**given)

    expanded.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    expanded.__annotations__ = {p.name: p.annotation for p in shown}
    return expanded


def build_experiment(
    source: str = "",
    *,
    table: str | None = None,
    columns: Columns = Columns(),
    query: str | None = None,
    reading: Reading = Reading(),
    settings: list[str] | None = None,
    seed: int | None = None,
) -> Experiment:
    """Build the experiment that the options of a command describe together.

    Args:
        source: A recipe or a TOML file; "" for the default recipe.
        table: A table of one's own, in place of `source`.
        columns: The columns of the table.
        query: For a SQL URL, what to select.
        reading: How the text of the table is written.
        settings: Assignments such as `method.rounds=50`.
        seed: The seed; None leaves that of the experiment.

    Returns:
        The experiment.

    Raises:
        BadInput: Options contradict each other, or the label is missing.
    """
    from grandrounds.core.errors import BadInput
    from grandrounds.data.readers import DEFAULT_MISSING, PARQUET, TEXT
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.recipes import load_recipe

    data = columns.settings() | ({} if query is None else {"query": query})
    if table is None and source.lower().endswith((*TEXT, *PARQUET, ".xlsx", ".npz")):
        raise BadInput(f"'{source}' is no recipe; a table? rounds run --table {source} --label COLUMN")
    if table is not None:
        if source:
            raise BadInput(
                f"both '{source}' and --table were given; an own table needs no recipe (change settings with --set)"
            )
        where = table if "://" in table else str(Path(table).resolve())
        data |= reading.merged(DEFAULT_MISSING)
        base = Experiment.parse(
            {"name": _title(table), "data": {"table": where, **data}, "method": {"robust": {"guard": GUARD}}}
        )
    else:
        if source.endswith(".toml"):
            base = Experiment.load(Path(source))
        else:
            base = load_recipe(source or DEFAULT_RECIPE)
        if given := reading.settings():
            if base.data.table is None:
                flag = next(iter(given)).replace("_", "-")
                raise BadInput(f"--{flag} goes with a table of your own, and '{base.name}' has none (use --table)")
            data |= reading.merged(base.data.missing)
        if data:
            base = Experiment.parse(
                {**base.model_dump(exclude_unset=True), "data": {**base.data.model_dump(exclude_unset=True), **data}}
            )
    extra = [*(settings or []), *([f"seed={seed}"] if seed is not None else [])]
    made = base.with_settings(extra) if extra else base
    if table is not None and made.data.label is None and not table.lower().endswith(".npz"):
        raise BadInput(f"which column is to be predicted? {table} has {_columns(made)} (use --label)")
    return made


def _columns(experiment: Experiment) -> str:
    """The columns of an experiment's own table."""
    from grandrounds.core.plan_types import DataSettings
    from grandrounds.data.readers import read_plan_table

    names = read_plan_table(DataSettings(experiment.data.model_dump(mode="json"))).names
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(names[:20]) + more


def _title(table: str) -> str:
    """What an experiment on an own table is called: the file's or the database's name."""
    from grandrounds.core.redact import hide

    return Path(hide(table).split("://")[-1].split("?")[0]).stem or "database"


def show_reading(rows: Any) -> None:
    """Print on standard error what was assumed to read a table."""
    for note in () if getattr(rows, "reading", None) is None else rows.reading.notes:
        typer.echo(f"assumed: {note}", err=True)
