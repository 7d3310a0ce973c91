"""`rounds server`: start and stop the server of a consortium; submit, watch and stop its runs."""

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
    from grandrounds.capabilities.hospital.deploy.backup import Backup
    from grandrounds.capabilities.hospital.deploy.consortium import Consortium
    from grandrounds.capabilities.hospital.deploy.control import Control
    from grandrounds.capabilities.hospital.deploy.superlink import Link


Out = Annotated[
    Path, typer.Argument(metavar="OUT", help="The folder that `rounds provision --out` wrote, or its folder server/.")
]
Server = Annotated[
    Path | None, typer.Option("--server", help="On the server's host: the folder that `rounds provision` wrote.")
]
Operator = Annotated[
    Path | None, typer.Option("--operator", help="From another machine: the operator's folder, with its certificate.")
]
Plain = Annotated[
    bool,
    typer.Option("--insecure-loopback", help="No TLS and no node keys, on 127.0.0.1 only: for a trial."),
]
LogFormat = Annotated[
    str | None,
    typer.Option("--log-format", help="json or text (default: text on a terminal, json in files and services)."),
]

server_app = typer.Typer(help="Start and stop the server of a consortium, and submit runs to it.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(server_app, name="server")


@server_app.command("start")
def start(
    out: Out,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run in the foreground until stopped (for systemd).")
    ] = False,
    health: Annotated[
        int | None,
        typer.Option(help="Port of the health page on loopback (default: one above the SuperLink's; 0: none)."),
    ] = None,
    in_memory: Annotated[
        bool,
        typer.Option(
            "--in-memory",
            help="Store Flower's messages in memory instead of SQLite, which is faster. If the "
            "SuperLink ends during a run, `rounds server submit --resume` continues from the last "
            "round.",
        ),
    ] = False,
    log_format: LogFormat = None,
    insecure: Plain = False,
) -> None:
    """Start the server of a consortium: SuperLink, gateway, and the scheduler of submitted runs.

    `/health` and `/metrics` (Prometheus) are on 127.0.0.1. Logs are in OUT/server/logs: server.log, requests.jsonl (every
    request and answer, with the id that the site's state/log.jsonl has), and a log for each run.
    """
    from grandrounds.core.errors import BadInput
    from grandrounds.core.event_log import choose_form

    form = choose_form(log_format or (None if foreground else "json"))
    link = replace(open_link(out, insecure=insecure), in_memory=in_memory, log_format=form)
    if link.insecure and not insecure:
        raise BadInput(
            f"{link.folder} was provisioned without certificates: start it with "
            "--insecure-loopback, on this machine only",
            code="missing-option",
        )
    page = link.port + 1 if health is None else health
    if foreground:
        _serve(link, page or None)
    else:
        from grandrounds.capabilities.hospital.deploy.server import start_in_background

        start_in_background(link, page)
        echo(f"the server of {link.folder} is running; its log: {link.logs / 'server.log'}")


@server_app.command("stop")
def stop_server(out: Out) -> None:
    """Stop the server. Runs are kept: `rounds server submit --resume RUN` continues one."""
    from grandrounds.capabilities.hospital.deploy.server import stop_in_background

    link = open_link(out)
    stop_in_background(link)
    echo(f"the server of {link.folder} has stopped")


@server_app.command()
def submit(
    source: Annotated[
        str, typer.Argument(metavar="[FILE.toml]", help="An experiment; each site has its own data.")
    ] = "",
    server: Server = None,
    operator: Operator = None,
    settings: Annotated[
        list[str], typer.Option("--set", help="Change a setting: --set method.rounds=50 (repeatable).")
    ] = [],  # noqa: B006
    name: Annotated[str | None, typer.Option(help="Name of the run (default: experiment and time).")] = None,
    resume: Annotated[str | None, typer.Option("--resume", metavar="RUN", help="Continue a stopped run.")] = None,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write the plan that sites will receive, and submit nothing."),
    ] = None,
    insecure: Plain = False,
) -> None:
    """Submit an experiment to the hospitals of a consortium.

    With --plan nothing is submitted. A site can list the printed digest under runs.plans of its policy.toml, and so
    approve this plan and no other.
    """
    from grandrounds.capabilities.hospital.deploy.submit import resume_run, submit_run
    from grandrounds.core.errors import BadInput

    if bool(source) == (resume is not None):
        raise BadInput("give the file of an experiment, or --resume RUN to continue a run", code="conflicting-options")
    if plan is not None:
        _write_plan(plan, source, settings, server, operator)
        return
    link = None if server is None else open_link(server, insecure=insecure)
    with open_control(link, operator) as control:
        if resume is not None:
            run, flower = resume_run(control, resume, link)
        else:
            keys = link.folder if link is not None else operator or Path()
            run, flower = submit_run(control, source, settings, name, link, keys=keys)
    echo(f"run {run} is submitted (Flower run ID: {flower})")


