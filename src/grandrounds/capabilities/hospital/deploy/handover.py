"""At a site: accept an updated folder, and show its list of peers with fingerprints to compare.

The list of sites protects against the server, so the server's signature alone is not sufficient. The changes are shown, and
a person must confirm them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.capabilities.hospital.deploy.files import read, write, write_private
from grandrounds.capabilities.hospital.deploy.invitations import FILE as INVITATION
from grandrounds.capabilities.hospital.deploy.keys import site_name
from grandrounds.capabilities.hospital.deploy.manifest import MANIFEST, REQUEST, SIGNATURE, check_manifest
from grandrounds.capabilities.hospital.deploy.renewal import ENDORSED, NEXT, is_endorsed
from grandrounds.capabilities.hospital.keeper.access import FILE as STRANGERS
from grandrounds.capabilities.hospital.keeper.access import RejectedPeer, RejectedPeers
from grandrounds.capabilities.hospital.keeper.folder import SiteFolder
from grandrounds.capabilities.hospital.keeper.policy.rules import TOLD, Policy
from grandrounds.capabilities.sources.cohort.plan_cohort import (
    COHORT_FILE,
    compare_cohorts,
    compare_values,
    read_file_cohort,
)
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import Identity, load_public
from grandrounds.protocol.peers import FILE, Changes, Peers, fingerprint
from grandrounds.protocol.peers import FILE as PEERS

_DATA_FILES = ("schema.json", COHORT_FILE)
_SERVER_FILES = ("server.pub", "server-ca.pem", NEXT, ENDORSED, PEERS, MANIFEST, SIGNATURE)


def accept(
    folder: Path,
    handed: Path,
    agree: Callable[[Changes], bool],
    agree_data: Callable[[Sequence[str]], bool] = lambda lines: False,
) -> bool | None:
    """Replace the server's files in a site's folder by those that were handed over.

    Nothing is changed unless the server key in `handed` is the known one, or is signed by it.

    Args:
        folder: The site's folder.
        handed: The folder that the operator handed over.
        agree: Asks a person to confirm changes of the list of sites.
        agree_data: Asks a person to confirm changes of the agreed data, one line for each: the cohort and the columns.

    Returns:
        True if the server's key changed; None if the person did not confirm, and nothing was changed.

    Raises:
        BadInput: The folder belongs to another site, was changed, or has a key that is not endorsed.
    """
    name = site_name(folder)
    if name != site_name(handed):
        raise BadInput(f"{handed} is the folder of {site_name(handed)!r}, but this site is {name!r}", code="wrong-site")
    trusted, offered = load_public(folder / "server.pub"), load_public(handed / "server.pub")
    if offered != trusted and not _is_endorsed(trusted, offered, handed):
        raise BadInput(
            f"the server's key in {handed} is not signed by the one that this site knows: ask the operator",
            code="untrusted-key",
        )
    faults = check_manifest(handed, offered).faults
    if faults:
        raise BadInput(
            f"{handed} is not as the server signed it ({faults[0]}): nothing was changed", code="folder-changed"
        )
    changes = _changes(folder, handed, name)
    data_changes = compare_agreements(folder, handed)
    if changes and not agree(changes):
        return None
    if data_changes and not agree_data(data_changes):
        return None
    for file in _DATA_FILES:
        if (folder / file).exists() and not (handed / file).exists():
            (folder / file).unlink()
    for file in (*_DATA_FILES, *_SERVER_FILES):
        if (handed / file).exists():
            write(folder / file, read(handed / file))
    if (handed / INVITATION).exists():
        write_private(folder / INVITATION, read(handed / INVITATION))
    elif (folder / INVITATION).exists():  # used: the site has joined
        (folder / INVITATION).unlink()
        (folder / REQUEST).unlink(missing_ok=True)
    return offered != trusted


def compare_agreements(folder: Path, handed: Path) -> list[str]:
    """List the changes of the agreed data between two folders of a site: the cohort, and columns of the schema.

    Raises:
        BadInput: A cohort of the folder that was handed over is damaged.
    """
    if all(_content(folder / file) == _content(handed / file) for file in _DATA_FILES):
        return []
    offered = read_file_cohort(handed / COHORT_FILE) if (handed / COHORT_FILE).exists() else None
    try:
        before = read_file_cohort(folder / COHORT_FILE) if (folder / COHORT_FILE).exists() else None
    except BadInput:  # damaged: then the whole cohort is new
        before = None
    lines = compare_cohorts(before, offered)
    digests = [f"digest of the cohort: {offered.digest()}"] if lines and offered is not None else []
    return [*lines, *digests, *compare_values(_plain(folder), _plain(handed))]


def refuse_changed_cohort(folder: Path) -> None:
    """Refuse a site's folder whose cohort is not the one that the server signed.

    Raises:
        BadInput: cohort.json was changed, or is not in the signed manifest.
    """
    if not (folder / COHORT_FILE).exists():
        return
    if {COHORT_FILE, MANIFEST} & check_manifest(folder).differing.keys():
        raise BadInput(
            f"{folder / COHORT_FILE} is not as the server signed it: take it from the operator's folder again, and accept that "
            "with `rounds site accept`",
            code="folder-changed",
        )


def _content(file: Path) -> bytes | None:
    return read(file) if file.exists() else None


def _plain(folder: Path) -> Mapping[str, Any]:
    """Read schema.json without its cohort; empty where there is none or it is damaged."""
    try:
        plain = json.loads(read(folder / "schema.json"))
    except (BadInput, ValueError):
        return {}
    return {k: v for k, v in plain.items() if k != "cohort"} if isinstance(plain, dict) else {}


def _changes(folder: Path, handed: Path, name: str) -> Changes:
    """Compare the site's own list with the offered one, which must contain this site's own key."""
    if not (folder / "keys" / "site.key").exists():
        raise BadInput(f"{folder} has no keys yet: `rounds site join {folder}` makes them", code="no-keys")
    offered = Peers.load(handed / PEERS).keys
    if name not in offered:
        raise BadInput(
            f"{handed} does not list {name} yet: the operator must approve {folder / REQUEST} first, and then send the folder "
            "again",
            code="not-approved",
        )
    if offered[name] != Identity.load(folder / "keys" / "site.key").public:
        raise BadInput(
            f"{handed / PEERS} has another key for {name} than {folder / 'keys'}: if new keys were agreed on, use them "
            "first (`rounds site rekey FOLDER --done`, or keys/ from the operator), else ask the operator",
            code="wrong-key",
        )
    try:
        before = Peers.load(folder / PEERS).keys
    except BadInput:  # missing or damaged: then the whole list is new
        before = {}
    return Changes.between(before, offered)


def _is_endorsed(trusted: bytes, offered: bytes, handed: Path) -> bool:
    if not (handed / NEXT).exists() or load_public(handed / NEXT) != offered:
        return False
    try:
        signature = bytes.fromhex(read(handed / ENDORSED).decode())
    except ValueError:
        return False
    return is_endorsed(trusted, offered, signature)


_SHOWN = 5
"""Number of refusals that are printed, the last ones."""


@dataclass(frozen=True)
class PeerList:
    """A site's list of peers. `sites` has fingerprints by name; `list` is the fingerprint of the whole list."""

    site: str
    sites: Mapping[str, str]
    list: str
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    refused: tuple[RejectedPeer, ...]

    def lines(self) -> Iterator[str]:
        """Format the list as lines."""
        wide = max(len(name) for name in (*self.sites, "the whole list"))
        for name, mark in self.sites.items():
            yield f"{name:{wide}}  {mark}{'  (this site)' if name == self.site else ''}"
        yield f"{'the whole list':{wide}}  {self.list}"
        yield from (f"FOUND  {fault}" for fault in self.faults)
        yield from (f"note: {note}" for note in self.notes)
        yield from (f"refused {one.time} in run {one.run}: {one.description} ({one.code})" for one in self.refused[-_SHOWN:])


