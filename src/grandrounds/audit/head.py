"""Tree heads: number of entries and Merkle root of a ledger, signed by the server and countersigned by sites.

Anyone who keeps a head can check later that the ledger still begins in the same way. A site countersigns a head only if the
server has proven that it continues the last one the site signed (`site/witness.py`). So a server that shows two histories
leaves two signed heads as evidence.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from grandrounds.audit.canonical import canonical, loads
from grandrounds.core.arrays import read_file
from grandrounds.core.errors import BadInput
from grandrounds.protocol.identity import Identity, signed_by

WITNESSES = 64
"""Number of sites that countersign a head. Of more, this many are drawn by the head's root, which nobody can predict."""

LARGEST = 2**20
"""Largest file of a head, in bytes."""

_SIGNED, _WITNESSED = b"grandrounds/head/1\x00", b"grandrounds/witness/1\x00"


@dataclass(frozen=True)
class Head:
    """The first `size` entries of a run's ledger, by their root. It has no time: equal entries have equal heads."""

    run: str
    size: int
    root: bytes

    @cached_property
    def text(self) -> bytes:
        """Bytes that are signed."""
        return canonical({"run": self.run, "size": self.size, "root": self.root.hex()})

    @classmethod
    def from_json(cls, value: Any) -> Head:
        """Read a head from JSON.

        Raises:
            BadInput: It is not a head.
        """
        if not (isinstance(value, dict) and set(value) == {"run", "size", "root"}):
            raise BadInput("is not a tree head: it must have exactly run, size and root", code="bad-tree-head")
        run, size = value["run"], value["size"]
        if not (isinstance(run, str) and type(size) is int and size >= 0):
            raise BadInput("is not a tree head: its run must be text and its size an integer", code="bad-tree-head")
        return cls(run, size, unhex(value["root"], 32, "the root"))

    def sign(self, identity: Identity) -> bytes:
        """Sign the head as the server."""
        return identity.sign(_SIGNED + self.text)

    def countersign(self, identity: Identity) -> bytes:
        """Sign the head as a site; a signature of the server is never valid here."""
        return identity.sign(_WITNESSED + self.text)

    def is_signed_by(self, key: bytes, signature: bytes) -> bool:
        return signed_by(key, _SIGNED + self.text, signature)

    def is_countersigned_by(self, key: bytes, signature: bytes) -> bool:
        return signed_by(key, _WITNESSED + self.text, signature)

    def witnesses(self, sites: Sequence[str]) -> tuple[str, ...]:
        """Choose the sites that countersign the head, in their given order."""
        if len(sites) <= WITNESSES:
            return tuple(sites)
        drawn = set(heapq.nsmallest(WITNESSES, sites, key=lambda s: hashlib.sha256(self.root + s.encode()).digest()))
        return tuple(s for s in sites if s in drawn)


@dataclass(frozen=True)
class SignedHead:
    """A head with the signatures of the server and of sites."""

    head: Head
    signature: bytes
    witnesses: Mapping[str, bytes] = field(default_factory=dict)

    def with_witnesses(self, more: Mapping[str, bytes]) -> SignedHead:
        return replace(self, witnesses={**self.witnesses, **more})

    def to_dict(self) -> dict[str, object]:
        return {
            "head": loads(self.head.text),
            "signature": self.signature.hex(),
            "witnesses": {site: s.hex() for site, s in self.witnesses.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> SignedHead:
        if not (isinstance(value, dict) and set(value) == {"head", "signature", "witnesses"}):
            raise BadInput(
                "is not a signed head: it must have exactly head, signature and witnesses", code="bad-tree-head"
            )
        if not isinstance(value["witnesses"], dict):
            raise BadInput("is not a signed head: its witnesses must be signatures by site", code="bad-tree-head")
        witnesses = {site: unhex(s, 64, f"the signature of {site}") for site, s in value["witnesses"].items()}
        return cls(Head.from_json(value["head"]), unhex(value["signature"], 64, "the signature"), witnesses)

    def to_bytes(self) -> bytes:
        return canonical(self.to_dict()) + b"\n"

    @classmethod
    def read(cls, path: Path) -> SignedHead:
        """Read a head that was kept, a file `ledger.head.json` of a run folder."""
        data = read_file(path, largest=LARGEST, links=True)
        try:
            return cls.from_json(loads(data))
        except BadInput as e:
            raise BadInput(f"{path} {e}", code=e.code) from None


def unhex(text: Any, size: int, name: str) -> bytes:
    """Read bytes from lower-case hexadecimal digits; no other form is accepted."""
    if not isinstance(text, str) or len(text) != 2 * size or set(text) - set("0123456789abcdef"):
        raise BadInput(f"{name} must be {2 * size} hexadecimal digits", code="bad-hex")
    return bytes.fromhex(text)


def longest(heads: Iterable[SignedHead]) -> SignedHead | None:
    """Return the head over the most entries."""
    return max(heads, key=lambda h: h.head.size, default=None)
