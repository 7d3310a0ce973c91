"""`rounds site start`: a hospital joins its consortium and answers, until it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.cli.terminal import echo


def register(app: typer.Typer) -> None:
    app.command("start")(start)


def start(
    folder: Annotated[Path, typer.Argument(help="The site's folder, as `rounds provision` wrote it.")],
    data: Annotated[
        str, typer.Option(help="The site's table (.csv, .parquet, SQL URL), or pictures: .npz, or a folder.")
    ],
    query: Annotated[str | None, typer.Option(help="SELECT or table name, for a SQL URL.")] = None,
    device: Annotated[str, typer.Option(help="Where nets are trained: auto, cpu or cuda.")] = "auto",
    node: Annotated[
        bool, typer.Option("--node/--no-node", help="Start the SuperNode too, unless one is there already.")
    ] = True,
    fast: Annotated[
        bool, typer.Option("--fast", help="Start the SuperNode with its fixed sleeps capped (one flwr version only).")
    ] = False,
    unfit: Annotated[
        bool, typer.Option("--unfit", help="Start although the data do not fit; runs that need it are refused.")
    ] = False,
) -> None:
    """Start a site: check its data, then answer what its policy allows, until Ctrl-C.

    Data stay here. What leaves is written to state/log.jsonl of the folder, one line a letter.

    Example: `rounds site start sites/cleveland --data cleveland.csv`
    """
    import logging
    import signal
    import threading

    from grandrounds.core.errors import BadInput
    from grandrounds.data.agreement.check import examine_data, fits
    from grandrounds.keeper.folder import SiteFolder
    from grandrounds.keeper.running import Site

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    held = SiteFolder(folder)
    schema = held.schema()
    if schema is None:
        count = len(held.rows(data, query=query))
    else:
        found = examine_data(schema, data, query=query, form=held.form())
        count = found.rows
        for note in found.assumed:
            typer.echo(f"assumed: {note}")
        for finding in found.findings:
            echo(str(finding))
        if not fits(found.findings) and not unfit:
            raise BadInput(
                f"{data} does not fit what the consortium agreed on ({folder / 'schema.json'}): mend it first"
            )
    held.listed()  # warns where secure sums will be refused
    site = Site(held, data=data, query=query, device=device, fast=fast, node=node)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    unit = "rows" if schema is None else schema.unit
    echo(f"{held.name}: {count} {unit}; waiting for its SuperNode on 127.0.0.1:{site.port}")
    site.run(stop, typer.echo)
    echo(f"{held.name} has stopped")
