"""Renew, rotate, revoke and withdraw keys and certificates, and invite sites again.

Each action is an entry of the consortium's record.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

from grandrounds.capabilities.hospital.deploy import records
from grandrounds.capabilities.hospital.deploy.consortium import check_name, fold_name
from grandrounds.capabilities.hospital.deploy.files import write
from grandrounds.capabilities.hospital.deploy.folders import (
    FIRST_OPERATOR,
    Folders,
    hand_over_operator,
    hand_over_operators,
    hand_over_sites,
    make_operator,
    make_site,
    make_site_keys,
    operator_folders,
    renew_operator,
    renew_services,
)
from grandrounds.capabilities.hospital.deploy.invitations import DAYS, Invitation
from grandrounds.capabilities.hospital.deploy.key_requests import KeyRequest
from grandrounds.capabilities.hospital.deploy.keys import PublicKeys, fingerprint
from grandrounds.capabilities.hospital.deploy.pki import (
    IssuedCertificate,
    common_name,
    load_certificate,
    read_revocations,
    revocation_list,
)
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.names import folder_name
from grandrounds.protocol.identity import Identity, load_public, public_pem, signed_by

NEXT, ENDORSED = "server.pub.next", "server.pub.next.sig"
_ROTATED = b"grandrounds/server-key/1\x00"


def renew(out: Path) -> dict[str, str]:
    """Issue new certificates for SuperLink, gateway and every operator that is not revoked.

    Authorities and keys of sites do not change, so sites need nothing. Operators are handed their folders again.

    Returns:
        Serial numbers by name.
    """
    folders = _with_tls(out)
    consortium, revoked = folders.consortium(), read_revocations(folders.crl)
    services = renew_services(folders, consortium)
    operators = {}
    for folder in operator_folders(folders).values():
        old = load_certificate(folder / "operator.pem")
        if old.serial_number not in revoked:
            name = common_name(old)
            operators[name] = renew_operator(folders, consortium, name)
            hand_over_operator(folders, name)
    _record(folders, records.RENEWED, services=services, operators=operators)
    return {**services, **operators}


def rotate(out: Path, name: str, *, request: Path | None = None) -> PublicKeys:
    """Give a site new keys; the old ones are void, and every folder gets the new public key.

    Args:
        out: The provisioned folder.
        name: The site.
        request: The site's own request (`rounds site rekey`), with which its private keys never leave it. Without it the
            keys are made here, and its folder must be handed over again.

    Returns:
        The new public keys.

    Raises:
        BadInput: The site has withdrawn, or its request does not verify.
    """
    folders = Folders.open(out)
    site, consortium = _member(folders, name), folders.consortium()
    if request is not None:
        asked = KeyRequest.read(request)
        if asked.site != site:
            raise BadInput(f"the request is from {asked.site!r}, not from {site!r}", code="wrong-site")
        check_request(folders, asked)
        keys = verify_rotation(folders, asked)
        shutil.rmtree(folders.site(site) / "keys", ignore_errors=True)  # void, and no longer used here
        keys.save(folders.server, folder_name(site))
    else:
        if not (folders.site(site) / "site.toml").exists():  # an operator may delete folders after the handover
            make_site(folders, consortium, consortium.site(site))
        keys = make_site_keys(folders, consortium.site(site))
    made = records.BY_OPERATOR if request is None else records.BY_SITE
    _record(folders, records.ROTATED, sites={site: keys.fingerprints}, made=made)
    folders.close_invitation(site)
    hand_over_sites(folders, consortium.name)
    return keys


def verify_rotation(folders: Folders, request: KeyRequest) -> PublicKeys:
    """Verify that a site requested other keys with its key in use.

    Returns:
        The new keys.

    Raises:
        BadInput: The site does not take part, or the request was not signed by its key in use.
    """
    site = _member(folders, request.site)
    if not request.is_signed_by(load_public(folders.site_key(site))):
        raise BadInput(
            f"the request is not signed by the key of {site!r} in use: ask the site for a new one, or invite it again "
            "if its keys are lost (`rounds provision invite`)",
            code="wrong-signature",
        )
    return request.keys


def check_request(folders: Folders, request: KeyRequest) -> None:
    """Check that a request is for this consortium, and that no other site has its keys.

    Raises:
        BadInput: It is for another consortium, or another site has one of the keys.
    """
    consortium = folders.consortium()
    if request.consortium != consortium.name:
        raise BadInput(
            f"the request is for the consortium {request.consortium!r}, and this is {consortium.name!r}",
            code="wrong-consortium",
        )
    site = consortium.site(request.site)
    for name in folders.members():
        other = PublicKeys.load(folders.server, folder_name(name))
        same_node = fingerprint(other.node) == fingerprint(request.keys.node)
        if name != site.name and (same_node or other.site == request.keys.site):
            raise BadInput(
                f"{name} has the keys with which {site.name} asks: every site makes its own, with `rounds site join` in its "
                "own folder",
                code="repeated-key",
            )


def invite(out: Path, name: str, *, days: int = DAYS) -> Invitation:
    """Invite a site again: its invitation is over, its keys are lost, or it had withdrawn. An earlier code is void.

    A site that takes part keeps its keys until its request is approved.

    Returns:
        The invitation.

    Raises:
        BadInput: There is no such site, or the operator made its keys and its folder here has them.
    """
    folders = Folders.open(out)
    consortium = folders.consortium()
    site = consortium.site(name)
    if (folders.site(name) / "keys").exists():
        if folders.node_key(name).exists():
            raise BadInput(
                f"{folders.site(name)} has private keys, made by the operator: let {name} replace them with `rounds site "
                "rekey`; if they are lost at the site, delete keys/ here and invite again",
                code="operator-keys",
            )
        shutil.rmtree(folders.site(name))  # of a site that withdrew
    if not (folders.site(name) / "site.toml").exists():
        make_site(folders, consortium, site)
    invitation = Invitation.new(consortium.name, name, days=days)
    folders.request(name).unlink(missing_ok=True)
    invitation.save(folders.invitation(name))
    hand_over_sites(folders, consortium.name)
    _record(folders, records.INVITED, invited={name: invitation.facts})
    return invitation


def rotate_server(out: Path) -> bytes:
    """Make a new signing key of the server, endorsed by the old one; every folder gets both and is signed again.

    A site with the old server.pub accepts the new one only with the old one's signature (`is_endorsed`).

    Returns:
        The new public key.
    """
    folders = Folders.open(out)
    old, waiting = folders.identity(), folders.server / "server.key.next"
    if not waiting.exists():
        Identity.new().save(waiting)
    new = Identity.load(waiting)  # on disk before the record names it: a crash in between loses nothing
    endorsement = old.sign(_ROTATED + new.public)
    last = records.last_entry(folders.record)
    if last.get("new") != new.public.hex():
        facts = {"old": old.public.hex(), "new": new.public.hex(), "endorsement": endorsement.hex()}
        _record(folders, records.SERVER_ROTATED, **facts)
    waiting.replace(folders.server / "server.key")
    write(folders.server / "server.pub", public_pem(new.public))
    for folder in (folders.server, *(folders.site(name) for name in folders.recipients())):
        write(folder / NEXT, public_pem(new.public))
        write(folder / ENDORSED, endorsement.hex() + "\n")
    hand_over_sites(folders, folders.consortium().name)
    hand_over_operators(folders)
    return new.public


def is_endorsed(old: bytes, new: bytes, endorsement: bytes) -> bool:
    """Check that the owner of the old server key signed the new one."""
    return signed_by(old, _ROTATED + new, endorsement)


def add_operator(out: Path, name: str) -> Path:
    """Add an operator with its own certificate.

    Returns:
        The folder to hand over.

    Raises:
        BadInput: There is an operator of this name.
    """
    folders = _with_tls(out)
    check_name(name, "the operator")
    names = {fold_name(common_name(load_certificate(f / "operator.pem"))) for f in operator_folders(folders).values()}
    if fold_name(name) in names or fold_name(name) == FIRST_OPERATOR:
        raise BadInput(
            f"there is already an operator {name!r}: choose another name",
            code="duplicate-operator",
        )
    serial = make_operator(folders, folders.consortium(), name)
    _record(folders, records.OPERATOR, operators={name: serial})
    return folders.operator(name)


def revoke_operator(out: Path, who: str) -> str:
    """Add an operator's certificates to the gateway's revocation list.

    A name revokes all certificates ever issued to the operator, since an earlier one may still be valid.

    Args:
        out: The provisioned folder.
        who: A name, or one serial number.

    Returns:
        The revoked serial numbers.

    Raises:
        BadInput: There is no such operator, or it is already revoked.
    """
    folders = _with_tls(out)
    serials = _serials(folders, who)
    revoked = read_revocations(folders.crl)
    new = [s for s in serials if int(s, 16) not in revoked]
    if not new:
        raise BadInput(f"{who} is already revoked", code="already-revoked")
    now = datetime.now(UTC).replace(microsecond=0)
    for serial in new:
        revoked[int(serial, 16)] = now
        _record(folders, records.REVOKED, serial=serial, operator=serials[serial])
    write(folders.crl, revocation_list(IssuedCertificate.load(folders.pki, "operator-ca"), revoked))
    return ", ".join(new)


def withdraw(out: Path, name: str) -> None:
    """Remove a site's keys from all lists: its node is refused, and its Answers are not accepted. An invitation is void."""
    folders = Folders.open(out)
    site = folders.consortium().site(name).name
    if not folders.is_invited(site):
        _member(folders, site)
    _record(folders, records.WITHDRAWN, site=site)
    folders.close_invitation(site)
    folders.node_key(site).unlink(missing_ok=True)
    folders.site_key(site).unlink(missing_ok=True)
    hand_over_sites(folders, folders.consortium().name)


