"""Contents of a ledger as values, read from its database or from an export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.audit.canonical import canonical, loads
from grandrounds.audit.entry import OPEN, Entry
from grandrounds.audit.head import SignedHead, unhex
from grandrounds.audit.register_entry import START as REGISTER_START
from grandrounds.audit.watch_entry import START as WATCH_START
from grandrounds.core.errors import BadInput


@dataclass(frozen=True)
class Book:
    """Entries in their stored order, and the heads over them.

    Attributes:
        entries: The entries.
        heads: Signed heads.
        places: The stored number of each entry.
        strays: Countersignatures, by size and site, of heads that do not exist.
    """

    entries: tuple[Entry, ...]
    heads: tuple[SignedHead, ...]
    places: tuple[int, ...] = ()
    strays: tuple[tuple[int, str], ...] = ()

    def lines(self) -> Iterator[bytes]:
        """Write JSON lines: every entry with its signature, then every head."""
        for entry in self.entries:
            yield canonical({"entry": entry.content, "signature": entry.signature.hex()}) + b"\n"
        for head in self.heads:
            yield head.to_bytes()

    @classmethod
    def from_lines(cls, lines: Iterable[bytes]) -> Book:
        """Read JSON lines that `lines` wrote."""
        entries: list[Entry] = []
        heads: list[SignedHead] = []
        for number, line in enumerate(lines, 1):
            try:
                value = loads(line)
                if isinstance(value, dict) and set(value) == {"entry", "signature"}:
                    entries.append(Entry(canonical(value["entry"]), unhex(value["signature"], 64, "the signature")))
                else:
                    heads.append(SignedHead.from_json(value))
            except BadInput as e:
                raise BadInput(f"line {number} {e}", code=e.code) from None
        return cls(tuple(entries), tuple(heads), tuple(range(len(entries))))

    @classmethod
    def read(cls, path: Path) -> Book:
        """Read an export of `rounds audit export`.

        Args:
            path: The file.

        Returns:
            The contents.

        Raises:
            BadInput: It cannot be read.
        """
        try:
            return cls.from_lines(path.read_bytes().splitlines())
        except OSError as e:
            raise BadInput(f"cannot read {path}: {e.strerror or e}", code="cannot-read") from None


def read_keys(content: Mapping[str, Any]) -> tuple[bytes, dict[str, bytes]]:
    """Read the keys that an opening entry names: the server's, and each site's.

    The ledger of a watch has the site's alone, the ledger of a register its own.
    """
    keys = content.get("keys")
    if content.get("kind") == REGISTER_START and isinstance(keys, dict):
        return unhex(keys.get("register"), 32, "the register's key"), {}
    if content.get("kind") == WATCH_START and isinstance(keys, dict):
        return unhex(keys.get("site"), 32, "the site's key"), {}
    if content.get("kind") != OPEN or not isinstance(keys, dict) or not isinstance(keys.get("sites"), dict):
        raise BadInput("names no keys", code="no-keys")
    sites = {site: unhex(key, 32, f"the key of {site}") for site, key in keys["sites"].items()}
    return unhex(keys.get("server"), 32, "the server's key"), sites
