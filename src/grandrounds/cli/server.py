"""`rounds server start|stop`, `rounds submit`, `rounds status`, `rounds stop`: a consortium's server and its runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.terminal import echo

if TYPE_CHECKING:
    from grandrounds.deploy.consortium import Consortium, Member
    from grandrounds.deploy.control import Control
    from grandrounds.deploy.superlink import Link


Out = Annotated[Path, typer.Argument(metavar="OUT", help="What `rounds provision --out` wrote, or its folder server/.")]
Server = Annotated[Path | None, typer.Option("--server", help="On the server's host: what `rounds provision` wrote.")]
Operator = Annotated[
    Path | None, typer.Option("--operator", help="From another machine: the operator's folder, with its certificate.")
]
Plain = Annotated[
    bool,
    typer.Option("--insecure-loopback", help="Plain text and nodes without keys, on 127.0.0.1 only: to try things."),
]

server_app = typer.Typer(help="The server of a consortium: SuperLink, gateway, and runs.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(server_app, name="server")


@server_app.command("start")
def start(
    out: Out,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay here until stopped (for systemd).")] = False,
    health: Annotated[
        int | None,
        typer.Option(help="Port of the health page on loopback (default: one above the SuperLink's; 0: none)."),
    ] = None,
    in_memory: Annotated[
        bool,
        typer.Option(
            "--in-memory",
            help="Keep Flower's letters in memory and not in SQLite: exchanges are quicker. Should the SuperLink end in mid-run, "
            "`rounds submit --resume` goes on from the last round.",
        ),
    ] = False,
    insecure: Plain = False,
) -> None:
    """Start a consortium's server: SuperLink, gateway, and runs as they are submitted.

    `/health` and `/metrics` (Prometheus) are on 127.0.0.1.
    """
    from grandrounds.core.errors import BadInput

    link = replace(_link(out, insecure=insecure), in_memory=in_memory)
    if link.insecure and not insecure:
        raise BadInput(
            f"{link.folder} was provisioned without certificates: start it with --insecure-loopback, on this machine alone",
            code="missing-option",
        )
    page = link.port + 1 if health is None else health
    if foreground:
        _serve(link, page or None)
    else:
        from grandrounds.deploy.server import start_in_background

        start_in_background(link, page)
        echo(f"the server of {link.folder} runs; its log: {link.logs / 'server.log'}")


@server_app.command("stop")
def stop_server(out: Out) -> None:
    """Stop a server. Runs are kept: `rounds submit --resume RUN` goes on with one."""
    from grandrounds.deploy.server import stop_in_background

    link = _link(out)
    stop_in_background(link)
    echo(f"the server of {link.folder} has stopped")


@server_app.command()
def submit(
    source: Annotated[str, typer.Argument(metavar="[FILE.toml]", help="An experiment; its data are the sites'.")] = "",
    server: Server = None,
    operator: Operator = None,
    settings: Annotated[
        list[str], typer.Option("--set", help="Change a setting: --set method.rounds=50 (repeatable).")
    ] = [],  # noqa: B006
    name: Annotated[str | None, typer.Option(help="What the run is called (default: experiment and time).")] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with a run that stopped.")
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Submit nothing: write the plan as sites will be told it."),
    ] = None,
    insecure: Plain = False,
) -> None:
    """Have an experiment run at the hospitals of a consortium.

    With --plan nobody is asked anything: sites can list the digest that is printed under runs.plans of their policy.toml,
    and then open a run with these very settings and no others.
    """
    from grandrounds.core.errors import BadInput
    from grandrounds.deploy.submit import resume_run, submit_run

    if bool(source) == (resume is not None):
        raise BadInput(
            "name an experiment's file to run, or --resume RUN to go on with one", code="conflicting-options"
        )
    if plan is not None:
        _write_plan(plan, source, settings, server, operator)
        return
    link = None if server is None else _link(server, insecure=insecure)
    with _open_control(link, operator) as control:
        if resume is not None:
            run, flower = resume_run(control, resume, link)
        else:
            run, flower = submit_run(control, source, settings, name, link)
    echo(f"run {run} is submitted (Flower's number: {flower})")


@server_app.command()
def status(
    server: Server = None,
    operator: Operator = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    insecure: Plain = False,
) -> None:
    """Show which sites are connected, and the progress of runs.

    On the server's host the progress is read from run folders. From an operator's machine only Flower's status is known.
    """
    from grandrounds.deploy.status import list_runs, list_sites

    link = None if server is None else _link(server, insecure=insecure)
    with _open_control(link, operator) as control:
        sites, flower = list_sites(control, _members(server, operator)), control.runs()
    flower_runs: list[dict[str, object]] = [{"run": r.name, "flower": r.id, "flower_says": r.status} for r in flower]
    runs: Sequence[Mapping[str, object]] = flower_runs if link is None else list_runs(link)
    if as_json:
        echo(json.dumps({"sites": sites, "runs": runs}))
        return
    _show_table("sites", sites)
    _show_table("runs", runs)
    if link is None and runs:
        echo(
            "This is Flower's word, which is 'finished:completed' of failed runs too. How far runs are, and who was missing, "
            "is in our own record at the server: `rounds status --server OUT` there."
        )


@server_app.command("stop-run")
def stop(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name.")],
    server: Server = None,
    operator: Operator = None,
    insecure: Plain = False,
) -> None:
    """Stop a run; `rounds submit --resume RUN` goes on with it."""
    from grandrounds.deploy.submit import stop_run

    link = None if server is None else _link(server, insecure=insecure)
    with _open_control(link, operator) as control:
        stop_run(control, run, link)
    echo(f"run {run} is stopped")


def _link(out: Path, *, insecure: bool = False) -> Link:
    """Return the server of a folder; the folder itself shows whether it was provisioned without certificates."""
    from grandrounds.core.errors import BadInput
    from grandrounds.deploy.superlink import Link

    folder = Link.from_folder(out).folder
    plain = not (folder / "pki").exists() and not (folder / "nginx.conf").exists()
    if insecure and not plain:
        raise BadInput(
            f"{folder} was provisioned with certificates: leave --insecure-loopback out", code="conflicting-options"
        )
    return Link.from_folder(out, insecure=plain)


WHERE = "say where the server is: --server OUT on its own host, or --operator FOLDER from another machine"


@contextmanager
def _open_control(link: Link | None, operator: Path | None) -> Iterator[Control]:
    """Connect to the server, which must be running."""
    from grandrounds.core.errors import BadInput
    from grandrounds.deploy.control import Control, Unreachable

    if (link is None) == (operator is None):
        raise BadInput(WHERE, code="missing-option")
    try:
        with Control.local(link) if link is not None else Control.operator(operator or Path()) as control:
            yield control
    except Unreachable as e:
        start = f"`rounds server start {link.folder}` starts it" if link is not None else "ask whoever keeps it"
        raise BadInput(f"{e}: {start}", code=e.code) from None


def _load_consortium(server: Path | None, operator: Path | None) -> Consortium:
    """Load the consortium from the server's or the operator's folder."""
    from grandrounds.core.errors import BadInput
    from grandrounds.deploy.consortium import load
    from grandrounds.deploy.folders import load_agreed

    if (server is None) == (operator is None):
        raise BadInput(WHERE, code="missing-option")
    if operator is not None:
        return load_agreed(operator)
    assert server is not None
    return load(_link(server).folder / "consortium.toml")


def _members(server: Path | None, operator: Path | None) -> tuple[Member, ...]:
    """List the sites; an operator's folder of an earlier version does not have them."""
    from grandrounds.core.errors import BadInput

    try:
        return _load_consortium(server, operator).sites
    except BadInput:
        return ()


