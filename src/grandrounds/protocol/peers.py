"""List of a consortium's sites, `peers.json`: each site's name and public signing key.

`rounds provision` writes the list into every site's folder. People compare it, for example by telephone: a list that only
the server vouches for would not protect from the server.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import PUBLIC_BYTES, is_weak, load_public

FILE, SCHEMA = "peers.json", 1
_BYTES = 20
"""Length of a fingerprint in bytes: 160 bits of a SHA-256, so that collisions cannot be found."""


def fingerprint(data: bytes) -> str:
    """Return a fingerprint to read out: ten groups of four hexadecimal digits, the beginning of the SHA-256."""
    digits = hashlib.sha256(data).hexdigest()[: 2 * _BYTES]
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


@dataclass(frozen=True)
class Peers:
    """Public key of each site, this one included."""

    keys: Mapping[str, bytes]

    @classmethod
    def load(cls, path: Path) -> Peers:
        """Load the list of sites from a file.

        Args:
            path: `peers.json`.

        Returns:
            The list.

        Raises:
            BadInput: The file cannot be read, or is not in the format that `text` writes.
        """
        try:
            content = json.loads(path.read_text("utf-8"))
            keys = {str(name): bytes.fromhex(key) for name, key in content["sites"].items()}
            fits = content["schema"] == SCHEMA and all(len(key) == PUBLIC_BYTES for key in keys.values())
        except OSError as e:
            raise BadInput(
                f"the list of sites {path} cannot be read: {e.strerror or e}", code="cannot-read"
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            fits, keys = False, {}
        if not fits or len(set(keys.values())) != len(keys):
            raise BadInput(
                f"{path} is not a list of sites and their keys: restore the file that was handed over", code="damaged-file"
            )
        return cls(keys)

    def text(self) -> str:
        """Return the content of `peers.json`."""
        sites = {name: self.keys[name].hex() for name in sorted(self.keys)}
        return json.dumps({"schema": SCHEMA, "sites": sites}, indent=1, ensure_ascii=False) + "\n"

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the whole list, the beginning of `sha256sum peers.json`. Sites with equal fingerprints know the
        same keys.
        """
        return fingerprint(self.text().encode())


@dataclass(frozen=True)
class Changes:
    """Difference of two lists: sites added, sites removed, and sites whose key changed (old and new key)."""

    added: Mapping[str, bytes]
    removed: Mapping[str, bytes]
    other: Mapping[str, tuple[bytes, bytes]]

    @classmethod
    def between(cls, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> Changes:
        added = {name: key for name, key in new.items() if name not in old}
        removed = {name: key for name, key in old.items() if name not in new}
        other = {name: (old[name], key) for name, key in new.items() if old.get(name, key) != key}
        return cls(added, removed, other)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.other)

    def lines(self) -> list[str]:
        """Describe the changes, one in a line."""
        return [
            *(f"added      {name}: {fingerprint(key)}" for name, key in sorted(self.added.items())),
            *(f"removed    {name}: {fingerprint(key)}" for name, key in sorted(self.removed.items())),
            *(
                f"other key  {name}: was {fingerprint(old)}\n           {' ' * len(name)}   is {fingerprint(new)}"
                for name, (old, new) in sorted(self.other.items())
            ),
        ]


def load_site_keys(path: Path) -> dict[str, bytes]:
    """Read the public key of each site.

    Args:
        path: `peers.json`, which `rounds provision` writes into every site's folder, or a folder with one file NAME.pub for
            each site.

    Returns:
        The key of each site.

    Raises:
        BadInput: There is no key, or a key cannot be read or is of small order.
    """
    if path.is_dir():
        keys = {file.stem: load_public(file) for file in sorted(path.glob("*.pub"))}
    else:
        keys = dict(Peers.load(path).keys)
    if not keys:
        raise BadInput(
            f"{path} contains no key of a site: give peers.json, or a folder with a file NAME.pub for each site",
            code="missing-key",
        )
    weak = next((site for site, key in keys.items() if is_weak(key)), None)
    if weak is not None:
        raise BadInput(
            f"the key of {weak} in {path} is of small order, with which anyone can sign: ask the site for its real key",
            code="weak-key",
        )
    return keys