def inspect_peers(folder: Path) -> PeerList:
    """Compare the list in a site's folder with its manifest, its own key and its policy.

    Returns:
        The list, with problems and refusals.

    Raises:
        BadInput: The folder has no list.
    """
    site = SiteFolder(folder)
    name, peers = site.name, site.peers()
    if peers is None:
        raise BadInput(
            f"{folder} has no {FILE}: ask the operator for the folder again, and accept it with `rounds site accept`",
            code="outdated-folder",
        )
    refused = RejectedPeers(folder / "state" / STRANGERS).all()
    marks = {one: fingerprint(key) for one, key in sorted(peers.keys.items())}
    return PeerList(
        name,
        marks,
        peers.fingerprint,
        tuple(_faults(site, peers, name)),
        tuple(_notes(peers, site.policy())),
        tuple(refused),
    )


def _faults(site: SiteFolder, peers: Peers, name: str) -> Iterator[str]:
    differing = check_manifest(site.path).differing
    yield from (f"{differing[n]}: accept the list again with `rounds site accept`" for n in (FILE, MANIFEST) if n in differing)
    public_key = site.identity().public
    if peers.keys.get(name) != public_key:
        yield (
            f"{FILE} has another key for this site than its own, {fingerprint(public_key)}: secure aggregation is refused "
            "until `rounds site accept` accepts a list with it"
        )


def _notes(peers: Peers, policy: Policy) -> Iterator[str]:
    if policy.secure.peers == TOLD:
        yield 'secure.peers is "told" in policy.toml: the server names the other sites, and this list is not used'
    if len(peers.keys) < policy.secure.fewest:
        yield (
            f"{len(peers.keys)} sites, but secure.fewest is {policy.secure.fewest}: this site takes no part in secure aggregation"
            + (" (in a sum of two each learns the other's values)" if policy.secure.fewest == 3 else "")
        )
