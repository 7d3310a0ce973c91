"""At a site: accept a folder that was handed over again, and show its list of peers with fingerprints to compare.

The server's signature alone does not make a list of sites true: it is the server that the list guards against. So whoever
takes one is shown what changed, and asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from grandrounds.core.errors import BadInput
from grandrounds.deploy.files import read, write
from grandrounds.deploy.keys import site_name
from grandrounds.deploy.manifest import MANIFEST, SIGNATURE, check_manifest
from grandrounds.deploy.renewal import ENDORSED, NEXT, is_endorsed
from grandrounds.keeper.access import FILE as STRANGERS
from grandrounds.keeper.access import RejectedPeer, RejectedPeers
from grandrounds.keeper.folder import SiteFolder
from grandrounds.keeper.policy.rules import TOLD, Policy
from grandrounds.protocol.identity import Identity, load_public
from grandrounds.protocol.peers import FILE, Changes, Peers, fingerprint
from grandrounds.protocol.peers import FILE as PEERS

_TAKEN = ("server.pub", "server-ca.pem", NEXT, ENDORSED, PEERS, MANIFEST, SIGNATURE)


def accept(folder: Path, handed: Path, agree: Callable[[Changes], bool]) -> bool | None:
    """Replace the server's files in a site's folder by those that were handed over; gives whether its key is another now.

    Nothing is taken unless the key in `handed` is the one that the site knows, or that one signed for it. `agree` is asked
    where the list of sites is another; None where it says no, and nothing was taken.
    """
    name = site_name(folder)
    if name != site_name(handed):
        raise BadInput(f"{handed} is the folder of {site_name(handed)!r}, this site is {name!r}", code="wrong-site")
    known, offered = load_public(folder / "server.pub"), load_public(handed / "server.pub")
    if offered != known and not _is_endorsed(known, offered, handed):
        raise BadInput(
            f"the server's key in {handed} is not signed for by the one this site knows: ask the operator",
            code="untrusted-key",
        )
    faults = check_manifest(handed, offered).faults
    if faults:
        raise BadInput(
            f"{handed} is not as the server signed it ({faults[0]}): nothing was taken", code="folder-changed"
        )
    changes = _changes(folder, handed, name)
    if changes and not agree(changes):
        return None
    for file in _TAKEN:
        if (handed / file).exists():
            write(folder / file, read(handed / file))
    return offered != known


def _changes(folder: Path, handed: Path, name: str) -> Changes:
    """From the site's own list to the one that is offered, which must have this site's own key."""
    if not (handed / PEERS).exists():
        raise BadInput(
            f"{handed} has no {PEERS}: an operator with an older version wrote it, ask for a new one",
            code="outdated-folder",
        )
    offered = Peers.load(handed / PEERS).keys
    if offered.get(name) != Identity.load(folder / "keys" / "site.key").public:
        raise BadInput(
            f"{handed / PEERS} has another key for {name} than {folder / 'keys'}: if new keys were agreed on take them "
            "first (`rounds site rekey FOLDER --done`, or keys/ as the operator handed it over), else ask the operator",
            code="wrong-key",
        )
    try:
        before = Peers.load(folder / PEERS).keys
    except BadInput:  # none yet, or a damaged one: all of it is new then
        before = {}
    return Changes.between(before, offered)


def _is_endorsed(known: bytes, offered: bytes, handed: Path) -> bool:
    if not (handed / NEXT).exists() or load_public(handed / NEXT) != offered:
        return False
    try:
        signature = bytes.fromhex(read(handed / ENDORSED).decode())
    except ValueError:
        return False
    return is_endorsed(known, offered, signature)


_SHOWN = 5
"""Refusals that are printed, the last ones."""


@dataclass(frozen=True)
class PeerList:
    """A site's list. `sites`: fingerprints by name; `list`: that of all of it."""

    site: str
    sites: Mapping[str, str]
    list: str
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    refused: tuple[RejectedPeer, ...]

    def lines(self) -> Iterator[str]:
        """For people."""
        wide = max(len(name) for name in (*self.sites, "the whole list"))
        for name, mark in self.sites.items():
            yield f"{name:{wide}}  {mark}{'  (this site)' if name == self.site else ''}"
        yield f"{'the whole list':{wide}}  {self.list}"
        yield from (f"FOUND  {fault}" for fault in self.faults)
        yield from (f"note: {note}" for note in self.notes)
        yield from (f"refused {one.at} in run {one.run}: {one.what} ({one.code})" for one in self.refused[-_SHOWN:])


def inspect_peers(folder: Path) -> PeerList:
    """The list in a site's folder, held against its manifest, its own key and its policy."""
    site = SiteFolder(folder)
    name, found = site.name, site.peers()
    if found is None:
        raise BadInput(
            f"{folder} has no {FILE}: ask the operator for the folder again, and take it with `rounds site accept`",
            code="outdated-folder",
        )
    refused = RejectedPeers(folder / "state" / STRANGERS).all()
    marks = {one: fingerprint(key) for one, key in sorted(found.keys.items())}
    return PeerList(
        name,
        marks,
        found.fingerprint,
        tuple(_faults(site, found, name)),
        tuple(_notes(found, site.policy())),
        tuple(refused),
    )


def _faults(site: SiteFolder, found: Peers, name: str) -> Iterator[str]:
    checked = check_manifest(site.path)
    for fault in checked.faults:
        if fault.startswith((FILE, MANIFEST)):
            yield f"{fault}: take the list again with `rounds site accept`"
    if any(FILE in note for note in checked.notes):
        yield f"{FILE} is not one that the server signed: take it again with `rounds site accept`"
    own = site.identity().public
    if found.keys.get(name) != own:
        yield (
            f"{FILE} has another key for this site than its own, {fingerprint(own)}: secure sums are refused until "
            "`rounds site accept` took a list with it"
        )


def _notes(found: Peers, policy: Policy) -> Iterator[str]:
    if policy.secure.peers == TOLD:
        yield 'secure.peers is "told" in policy.toml: the server says who the others are, and this list is not looked at'
    if len(found.keys) < policy.secure.fewest:
        yield (
            f"{len(found.keys)} sites, and secure.fewest is {policy.secure.fewest}: no secure sum is taken part in"
            + (" (a sum of two tells each the other's values)" if policy.secure.fewest == 3 else "")
        )
