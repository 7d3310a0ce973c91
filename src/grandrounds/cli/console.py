"""`rounds console`: the web console; `rounds console users`: its users; `rounds console log`: its access log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grandrounds.cli.groups import ParentCommand

UsersFile = Annotated[
    Path, typer.Option("--users", help="The file of users. It contains hashes, no passwords and no tokens.")
]
USERS = Path("console-users.json")

users_app = typer.Typer(help="Manage the users of the console: names, roles, passwords, tokens.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.command(cls=ParentCommand)(console)
    app.add_typer(users_app, name="console users")
    app.command("console log")(console_log)


def console(
    runs: Annotated[Path, typer.Option(help="Show the runs in this folder and in folders below it.")] = Path("runs"),
    users: Annotated[
        Path | None,
        typer.Option(help="File of users (`rounds console users add`). Default: a token for this session is printed."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs TLS.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8600,
    certificate: Annotated[
        Path | None, typer.Option("--tls-certificate", help="Certificate with its chain, PEM.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", help="PEM.")] = None,
    name: Annotated[list[str], typer.Option("--name", help="A further host name of this console (repeatable).")] = [],  # noqa: B006
    proxy: Annotated[
        list[str],
        typer.Option(
            "--proxy",
            help="Address of a reverse proxy whose X-Forwarded-For header is trusted (repeatable).",
        ),
    ] = [],  # noqa: B006
    idle: Annotated[int, typer.Option(min=1, help="Minutes without a request after which a session ends.")] = 30,
    site: Annotated[
        str | None,
        typer.Option(help="At a hospital: show the patients of this site, and of no other, to clinicians."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="For --site: new patients instead of the run's rows: .csv, .parquet, .xlsx, .dta, .sav, .npz or a SQL URL."
        ),
    ] = None,
    query: Annotated[str | None, typer.Option(help="SELECT or table name, for a SQL URL.")] = None,
    personal: Annotated[
        Path | None,
        typer.Option(help="For --site: the folder of the site, for the personal models that it deploys."),
    ] = None,
    access_log: Annotated[
        Path | None,
        typer.Option(
            help="File to append sign-ins and patient views to (default: console-access.jsonl in the "
            "state folder of grandrounds)."
        ),
    ] = None,
    protected: Annotated[
        list[str],
        typer.Option(
            help="For --site: flag this column if it changes a risk, instead of columns with known names (repeatable)."
        ),
    ] = [],  # noqa: B006
) -> None:
    """Show runs in the browser: scores, explanations, decisions, audit, privacy. It changes no run.

    It listens on loopback and prints a token to sign in with, unless --users and TLS are given. Patients are shown with
    --site, where that site's data are.
    """
    from grandrounds.console.access_log import AccessLog, default_file
    from grandrounds.console.app import create_app
    from grandrounds.console.app_state import LOOPBACK, AppState
    from grandrounds.console.auth.sessions import Sessions
    from grandrounds.console.auth.users import Role, Users
    from grandrounds.console.cases.site_cases import SiteCases
    from grandrounds.console.run_index import RunIndex
    from grandrounds.console.server import Address, parse_proxies, serve
    from grandrounds.core.errors import BadInput

    place = Address(host, port, certificate, key)
    place.check()
    proxies = parse_proxies(proxy)
    run_index = RunIndex(runs)
    cases = None
    if site is not None:
        cases = SiteCases(run_index, site, data=data, query=query, protected=tuple(protected), personal=personal)
        typer.echo(cases.check())
    elif data is not None or query is not None or protected or personal is not None:
        raise BadInput(
            "--data, --query, --protected and --personal are for the patients of one hospital: name it with --site",
            code="missing-option",
        )
    if users is None:
        user_list = Users()
        user_list.add("you", [r.value for r in Role])
        typer.echo(f"token for this session: {user_list.issue('you', days=1)}")
    else:
        user_list = Users.load(users)
        if not len(user_list):
            raise BadInput(
                f"{users} has no user: add one with `rounds console users add NAME --role viewer --users {users}`",
                code="missing-user",
            )
    log = AccessLog(access_log or default_file())
    alone = site is None and users is None and access_log is None  # one person, and no patients
    try:
        log.check()
    except BadInput:
        if not alone:
            raise
        log = AccessLog()
    if not alone:
        typer.echo(f"access log: {log.file}")
    hosts = (*LOOPBACK, host, *name)
    app_state = AppState(
        run_index,
        user_list,
        Sessions(idle=idle * 60),
        log=log,
        cases=cases,
        tls=place.tls,
        hosts=hosts,
        proxies=proxies,
        port=port,
    )
    app = create_app(app_state)
    count = len(run_index.runs())
    typer.echo(f"{count} run{'s' * (count != 1)} of {runs} at {place.url} (Ctrl-C to stop)")
    serve(app, place)


def console_log(
    file: Annotated[Path | None, typer.Argument(help="The access log (default: the one in the state folder).")] = None,
    user: Annotated[str, typer.Option(help="Only entries of this user.")] = "",
    run: Annotated[str, typer.Option(help="Only entries on patients of this run.")] = "",
    row: Annotated[int | None, typer.Option(min=1, help="Only entries on this row.")] = None,
    event: Annotated[str, typer.Option(help="sign-in, wrong sign-in, sign-out, refused, patient, patients, ...")] = "",
    since: Annotated[
        str, typer.Option(help="Only entries since this day (2026-11-17) or time (2026-11-17T08:00).")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON lines.")] = False,
) -> None:
    """Print the console's access log: sign-ins, and which user viewed which patient."""
    from json import dumps

    from grandrounds.console.access_log import EVENTS, Filter, default_file, entry_text, read_entries
    from grandrounds.core.errors import BadInput, nearest

    if event and event not in EVENTS:
        raise BadInput(f"--event {event}: unknown event; {nearest(event, EVENTS)}", code="unknown-event")
    count = 0
    for entry in read_entries(file or default_file(), Filter(user, run, row, event, since)):
        typer.echo(dumps(entry) if json else entry_text(entry))
        count += 1
    if not count:
        typer.echo("no entry matches", err=True)


