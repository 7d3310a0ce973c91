"""`rounds site check-connection` and `rounds site node`: the commands about a hospital's network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from grandrounds.cli.terminal import echo

NO_CONNECTION = 1
"""Exit code if no gateway can be used."""


def check_connection(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="This site's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the connection to the gateways: DNS, TCP, proxy, certificate and clock. Nothing about the data is sent.

    Each fault is one sentence, followed by a request that you can forward to the network team. The proxy comes from [proxy] of
    site.toml, else from HTTPS_PROXY and NO_PROXY. Exit code 0: at least one gateway can be used. 1: none can.

    Example: `rounds site check-connection sites/cleveland`
    """
    from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
    from grandrounds.capabilities.hospital.keeper.network.diagnosis import diagnose
    from grandrounds.capabilities.hospital.keeper.network.route import read_route
    from grandrounds.core.errors import BadInput

    route = read_route(SiteFolder(folder).settings(), folder)
    if route.insecure:
        raise BadInput(
            f"{folder} was provisioned with --insecure-loopback, for one machine: there is no gateway to check",
            code="not-provisioned",
        )
    result = diagnose(route, folder / "server-ca.pem")
    if as_json:
        echo(json.dumps(result.to_dict()))
    else:
        for finding in result.findings:
            for line in finding.lines():
                echo(line)
        echo(result.summary())
    if not result.connects:
        raise typer.Exit(NO_CONNECTION)


def start_node(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="This site's folder.")],
) -> None:
    """Start only the SuperNode of a site, until Ctrl-C; `rounds site start --no-node` then runs without a network of its own.

    It uses the proxy and the further gateways of site.toml, follows the server's clock, and restarts the SuperNode when it ends
    or gives up. Data are not read.

    Example: `rounds site node sites/cleveland`
    """
    import os
    import signal
    import threading

    from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
    from grandrounds.capabilities.hospital.keeper.network.route import describe, exempt_loopback, read_route
    from grandrounds.capabilities.hospital.keeper.runtime.supernode import SuperNode

    site = SiteFolder(folder)
    route = read_route(site.settings(), folder)
    os.environ.update(exempt_loopback())
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    echo(f"{site.name}: gateway {describe(route.hops)}")
    node = SuperNode(site, say=echo)
    try:
        node.start()
        node.tend(stop)
    finally:
        node.close()
    echo(f"the SuperNode of {site.name} has stopped")
