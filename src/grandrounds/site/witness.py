"""Countersigning of the ledger at a site: it signs a head only if that head continues the last one it signed.

The last signed head and the server's first key are part of the site's state. So a server that loses entries, or shows different
histories to different sites, is refused. A site without a head trusts the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.protocol.messages import Ask, Payload
from grandrounds.site.plugin import Columns, SitePlugin, Task

if TYPE_CHECKING:
    from grandrounds.audit.head import Head
    from grandrounds.protocol.identity import Identity

SIGNED, BEHIND, SHRUNK, FORKED, OTHER_KEY, UNSIGNED, OTHER_RUN = range(7)
REASONS = {
    BEHIND: "the proof does not begin at the head it signed last",  # it reports its head, and may be asked again
    SHRUNK: "the ledger is shorter than the one it signed before",
    FORKED: "the ledger does not continue the one it signed before",
    OTHER_KEY: "the head is signed with another key than before",
    UNSIGNED: "the head is not signed by the server's key",
    OTHER_RUN: "the head is of another run",
}
"""Causes of a refusal by code; the site answers with the code."""


class Witness(SitePlugin):
    """State of K sites: number of entries and root of the last signed head, and the server's key."""

    name = "witness"

    def __init__(self, names: Sequence[str], identify: Callable[[str], Identity]) -> None:
        self._names = tuple(names)
        self._identify = lru_cache(maxsize=None)(identify)
        self._size = np.zeros(len(names), np.int64)
        self._root, self._key = (np.zeros((len(names), 32), np.uint8) for _ in range(2))

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {"witness": self.answer}

    def answer(self, ask: Ask, members: Array) -> Columns:
        """Return each member's countersignature, or a refusal code; `have` is the number of entries it has signed."""
        from grandrounds.audit.canonical import loads
        from grandrounds.audit.head import Head

        head = Head.from_json(loads(str(ask.shared["head"]).encode()))
        key, signature = (np.asarray(ask.shared[name], np.uint8).tobytes() for name in ("key", "signature"))
        wrong = SIGNED if head.is_signed_by(key, signature) else UNSIGNED
        if ask.id is not None and head.run != ask.id.run:
            wrong = OTHER_RUN
        continues = lru_cache(maxsize=None)(lambda first, root, proof: _continues(head, first, root, proof))
        refused, signed = np.zeros(len(members), np.int64), np.zeros((len(members), 64), np.uint8)
        for row, k in enumerate(members.tolist()):
            why = wrong or self._objection(k, ask.for_site(self._names[k]), head, key, continues)
            refused[row] = why
            if why == SIGNED:
                signed[row] = np.frombuffer(head.countersign(self._identify(self._names[k])), np.uint8)
        have = self._size[members].copy()
        signers = members[refused == SIGNED]
        self._size[signers] = head.size
        self._root[signers], self._key[signers] = np.frombuffer(head.root, np.uint8), np.frombuffer(key, np.uint8)
        return {"signature": signed, "have": have, "refused": refused}

    def _objection(
        self, k: int, payload: Payload, head: Head, key: bytes, continues: Callable[[int, bytes, bytes], bool]
    ) -> int:
        have = int(self._size[k])
        if not have:
            return SIGNED
        if self._key[k].tobytes() != key:
            return OTHER_KEY
        if head.size < have:
            return SHRUNK
        if int(payload["from"]) != have:
            return BEHIND
        proof = np.asarray(payload["proof"], np.uint8).tobytes()
        return SIGNED if continues(have, self._root[k].tobytes(), proof) else FORKED

    def arrays(self) -> dict[str, Array]:
        """Everything, for a checkpoint."""
        return {"size": self._size, "root": self._root, "key": self._key}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        new = self.arrays()
        if {n: (a.shape, a.dtype) for n, a in new.items()} != {n: (a.shape, a.dtype) for n, a in arrays.items()}:
            raise BadInput(
                "the checkpoint's countersigned heads do not match the sites: it is damaged",
                code="damaged-checkpoint",
            )
        self._size, self._root, self._key = (np.array(arrays[name]) for name in new)


def no_identity(site: str) -> Identity:
    """Refuse to sign for a site without a key."""
    raise BadInput(f"{site} has no key to countersign the ledger with", code="missing-key")


def _continues(head: Head, first: int, root: bytes, proof: bytes) -> bool:
    from grandrounds.audit.merkle import extends

    path = [proof[start : start + 32] for start in range(0, len(proof), 32)]
    return extends(root, head.root, first=first, second=head.size, path=path)
