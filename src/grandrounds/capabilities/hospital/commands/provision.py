"""`rounds provision`: certificates and folders of a consortium, invitations of its sites, and renewal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from grandrounds.cli.audit import FAILED
from grandrounds.cli.terminal import echo, show_fingerprints

if TYPE_CHECKING:
    from collections.abc import Sequence

    import click

    from grandrounds.capabilities.hospital.deploy.folders import Folders
    from grandrounds.capabilities.hospital.deploy.key_requests import KeyRequest
    from grandrounds.capabilities.hospital.deploy.manifest import ManifestCheck


MAKE = "make"
MIN_SECURE_SITES = 3
"""The smallest number of sites for secure aggregation."""

class _FileFirst(TyperGroup):
    """Group of `rounds provision`: `rounds provision FILE` is short for `rounds provision make FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [MAKE, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_FileFirst,
    help=(
        "Create certificates, folders and invitations of a consortium: `rounds provision consortium.toml --out OUT`.\n\n"
        "Then hand OUT/sites/NAME to each hospital and OUT/operator to the operator; OUT/server stays with the server. Each "
        "hospital makes its own keys (`rounds site join`), and `rounds provision approve` registers them."
    ),
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Argument(metavar="OUT", help="The folder that `rounds provision --out` wrote.")]
AGAIN = "hand every {}site its folder, without keys/: rounds site accept FOLDER HANDED takes the list of keys"
RELOAD = "the gateway reads it after: OUT/server/gateway.sh reload"


MakeKeys = Annotated[
    bool,
    typer.Option(
        "--make-keys",
        help="Make the sites' private keys here, for tests and demonstrations on one machine: the operator then has had them.",
    ),
]


@app.command(MAKE)
def make(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="consortium.toml", help="The sites of the consortium and the address of the server (TOML)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    site: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Add this site, new in the file, to an existing OUT (repeatable)."),
    ] = None,
    seal: Annotated[
        Path | None,
        typer.Option(
            metavar="PASSFILE",
            help="Also write each site's folder as one encrypted file, OUT/sealed/NAME.sealed. Give a file with one "
            "passphrase for all, or a folder with a file NAME.txt for each site.",
        ),
    ] = None,
    make_keys: MakeKeys = False,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="TEMPLATE",
            help="Policy of each new site: strict, standard or research. Without it the command asks on a terminal, and else "
            "takes strict. Each hospital may change its policy.toml.",
        ),
    ] = None,
    insecure_loopback: Annotated[
        bool, typer.Option("--insecure-loopback", help="No TLS: for a trial on one machine, at 127.0.0.1.")
    ] = False,
) -> None:
    """Create a server authority, an operator authority, certificates, an invitation for each site, and all folders.

    Private keys of a site are made at the site, by `rounds site join`: none is written here. An existing OUT is never
    overwritten. Exit code 2: the file has an error, and nothing was written.
    """
    from grandrounds.capabilities.hospital.deploy.folders import Folders
    from grandrounds.capabilities.hospital.deploy.provision import add_sites, provision
    from grandrounds.capabilities.hospital.deploy.seal import read_passphrases, seal_sites
    from grandrounds.capabilities.hospital.keeper.policy.templates import RESEARCH, TEMPLATES
    from grandrounds.core.errors import BadInput

    if site and insecure_loopback:
        raise BadInput(
            "--insecure-loopback is for a new OUT: leave it out for an existing one",
            code="conflicting-options",
        )
    if seal is not None:
        read_passphrases(seal, site or None, source)  # refused before anything is written
    template = _choose_policy(policy)
    if site:
        consortium = add_sites(source, out, site, make_keys=make_keys, policy=template)
    else:
        consortium = provision(source, out, insecure=insecure_loopback, make_keys=make_keys, policy=template)
    folders = Folders(out)
    names = site or [s.name for s in consortium.sites]
    for name in names:
        echo(f"{folders.site(name)}  for {name}")
    if not site:
        offline = "" if insecure_loopback else "; keep the keys of its authorities (pki/*-ca.key) offline"
        echo(f"{folders.server}  for the server{offline}")
        if not insecure_loopback:
            echo(f"{folders.operator('operator')}  for the operator")
    if seal is not None:
        for path in seal_sites(folders, names, read_passphrases(seal, names, source)):
            echo(f"{path}  sealed")
    if make_keys:
        echo(
            "warning: the private keys of these sites were made here (--make-keys), so the operator has had them: for tests and "
            "demonstrations only; `rounds site rekey` replaces them"
        )
    else:
        show_next_steps(folders, names)
    if site and make_keys:
        echo(f"{AGAIN.format('other ')}; until then it refuses secure aggregation with new ones (unknown-peer)")
    if policy is None:
        echo(f"policy of each {'new ' if site else ''}site: {template}, {TEMPLATES[template]}; --policy chooses another")
    count = sum(folders.node_key(s.name).exists() or folders.is_invited(s.name) for s in consortium.sites)
    if count < MIN_SECURE_SITES:
        echo(f"note: secure aggregation (privacy.secure) needs {MIN_SECURE_SITES} sites, and there are {count}")
        if template != RESEARCH:
            echo(f"note: policy '{template}' requires it, so these sites answer no run: add a site, or use --policy research")
    if insecure_loopback:
        echo("note: nothing here is encrypted; use it on this machine only")


def show_next_steps(folders: Folders, names: Sequence[str]) -> None:
    """Print what to do with new invitations."""
    from grandrounds.capabilities.hospital.deploy.invitations import Invitation
    from grandrounds.protocol.identity import load_public
    from grandrounds.protocol.peers import fingerprint

    ends = Invitation.load(folders.invitation(names[0])).ends
    echo(f"hand each site its folder by {ends:%Y-%m-%d}, when the invitation ends; it runs: rounds site join FOLDER")
    echo(f"for each request.json that comes back: rounds provision approve {folders.out} request.json")
    echo(f"the server's key, to read out by telephone: {fingerprint(load_public(folders.server / 'server.pub'))}")


def _choose_policy(named: str | None) -> str:
    """Return the template of the sites' policies: the named one, or the answer on a terminal, or strict.

    Raises:
        BadInput: There is no such template.
    """
    from grandrounds.capabilities.hospital.keeper.policy.templates import STRICT, TEMPLATES, policy_template

    if named is None and sys.stdin.isatty():
        for name, line in TEMPLATES.items():
            echo(f"{name}: {line}")
        named = typer.prompt("policy of each site", default=STRICT)
    template = named or STRICT
    policy_template(template)  # refused before anything is written
    return template


@app.command()
def show(out: Out, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List certificates and keys with their expiry and state; warn of those that expire within 30 days.

    A site is invited, has asked to join (its request was read but not approved), takes part, or has withdrawn.
    """
    from rich.table import Table

    from grandrounds.capabilities.hospital.deploy.status import ENDED, ENDS_SOON, OPERATOR_MADE, list_keys
    from grandrounds.cli.terminal import Terminal

    lines = list_keys(out)
    if as_json:
        echo(json.dumps([line.to_dict() for line in lines]))
        return
    table = Table("what", "name", "serial / key", "ends", "days", "state", box=None, pad_edge=False)
    for line in lines:
        table.add_row(
            line.kind,
            line.name,
            line.fingerprint[:16],
            line.ends,
            "" if line.days is None else str(line.days),
            line.state,
        )
    Terminal(soft_wrap=True).print(table)
    for line in lines:
        if line.state in (ENDS_SOON, ENDED):
            echo(f"warning: the certificate of {line.name} {line.state} ({line.ends}): rounds provision renew {out}")
    known = [line.name for line in lines if OPERATOR_MADE in line.state]
    if known:
        echo(f"warning: the operator has had the private keys of {', '.join(known)}: each runs rounds site rekey FOLDER")


@app.command()
def log(out: Out, as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False) -> None:
    """Print the record of keys and certificates: owner, issue, renewal, revocation."""
    from grandrounds.capabilities.hospital.deploy import records
    from grandrounds.capabilities.hospital.deploy.folders import Folders

    for entry in records.read_entries(Folders.open(out).record):
        echo(json.dumps(entry) if as_json else records.describe_entry(entry))


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="OUT, or a folder that was handed over.")],
    key: Annotated[
        Path | None, typer.Option(metavar="server.pub", help="The server's public key, from a source you trust.")
    ] = None,
) -> None:
    """Check that a folder is unchanged since it was handed over, or all of OUT with its record. Exit code 3: it was
    changed."""
    from grandrounds.capabilities.hospital.deploy.manifest import check_manifest
    from grandrounds.capabilities.hospital.deploy.status import verify_all
    from grandrounds.protocol.identity import load_public

    public_key = None if key is None else load_public(key)
    is_consortium = (folder / "server" / "consortium.db").exists()
    checked = verify_all(folder, public_key) if is_consortium else [check_manifest(folder, public_key)]
    _show_checked(checked)
    if any(one.faults for one in checked):
        raise typer.Exit(FAILED)


@app.command()
def agree(
    source: Annotated[
        Path, typer.Argument(metavar="consortium.toml", help="The file with the changed [data]: cohort or columns.")
    ],
    out: Annotated[Path, typer.Option(help="The provisioned folder.")],
) -> None:
    """Change the agreed data: write cohort and schema into all folders and sign them; keys do not change.

    Each site accepts its folder with `rounds site accept`, which shows the change and asks. Until then it refuses plans with
    the new cohort (other-cohort).
    """
    from grandrounds.capabilities.hospital.deploy.provision import change_agreement

    consortium = change_agreement(source, out)
    cohort = consortium.data.get("cohort")
    if cohort is not None:
        echo(f"cohort '{cohort['definition']['name']}': digest {cohort['digest']}")
    echo(AGAIN.format(""))


@app.command()
def renew(out: Out) -> None:
    """Renew the certificates of SuperLink, gateway and operators with the same authorities; sites need no change."""
    from grandrounds.capabilities.hospital.deploy import renewal

    for name, serial in renewal.renew(out).items():
        echo(f"{name}: {serial}")
    echo("give operators their new folders; restart the SuperLink, and reload the gateway: gateway.sh reload")


@app.command()
def approve(
    out: Out,
    request: Annotated[
        Path, typer.Argument(metavar="request.json", help="The file that the site sent (`rounds site join` or `rekey`).")
    ],
    fingerprint: Annotated[
        str | None,
        typer.Option(metavar="FINGERPRINT", help="The fingerprint that the site read out, in quotes: approves without asking."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without asking: the fingerprint was compared.")] = False,
) -> None:
    """Register the public keys that a site made itself, and update the list of sites in all folders.

    Telephone the site before you confirm: it reads out its fingerprint. Exit code 1: the answer was no, and nothing was
    registered. Exit code 2: the request was changed, its code was used or is over, or it is not for this consortium.

    Example: `rounds provision approve OUT request.json`
    """
    from grandrounds.capabilities.hospital.deploy.approval import approve
    from grandrounds.capabilities.hospital.deploy.folders import Folders

    approval = approve(out, request, lambda asked: _confirm_request(out, asked, yes=yes), fingerprint=fingerprint)
    if approval is None:
        echo("nothing was approved")
        raise typer.Exit(1)
    site, folders = approval.request.site, Folders(out)
    missing = [s.name for s in folders.consortium().sites if folders.is_invited(s.name)]
    if approval.repeated:
        echo(f"{site} takes part with these keys already")
    else:
        echo(f"{site} takes part; a server that runs takes its keys within seconds")
    if not approval.request.is_join:
        echo(f"tell {site} that its keys are registered: rounds site rekey FOLDER --done")
    if missing:
        echo(f"not joined yet: {', '.join(missing)}; once all have joined:")
    echo(f"hand every site its folder: rounds site accept FOLDER HANDED; until then it refuses secure aggregation with {site}")


def _confirm_request(out: Path, request: KeyRequest, *, yes: bool) -> bool:
    """Show the keys of a request, and ask whether the site read out the same fingerprint."""
    from grandrounds.capabilities.hospital.deploy.folders import Folders
    from grandrounds.core.errors import BadInput
    from grandrounds.protocol.identity import load_public
    from grandrounds.protocol.peers import fingerprint

    echo(f"{request.site} asks to {'join' if request.is_join else 'use other keys in'} {request.consortium}")
    show_fingerprints(
        {
            f"{request.site} reads out": request.fingerprint,
            "you read out the server's": fingerprint(load_public(Folders(out).server / "server.pub")),
        }
    )
    if yes:
        return True
    if not sys.stdin.isatty():
        raise BadInput(
            f"telephone {request.site} and compare the fingerprint above, then add --fingerprint with what it read out, or --yes",
            code="unconfirmed-request",
        )
    return typer.confirm(f"did a person at {request.site}, whom you know, read out this fingerprint?")


@app.command()
def invite(
    out: Out,
    site: Annotated[str, typer.Argument(metavar="SITE", help="The site, by its name.")],
    days: Annotated[int | None, typer.Option(min=1, max=90, help="Days for which the invitation is valid (14).")] = None,
) -> None:
    """Invite a site again: its invitation is over, its keys are lost, or it returns. An earlier code is void.

    A site that takes part keeps its keys until its new request is approved.

    Example: `rounds provision invite OUT cleveland --days 30`
    """
    from grandrounds.capabilities.hospital.deploy import renewal
    from grandrounds.capabilities.hospital.deploy.folders import Folders
    from grandrounds.capabilities.hospital.deploy.invitations import DAYS

    renewal.invite(out, site, days=days or DAYS)
    folders = Folders(out)
    echo(f"{folders.site(site)}  for {site}")
    show_next_steps(folders, [site])


@app.command()
def rotate(
    out: Out,
    site: Annotated[str, typer.Argument(metavar="SITE", help="The site, by its name.")],
    request: Annotated[
        Path | None,
        typer.Option(metavar="request.json", help="Keys that the site made itself (`rounds site rekey`)."),
    ] = None,
    make_keys: MakeKeys = False,
) -> None:
    """Register new keys of a site; the old ones are revoked and recorded as such.

    `rounds provision approve` does the same for a site's request, and shows its fingerprint first.
    """
    from grandrounds.capabilities.hospital.deploy import renewal
    from grandrounds.capabilities.hospital.deploy.folders import Folders
    from grandrounds.core.errors import BadInput
    from grandrounds.protocol.peers import fingerprint

    if (request is None) is not make_keys:
        raise BadInput(
            f"new keys are made at the site: give the --request that `rounds site rekey` wrote there; if {site} has lost its "
            f"keys, invite it again (`rounds provision invite`); for a demonstration add --make-keys, without a request",
            code="no-request",
        )
    keys = renewal.rotate(out, site, request=request)
    echo(f"{site}: node {keys.fingerprints['node'][:16]}, signs with {fingerprint(keys.site)}")
    if request is None:
        echo(f"hand {Folders(out).site(site)} over, keys/ with it; a server that runs takes the new key within seconds")
    else:
        echo("tell the site that its keys are taken: rounds site rekey FOLDER --done")
    echo(f"{AGAIN.format('')}; until then it refuses secure aggregation with {site} (other-peer-key)")


@app.command("rotate-server")
def rotate_server(out: Out) -> None:
    """Create a new signing key of the server, signed by the old one; sites accept it with `rounds site accept`."""
    from grandrounds.capabilities.hospital.deploy import renewal

    echo(f"server key: {renewal.rotate_server(out).hex()}")
    echo("hand every site its folder again: rounds site accept FOLDER HANDED takes the new key")


@app.command("add-operator")
def add_operator(
    out: Out,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the operator, as in the gateway's log.")],
) -> None:
    """Add an operator with their own certificate."""
    from grandrounds.capabilities.hospital.deploy import renewal

    echo(f"{renewal.add_operator(out, name)}  for {name}")


@app.command("revoke-operator")
def revoke_operator(
    out: Out, who: Annotated[str, typer.Argument(metavar="NAME|SERIAL", help="An operator, or one certificate.")]
) -> None:
    """Revoke an operator's certificates; the gateway refuses them after its next reload."""
    from grandrounds.capabilities.hospital.deploy import renewal

    echo(f"revoked: {renewal.revoke_operator(out, who)}; {RELOAD}")


@app.command()
def withdraw(out: Out, site: Annotated[str, typer.Argument(metavar="SITE", help="The site, by its name.")]) -> None:
    """Remove a site's keys from the lists, and record it."""
    from grandrounds.capabilities.hospital.deploy import renewal

    renewal.withdraw(out, site)
    echo(f"{site} has withdrawn; a server that runs refuses its node within seconds")
    echo(AGAIN.format("other "))


@app.command()
def seal(
    out: Out,
    passphrase_file: Annotated[
        Path,
        typer.Option(metavar="PASSFILE", help="As --seal: a file for all, or a folder with NAME.txt for each site."),
    ],
    site: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this site (repeatable).")] = None,
) -> None:
    """Write folders of sites as encrypted files, OUT/sealed/NAME.sealed: those with an invitation or with keys."""
    from grandrounds.capabilities.hospital.deploy.folders import Folders
    from grandrounds.capabilities.hospital.deploy.seal import confidential_sites, read_passphrases, seal_sites

    folders = Folders.open(out)
    names = [folders.consortium().site(name).name for name in site] if site else confidential_sites(folders)
    for path in seal_sites(folders, names, read_passphrases(passphrase_file, names, folders.consortium_file)):
        echo(f"{path}  sealed")


@app.command()
def wheels(
    out: Out,
    folder: Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder to write.")],
    extras: Annotated[str, typer.Option(help="Extras of the package, separated by commas.")] = "flower",
    source: Annotated[str | None, typer.Option(help="Source of the package for pip (default: as installed).")] = None,
) -> None:
    """Write a signed folder of wheels for a hospital without the internet: `install.sh` there needs only Python."""
    from grandrounds.capabilities.hospital.deploy.wheels import write_wheelhouse

    names = write_wheelhouse(out, folder, extras=extras, source=source)
    size = sum((folder / name).stat().st_size for name in names)
    echo(f"{folder}: {len(names)} wheels, {size / 1e6:.0f} MB; at the hospital: ./install.sh FOLDER")


def _show_checked(checked: Sequence[ManifestCheck]) -> None:
    for one in checked:
        for fault in one.faults:
            echo(f"FOUND  {one.where}: {fault}")
        for note in one.notes:
            echo(f"note: {one.where}: {note}")
        echo(f"{one.where}: {'does NOT verify' if one.faults else 'verifies'}")
