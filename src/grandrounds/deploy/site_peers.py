"""What a hospital's people see of its list of sites: fingerprints to compare, what is wrong with it, and who was refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from grandrounds.core.errors import BadInput
from grandrounds.deploy.manifest import MANIFEST, check_manifest
from grandrounds.keeper.access import FILE as STRANGERS
from grandrounds.keeper.access import RejectedPeer, RejectedPeers
from grandrounds.keeper.folder import SiteFolder
from grandrounds.keeper.policy.rules import TOLD, Policy
from grandrounds.protocol.peers import FILE, Peers, fingerprint

_SHOWN = 5
"""Refusals that are printed, the last ones."""


@dataclass(frozen=True)
class Looked:
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


def looked_at(folder: Path) -> Looked:
    """The list in a site's folder, held against its manifest, its own key and its policy."""
    site = SiteFolder(folder)
    name, found = site.name, site.peers()
    if found is None:
        raise BadInput(
            f"{folder} has no {FILE}: ask the operator for the folder again, and take it with `rounds site accept`"
        )
    refused = RejectedPeers(folder / "state" / STRANGERS).all()
    marks = {one: fingerprint(key) for one, key in sorted(found.keys.items())}
    return Looked(
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
