"""The sites of a consortium as one of them knows them: each one's name and the key that it signs with.

`rounds provision` writes the list into every site's folder. People compare it, by telephone for instance: what the server
alone vouches for would protect nobody from the server.
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
"""Of a fingerprint: two keys, or two lists, that share 160 bits of a SHA-256 cannot be found."""


def fingerprint(data: bytes) -> str:
    """What people read out: ten groups of four hexadecimal digits, the beginning of the SHA-256."""
    digits = hashlib.sha256(data).hexdigest()[: 2 * _BYTES]
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


@dataclass(frozen=True)
class Peers:
    """A list: the public key of each site, this one's own among them."""

    keys: Mapping[str, bytes]

    @classmethod
    def load(cls, path: Path) -> Peers:
        """The list in a file; one that is not what `text` writes is refused."""
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
                f"{path} is no list of sites and their keys: bring the handed-over file back", code="damaged-file"
            )
        return cls(keys)

    def text(self) -> str:
        """The file."""
        sites = {name: self.keys[name].hex() for name in sorted(self.keys)}
        return json.dumps({"schema": SCHEMA, "sites": sites}, indent=1, ensure_ascii=False) + "\n"

    @property
    def fingerprint(self) -> str:
        """Of the whole list: sites that have the same one know the same keys. `sha256sum peers.json` begins so."""
        return fingerprint(self.text().encode())


@dataclass(frozen=True)
class Changes:
    """From one list to the next: who came, who is gone, and whose key is another (the old one and the new)."""

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
        """In words, one change a line."""
        return [
            *(f"added      {name}: {fingerprint(key)}" for name, key in sorted(self.added.items())),
            *(f"removed    {name}: {fingerprint(key)}" for name, key in sorted(self.removed.items())),
            *(
                f"other key  {name}: was {fingerprint(old)}\n           {' ' * len(name)}   is {fingerprint(new)}"
                for name, (old, new) in sorted(self.other.items())
            ),
        ]


def load_site_keys(path: Path) -> dict[str, bytes]:
    """Read the key of each site.

    Args:
        path: `peers.json`, the list that `rounds provision` writes into every site's folder, or a folder with one file
            NAME.pub for each site.

    Raises:
        BadInput: There is no key in it, or one cannot be read or is of small order.
    """
    if path.is_dir():
        keys = {file.stem: load_public(file) for file in sorted(path.glob("*.pub"))}
    else:
        keys = dict(Peers.load(path).keys)
    if not keys:
        raise BadInput(
            f"{path} has no key of a site: give peers.json, or a folder with a file NAME.pub for each site",
            code="missing-key",
        )
    weak = next((site for site, key in keys.items() if is_weak(key)), None)
    if weak is not None:
        raise BadInput(
            f"the key of {weak} in {path} is of small order, by which anybody can sign: ask the site for its own",
            code="weak-key",
        )
    return keys