def _serials(folders: Folders, who: str) -> dict[str, str]:
    """Find serial numbers in the record, with their holders: all of an operator, or a single one."""
    issued = records.consortium_state(folders.record).issued
    digits = who.replace(":", "").upper().lstrip("0")  # some programs print a serial number without its leading zeros
    matches = {s: n for s, n in issued.items() if n == who or s.lstrip("0") == digits}
    if not matches:
        raise BadInput(
            f"no operator or certificate {who!r} is in the record; {nearest(who, dict.fromkeys(issued.values()))}",
            code="unknown-operator",
        )
    return matches


def _member(folders: Folders, name: str) -> str:
    """Check that a site takes part now; returns its name."""
    site = folders.consortium().site(name).name
    if folders.is_invited(site) and not folders.node_key(site).exists():
        raise BadInput(
            f"{site} has not joined yet: it asks with `rounds site join`, and `rounds provision approve` registers its keys",
            code="not-joined",
        )
    if not folders.node_key(site).exists():
        raise BadInput(
            f"{site} has withdrawn: `rounds provision invite OUT {site!r}` invites it again", code="site-withdrawn"
        )
    return site


def _with_tls(out: Path) -> Folders:
    folders = Folders.open(out)
    if folders.insecure:
        raise BadInput(
            f"{out} was provisioned with --insecure-loopback: it has no certificates", code="no-certificates"
        )
    return folders


def _record(folders: Folders, kind: str, **facts: object) -> None:
    records.append_entry(folders.record, folders.consortium().name, folders.identity(), kind, **facts)