def _write_plan(file: Path, source: str, settings: list[str], server: Path | None, operator: Path | None) -> None:
    from grandrounds.core.arrays import write_atomic
    from grandrounds.core.errors import BadInput
    from grandrounds.deploy.submit import plan_for_sites
    from grandrounds.keeper.policy.rules import plan_digest

    if not source:
        raise BadInput(
            "--plan writes the plan of an experiment: name its file, without --resume", code="conflicting-options"
        )
    plan = plan_for_sites(Path(source), settings, _load_consortium(server, operator).data)
    try:
        write_atomic(file, f"{json.dumps(plan, indent=1)}\n".encode())
    except OSError as e:
        raise BadInput(f"cannot write {file}: {e.strerror or e}", code="cannot-write") from None
    echo(f"{file}: the plan as sites will be told it; nothing is submitted\ndigest {plan_digest(plan)}")


def _serve(link: Link, health: int | None) -> None:
    import signal
    import sys
    import threading
    from datetime import UTC, datetime

    from grandrounds.deploy.server import serve

    ended = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: ended.set())

    def say(sentence: str) -> None:
        print(f"{datetime.now(UTC).isoformat(timespec='seconds')} {sentence}", file=sys.stderr, flush=True)

    serve(link, ended, say, health=health)


def _show_table(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    from rich.table import Table

    from grandrounds.cli.terminal import Terminal

    if not rows:
        echo(f"{title}: none")
        return
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        table.add_column(column.replace("_", " "))
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    Terminal().print(table)
