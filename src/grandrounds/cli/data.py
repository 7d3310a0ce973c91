"""`rounds data get | list | check | split | build-eicu`: the catalog of data sets, and a check of the user's own file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.options import (
    Columns,
    Query,
    Reading,
    Separator,
    Set,
    SheetName,
    TextEncoding,
    build_experiment,
    expand_options,
)
from grandrounds.cli.terminal import warn

if TYPE_CHECKING:
    from rich.console import Console

    from grandrounds.core.plan_types import Plan
    from grandrounds.data.dataset import Dataset
    from grandrounds.data.download import Progress as DownloadProgress
    from grandrounds.data.images import ImageSet
    from grandrounds.runs.federation import Consortium


app = typer.Typer(help="Data sets of the catalog: list, download, split. Check your own file.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the catalog: the status of each set, its size, its licence, and the command that downloads it."""
    from grandrounds.data.download import size_text
    from grandrounds.data.sets.catalog import CATALOG, file_status
    from grandrounds.data.store import download_size

    for entry in CATALOG.values():
        where = file_status(entry)
        size = download_size(entry.files)
        away = where in ("not here", "damaged")
        to_get = (
            f"{'size not stated' if size is None else size_text(size)}: rounds data get {entry.name}" if away else ""
        )
        typer.echo(f"{entry.name:<21} {where:<20} {entry.rows:>7,} rows  {to_get}".rstrip())
        typer.echo(f"    {entry.title}\n    licence: {entry.licence}; {entry.source_url}")


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A set of the catalog (rounds data list).")],
    keep: Annotated[bool, typer.Option("--keep", help="Keep the downloaded files after they were converted.")] = False,
) -> None:
    """Download a set from its publisher, check its published checksums, convert it, and store it in the cache.

    `rounds data get mnist` fetches 11.6 MB. Then `rounds run mnist` works.

    The cache is ~/.cache/grandrounds (change it with XDG_CACHE_HOME). If a download is interrupted, run the command
    again: it continues. A set in the folder GRANDROUNDS_DATA is not downloaded. Behind a firewall, download the files
    elsewhere and put them in the folder `downloads` of the cache: the command checks and converts them.

    The command prints the licence before it downloads a set.
    """
    from grandrounds.data.download import size_text
    from grandrounds.data.sets.catalog import download, file_status, find_entry, prepare
    from grandrounds.data.store import builds_of, download_folder, download_size, sources_of

    one = find_entry(name)
    where = file_status(one)
    if where == "included":
        typer.echo(f"{name} comes with the package: nothing to download")
        return
    if where in ("not here", "damaged"):
        size, count = download_size(one.files), len(sources_of(one.files))
        typer.echo(f"{name}: {one.title}\nlicence: {one.licence}; {one.source_url}")
        amount = "a download of unknown size" if size is None else f"a download of {size_text(size)}"
        typer.echo(f"{amount} in {count} {'file' if count == 1 else 'files'}, to {download_folder()}")
    with _show_progress() as progress:
        paths = download(name, progress=progress, keep=keep)
    if where in ("not here", "damaged"):
        for note in (note for build in builds_of(one.files) for note in build.notes):
            typer.echo(f"note: {note}")
    for path in dict.fromkeys(paths):
        typer.echo(f"{path}  verified")
    if one.prepare is None:
        return
    with _show_progress() as progress:
        prepared = prepare(name, progress=lambda completed, total: progress("rows prepared", completed, total))
    typer.echo(f"{prepared}  ready")


