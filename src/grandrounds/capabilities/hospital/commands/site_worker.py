"""`rounds site work`: the part of a site that reads the data, on another machine than its network; and the check before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.terminal import echo, show_progress

if TYPE_CHECKING:
    from grandrounds.capabilities.hospital.keeper.folder import SiteFolder

SBATCH = """\
#!/bin/sh
# Worker of the site {site}: submit with `sbatch worker.sbatch`, or have the keeper do it ([worker] submit in site.toml).
#SBATCH --job-name=grandrounds-{job}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=08:00:00
#SBATCH --signal=TERM@60
#SBATCH --output={folder}/state/worker-%j.log
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
exec {rounds} site work {folder} --data {data}{more} --idle 30
"""


def work(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="This site's folder, on a disk that both machines see.")],
    data: Annotated[
        str, typer.Option(help="The site's table (.csv, .parquet, .xlsx, .dta, .sav, SQL URL), or images: .npz, or a folder.")
    ],
    query: Annotated[str | None, typer.Option(help="SELECT or table name, for a SQL URL.")] = None,
    device: Annotated[str, typer.Option(help="Device for networks: auto, cpu or cuda.")] = "auto",
    idle: Annotated[
        float | None, typer.Option(min=0.01, help="End after this many minutes without a message (default: never).")
    ] = None,
    unfit: Annotated[bool, typer.Option("--unfit", help="Start although the data do not fit the schema.")] = False,
    sbatch: Annotated[
        bool, typer.Option("--sbatch", help="Print a Slurm batch script for this command, and start nothing.")
    ] = False,
) -> None:
    """Read the data and answer messages that `rounds site start` puts into the exchange folder, until Ctrl-C.

    For clusters: this part needs no network, only the site's folder and the exchange folder, which [worker] of site.toml names.
    Messages in it are encrypted. The other part runs where there is a network: `rounds site start FOLDER`, without --data.

    Example: `rounds site work sites/cleveland --data cleveland.csv --sbatch > worker.sbatch`
    """
    import shlex
    import signal
    import sys
    import threading

    from grandrounds.capabilities.hospital.deploy.handover import refuse_changed_cohort
    from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
    from grandrounds.capabilities.hospital.keeper.runtime.exchange_folder import read_exchange, serve_folder
    from grandrounds.core.names import folder_name

    site = SiteFolder(folder)
    exchange = read_exchange(site.settings(), folder)
    if sbatch:
        options = {"--query": query, "--device": None if device == "auto" else device}
        more = "".join(f" {name} {shlex.quote(value)}" for name, value in options.items() if value is not None)
        program = Path(sys.executable).parent / "rounds"
        words = {name: shlex.quote(str(path)) for name, path in (("folder", folder.resolve()), ("rounds", program))}
        source = data if "://" in data else str(Path(data).resolve())
        job = folder_name(site.name)
        typer.echo(SBATCH.format(site=site.name, job=job, data=shlex.quote(source), more=more, **words), nl=False)
        return
    site.identity()  # refused before the data are read
    refuse_changed_cohort(folder)
    amount = check_data(site, data, query=query, unfit=unfit)
    keeper = site.keeper(data, query=query, device=device)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    exchange.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    echo(f"{site.name}: {amount}; waiting for messages in {exchange.folder}")
    count = serve_folder(exchange.folder, keeper.answer_message, stop, idle=None if idle is None else 60 * idle)
    echo(f"the worker of {site.name} has ended after {count} messages")


def check_data(folder: SiteFolder, data: str, *, query: str | None, unfit: bool) -> str:
    """Check a site's data before it starts, and write the report for its staff.

    Args:
        folder: The site's folder.
        data: The table or images.
        query: SELECT or table name, for a SQL URL.
        unfit: Accept data that do not fit.

    Returns:
        The amount of data, such as "303 rows".

    Raises:
        BadInput: The data cannot be read, or do not fit the schema.
    """
    from grandrounds.capabilities.quality.assessment.assess import read_and_assess
    from grandrounds.capabilities.quality.site_report import PAGE, write_check
    from grandrounds.core.errors import BadInput

    schema = folder.schema()
    if schema is None:
        return f"{len(folder.rows(data, query=query))} rows"
    with show_progress():
        examined, rows = read_and_assess(schema, data, query=query, form=folder.form(), vocabulary=folder.vocabulary())
    page = folder.state / PAGE
    write_check(page, examined, schema, rows, [])
    for note in examined.assumptions:
        typer.echo(f"assumed: {note}")
    for finding in examined.findings:
        echo(str(finding))
    echo(f"report for the site's staff, which stays here: {page}")
    if not examined.fits and not unfit:
        raise BadInput(
            f"{data} does not fit the schema of the consortium ({folder.path / 'schema.json'}): correct the data, or start "
            "with --unfit",
            code="data-do-not-fit",
        )
    return f"{examined.rows} {schema.unit}"
