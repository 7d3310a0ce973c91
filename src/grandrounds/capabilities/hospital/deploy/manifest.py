"""Manifest of a folder that is handed over: the SHA-256 of each file, signed by the server's key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grandrounds.audit.canonical import canonical, parse
from grandrounds.capabilities.hospital.deploy.files import read, write
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import Identity, load_public, signed_by

MANIFEST, SIGNATURE, SCHEMA = "manifest.json", "manifest.sig", 1
SITE_FILES = ("policy.toml", "site.toml", "keys/")
"""Files that a site may change in its folder; a change is noted but is no fault."""

REQUEST = "request.json"
"""A site's request for keys, which the site writes into its folder and the server does not sign."""

_SIGNED = b"grandrounds/manifest/1\x00"


@dataclass(frozen=True)
class ManifestCheck:
    """Faults and notes of a folder.

    Attributes:
        where: The folder.
        faults: Differences from the manifest, a sentence each.
        notes: Further remarks; files that are not in the manifest, the first five by name.
        differing: The difference of each file that is missing, changed or not in the manifest and that the site may not change.
    """

    where: str
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    differing: Mapping[str, str] = field(default_factory=dict)


def write_manifest(folder: Path, identity: Identity, **facts: Any) -> None:
    """Write manifest.json over all files in the folder, and its signature."""
    names = sorted(set(_files(folder)) - {MANIFEST, SIGNATURE, REQUEST})
    files = {name: _digest(folder / name) for name in names}
    body = canonical({"schema": SCHEMA, "server": identity.public.hex(), "files": files, **facts})
    write(folder / MANIFEST, body)
    write(folder / SIGNATURE, identity.sign(_SIGNED + body).hex() + "\n")


def check_manifest(folder: Path, key: bytes | None = None) -> ManifestCheck:
    """Compare a folder with its manifest. Without a key the folder's own server.pub is used, which proves less.

    Raises:
        BadInput: The folder has no manifest.
    """
    where = str(folder)
    if not (folder / MANIFEST).exists():
        raise BadInput(
            f"{folder} has no {MANIFEST}: give a folder that `rounds provision` wrote", code="not-provisioned"
        )
    notes = []
    if key is None:
        key = load_public(folder / "server.pub")
        notes.append(
            "the key is the folder's own: whoever can change the folder can change the key (give --key)"
        )
    if not check_signature(folder, key):
        fault = f"{MANIFEST} is not signed by this server"
        return ManifestCheck(where, (fault,), tuple(notes), {MANIFEST: fault})
    listed = parse(read(folder / MANIFEST))["files"]
    present = set(_files(folder)) - {MANIFEST, SIGNATURE}
    changed = {name: _fault(folder, name, digest) for name, digest in listed.items()}
    faults = {name: f"{name} {fault}" for name, fault in changed.items() if fault and not name.startswith(SITE_FILES)}
    notes += [f"{name} {fault}: the site may change it" for name, fault in changed.items() if fault and name not in faults]
    more = sorted(name for name in present - set(listed) if name != REQUEST and not name.startswith(SITE_FILES))
    if more:
        notes.append(f"not in the manifest: {', '.join(more[:5])}{' ...' if len(more) > 5 else ''}")
    unlisted = {name: f"{name} is not in the manifest" for name in more}
    return ManifestCheck(where, tuple(faults.values()), tuple(notes), {**faults, **unlisted})


def check_signature(folder: Path, key: bytes) -> bool:
    """Check that the owner of this key signed the folder's manifest."""
    try:
        signature = bytes.fromhex(read(folder / SIGNATURE).decode())
        return signed_by(key, _SIGNED + read(folder / MANIFEST), signature)
    except (ValueError, BadInput):
        return False


def _fault(folder: Path, name: str, digest: str) -> str:
    path = folder / name
    if path.is_symlink() or not path.is_file():
        return "is missing"
    return "" if _digest(path) == digest else "was changed"


def _files(folder: Path) -> list[str]:
    return [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() or p.is_symlink()]


def _digest(path: Path) -> str:
    return hashlib.sha256(read(path)).hexdigest()