@server_app.command()
def status(
    server: Server = None,
    operator: Operator = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    insecure: Plain = False,
) -> None:
    """Show the connected sites and the progress of runs.

    On the server's host, the progress is read from run folders. From an operator's machine, only Flower's status is
    known.
    """
    from grandrounds.capabilities.hospital.deploy.status import list_runs, list_sites

    link = None if server is None else open_link(server, insecure=insecure)
    with open_control(link, operator) as control:
        sites, flower = list_sites(control, _load_consortium(server, operator).sites), control.runs()
    flower_runs: list[dict[str, object]] = [{"run": r.name, "flower": r.id, "flower_says": r.status} for r in flower]
    runs: Sequence[Mapping[str, object]] = flower_runs if link is None else list_runs(link)
    if as_json:
        echo(json.dumps({"sites": sites, "runs": runs}))
        return
    _show_table("sites", sites)
    _show_table("runs", runs)
    if link is None and runs:
        echo(
            "This is Flower's status, which is 'finished:completed' for failed runs too. For the "
            "progress of runs and missing sites, run `rounds server status --server OUT` on the "
            "server."
        )


@server_app.command("stop-run")
def stop(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name.")],
    server: Server = None,
    operator: Operator = None,
    insecure: Plain = False,
) -> None:
    """Stop a run. `rounds server submit --resume RUN` continues it."""
    from grandrounds.capabilities.hospital.deploy.submit import stop_run

    link = None if server is None else open_link(server, insecure=insecure)
    with open_control(link, operator) as control:
        stop_run(control, run, link)
    echo(f"run {run} is stopped")


Passphrase = Annotated[
    Path, typer.Option("--passphrase-file", metavar="P", help="A file whose first line is the passphrase.")
]


@server_app.command()
def backup(
    out: Out,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The file to write, on another disk.")],
    passphrase_file: Passphrase,
    authorities: Annotated[
        bool,
        typer.Option(
            "--authorities/--no-authorities",
            help="Include the keys of the certificate authorities; without them a restored server runs, but issues no "
            "certificates.",
        ),
    ] = True,
) -> None:
    """Back up a server into one encrypted file, also while a run is active; the file is read back and verified.

    It has keys, members, records, models, ledgers and checkpoints. Logs and Flower's database are not in it. Whoever has the
    file and the passphrase can act as the server: keep them apart.

    Example: `rounds server backup heart --to /mnt/backup/heart.backup --passphrase-file /root/heart.phrase`
    """
    from grandrounds.capabilities.hospital.deploy.backup import back_up
    from grandrounds.capabilities.hospital.deploy.seal import read_passphrase

    made = back_up(out, to, read_passphrase(passphrase_file), authorities=authorities)
    for sentence in made.warnings:
        echo(f"warning: {sentence}", err=True)
    _show_backup(to, made)


@server_app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `rounds server backup` wrote.")],
    passphrase_file: Passphrase,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="OUT", help="The folder to write, which must not exist.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Verify the file to its end, and write nothing.")] = False,
) -> None:
    """Restore a server from a backup into a new folder, or verify the backup.

    The old server must never run again beside the restored one: both would have the same key. Runs that were active are
    stopped; `rounds server submit --resume RUN` continues them.

    Example: `rounds server restore heart.backup --passphrase-file heart.phrase --out heart`
    """
    from grandrounds.capabilities.hospital.deploy import backup as backups
    from grandrounds.capabilities.hospital.deploy.seal import read_passphrase
    from grandrounds.core.errors import BadInput

    if check == (out is not None):
        raise BadInput("give --out OUT to restore the backup, or --check to verify it", code="conflicting-options")
    phrase = read_passphrase(passphrase_file)
    if out is None:
        _show_backup(file, backups.check_backup(file, phrase))
        return
    restored = backups.restore(file, phrase, out)
    _show_backup(file, restored)
    echo(f"restored to {out}. Next:")
    echo("- stop the old server for good, and let its address in consortium.toml lead to this machine")
    if not restored.authorities:
        echo(f"- put the keys of the authorities back into {out / 'server' / 'pki'} before you issue certificates")
    echo(f"- rounds server start {out}")
    for run in restored.open_runs:
        echo(f"- rounds server submit --resume {run} --server {out}")


