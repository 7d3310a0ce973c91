"""Approve a site's request for keys: at the operator, after a person has compared the fingerprint with the site.

A request to join needs the code of the site's open invitation, which is used up by the approval. Every approval is an entry of
the consortium's record. A request that was read but not approved is kept in OUT/server/requests, so that a second one with
other keys is noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from grandrounds.capabilities.hospital.deploy import records
from grandrounds.capabilities.hospital.deploy.files import make_folder
from grandrounds.capabilities.hospital.deploy.folders import Folders, hand_over_sites, make_site
from grandrounds.capabilities.hospital.deploy.invitations import Invitation
from grandrounds.capabilities.hospital.deploy.key_requests import KeyRequest
from grandrounds.capabilities.hospital.deploy.renewal import check_request, rotate, verify_rotation
from grandrounds.core.errors import BadInput
from grandrounds.core.names import folder_name


@dataclass(frozen=True)
class Approval:
    """An approved request; `repeated` if the site takes part with these keys already."""

    request: KeyRequest
    repeated: bool = False


def approve(
    out: Path,
    path: Path,
    confirm: Callable[[KeyRequest], bool],
    *,
    fingerprint: str | None = None,
    now: datetime | None = None,
) -> Approval | None:
    """Register the public keys of a site that asked for it, and update all folders.

    Args:
        out: The provisioned folder.
        path: The site's request.json.
        confirm: Asks a person whether the site read out the same fingerprint; not called with `fingerprint`.
        fingerprint: The fingerprint that the site read out.
        now: The time; the current one by default.

    Returns:
        The approval; None if the person did not confirm, and nothing was registered.

    Raises:
        BadInput: The request was changed, is not for this consortium, has another fingerprint or a code that is not valid, or
            another request of the same site waits.
    """
    folders = Folders.open(out)
    request = KeyRequest.read(path)
    check_request(folders, request)
    if fingerprint is not None and _digits(fingerprint) != _digits(request.fingerprint):
        raise BadInput(
            f"the request of {request.site} has the fingerprint {request.fingerprint}, not {fingerprint}: it is not the one "
            "that the site made",
            code="wrong-fingerprint",
        )
    state = records.consortium_state(folders.record)
    if state.sites.get(request.site) == request.keys.fingerprints:
        _register(folders, request)  # an interrupted approval is finished
        return Approval(request, repeated=True)
    if not request.is_join:
        verify_rotation(folders, request)
        if fingerprint is None and not confirm(request):
            return None
        rotate(out, request.site, request=path)
        return Approval(request)
    invitation = _open_invitation(folders, request, state, now)
    _refuse_second(folders, request, confirmed=fingerprint is not None)
    make_folder(folders.request(request.site).parent)
    request.save(folders.request(request.site))
    if fingerprint is None and not confirm(request):
        return None
    facts = {"sites": {request.site: request.keys.fingerprints}, "made": records.BY_SITE}
    request.keys.save(folders.server, folder_name(request.site))
    records.append_entry(
        folders.record,
        request.consortium,
        folders.identity(),
        records.JOINED,
        **facts,
        code=invitation.facts["code"],
    )
    _register(folders, request)
    return Approval(request)


def _register(folders: Folders, request: KeyRequest) -> None:
    """Write the keys to the server's lists, use the invitation up, and hand the new list to all sites."""
    consortium = folders.consortium()
    request.keys.save(folders.server, folder_name(request.site))
    invitation = folders.invitation(request.site)
    if invitation.exists() and Invitation.load(invitation).is_proof(request.text, request.code):
        folders.close_invitation(request.site)
    if not (folders.site(request.site) / "site.toml").exists():  # an operator may delete folders after the handover
        make_site(folders, consortium, consortium.site(request.site))
    hand_over_sites(folders, consortium.name)


def _open_invitation(
    folders: Folders, request: KeyRequest, state: records.ConsortiumState, now: datetime | None
) -> Invitation:
    """Find the invitation whose code the request proves."""
    site = request.site
    if not folders.is_invited(site):
        if site in state.withdrawn:
            raise BadInput(
                f"{site} has withdrawn: `rounds provision invite OUT {site!r}` invites it again", code="site-withdrawn"
            )
        raise BadInput(
            f"the code of this request was used: {site} takes part with other keys; if {site} did not ask for those, withdraw "
            "it (`rounds provision withdraw`), else invite it again (`rounds provision invite`)",
            code="code-used",
        )
    invitation = Invitation.load(folders.invitation(site))
    if not invitation.is_proof(request.text, request.code):
        raise BadInput(
            f"the request does not have the code of the invitation of {site}: it was made with an earlier folder, or by "
            "somebody else; send the site its folder and ask for a new request",
            code="wrong-code",
        )
    if invitation.is_over(now):
        raise BadInput(
            f"the invitation of {site} was valid until {invitation.ends:%Y-%m-%d}: `rounds provision invite OUT {site!r}` makes "
            "a new one, with which the site asks again",
            code="invitation-over",
        )
    return invitation


def _refuse_second(folders: Folders, request: KeyRequest, *, confirmed: bool) -> None:
    """Refuse a second request with other keys, unless the operator gives the fingerprint that the site read out."""
    waiting = folders.request(request.site)
    if not waiting.exists() or confirmed:
        return
    first = KeyRequest.read(waiting)
    if first.keys != request.keys:
        raise BadInput(
            f"there are two requests of {request.site}: {first.fingerprint} was read first, and this one has "
            f"{request.fingerprint}; ask the site which is its own, and approve that one with --fingerprint",
            code="two-requests",
        )


def _digits(fingerprint: str) -> str:
    return "".join(fingerprint.split()).lower()
