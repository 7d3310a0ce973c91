"""`rounds run`, `rounds resume`, `rounds plan`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grandrounds.cli.reading import (
    Censored,
    Decimal,
    Missing,
    Separator,
    TextEncoding,
    merge_reading,
    reading_settings,
    show_reading,
)
from grandrounds.cli.terminal import echo, reads_run
from grandrounds.cli.tracking import Track, log_run, target_of

if TYPE_CHECKING:
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.runs.run import Run

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

GUARD = 10.0
"""`method.robust.guard` of an experiment on an own table: one site's update cannot outweigh all others by its length."""

DEFAULT_RECIPE = "breast-cancer"
"""The recipe of `rounds run` without a name: one that sends no patient's row to anybody."""


def register(app: typer.Typer) -> None:
    app.command()(run)
    app.command()(reads_run(resume))
    app.command()(plan)


def experiment_from(
    source: str = "",
    *,
    table: str | None = None,
    label: str | None = None,
    event: str | None = None,
    site: str | None = None,
    patient: str | None = None,
    drop: str | None = None,
    query: str | None = None,
    reading: Mapping[str, Any] | None = None,
    settings: list[str] | None = None,
    seed: int | None = None,
) -> Experiment:
    """The experiment that the flags describe together."""
    from grandrounds.core.errors import BadInput
    from grandrounds.data.readers import DEFAULT_MISSING, PARQUET, TEXT
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.recipes import load_recipe

    columns: dict[str, Any] = {"label": label, "event": event, "site": site, "patient": patient, "query": query}
    columns = {k: v for k, v in columns.items() if v is not None}
    if drop:
        columns["drop"] = [c.strip() for c in drop.split(",") if c.strip()]
    if table is None and source.lower().endswith((*TEXT, *PARQUET, ".xlsx", ".npz")):
        raise BadInput(f"'{source}' is no recipe; a table? rounds run --table {source} --label COLUMN")
    if table is not None:
        if source:
            raise BadInput(
                f"both '{source}' and --table were given; an own table needs no recipe (change settings with --set)"
            )
        where = table if "://" in table else str(Path(table).resolve())
        columns |= merge_reading(reading or {}, DEFAULT_MISSING)
        base = Experiment.parse(
            {"name": _title(table), "data": {"table": where, **columns}, "method": {"robust": {"guard": GUARD}}}
        )
    else:
        if source.endswith(".toml"):
            base = Experiment.load(Path(source))
        else:
            base = load_recipe(source or DEFAULT_RECIPE)
        if reading:
            if base.data.table is None:
                flag = next(iter(reading)).replace("_", "-")
                raise BadInput(f"--{flag} goes with a table of your own, and '{base.name}' has none (use --table)")
            columns |= merge_reading(reading, base.data.missing)
        if columns:
            base = Experiment.parse(
                {**base.model_dump(exclude_unset=True), "data": {**base.data.model_dump(exclude_unset=True), **columns}}
            )
    extra = [*(settings or []), *([f"seed={seed}"] if seed is not None else [])]
    made = base.with_settings(extra) if extra else base
    if table is not None and made.data.label is None and not table.lower().endswith(".npz"):
        raise BadInput(f"which column is to be predicted? {table} has {_columns(made)} (use --label)")
    return made


def _columns(experiment: Experiment) -> str:
    """The columns of an experiment's own table."""
    from grandrounds.core.plan import Settings
    from grandrounds.data.readers import read_own_table

    names = read_own_table(Settings(experiment.data.model_dump(mode="json"))).names
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(names[:20]) + more


def _title(table: str) -> str:
    """What an experiment on an own table is called: the file's or the database's name."""
    from grandrounds.core.redact import hide

    return Path(hide(table).split("://")[-1].split("?")[0]).stem or "database"


