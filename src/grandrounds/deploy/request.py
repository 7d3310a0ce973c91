"""New keys that a site makes for itself: the private halves stay there, a signed request goes to the operator.

Keys that `rounds provision` makes have passed through the operator's hands. After this nobody else has ever held them.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.audit.canonical import canonical, loads
from grandrounds.audit.head import unhex
from grandrounds.core.errors import BadInput
from grandrounds.deploy.files import read, write
from grandrounds.deploy.keys import PublicKeys, make_keys, parse_node_key
from grandrounds.protocol.identity import Identity, signed_by

NEXT, VOID = "keys.next", "keys.void"
_SIGNED = b"grandrounds/rekey/1\x00"
_PARTS = {"site", "node", "key", "old", "new"}


@dataclass(frozen=True)
class KeyRequest:
    """A site's new public keys, signed by its old signing key and by the new one."""

    site: str
    keys: PublicKeys
    old: bytes
    new: bytes

    @classmethod
    def read(cls, path: Path) -> KeyRequest:
        """A request as `rekey` wrote it."""
        try:
            said = loads(read(path))
            if not isinstance(said, dict) or set(said) != _PARTS or not isinstance(said["site"], str):
                raise BadInput("is no request for new keys: `rounds site rekey` writes one")
            keys = PublicKeys(parse_node_key(said["node"]), unhex(said["key"], 32, "the key"))
            return cls(said["site"], keys, unhex(said["old"], 64, "a signature"), unhex(said["new"], 64, "a signature"))
        except BadInput as e:
            raise BadInput(f"{path}: {e}") from None

    def checked(self, site: str, old: PublicKeys) -> PublicKeys:
        """The new keys, if this site asked for them with the key that it has now."""
        text = _text(self.site, self.keys)
        if self.site != site:
            raise BadInput(f"the request is of {self.site!r}, not of {site!r}")
        if not signed_by(old.site, text, self.old) or not signed_by(self.keys.site, text, self.new):
            raise BadInput(f"the request is not signed by the keys of {site!r}: ask the site for a new one")
        return self.keys


def rekey(folder: Path) -> Path:
    """At a site: make new keys beside those in use; gives the request that goes to the operator."""
    name = site_name(folder)
    old = Identity.load(folder / "keys" / "site.key")
    keys = make_keys(folder / NEXT, name)
    new = Identity.load(folder / NEXT / "site.key")
    text = _text(name, keys)
    signed: dict[str, Any] = {"old": old.sign(text).hex(), "new": new.sign(text).hex()}
    path = folder / "request.json"
    write(path, canonical({"site": name, "node": keys.node, "key": keys.site.hex(), **signed}) + b"\n")
    return path


def take_new_keys(folder: Path) -> None:
    """At a site, once the operator has said that the new keys are on the list: use them from the next start on."""
    if not (folder / NEXT / "site.key").exists():
        raise BadInput(f"{folder} has no new keys: `rounds site rekey {folder}` makes them")
    if (folder / VOID).exists():
        raise BadInput(f"{folder / VOID} holds keys that are void: delete it first")
    (folder / "keys").rename(folder / VOID)
    (folder / NEXT).rename(folder / "keys")
    (folder / "request.json").unlink(missing_ok=True)


def site_name(folder: Path) -> str:
    """The name in a site's folder."""
    path = folder / "site.toml"
    try:
        name = tomllib.loads(read(path).decode())["name"]
    except (ValueError, KeyError):
        raise BadInput(f"{path} is damaged: it does not say the site's name") from None
    return str(name)


def _text(site: str, keys: PublicKeys) -> bytes:
    return _SIGNED + canonical({"site": site, "node": keys.node, "key": keys.site.hex()})
