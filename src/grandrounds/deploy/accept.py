"""At a site: take a new key of the server, if the old one endorsed it, or renewed files that the server signed."""

from __future__ import annotations

from pathlib import Path

from grandrounds.deploy.files import read, write
from grandrounds.deploy.manifest import MANIFEST, SIGNATURE, check_manifest
from grandrounds.deploy.renewal import ENDORSED, NEXT, endorsed
from grandrounds.deploy.request import site_name
from grandrounds.errors import BadInput
from grandrounds.identity import load_public

_TAKEN = ("server.pub", "server-ca.pem", NEXT, ENDORSED, MANIFEST, SIGNATURE)


def accept(folder: Path, handed: Path) -> bool:
    """Replace the server's files in a site's folder by those that were handed over; gives whether its key is another now.

    Nothing is taken unless the key in `handed` is the one that the site knows, or that one signed for it.
    """
    if site_name(folder) != site_name(handed):
        raise BadInput(f"{handed} is the folder of {site_name(handed)!r}, this site is {site_name(folder)!r}")
    known, offered = load_public(folder / "server.pub"), load_public(handed / "server.pub")
    if offered != known and not _is_endorsed(known, offered, handed):
        raise BadInput(f"the server's key in {handed} is not signed for by the one this site knows: ask the operator")
    faults = check_manifest(handed, offered).faults
    if faults:
        raise BadInput(f"{handed} is not as the server signed it ({faults[0]}): nothing was taken")
    for name in _TAKEN:
        if (handed / name).exists():
            write(folder / name, read(handed / name))
    return offered != known


def _is_endorsed(known: bytes, offered: bytes, handed: Path) -> bool:
    if not (handed / NEXT).exists() or load_public(handed / NEXT) != offered:
        return False
    try:
        signature = bytes.fromhex(read(handed / ENDORSED).decode())
    except ValueError:
        return False
    return endorsed(known, offered, signature)
