"""At a site: take a new key of the server, if the old one endorsed it, and what the server signed: renewed files, other sites.

The server's signature alone does not make a list of sites true: it is the server that the list guards against. So whoever
takes one is shown what changed, and asked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from grandrounds.core.errors import BadInput
from grandrounds.deploy.files import read, write
from grandrounds.deploy.manifest import MANIFEST, SIGNATURE, check_manifest
from grandrounds.deploy.renewal import ENDORSED, NEXT, endorsed
from grandrounds.deploy.request import site_name
from grandrounds.protocol.identity import Identity, load_public
from grandrounds.protocol.peers import FILE as PEERS
from grandrounds.protocol.peers import Changes, Peers

_TAKEN = ("server.pub", "server-ca.pem", NEXT, ENDORSED, PEERS, MANIFEST, SIGNATURE)


def accept(folder: Path, handed: Path, agree: Callable[[Changes], bool]) -> bool | None:
    """Replace the server's files in a site's folder by those that were handed over; gives whether its key is another now.

    Nothing is taken unless the key in `handed` is the one that the site knows, or that one signed for it. `agree` is asked
    where the list of sites is another; None where it says no, and nothing was taken.
    """
    name = site_name(folder)
    if name != site_name(handed):
        raise BadInput(f"{handed} is the folder of {site_name(handed)!r}, this site is {name!r}")
    known, offered = load_public(folder / "server.pub"), load_public(handed / "server.pub")
    if offered != known and not _is_endorsed(known, offered, handed):
        raise BadInput(f"the server's key in {handed} is not signed for by the one this site knows: ask the operator")
    faults = check_manifest(handed, offered).faults
    if faults:
        raise BadInput(f"{handed} is not as the server signed it ({faults[0]}): nothing was taken")
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
        raise BadInput(f"{handed} has no {PEERS}: an operator with an older version wrote it, ask for a new one")
    offered = Peers.load(handed / PEERS).keys
    if offered.get(name) != Identity.load(folder / "keys" / "site.key").public:
        raise BadInput(
            f"{handed / PEERS} has another key for {name} than {folder / 'keys'}: if new keys were agreed on take them "
            "first (`rounds site rekey FOLDER --done`, or keys/ as the operator handed it over), else ask the operator"
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
    return endorsed(known, offered, signature)