def _show_backup(file: Path, content: Backup) -> None:
    echo(
        f"{file}: complete; written {content.time} by version {content.version}; {content.files} files, "
        f"{content.bytes / 1e6:.1f} MB; {len(content.finished)} finished runs"
        f"{', open: ' + ', '.join(content.open_runs) if content.open_runs else ''}"
        f"{'' if content.authorities else '; without the keys of the authorities'}"
    )


def open_link(out: Path, *, insecure: bool = False) -> Link:
    """Return the server of a folder; the folder itself shows whether it was provisioned without certificates."""
    from grandrounds.capabilities.hospital.deploy.superlink import Link
    from grandrounds.core.errors import BadInput

    folder = Link.from_folder(out).folder
    plain = not (folder / "pki").exists() and not (folder / "nginx.conf").exists()
    if insecure and not plain:
        raise BadInput(
            f"{folder} was provisioned with certificates: leave out --insecure-loopback", code="conflicting-options"
        )
    return Link.from_folder(out, insecure=plain)


WHERE = "the server is not named: give --server OUT on its own host, or --operator FOLDER from another machine"


@contextmanager
def open_control(link: Link | None, operator: Path | None) -> Iterator[Control]:
    """Connect to the server, which must be running."""
    from grandrounds.capabilities.hospital.deploy.control import Control, Unreachable
    from grandrounds.core.errors import BadInput

    if (link is None) == (operator is None):
        raise BadInput(WHERE, code="missing-option")
    try:
        with Control.local(link) if link is not None else Control.operator(operator or Path()) as control:
            yield control
    except Unreachable as e:
        start = f"`rounds server start {link.folder}` starts it" if link is not None else "ask the person who runs it"
        raise BadInput(f"{e}: {start}", code=e.code) from None


def _load_consortium(server: Path | None, operator: Path | None) -> Consortium:
    """Load the consortium from the server's or the operator's folder."""
    from grandrounds.capabilities.hospital.deploy.consortium import load
    from grandrounds.capabilities.hospital.deploy.folders import load_agreed
    from grandrounds.core.errors import BadInput

    if (server is None) == (operator is None):
        raise BadInput(WHERE, code="missing-option")
    if operator is not None:
        return load_agreed(operator)
    assert server is not None
    return load(open_link(server).folder / "consortium.toml")


def _write_plan(file: Path, source: str, settings: list[str], server: Path | None, operator: Path | None) -> None:
    from grandrounds.capabilities.hospital.deploy.submit import plan_for_sites
    from grandrounds.capabilities.hospital.keeper.policy.rules import plan_digest
    from grandrounds.core.arrays import write_atomic
    from grandrounds.core.errors import BadInput

    if not source:
        raise BadInput(
            "--plan writes the plan of an experiment: give its file, and leave out --resume", code="conflicting-options"
        )
    plan = plan_for_sites(Path(source), settings, _load_consortium(server, operator).data)
    try:
        write_atomic(file, f"{json.dumps(plan, indent=1)}\n".encode())
    except OSError as e:
        raise BadInput(f"cannot write {file}: {e.strerror or e}", code="cannot-write") from None
    echo(f"{file}: the plan that sites will receive; nothing is submitted\ndigest {plan_digest(plan)}")


def _serve(link: Link, health: int | None) -> None:
    import signal
    import threading

    from grandrounds.capabilities.hospital.deploy.server import serve
    from grandrounds.core.event_log import start_logging

    ended = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: ended.set())

    start_logging(link.log_format)
    serve(link, ended, health=health)


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


def withdraw_at_sites(run: Path, site: str, *, unused: Mapping[str, bool]) -> None:
    """Submit the repeated run to the hospitals of a consortium, from the server's host."""
    from grandrounds.capabilities.hospital.deploy.withdraw import submit_withdrawal
    from grandrounds.core.errors import BadInput
    from grandrounds.runs.run import Run

    for option, given in unused.items():
        if given:
            raise BadInput(
                f"{option} is for simulations: hospitals keep their rows and states; leave it out", code="not-for-hospitals"
            )
    link = open_link(run.resolve().parent.parent)
    with open_control(link, None) as control:
        name, repeated, flower = submit_withdrawal(control, link, Run(run, withdrawn=True), site)
    echo(f"run {repeated} is submitted to the consortium without {name} (Flower run ID: {flower})")
    echo(f"when it is done, {run} is closed and its model is refused; `rounds server status` shows the progress")
