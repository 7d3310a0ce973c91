"""`rounds provision`: keys, certificates and folders of a consortium, and their renewal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from grandrounds.cli.audit import FAILED
from grandrounds.cli.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Sequence

    import click

    from grandrounds.deploy.manifest import ManifestCheck


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
        "Create keys, certificates and folders of a consortium: `rounds provision consortium.toml --out OUT`.\n\n"
        "Then hand OUT/sites/NAME to each hospital and OUT/operator to the operator; OUT/server stays with the server."
    ),
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Argument(metavar="OUT", help="The folder that `rounds provision --out` wrote.")]
AGAIN = "hand every {}site its folder, without keys/: rounds site accept FOLDER HANDED takes the list of keys"
RELOAD = "the gateway reads it after: OUT/server/gateway.sh reload"


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
    insecure_loopback: Annotated[
        bool, typer.Option("--insecure-loopback", help="No TLS: for a trial on one machine, at 127.0.0.1.")
    ] = False,
) -> None:
    """Create a server authority, an operator authority, certificates, a key pair for each site, and all folders.

    An existing OUT is never overwritten. Exit code 2: the file has an error, and nothing was written.
    """
    from grandrounds.core.errors import BadInput
    from grandrounds.deploy.folders import Folders
    from grandrounds.deploy.provision import add_sites, provision
    from grandrounds.deploy.seal import read_passphrases, seal_sites

    if site and insecure_loopback:
        raise BadInput(
            "--insecure-loopback is for a new OUT: leave it out for an existing one",
            code="conflicting-options",
        )
    if seal is not None:
        read_passphrases(seal, site or None, source)  # refused before anything is written
    consortium = add_sites(source, out, site) if site else provision(source, out, insecure=insecure_loopback)
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
    if site:
        echo(f"{AGAIN.format('other ')}; until then it refuses secure sums with new ones (unknown-peer)")
    count = len(folders.members())
    if count < MIN_SECURE_SITES:
        echo(f"note: secure aggregation (privacy.secure) needs {MIN_SECURE_SITES} sites, and there are {count}")
    if insecure_loopback:
        echo("note: nothing here is encrypted; use it on this machine only")


@app.command()
def show(out: Out, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List certificates and keys with their expiry and state; warn of those that expire within 30 days."""
    from rich.table import Table

    from grandrounds.cli.terminal import Terminal
    from grandrounds.deploy.status import ENDED, ENDS_SOON, list_keys

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


@app.command()
def log(out: Out, as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False) -> None:
    """Print the record of keys and certificates: owner, issue, renewal, revocation."""
    from grandrounds.deploy import records
    from grandrounds.deploy.folders import Folders

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
    from grandrounds.deploy.manifest import check_manifest
    from grandrounds.deploy.status import verify_all
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
    from grandrounds.deploy.provision import change_agreement

    consortium = change_agreement(source, out)
    cohort = consortium.data.get("cohort")
    if cohort is not None:
        echo(f"cohort '{cohort['definition']['name']}': digest {cohort['digest']}")
    echo(AGAIN.format(""))


@app.command()
def renew(out: Out) -> None:
    """Renew the certificates of SuperLink, gateway and operators with the same authorities; sites need no change."""
    from grandrounds.deploy import renewal

    for name, serial in renewal.renew(out).items():
        echo(f"{name}: {serial}")
    echo("give operators their new folders; restart the SuperLink, and reload the gateway: gateway.sh reload")


@app.command()
def rotate(
    out: Out,
    site: Annotated[str, typer.Argument(metavar="SITE", help="The site, by its name.")],
    request: Annotated[
        Path | None,
        typer.Option(metavar="request.json", help="Keys that the site made itself (`rounds site rekey`)."),
    ] = None,
) -> None:
    """Create new keys for a site; the old ones are revoked and recorded as such."""
    from grandrounds.deploy import renewal
    from grandrounds.deploy.folders import Folders
    from grandrounds.protocol.peers import fingerprint

    keys = renewal.rotate(out, site, request=request)
    echo(f"{site}: node {keys.fingerprints['node'][:16]}, signs with {fingerprint(keys.site)}")
    if request is None:
        echo(f"hand {Folders(out).site(site)} over, keys/ with it; a server that runs takes the new key within seconds")
    else:
        echo("tell the site that its keys are taken: rounds site rekey FOLDER --done")
    echo(f"{AGAIN.format('')}; until then it refuses secure sums with {site} (other-peer-key)")


@app.command("rotate-server")
def rotate_server(out: Out) -> None:
    """Create a new signing key of the server, signed by the old one; sites accept it with `rounds site accept`."""
    from grandrounds.deploy import renewal

    echo(f"server key: {renewal.rotate_server(out).hex()}")
    echo("hand every site its folder again: rounds site accept FOLDER HANDED takes the new key")


@app.command("add-operator")
def add_operator(
    out: Out,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the operator, as in the gateway's log.")],
) -> None:
    """Add an operator with their own certificate."""
    from grandrounds.deploy import renewal

    echo(f"{renewal.add_operator(out, name)}  for {name}")


@app.command("revoke-operator")
def revoke_operator(
    out: Out, who: Annotated[str, typer.Argument(metavar="NAME|SERIAL", help="An operator, or one certificate.")]
) -> None:
    """Revoke an operator's certificates; the gateway refuses them after its next reload."""
    from grandrounds.deploy import renewal

    echo(f"revoked: {renewal.revoke_operator(out, who)}; {RELOAD}")


@app.command()
def withdraw(out: Out, site: Annotated[str, typer.Argument(metavar="SITE", help="The site, by its name.")]) -> None:
    """Remove a site's keys from the lists, and record it."""
    from grandrounds.deploy import renewal

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
    """Write folders of sites as encrypted files, OUT/sealed/NAME.sealed, for instance after a rotation."""
    from grandrounds.deploy.folders import Folders
    from grandrounds.deploy.seal import read_passphrases, seal_sites

    folders = Folders.open(out)
    names = [folders.consortium().site(name).name for name in site] if site else list(folders.members())
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
    from grandrounds.deploy.wheels import write_wheelhouse

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