@app.command()
def split(
    source: Annotated[
        str, typer.Argument(help="A set of the catalog, or your own file (.csv, .parquet, .xlsx, .dta, .sav, SQL URL, .npz).")
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder to write to; existing files are not overwritten.")
    ],
    site_column: Annotated[
        str | None,
        typer.Option("--by", help="The column that names the hospital (default: that of the catalog)."),
    ] = None,
    query: Query = None,
    text_encoding: TextEncoding = None,
    separator: Separator = None,
    sheet: SheetName = None,
) -> None:
    """Write one file for each hospital (.csv, or .npz of images), without the column that names the hospital.

    Example: `rounds data split heart --out tables`
    """
    from dataclasses import replace

    from rich.table import Table as View

    from grandrounds.cli.terminal import Terminal
    from grandrounds.core.arrays import write_atomic
    from grandrounds.core.errors import BadInput
    from grandrounds.core.names import folder_name
    from grandrounds.data.formats import AUTO, PLAIN
    from grandrounds.data.image_files import read_npz
    from grandrounds.data.images import ImageSet
    from grandrounds.data.readers import read_table
    from grandrounds.data.row_files import split_images, split_table, to_csv, to_npz
    from grandrounds.data.sets.catalog import CATALOG, find_entry

    in_catalog = source in CATALOG or not any(c in source for c in "./:")
    are_images = source.lower().endswith(".npz")
    as_it_is = replace(PLAIN, text_encoding=text_encoding or AUTO, separator=separator or AUTO, sheet=sheet)
    table = (
        find_entry(source).load()
        if in_catalog
        else read_npz(source)
        if are_images
        else read_table(source, query=query, form=as_it_is)
    )
    if isinstance(table, ImageSet):
        ending, files = (
            "npz",
            {name: (len(part), to_npz(part)) for name, part in split_images(table, site_column).items()},
        )
    else:
        site_column = site_column or (find_entry(source).site if in_catalog else None)
        if site_column is None:
            raise BadInput(
                f"the column of {source} that names the hospital is not known: name it with --by COLUMN",
                code="missing-option",
            )
        ending, files = (
            "csv",
            {name: (len(part), to_csv(part)) for name, part in split_table(table, site_column).items()},
        )
    parts = {out / f"{folder_name(name)}.{ending}": (name, *file) for name, file in files.items()}
    for path in parts:
        if path.exists():
            raise BadInput(f"{path} exists: remove it, or choose another folder with --out", code="file-exists")
    out.mkdir(parents=True, exist_ok=True)
    view = View(site_column or "site", "rows", "file", box=None, pad_edge=False)
    for path, (name, rows, data) in parts.items():
        write_atomic(path, data)
        view.add_row(name, str(rows), str(path))
    Terminal(soft_wrap=True).print(view)


