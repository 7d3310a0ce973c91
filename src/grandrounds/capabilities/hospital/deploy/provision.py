"""Provision a consortium: certificates, folders and invitations of sites, created atomically (`rounds provision`)."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from grandrounds.capabilities.hospital.deploy import records
from grandrounds.capabilities.hospital.deploy.consortium import Consortium, Member, load
from grandrounds.capabilities.hospital.deploy.files import read, write
from grandrounds.capabilities.hospital.deploy.folders import (
    FIRST_OPERATOR,
    SERVICES,
    Folders,
    hand_over_operators,
    hand_over_sites,
    make_operator,
    make_server,
    make_site,
    make_site_keys,
    write_agreement,
    write_consortium,
)
from grandrounds.capabilities.hospital.deploy.invitations import Invitation
from grandrounds.capabilities.hospital.deploy.pki import IssuedCertificate
from grandrounds.capabilities.hospital.keeper.policy.templates import STRICT
from grandrounds.core.errors import BadInput


def provision(
    source: Path, out: Path, *, insecure: bool = False, make_keys: bool = False, policy: str = STRICT
) -> Consortium:
    """Create everything for a new consortium, except the sites' keys: each site is invited to make its own.

    Args:
        source: The consortium.toml.
        out: The folder to write, which must not exist or must be empty.
        insecure: Without TLS, for one machine.
        make_keys: Make the sites' private keys here, for tests and demonstrations.
        policy: Template of each site's policy.toml: strict, standard or research.

    Returns:
        The consortium.

    Raises:
        BadInput: The file is invalid, `out` is not empty, or `insecure` is used with an address that is not loopback.
    """
    consortium = load(source)
    if insecure and not consortium.server.is_loopback:
        raise BadInput(
            f"--insecure-loopback is for one machine only: [server] address is {consortium.server.address!r}, but must "
            "be 127.0.0.1 or localhost",
            code="not-loopback",
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(
            f"{out} exists and is not empty: choose another --out, or add a site to it with --site NAME",
            code="folder-not-empty",
        )
    with _atomic_folder(out) as part:
        folders = Folders(part)
        make_server(folders, consortium, read(source), insecure=insecure)
        for site in consortium.sites:
            make_site(folders, consortium, site, policy=policy)
        admitted = _admit(folders, consortium, consortium.sites, make_keys=make_keys)
        hand_over_sites(folders, consortium.name)
        operators = {} if insecure else {FIRST_OPERATOR: make_operator(folders, consortium, FIRST_OPERATOR)}
        identity = folders.identity()
        services = {} if insecure else {name: IssuedCertificate.load(folders.pki, name).serial for name in SERVICES}
        facts = {"server": identity.public.hex(), "operators": operators, "services": services, **admitted}
        records.append_entry(folders.record, consortium.name, identity, records.PROVISIONED, **facts)
    return consortium


def add_sites(
    source: Path, out: Path, names: Sequence[str], *, make_keys: bool = False, policy: str = STRICT
) -> Consortium:
    """Add sites that are new in consortium.toml, or that had withdrawn; other sites' keys do not change.

    Args:
        source: The consortium.toml.
        out: The provisioned folder.
        names: The sites to add.
        make_keys: Make their private keys here, for tests and demonstrations; without it they are invited.
        policy: Template of their policy.toml.

    Returns:
        The consortium.

    Raises:
        BadInput: A site already takes part, or something else in the file has changed.
    """
    folders = Folders.open(out)
    consortium, before = load(source), folders.consortium()
    _check_changes(before, consortium, names)
    new = [consortium.site(name) for name in dict.fromkeys(names)]
    for site in new:
        if folders.node_key(site.name).exists():
            raise BadInput(
                f"{site.name} already takes part: new keys are made at the site, with `rounds site rekey`",
                code="repeated-site",
            )
        if folders.is_invited(site.name):
            raise BadInput(
                f"{site.name} is already invited: `rounds provision invite OUT {site.name!r}` makes a new invitation",
                code="repeated-site",
            )
    write(folders.consortium_file, read(source))
    for site in new:
        shutil.rmtree(folders.site(site.name), ignore_errors=True)  # that of a site that withdrew
        make_site(folders, consortium, site, policy=policy)
    admitted = _admit(folders, consortium, new, make_keys=make_keys)
    hand_over_sites(folders, consortium.name)
    hand_over_operators(folders)
    identity = folders.identity()
    kind = records.JOINED if make_keys else records.INVITED
    records.append_entry(folders.record, consortium.name, identity, kind, **admitted)
    return consortium


def _admit(
    folders: Folders, consortium: Consortium, sites: Sequence[Member], *, make_keys: bool
) -> dict[str, dict[str, dict[str, str]]]:
    """Invite sites, or make their keys.

    Returns:
        The facts for the record: their invitations, or the fingerprints of their keys.
    """
    if make_keys:
        return {"sites": {site.name: make_site_keys(folders, site).fingerprints for site in sites}}
    invitations = {site.name: Invitation.new(consortium.name, site.name) for site in sites}
    for name, invitation in invitations.items():
        invitation.save(folders.invitation(name))
    return {"invited": {name: invitation.facts for name, invitation in invitations.items()}}


def change_agreement(source: Path, out: Path) -> Consortium:
    """Replace the agreed data, [data] of consortium.toml, in all folders; keys and certificates do not change.

    Every site must accept its folder again (`rounds site accept`), which shows the change and asks. Until then it refuses
    plans with the new cohort.

    Args:
        source: The consortium.toml with the changed [data].
        out: The provisioned folder.

    Returns:
        The consortium.

    Raises:
        BadInput: Something else in the file has changed, or nothing has.
    """
    folders = Folders.open(out)
    consortium, before = load(source), folders.consortium()
    if (before.name, before.server, before.sites) != (consortium.name, consortium.server, consortium.sites):
        raise BadInput(
            "the file's name, [server] or sites changed as well: change [data] alone, and sites with --site or withdraw",
            code="consortium-changed",
        )
    if before.data == consortium.data:
        raise BadInput(f"[data] of {source} is the one in {out} already: nothing was changed", code="nothing-changed")
    write_consortium(folders.server, consortium, read(source), name=folders.consortium_file.name)
    for name in folders.recipients():
        write_agreement(folders.site(name), consortium)
    hand_over_sites(folders, consortium.name)
    hand_over_operators(folders)
    cohort = consortium.data.get("cohort")
    facts = {} if cohort is None else {"cohort": cohort["digest"]}
    records.append_entry(folders.record, consortium.name, folders.identity(), records.AGREED, **facts)
    return consortium


def _check_changes(before: Consortium, now: Consortium, names: Sequence[str]) -> None:
    """Refuse other changes than new sites: the server's address and the agreed data affect every folder."""
    names_before = {s.name for s in before.sites}
    for name in names_before - {s.name for s in now.sites}:
        raise BadInput(
            f"{name} is no longer in the file: `rounds provision withdraw OUT {name!r}` removes a site",
            code="consortium-changed",
        )
    for site in now.sites:
        if site.name not in names_before and site.name not in names:
            raise BadInput(
                f"{site.name} is also new in the file: add it with a further --site {site.name!r}",
                code="consortium-changed",
            )
    if (before.name, before.server, before.data) != (now.name, now.server, now.data):
        raise BadInput(
            "the file's name, [server] or [data] changed, on which every site's folder depends: change [data] alone with "
            "`rounds provision agree`, and provision again for the others",
            code="consortium-changed",
        )


@contextlib.contextmanager
def _atomic_folder(out: Path) -> Iterator[Path]:
    """Provide a temporary folder that is renamed to `out` on success and removed on failure."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as e:
        raise BadInput(f"cannot create {out}: {e.strerror or e}; choose another --out", code="cannot-write") from None
    try:
        yield part
        if out.exists():
            out.rmdir()
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
