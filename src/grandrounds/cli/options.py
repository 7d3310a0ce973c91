"""Options that several commands share: the experiment, the columns of a table, and the format of its text.

Options that always come together are fields of a dataclass. A command takes the dataclass as one parameter, and
`expand_options` shows Typer the fields in its place. A parameter of type AddedOptions is the place of capabilities' options.
"""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, get_type_hints

import typer

from grandrounds.api.sources import DEFAULT_RECIPE, GUARD
from grandrounds.core.capability import capabilities, load
from grandrounds.core.toml import literal

if TYPE_CHECKING:
    from grandrounds.data.formats import Format
    from grandrounds.data.images import ImageSet
    from grandrounds.data.table import Table
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.runs.run import Run

R = TypeVar("R")

Set = Annotated[list[str], typer.Option("--set", help="Change a setting: --set method.rounds=50 (repeatable).")]
ModelName = Annotated[str | None, typer.Option("--model", help="Model (`rounds list models`), as --set model.name=gam.")]
MethodName = Annotated[
    str | None, typer.Option("--method", help="Method (`rounds list methods`), as --set method.name=fedprox.")
]
Subgroups = Annotated[
    str | None,
    typer.Option("--subgroups", help="Columns whose groups of patients are compared (fairness): sex,age."),
]
Guard = Annotated[
    bool | None,
    typer.Option(
        "--guard/--no-guard",
        help="Each site compares the common model, its own intercept, a model of its own and its most common class, and "
        "deploys another than the default only if it is clearly better; harmed sites are counted (personal.guard).",
    ),
]
PersonalPart = Annotated[
    str | None,
    typer.Option(
        "--personal",
        help="Part of the model that each site fits to its own rows and never sends: intercept, recalibration, head, ditto, "
        "apfl or finetune (personal.part).",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Seed of every random choice.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the run folder and nothing else.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print every metric, explanation drift, trust and cost as well.")
]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        help="Trust the author of a run that was made elsewhere: open the files, addresses and queries that its plan names, and "
        "run its plug-in code. Read the plan and the code first. Modules must have the SHA-256 that the plan lists.",
    ),
]
AllowMissing = Annotated[
    bool,
    typer.Option(
        "--allow-missing", help="Also take new patients without columns that the model relies on: they are filled in and noted."
    ),
]
Withdrawn = Annotated[
    bool,
    typer.Option(
        "--withdrawn",
        help="Use the model although a site withdrew from the run (`rounds withdraw`) or the register of models calls it "
        "withdrawn or not valid, for research only.",
    ),
]
Personal = Annotated[
    Path | None,
    typer.Option(
        help="At a hospital: use its personal model, from this personal.safetensors or from the folder of the site."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")]
Source = Annotated[
    str,
    typer.Argument(
        metavar="[RECIPE | FILE.toml | TABLE]",
        help="A recipe (`rounds list recipes`), a TOML file, or your own table (as --table).",
    ),
]
TableFile = Annotated[
    str | None, typer.Option("--table", help="Your own data: .csv, .parquet, .xlsx, .sas7bdat, .dta, .sav or a SQL URL.")
]
CohortFile = Annotated[
    Path | None,
    typer.Option(
        "--cohort",
        help="Cohort file (`rounds cohort draft`): the table is made from clinical records, which are OMOP tables, a SQL URL or "
        "FHIR resources. "
        "A folder with those of several hospitals gives each its own site.",
    ),
]
Vocabulary = Annotated[
    Path | None,
    typer.Option(
        "--vocabulary",
        metavar="FOLDER",
        help="Vocabulary of your own, as downloaded from Athena: for records that have no CONCEPT table.",
    ),
]
Label = Annotated[str | None, typer.Option("--label", help="Column to predict.")]
EventClass = Annotated[
    str | None,
    typer.Option(
        "--event",
        help="Class of the label that is the event: --event died. A risk is its probability. "
        "Default: recognized from the class names.",
    ),
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task", help="Type of the outcome: classification, regression, count or survival. Default: inferred from the label."
    ),
]
Duration = Annotated[
    str | None,
    typer.Option("--time", help="Column with the follow-up time, for survival; --label then names the event (0 or 1)."),
]
SiteColumn = Annotated[str | None, typer.Option("--site", help="Column that names the hospital of each row.")]
Patient = Annotated[str | None, typer.Option("--patient", help="Column that names the patient.")]
Drop = Annotated[str | None, typer.Option("--drop", help="Columns to leave out: col,col.")]
ImageFolder = Annotated[
    Path | None,
    typer.Option("--images", metavar="DIR", help="Folder of images or scans; the table then lists them and their labels."),
]
Query = Annotated[str | None, typer.Option("--query", help="SELECT or table name, for a SQL URL.")]
Decimal = Annotated[
    str | None,
    typer.Option("--decimal", help="Decimal mark, comma or point, where a value such as 1,234 is ambiguous."),
]
TextEncoding = Annotated[
    str | None, typer.Option("--text-encoding", help="Encoding of a text file: utf-8, cp1252, latin-1, utf-16 ...")
]
Separator = Annotated[str | None, typer.Option("--separator", help="Separator of a text file: , ; | or tab.")]
SheetName = Annotated[str | None, typer.Option("--sheet", help="Sheet of an Excel workbook. Default: the only one with cells.")]
Missing = Annotated[
    list[str] | None,
    typer.Option("--missing", help="A further code for a missing value (repeatable): --missing -999."),
]
Censored = Annotated[
    str | None,
    typer.Option(
        "--censored", help="Value to use for '<5' and '>200': value (5 and 200, the default), half or missing."
    ),
]


@dataclass(frozen=True)
class Columns:
    """Columns of a user's table, as in section `[data]`, or the cohort file that defines them."""

    cohort: CohortFile = None
    label: Label = None
    event: EventClass = None
    task: TaskOption = None
    duration: Duration = None
    site: SiteColumn = None
    patient: Patient = None
    drop: Drop = None
    images: ImageFolder = None

    def settings(self) -> dict[str, str | list[str]]:
        """Return the settings of [data] that are given."""
        named = {"label": self.label, "event": self.event, "task": self.task, "duration": self.duration}
        named |= {"site": self.site, "patient": self.patient}
        named |= {"pictures": None if self.images is None else str(self.images.resolve())}
        values: dict[str, str | list[str]] = {name: value for name, value in named.items() if value is not None}
        if self.cohort is not None:
            values["cohort"] = str(self.cohort)
        if self.drop:
            values["drop"] = [c.strip() for c in self.drop.split(",") if c.strip()]
        return values


@dataclass(frozen=True)
class Reading:
    """Text format of a table: decimal mark, encoding, separator, missing and censored values; and the sheet of a workbook."""

    decimal: Decimal = None
    text_encoding: TextEncoding = None
    separator: Separator = None
    missing: Missing = None
    censored: Censored = None
    sheet: SheetName = None

    def format_settings(self) -> dict[str, str]:
        """Return the settings of [data] that are given, without `missing`."""
        values = {
            "decimal": self.decimal,
            "text_encoding": self.text_encoding,
            "separator": self.separator,
            "censored": self.censored,
            "sheet": self.sheet,
        }
        return {name: value for name, value in values.items() if value is not None}

    def merge(self, missing: Iterable[str]) -> dict[str, str | list[str]]:
        """Return the settings of [data] that are given.

        Args:
            missing: Codes for a missing value; those of --missing are added to them.
        """
        values: dict[str, str | list[str]] = {**self.format_settings()}
        if self.missing:
            values["missing"] = list(dict.fromkeys([*missing, *self.missing]))
        return values

    def text_format(self) -> Format:
        """Return the text format; options that are not given have the defaults of a table."""
        from grandrounds.data.formats import Format

        defaults = Format()
        return Format(
            decimal=defaults.decimal if self.decimal is None else self.decimal,
            text_encoding=defaults.text_encoding if self.text_encoding is None else self.text_encoding,
            separator=defaults.separator if self.separator is None else self.separator,
            censored=defaults.censored if self.censored is None else self.censored,
            sheet=self.sheet,
        )

    def first_flag(self) -> str | None:
        """Return the first of these options that is given, as a flag; None if none is given."""
        names = [*self.format_settings(), *(["missing"] if self.missing else [])]
        return f"--{names[0].replace('_', '-')}" if names else None


@dataclass(frozen=True)
class ExperimentOptions:
    """Experiment of `rounds run` and `rounds plan`."""

    source: Source = ""
    table: TableFile = None
    columns: Columns = Columns()
    query: Query = None
    reading: Reading = Reading()
    model: ModelName = None
    method: MethodName = None
    subgroups: Subgroups = None
    guard: Guard = None
    personal: PersonalPart = None
    settings: Set = field(default_factory=list)
    seed: Seed = None

    def build(self) -> Experiment:
        """Build the experiment.

        Raises:
            BadInput: Options contradict each other, or the label is missing.
        """
        groups = [c.strip() for c in (self.subgroups or "").split(",") if c.strip()]
        return build_experiment(
            self.source,
            table=self.table,
            columns=self.columns,
            query=self.query,
            reading=self.reading,
            settings=[
                *_name("model", self.model),
                *_name("method", self.method),
                *([f"evaluation.subgroups={literal(groups)}"] if groups else []),
                *([] if self.guard is None else [f"personal.guard={str(self.guard).lower()}"]),
                *([] if self.personal is None else [f"personal.part={self.personal}"]),
                *self.settings,
            ],
            seed=self.seed,
        )


@dataclass(frozen=True)
class NewRows:
    """Table of new patients for `rounds predict` and `rounds evaluate`."""

    table: Annotated[
        str,
        typer.Option(
            "--table",
            help="Rows to score: .csv, .parquet, .xlsx, .dta, .sav or a SQL URL; for a run with a cohort also clinical records.",
        ),
    ]
    query: Query = None
    reading: Reading = Reading()
    allow_missing: AllowMissing = False

    def read(self, run: Run, *, pending: bool = False) -> Table | ImageSet:
        """Read the rows in the format of the run's own data, and print assumptions on the format.

        Args:
            run: The run.
            pending: Of clinical records: also take visits whose outcome is not known yet.
        """
        from grandrounds.runs.run_rows import read_patients

        reading = self.reading.merge(run.plan["data"]["missing"])
        rows = read_patients(
            run, self.table, query=self.query, reading=reading, pending=pending, allow_missing=self.allow_missing
        )
        show_reading(rows)
        return rows


class OptionGroup(Protocol):
    """Options that one capability adds to a command: a dataclass whose fields they are, as a manifest names it."""

    def finish(self, result: Any, *, quiet: bool) -> Any:
        """Take the command's result, and return it, as it is or changed.

        Args:
            result: The result, such as a finished run.
            quiet: Print nothing if all went well.
        """


@dataclass(frozen=True)
class AddedOptions:
    """Options that capabilities add to a command; a parameter of this type is the place where they are listed.

    Attributes:
        command: The command, such as "audit verify".
        groups: What was given, by capability; nothing where no capability adds options.
    """

    command: str
    groups: tuple[OptionGroup, ...] = ()

    def group_types(self) -> list[type[Any]]:
        """Load the dataclasses that installed capabilities name for the command."""
        return [load(capability.options[self.command]) for capability in capabilities() if self.command in capability.options]

    def finish(self, result: R, *, quiet: bool) -> R:
        """Pass the command's result through each capability's step, in the order of their names."""
        for group in self.groups:
            result = group.finish(result, quiet=quiet)
        return result


def expand_options(command: Callable[..., R]) -> Callable[..., R]:
    """Replace each dataclass parameter of a command by the options that are its fields.

    Args:
        command: The command. A dataclass may have dataclasses as fields. The default of a parameter of type AddedOptions names
            the command.

    Returns:
        A function for Typer: it takes keyword arguments and calls `command` with instances of the dataclasses.
    """
    groups: dict[str, type[Any]] = {}
    added: dict[str, tuple[AddedOptions, list[type[Any]]]] = {}
    shown: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if isinstance(parameter.default, AddedOptions):
            types = parameter.default.group_types()
            added[parameter.name] = parameter.default, types
            shown += [option for group_type in types for option in _list_options(group_type)]
        elif isinstance(group, type) and is_dataclass(group):
            groups[parameter.name] = group
            shown += _list_options(group)
        else:
            shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def expanded(**arguments: Any) -> R:
        for name, group in groups.items():
            arguments[name] = _take_options(group, arguments)
        for name, (place, types) in added.items():
            arguments[name] = replace(place, groups=tuple(_take_options(group_type, arguments) for group_type in types))
        return command(**arguments)

    expanded.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    expanded.__annotations__ = {p.name: p.annotation for p in shown}
    return expanded


def _list_options(group: type[Any]) -> Iterator[inspect.Parameter]:
    """List the options of a dataclass and of the dataclasses among its fields."""
    hints = get_type_hints(group, include_extras=True)
    for option in fields(group):
        hint = hints[option.name]
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _list_options(hint)
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            yield inspect.Parameter(option.name, kind, default=_default(option), annotation=hint)


def _default(option: Field[Any]) -> Any:
    if option.default_factory is not MISSING:
        return option.default_factory()
    return inspect.Parameter.empty if option.default is MISSING else option.default


def _take_options(group: type[Any], arguments: dict[str, Any]) -> Any:
    """Create the dataclass from its options, and remove them from `arguments`."""
    hints = get_type_hints(group, include_extras=True)
    return group(
        **{
            name: _take_options(hint, arguments)
            if isinstance(hint, type) and is_dataclass(hint)
            else arguments.pop(name)
            for name, hint in hints.items()
        }
    )


def build_experiment(
    source: str = "",
    *,
    table: str | None = None,
    columns: Columns = Columns(),
    query: str | None = None,
    reading: Reading = Reading(),
    settings: list[str] | None = None,
    seed: int | None = None,
    require_label: bool = True,
) -> Experiment:
    """Build an experiment from the options of a command.

    Args:
        source: A recipe, a TOML file or a table (known by its suffix, or a SQL URL); "" for the default recipe. With a cohort:
            clinical records.
        table: The user's own table, in place of `source`.
        columns: The columns of the table.
        query: The SELECT or table name, for a SQL URL.
        reading: The format of the table's text.
        settings: Assignments such as `method.rounds=50`.
        seed: The seed; None leaves that of the experiment.
        require_label: Refuse a table without a column to predict.

    Returns:
        The experiment.

    Raises:
        BadInput: Options contradict each other, or the label is missing.
    """
    from grandrounds.core.errors import BadInput
    from grandrounds.data.formats import DEFAULT_MISSING
    from grandrounds.data.readers import table_endings
    from grandrounds.data.spreadsheets import UNREADABLE
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.recipes import load_recipe

    data: dict[str, object] = {**columns.settings(), **({} if query is None else {"query": query})}
    if columns.cohort is not None and table is None and source and not source.endswith(".toml"):
        source, table = "", source
    if table is None and ("://" in source or source.lower().endswith((*table_endings(), *UNREADABLE, ".npz"))):
        source, table = "", source
    if table is not None:
        if source:
            raise BadInput(
                f"both '{source}' and --table are given: leave one of them out (change settings with --set)",
                code="conflicting-options",
            )
        where = table if "://" in table else str(Path(table).resolve())
        data |= reading.merge(DEFAULT_MISSING)
        base = Experiment.parse(
            {"name": _title(table), "data": {"table": where, **data}, "method": {"robust": {"guard": GUARD}}}
        )
    else:
        if source.endswith(".toml"):
            base = Experiment.load(Path(source))
        else:
            base = load_recipe(source or DEFAULT_RECIPE)
        if (flag := reading.first_flag()) is not None:
            if base.data.table is None:
                raise BadInput(
                    f"{flag} is for a table of your own, and '{base.name}' has none: add --table FILE",
                    code="missing-option",
                )
            data |= reading.merge(base.data.missing)
        if data:
            base = Experiment.parse(
                {**base.model_dump(exclude_unset=True), "data": {**base.data.model_dump(exclude_unset=True), **data}}
            )
    extra = [*(settings or []), *([f"seed={seed}"] if seed is not None else [])]
    experiment = base.with_settings(extra) if extra else base
    if unused := list(_unused_settings(base, experiment)):
        name = experiment.model.name if "name" in experiment.model.model_fields_set else experiment.method.name
        typer.echo(f"assumed: model '{name}' is fitted from sums, so {' and '.join(unused)} is not used", err=True)
    known = experiment.data.label is not None or experiment.data.cohort is not None
    if require_label and table is not None and not known and not table.lower().endswith(".npz"):
        raise BadInput(
            f"no column to predict is set for {table}, which has the columns {_columns(experiment)}: name it, e.g. "
            f"rounds run {shlex.quote(table)} --label COLUMN --site COLUMN",
            code="label-not-set",
        )
    return experiment


def _name(section: str, value: str | None) -> list[str]:
    """Return the assignment of --model or --method."""
    return [] if value is None else [f"{section}.name={value}"]


def _unused_settings(base: Experiment, experiment: Experiment) -> Iterator[str]:
    """List the settings of a recipe that the experiment does not use, because its model has a method of its own."""
    for section, key in (("model", "name"), ("method", "name"), ("method", "rounds")):
        before, after = getattr(base, section), getattr(experiment, section)
        if key in before.model_fields_set and key not in after.model_fields_set:
            yield f"{section}.{key} = {getattr(before, key)} of the recipe"


def _columns(experiment: Experiment) -> str:
    """Name the columns of an experiment's table."""
    from grandrounds.core.plan_types import DataSettings
    from grandrounds.data.readers import read_plan_table

    names = read_plan_table(DataSettings(experiment.data.model_dump(mode="json"))).names
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(names[:20]) + more


def _title(table: str) -> str:
    """Name an experiment on a user's table after the file or the database."""
    from grandrounds.core.redact import hide

    return Path(hide(table).split("://")[-1].split("?")[0]).stem or "database"


def show_reading(rows: object) -> None:
    """Print the assumptions on the format of a table on standard error."""
    reading = getattr(rows, "reading", None)
    for note in () if reading is None else reading.notes:
        typer.echo(f"assumed: {note}", err=True)


def use_personal(run: Run, site: str | None, personal: Path | None) -> str | None:
    """Let a run use a hospital's own personal model; return the site whose model is used.

    Args:
        run: A finished run.
        site: The site that --for names.
        personal: The file or folder that --personal names.

    Raises:
        BadInput: The file is of another run, or of another site than --for names.
    """
    from grandrounds.core.errors import BadInput
    from grandrounds.core.names import site_named

    if personal is None:
        return site
    owner = run.use_personal(personal)
    if site is not None and site_named(site, list(run.summary["per_site"]), where=run.folder) != owner:
        raise BadInput(f"--personal is the model of {owner}, but --for names {site}: leave --for out", code="wrong-site")
    return owner
