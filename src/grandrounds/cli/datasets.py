"""`rounds data get | list | check | split | build-eicu`: the data sets, where they are, and whether a file is fit for use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.cli.running import Drop, EventClass, Label, Patient, Query, Set, SiteColumn

app = typer.Typer(help="The data sets of the catalog, and a check of your own file.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the catalog and say which sets are here."""
    from grandrounds.data.catalog import CATALOG
    from grandrounds.data.store import is_included, locate
    from grandrounds.errors import BadInput

    for entry in CATALOG.values():
        try:
            for file in entry.files:
                locate(file, name=entry.name)
            state = "included" if all(map(is_included, entry.files)) else "here"
        except BadInput as e:
            away = "not here (rounds data get)" if all(f.url for f in entry.files) else "not here"
            state = "damaged" if "is not the file we know" in str(e) else away
        typer.echo(f"{entry.name:<22} {state:<28} {entry.rows:>7,} rows  {entry.title}  [{entry.licence}]")


@app.command()
def get(name: Annotated[str, typer.Argument(help="A set of the catalog.")]) -> None:
    """Download a set, verify its checksums, compute what takes long, and keep it all in the cache."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from grandrounds.data.catalog import download, entry, prepare

    if not entry(name).files:
        typer.echo(f"{name} comes with the package: nothing to download")
        return
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        paths = download(name, progress=lambda done, total: bar.update(task, completed=done, total=total))
    for path in paths:
        typer.echo(f"{path}  verified")
    if entry(name).prepare is None:
        return
    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        made = prepare(name, progress=lambda done, total: bar.update(task, completed=done, total=total))
    typer.echo(f"{made}  ready")


@app.command()
def split(
    source: Annotated[
        str, typer.Argument(help="A set of the catalog, or your own file (.csv, .parquet, SQL URL; pictures: .npz).")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write; a file that is there stays.")],
    by: Annotated[
        str | None, typer.Option(help="The column that names the hospital (default: the one the catalog knows).")
    ] = None,
    query: Query = None,
) -> None:
    """Write one file for each hospital (.csv, or .npz of pictures), without the column that names it: what it would hold.

    Example: `rounds data split heart --out tables`
    """
    from rich.table import Table as View

    from grandrounds.arrays import write_atomic
    from grandrounds.cli.terminal import Terminal
    from grandrounds.data.catalog import CATALOG, entry
    from grandrounds.data.image_files import read_npz
    from grandrounds.data.images import ImageSet
    from grandrounds.data.parted import csv_of, npz_of, parted, parted_pictures
    from grandrounds.data.readers import read_table
    from grandrounds.deploy.names import slug
    from grandrounds.errors import BadInput

    known = source in CATALOG or not any(c in source for c in "./:")
    pictures = source.lower().endswith(".npz")
    held = entry(source).load() if known else read_npz(source) if pictures else read_table(source, query=query)
    if isinstance(held, ImageSet):
        ending, files = "npz", {name: (len(part), npz_of(part)) for name, part in parted_pictures(held, by).items()}
    else:
        by = by or (entry(source).site if known else None)
        if by is None:
            raise BadInput(f"which column of {source} names the hospital? (use --by)")
        ending, files = "csv", {name: (len(part), csv_of(part)) for name, part in parted(held, by).items()}
    parts = {out / f"{slug(name)}.{ending}": (name, *file) for name, file in files.items()}
    for path in parts:
        if path.exists():
            raise BadInput(f"{path} is there already; remove it, or choose another folder (use --out)")
    out.mkdir(parents=True, exist_ok=True)
    view = View(by or "site", "rows", "file", box=None, pad_edge=False)
    for path, (name, rows, data) in parts.items():
        write_atomic(path, data)
        view.add_row(name, str(rows), str(path))
    Terminal(soft_wrap=True).print(view)


@app.command("build-eicu")
def build_eicu(
    folder: Annotated[
        Path, typer.Argument(help="The folder with the .csv.gz files of eICU 2.0, as PhysioNet has them.")
    ],
    out: Annotated[Path, typer.Option(help="The table to write: .parquet, .csv or .csv.gz.")] = Path("eicu.parquet"),
    least_hours: Annotated[
        float, typer.Option(min=0, help="Leave out stays that were shorter (no rule of the paper's; the demo has 24).")
    ] = 0.0,
) -> None:
    """Make one table of the credentialed eICU database: a row a stay, its first day, death in hospital."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
    from rich.table import Table

    from grandrounds.cli.terminal import Terminal
    from grandrounds.data.eicu_build import build, check_out, flow_rows, write

    check_out(out)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def told(name: str, done: int, size: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=size)
            bar.update(tasks[name], completed=done)

        built = build(folder, least_hours=least_hours, told=told)
    view = Table("rule", title="Who is in the table")
    for name in ("left out", "stays", "patients", "hospitals"):
        view.add_column(name, justify="right")
    for row in flow_rows(built.steps):
        view.add_row(*row)
    Terminal().print(view)
    deaths, stays = built.flow["deaths"], len(built.table)
    typer.echo(f"{deaths:,} of {stays:,} died in hospital ({deaths / stays:.1%})")
    for name in built.flow["absent_tables"]:
        typer.echo(f"{name} is not in the folder: done without")
    table, flow, recipe = write(built, out)
    typer.echo(f"{table}\n{flow}\n{recipe}  (rounds run {recipe})")


@app.command()
def check(
    source: Annotated[
        str, typer.Argument(help="A set of the catalog, your own file (.csv, .parquet, SQL URL), or module:function.")
    ],
    label: Label = None,
    event: EventClass = None,
    site: SiteColumn = None,
    patient: Patient = None,
    drop: Drop = None,
    query: Query = None,
    settings: Set = [],  # noqa: B006
) -> None:
    """Read a set, show how each column is understood, and warn of what would spoil a study."""
    from grandrounds.cli.data_view import show_data
    from grandrounds.cli.running import experiment_from
    from grandrounds.cli.terminal import Terminal
    from grandrounds.consortium import assemble
    from grandrounds.data.catalog import CATALOG, entry
    from grandrounds.data.pictures import PICTURE_SETS, SCORING_SETS
    from grandrounds.errors import BadInput
    from grandrounds.experiment import Experiment
    from grandrounds.models import PICTURES
    from grandrounds.plugins import is_path
    from grandrounds.settings import Settings

    if is_path(source):
        columns = {"label": label, "event": event, "site": site, "patient": patient, "drop": drop.split(",") if drop else ()}
        experiment = Experiment.parse({"data": {"name": source, **columns}}).with_settings(settings)
    elif source in CATALOG or not any(c in source for c in "./:"):
        model = {"model": {"name": next(iter(PICTURES))}} if source in PICTURE_SETS | SCORING_SETS else {}
        data = {"name": entry(source).name, "event": event}
        experiment = Experiment.parse({"data": data, **model}).with_settings(settings)
    else:
        if label is None:
            raise BadInput("which column is to be predicted? (use --label)")
        experiment = experiment_from(
            "",
            table=source,
            label=label,
            event=event,
            site=site,
            patient=patient,
            drop=drop,
            query=query,
            settings=settings,
        )
    plan = Settings(experiment.plan())
    show_data(Terminal(), assemble(plan), plan)