def run(
    source: Source = "",
    table: TableFile = None,
    label: Label = None,
    event: EventClass = None,
    site: SiteColumn = None,
    patient: Patient = None,
    drop: Drop = None,
    query: Query = None,
    decimal: Decimal = None,
    text_encoding: TextEncoding = None,
    separator: Separator = None,
    missing: Missing = None,
    censored: Censored = None,
    settings: Set = [],  # noqa: B006
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder (default: runs/DATA-METHOD-seedN).")] = None,
    track: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train across hospitals: a recipe, a TOML file, or your own table.

    Examples: `rounds run` -- `rounds run heart --set method.name=fedprox` --
    `rounds run --table patients.csv --label died --site hospital --drop note,bed`
    """
    experiment = experiment_from(
        source,
        table=table,
        label=label,
        event=event,
        site=site,
        patient=patient,
        drop=drop,
        query=query,
        reading=reading_settings(decimal, text_encoding, separator, missing, censored),
        settings=settings,
        seed=seed,
    )
    target = target_of(track)
    from grandrounds.runs.run import run as start

    with _watch(quiet or as_json) as progress:
        done = start(experiment, out=out, progress=progress)
    _report(done, as_json=as_json, quiet=quiet)
    log_run(done, target, quiet=quiet or as_json)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    settings: Set = [],  # noqa: B006
    track: Track = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with an interrupted run; it ends with the same bits as if nothing had happened.

    `--set method.rounds=40` goes on longer; engine.* and evaluation.* may change too.
    """
    target = target_of(track)
    from grandrounds.runs.run import resume as go_on

    with _watch(quiet or as_json) as progress:
        done = go_on(folder, settings=settings, progress=progress, trust_code=trust_code)
    _report(done, as_json=as_json, quiet=quiet)
    log_run(done, target, quiet=quiet or as_json)


def plan(
    source: Source = "",
    table: TableFile = None,
    label: Label = None,
    event: EventClass = None,
    site: SiteColumn = None,
    patient: Patient = None,
    drop: Drop = None,
    query: Query = None,
    decimal: Decimal = None,
    text_encoding: TextEncoding = None,
    separator: Separator = None,
    missing: Missing = None,
    censored: Censored = None,
    settings: Set = [],  # noqa: B006
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the plan (default: standard output).")] = None,
    with_data: Annotated[
        bool, typer.Option("--with-data", help="Write the table beside the plan, for a machine without it.")
    ] = False,
) -> None:
    """Write the resolved experiment as JSON, for `python -m grandrounds.job PLAN.json --out RUN`."""
    from grandrounds.core.arrays import write_atomic
    from grandrounds.core.errors import BadInput

    experiment = experiment_from(
        source,
        table=table,
        label=label,
        event=event,
        site=site,
        patient=patient,
        drop=drop,
        query=query,
        reading=reading_settings(decimal, text_encoding, separator, missing, censored),
        settings=settings,
        seed=seed,
    )
    values = experiment.plan()
    if with_data:
        if out is None:
            raise BadInput("--with-data writes a file beside the plan: say where with --out PLAN.json")
        from grandrounds.core.plan import Settings
        from grandrounds.data.loading import read_data
        from grandrounds.data.row_files import write_bundle

        held = read_data(Settings({**values, "data": {**values["data"], "table": experiment.data.table}}).data)
        show_reading(held)
        values["data"] |= {"name": None, "table": write_bundle(held, out).name, "query": None, "pictures": None}
    text = json.dumps(values, indent=1)
    if out is None:
        echo(text)
    else:
        try:
            write_atomic(out, text.encode() + b"\n")
        except OSError as e:
            raise BadInput(f"cannot write {out}: {e.strerror or e}") from None
        echo(f"{out}: run it with  python -m grandrounds.job {out} --out RUN", err=True)


def _watch(quiet: bool) -> Any:
    from grandrounds.cli.screen import Watch
    from grandrounds.cli.terminal import Terminal

    return Watch(Terminal(stderr=True), quiet=quiet)


def _report(done: Run, *, as_json: bool, quiet: bool) -> None:
    """What is printed at the end."""
    if as_json:
        echo(json.dumps(done.summary))
        return
    if not quiet:
        from grandrounds.cli.screen import show_summary
        from grandrounds.cli.terminal import Terminal

        console = Terminal()
        show_summary(console, done.summary)
        console.print(f"report: {done.folder / 'report.html'}", highlight=False, soft_wrap=True)
        console.print(f"run folder: {done.folder}", highlight=False, soft_wrap=True)
    else:
        echo(str(done.folder))