@app.command("build-eicu")
def build_eicu(
    folder: Annotated[
        Path | None, typer.Argument(help="The folder with the .csv.gz files of eICU 2.0 from PhysioNet.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The table to write: .parquet, .csv or .csv.gz.")] = Path("eicu.parquet"),
    least_hours: Annotated[
        float,
        typer.Option(min=0, help="Leave out stays shorter than this many hours (not in the paper; the demo uses 24)."),
    ] = 0.0,
    demo: Annotated[
        bool, typer.Option("--demo", help="Download and use the tables of the open demo (2,520 stays).")
    ] = False,
) -> None:
    """Build one table from the credentialed eICU database: one row for each stay, its first day, death in hospital.

    The database needs a PhysioNet account. `rounds data build-eicu --demo` uses the open demo (ODbL 1.0).
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
    from rich.table import Table

    from grandrounds.cli.terminal import Terminal
    from grandrounds.core.errors import BadInput
    from grandrounds.data.download import fetch
    from grandrounds.data.sets.eicu import EICU_DEMO_TABLES
    from grandrounds.data.sets.eicu_build import build_table, check_out, flow_rows, write_files
    from grandrounds.data.store import download_folder

    check_out(out)
    if (folder is None) != demo:
        raise BadInput(
            "give the folder with eICU's .csv.gz files, or --demo for those of the open demo (one of the two)",
            code="conflicting-options",
        )
    if demo:
        with _show_progress() as progress:
            for source in EICU_DEMO_TABLES:
                folder = fetch(source, download_folder(), progress=progress).parent
    assert folder is not None
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def show_progress(name: str, completed: int, size: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=size)
            bar.update(tasks[name], completed=completed)

        built = build_table(folder, least_hours=least_hours, progress=show_progress)
    view = Table("rule", title="Patients in the table")
    for name in ("left out", "stays", "patients", "hospitals"):
        view.add_column(name, justify="right")
    for row in flow_rows(built.steps):
        view.add_row(*row)
    Terminal().print(view)
    deaths, stays = built.flow["deaths"], len(built.table)
    typer.echo(f"{deaths:,} of {stays:,} died in hospital ({deaths / stays:.1%})")
    for name in built.flow["absent_tables"]:
        typer.echo(f"{name} is not in the folder and was left out")
    table, flow, recipe = write_files(built, out)
    typer.echo(f"{table}\n{flow}\n{recipe}  (rounds run {recipe})")


@app.command()
@expand_options
def check(
    source: Annotated[
        str,
        typer.Argument(help="A set of the catalog, your file (.csv, .parquet, .xlsx, .dta, .sav, SQL URL), or module:function."),
    ],
    columns: Columns = Columns(),
    query: Query = None,
    reading: Reading = Reading(),
    settings: Set = [],  # noqa: B006
) -> None:
    """Check a data set: show the type of each column, and warn of problems such as leaks and duplicates."""
    from grandrounds.cli.terminal import Terminal
    from grandrounds.core.plan_types import Plan
    from grandrounds.core.plugins import is_path
    from grandrounds.data.sets.catalog import CATALOG, find_entry
    from grandrounds.data.sets.images import IMAGE_SETS, SCORING_SETS
    from grandrounds.experiment.experiment import Experiment
    from grandrounds.models import IMAGES
    from grandrounds.runs.federation import assemble

    if is_path(source):
        experiment = Experiment.parse({"data": {"name": source, **columns.settings()}}).with_settings(settings)
    elif columns.cohort is None and (source in CATALOG or not any(c in source for c in "./:")):
        model = {"model": {"name": next(iter(IMAGES))}} if source in IMAGE_SETS | SCORING_SETS else {}
        data = {"name": find_entry(source).name, "event": columns.event}
        experiment = Experiment.parse({"data": data, **model}).with_settings(settings)
    else:
        experiment = build_experiment(
            "",
            table=source,
            columns=columns,
            query=query,
            reading=reading,
            settings=settings,
        )
    plan = Plan(experiment.plan())
    show_data(Terminal(), assemble(plan), plan)


@contextmanager
def _show_progress() -> Iterator[DownloadProgress]:
    """Show bars on standard error while the block lasts; names with a slash are files, the rest are counts."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    from grandrounds.data.download import size_text

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def show(name: str, completed: int, total: int | None) -> None:
            amount = (size_text if "/" in name else "{:,}".format)(completed)
            of_total = "" if total is None else f" of {(size_text if '/' in name else '{:,}'.format)(total)}"
            if name not in tasks:
                tasks[name] = bar.add_task(escape(name.split("/")[-1]), total=total, amount="")
            bar.update(tasks[name], completed=completed, total=total, amount=f"{amount}{of_total}")

        yield show