@users_app.command("add")
def add(
    name: str,
    role: Annotated[list[str], typer.Option("--role", help="viewer, clinician or auditor (repeatable).")],
    users: UsersFile = USERS,
    token: Annotated[
        bool, typer.Option("--token", help="Create a token instead of a password; it is printed once.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days for which a token is valid.")] = 90,
) -> None:
    """Add a user, or change the roles and the password of one. The command asks for the password."""
    from grandrounds.console.auth.users import Users

    user_list = Users.load(users)
    password = None if token else typer.prompt("password", hide_input=True, confirmation_prompt=True)
    user_list.add(name, role, password=password)
    typer.echo(f"{name} may sign in as {', '.join(role)} ({users})")
    if token:
        typer.echo(f"token, shown only once: {user_list.issue(name, days=days)}")


@users_app.command("list")
def list_users(users: UsersFile = USERS) -> None:
    """List users: name, roles, and credentials."""
    from grandrounds.console.auth.users import Users

    for user in Users.load(users):
        credentials = [
            *(["password"] if user.password else []),
            *(f"token until {end[:10]}" for end in user.tokens.values()),
        ]
        typer.echo(f"{user.name}: {', '.join(user.roles)} ({', '.join(credentials) or 'cannot sign in'})")


@users_app.command("remove")
def remove(name: str, users: UsersFile = USERS) -> None:
    """Remove a user with all tokens. A running console signs them out at once."""
    from grandrounds.console.auth.users import Users

    Users.load(users).remove(name)
    typer.echo(f"{name} is removed from {users}, and signed out of a running console")


@users_app.command("revoke")
def revoke(name: str, users: UsersFile = USERS) -> None:
    """Revoke all tokens of a user. A running console ends sessions that began with one of them."""
    from grandrounds.console.auth.users import Users

    count = Users.load(users).revoke(name)
    typer.echo(f"{count} tokens of {name} are revoked, and their sessions have ended")
