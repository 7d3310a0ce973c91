"""`rounds console`: the web console; `rounds console users`: its users; `sso`: single sign-on; `log`: its access log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grandrounds.cli.groups import ParentCommand

if TYPE_CHECKING:
    from grandrounds.capabilities.console.auth.oidc import Provider
    from grandrounds.capabilities.console.auth.users import Users

UsersFile = Annotated[
    Path, typer.Option("--users", help="The file of users. It contains hashes, no passwords and no tokens.")
]
USERS = Path("console-users.json")
LOCK = 10
"""Minutes without input after which pages of a hospital's console lock."""

users_app = typer.Typer(
    help="Manage local users of the console: names, roles, passwords, tokens. The provider manages users of single sign-on.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    app.command(cls=ParentCommand)(console)
    app.add_typer(users_app, name="console users")
    app.command("console sso")(console_sso)
    app.command("console log")(console_log)


def console(
    runs: Annotated[Path, typer.Option(help="Show the runs in this folder and in folders below it.")] = Path("runs"),
    users: Annotated[
        Path | None,
        typer.Option(help="File of users (`rounds console users add`). Default: a token for this session is printed."),
    ] = None,
    sso: Annotated[
        Path | None,
        typer.Option(
            "--sso",
            help="TOML file with the section [oidc]: sign in at an OpenID provider. `rounds console sso FILE` checks it.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs TLS.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8600,
    certificate: Annotated[
        Path | None, typer.Option("--tls-certificate", help="Certificate with its chain, PEM.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", help="PEM.")] = None,
    name: Annotated[list[str], typer.Option("--name", help="A further host name of this console (repeatable).")] = [],  # noqa: B006
    title: Annotated[
        str | None,
        typer.Option(help="Name of the hospital or consortium, for the header and the sign-in page (default: --site)."),
    ] = None,
    contact: Annotated[
        str, typer.Option(help="Person or address that pages name for access and help, such as it@hospital.example.")
    ] = "",
    proxy: Annotated[
        list[str],
        typer.Option(
            "--proxy",
            help="Address of a reverse proxy whose X-Forwarded-For header is trusted (repeatable).",
        ),
    ] = [],  # noqa: B006
    idle: Annotated[int, typer.Option(min=1, help="Minutes without a request after which a session ends.")] = 30,
    lock: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Minutes without input after which a page locks and asks for the password; 0: never "
            "(default: 10 with --site, else never).",
        ),
    ] = None,
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

    It listens on loopback and prints a token to sign in with. For several users give --users, or --sso for the accounts of
    your hospital (Keycloak, Entra ID), or both; on a network also TLS. Patients are shown with --site, where that site's data
    are.
    """
    from grandrounds.capabilities.console.access_log import AccessLog, default_file
    from grandrounds.capabilities.console.app import create_app
    from grandrounds.capabilities.console.app_state import LOOPBACK, AppState
    from grandrounds.capabilities.console.auth.sessions import Sessions
    from grandrounds.capabilities.console.auth.single_sign_on import SingleSignOn
    from grandrounds.capabilities.console.cases.site_cases import SiteCases
    from grandrounds.capabilities.console.run_index import RunIndex
    from grandrounds.capabilities.console.server import Address, parse_proxies, serve
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
    provider = None if sso is None else _find_provider(sso)
    if provider is not None and users is not None and not provider.settings.local_users:
        raise BadInput(
            f"--users {users}: {sso} turns local users off; leave --users out, or set oidc.local_users = true",
            code="conflicting-settings",
        )
    user_list = _find_users(users, alone=provider is None)
    log = AccessLog(access_log or default_file())
    alone = site is None and users is None and sso is None and access_log is None  # one person, and no patients
    try:
        log.check()
    except BadInput:
        if not alone:
            raise
        log = AccessLog()
    if not alone:
        typer.echo(f"access log: {log.file}")
    hosts = (*LOOPBACK, host, *name, *(() if provider is None else (provider.settings.host,)))
    if provider is not None:
        typer.echo(f"single sign-on: {provider.settings.issuer} (users open {provider.settings.url}/)")
    app_state = AppState(
        run_index,
        user_list,
        Sessions(idle=idle * 60),
        log=log,
        sso=None if provider is None else SingleSignOn(provider),
        local_users=provider is None or users is not None,
        cases=cases,
        tls=place.tls,
        hosts=hosts,
        proxies=proxies,
        port=port,
        lock=_lock_seconds(lock, at_hospital=site is not None),
        title=site or "" if title is None else title,
        contact=contact,
    )
    app = create_app(app_state)
    count = len(run_index.runs())
    typer.echo(f"{count} run{'s' * (count != 1)} of {runs} at {place.url} (Ctrl-C to stop)")
    serve(app, place)


def _lock_seconds(minutes: int | None, *, at_hospital: bool) -> float | None:
    """Return the seconds without input after which pages lock; None for never."""
    chosen = (LOCK if at_hospital else 0) if minutes is None else minutes
    return 60.0 * chosen if chosen else None


def _find_users(file: Path | None, *, alone: bool) -> Users:
    """Load the local users; without a file, one user with a token that is printed, unless there is single sign-on."""
    from grandrounds.capabilities.console.auth.users import Role, Users
    from grandrounds.core.errors import BadInput

    if file is None:
        users = Users()
        if alone:
            users.add("you", [r.value for r in Role])
            typer.echo(f"token for this session: {users.issue('you', days=1)}")
        return users
    users = Users.load(file)
    if not len(users):
        raise BadInput(
            f"{file} has no user: add one with `rounds console users add NAME --role viewer --users {file}`",
            code="missing-user",
        )
    return users


def _find_provider(file: Path) -> Provider:
    """Read the settings of single sign-on, and ask the provider for its endpoints."""
    from grandrounds.capabilities.console.auth.oidc import Provider
    from grandrounds.capabilities.console.auth.oidc_settings import load_settings, read_secret

    settings = load_settings(file)
    return Provider.discover(settings, read_secret(settings))


def console_sso(
    file: Annotated[Path, typer.Argument(help="TOML file with the section [oidc].")],
    claims: Annotated[
        Path | None,
        typer.Option(help="JSON file with the claims of an ID token: print the name and the roles that its user gets."),
    ] = None,
) -> None:
    """Check settings of single sign-on: ask the provider, and print the addresses to register there.

    A first file (docs/single-sign-on.md has one for Keycloak and one for Entra ID):

    ```toml
    [oidc]
    issuer = "https://login.hospital.example/realms/hospital"
    client_id = "grand-rounds"
    client_secret_file = "client-secret"          # mode 0600
    url = "https://console.hospital.example"      # in the browser
    roles_claim = "groups"

    [oidc.roles]
    clinician = ["icu-physicians"]
    auditor = ["audit-office"]
    ```
    """
    from grandrounds.capabilities.console.auth.oidc_claims import read_claims

    provider = _find_provider(file)
    settings, endpoints = provider.settings, provider.endpoints
    typer.echo(f"provider: {settings.issuer}")
    typer.echo(f"redirect URI to register: {settings.redirect_uri}")
    if endpoints.sign_out is None:
        typer.echo("sign-out: of this console only; the provider offers no sign-out")
    else:
        typer.echo(f"post-logout redirect URI to register: {settings.signed_out_uri}")
    typer.echo(f"client: {settings.client_id}, {'with' if provider.has_secret else 'without'} a secret")
    typer.echo(f"ID tokens signed by: {', '.join(endpoints.algorithms)}")
    for role, values in settings.roles.items():
        typer.echo(f"{role}: {settings.roles_claim} has {' or '.join(values) or '(nothing)'}")
    typer.echo(f"local users: {'allowed with --users' if settings.local_users else 'off'}")
    if claims is not None:
        identity = read_claims(claims, settings)
        typer.echo(f"claims of {claims}: {identity.name} signs in as {', '.join(identity.roles)}")


def console_log(
    file: Annotated[Path | None, typer.Argument(help="The access log (default: the one in the state folder).")] = None,
    user: Annotated[str, typer.Option(help="Only entries of this user.")] = "",
    run: Annotated[str, typer.Option(help="Only entries on patients of this run.")] = "",
    row: Annotated[int | None, typer.Option(min=1, help="Only entries on this row.")] = None,
    event: Annotated[str, typer.Option(help="sign-in, wrong sign-in, sign-out, refused, patient, patients, ...")] = "",
    since: Annotated[
        str, typer.Option(help="Only entries since this day (2026-11-17) or time (2026-11-17T08:00).")
    ] = "",
    until: Annotated[str, typer.Option(help="Only entries up to this day or time, which is included.")] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="Write the entries to this file (.csv or .jsonl), which only its owner can read."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON lines.")] = False,
    access_log: Annotated[
        Path | None, typer.Option("--access-log", help="The access log, as `rounds console` takes it; the same as FILE.")
    ] = None,
) -> None:
    """Print or export the console's access log: sign-ins, which user viewed which patient, and downloads of models."""
    from grandrounds.capabilities.console.access_export import to_csv, to_json_lines
    from grandrounds.capabilities.console.access_log import EVENTS, Filter, default_file, entry_text, read_entries
    from grandrounds.capabilities.hospital.deploy.files import write_private
    from grandrounds.core.errors import BadInput, nearest

    if file is not None and access_log is not None:
        raise BadInput(f"{file} and --access-log {access_log}: give the access log once", code="conflicting-options")
    if event and event not in EVENTS:
        raise BadInput(f"--event {event}: unknown event; {nearest(event, EVENTS)}", code="unknown-event")
    if out is not None and out.suffix not in (".csv", ".jsonl"):
        raise BadInput(f"--out {out}: name a file that ends in .csv or .jsonl", code="unknown-format")
    entries = list(read_entries(file or access_log or default_file(), Filter(user, run, row, event, since, until)))
    if out is not None:
        lines = to_csv(entries) if out.suffix == ".csv" else to_json_lines(entries)
        write_private(out, "".join(lines))
        typer.echo(f"{len(entries)} entries: {out}")
        return
    for line in to_json_lines(entries) if json else (f"{entry_text(entry)}\n" for entry in entries):
        typer.echo(line, nl=False)
    if not entries:
        typer.echo("no entry matches", err=True)


@users_app.command("add")
def add(
    name: str,
    role: Annotated[
        list[str],
        typer.Option(
            "--role",
            help="viewer, engineer, clinician, board, auditor or approver (repeatable); the first decides the start page.",
        ),
    ],
    users: UsersFile = USERS,
    token: Annotated[
        bool, typer.Option("--token", help="Create a token instead of a password; it is printed once.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days for which a token is valid.")] = 90,
) -> None:
    """Add a user, or change the roles and the password of one. The command asks for the password."""
    from grandrounds.capabilities.console.auth.users import Users

    user_list = Users.load(users)
    password = None if token else typer.prompt("password", hide_input=True, confirmation_prompt=True)
    user_list.add(name, role, password=password)
    typer.echo(f"{name} may sign in as {', '.join(role)} ({users})")
    if token:
        typer.echo(f"token, shown only once: {user_list.issue(name, days=days)}")


@users_app.command("list")
def list_users(users: UsersFile = USERS) -> None:
    """List users: name, roles, and credentials."""
    from grandrounds.capabilities.console.auth.users import Users

    for user in Users.load(users):
        credentials = [
            *(["password"] if user.password else []),
            *(f"token until {end[:10]}" for end in user.tokens.values()),
        ]
        typer.echo(f"{user.name}: {', '.join(user.roles)} ({', '.join(credentials) or 'cannot sign in'})")


@users_app.command("remove")
def remove(name: str, users: UsersFile = USERS) -> None:
    """Remove a user with all tokens. A running console signs them out at once."""
    from grandrounds.capabilities.console.auth.users import Users

    Users.load(users).remove(name)
    typer.echo(f"{name} is removed from {users}, and signed out of a running console")


@users_app.command("revoke")
def revoke(name: str, users: UsersFile = USERS) -> None:
    """Revoke all tokens of a user. A running console ends sessions that began with one of them."""
    from grandrounds.capabilities.console.auth.users import Users

    count = Users.load(users).revoke(name)
    typer.echo(f"{count} tokens of {name} are revoked, and their sessions have ended")