def show_data(console: Console, consortium: Consortium, plan: Plan) -> None:
    """Print a data set as it was read. The event comes last, since an unknown event is an error.

    Args:
        console: The terminal.
        consortium: The sites with the data.
        plan: The plan whose [data] it is.
    """
    import numpy as np

    from grandrounds.core.outcome import COUNT, REGRESSION, SURVIVAL
    from grandrounds.data.encoding import order_classes
    from grandrounds.data.event import event_line, state_event
    from grandrounds.data.images import ImageSet
    from grandrounds.data.sets.catalog import CATALOG
    from grandrounds.data.warnings import few_events_warnings, own_table_warnings

    if isinstance(consortium.data, ImageSet):
        _show_images(console, consortium, consortium.data)
    else:
        _show_columns(console, consortium, consortium.data)
    for warning in own_table_warnings(consortium.data, consortium.stack.names, consortium.stack.rows, plan=plan):
        console.print(warn(warning), soft_wrap=True)
    task = "" if isinstance(consortium.data, ImageSet) else consortium.data.schema.task
    if task in (REGRESSION, COUNT):
        return
    counts = order_classes(Counter(consortium.data.label.tolist()), plan.data.positive)
    catalog_entry = CATALOG.get(plan.data.name or "")
    stated = catalog_entry.event if catalog_entry else None
    event = state_event(counts["classes"], counts["class_counts"], plan.data.plain(), catalog=stated)
    console.print(event_line(event, counts["classes"]), soft_wrap=True)
    if event is None:
        return
    tested = np.concatenate([r.test for r in consortium.stack.rows])
    few = few_events_warnings(Counter(consortium.data.label[tested].tolist()), (event.other, event.word))
    for warning in (*few, *([event.warning] if event.warning and task != SURVIVAL else ())):
        console.print(warn(warning), soft_wrap=True)


def _show_images(console: Console, consortium: Consortium, data: ImageSet) -> None:
    from grandrounds.data.images import find_dark_images

    channels, height, width = data.shape
    size = f"{height} x {width}, {channels} {'channel' if channels == 1 else 'channels'}"
    console.print(f"{data.name}: {len(data):,} images of {size}, {len(consortium.stack.names)} sites")
    console.print("classes: " + _classes(Counter(data.label.tolist()), len(data)))
    dark = find_dark_images(data)
    if dark:
        text = f"{len(dark)} of {len(data)} images are black, the first is number {dark[0]}"
        console.print(warn(text), highlight=False)


def _show_columns(console: Console, consortium: Consortium, data: Dataset) -> None:
    from rich.table import Table

    from grandrounds.data.encoding import EncodingRules, agree_ranges, find_artefacts
    from grandrounds.data.summary import Summary

    summary = Summary.from_dataset(data)
    table = Table(title=f"{data.name}: {len(data):,} rows, {len(consortium.stack.names)} sites")
    for column in ("column", "kind", "missing", "why"):
        table.add_column(column)
    gaps = {n: 1 - c / len(data) for n, c in zip(data.numeric_names, summary.count, strict=True)}
    gaps |= {n: float((data.codes[:, j] < 0).mean()) for j, n in enumerate(data.categorical_names)}
    for c in data.schema.columns:
        gap = gaps.get(c.name)
        table.add_row(c.name, c.kind, "" if gap is None else f"{gap:.1%}", c.why)
    console.print(table)
    for note in () if data.table.reading is None else data.table.reading.notes:
        console.print(f"assumed: {note}", markup=False, highlight=False, soft_wrap=True)
    if data.outcome is not None:
        y = data.outcome
        spread = f"mean {y.mean():.4g}, standard deviation {y.std():.4g}"
        console.print(f"{data.schema.task}: {data.schema.label}, {spread}", soft_wrap=True)
    else:
        console.print("classes: " + _classes(summary.classes, len(data)))
    if data.duration is not None:
        console.print(f"survival: follow-up time {data.schema.duration}, {data.duration.sum():.4g} in all", soft_wrap=True)
    parts = Summary.merge([Summary.from_dataset(data.take(r.train)) for r in consortium.stack.rows if len(r.train)])
    leaks = parts.leak_warnings([*data.numeric_names, *data.categorical_names])
    artefacts = find_artefacts(parts, *agree_ranges(parts, clip=EncodingRules().clip), names=data.numeric_names)
    for warning in (*leaks, *artefacts):
        console.print(warn(warning), soft_wrap=True)


def _classes(counts: Mapping[str, int], rows: int) -> str:
    return ", ".join(f"{k} {v} ({v / rows:.1%})" for k, v in sorted(counts.items()))
