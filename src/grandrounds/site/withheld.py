"""Withheld reports of a site, which only a secure sum may use.

The server receives names and shapes, which are the same at every site, and no value.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.protocol.messages import AskId, Columns
from grandrounds.protocol.packing import LAYOUT, describe_layout

_ASKS = 2
"""Number of Asks whose answers are stored; older answers are deleted."""


class WithheldReports:
    """Withheld reports, by Ask and site."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, dict[int, dict[str, Array]]] = OrderedDict()
        self._taken: dict[tuple[str, int, str], str] = {}

    def keep(self, id: AskId, members: Array, columns: Columns, names: Sequence[str]) -> Columns:
        """Store the named columns (`test` means test.count, test.confusion ...) and return the others."""
        mine = [name for name in columns if name in names or name.split(".")[0] in names]
        stored = self._held.setdefault(str(id), {})
        for row, k in enumerate(members.tolist()):
            stored[k] = {name: np.asarray(columns[name][row]) for name in sorted(mine)}
        while len(self._held) > _ASKS:
            old, _ = self._held.popitem(last=False)
            self._taken = {key: context for key, context in self._taken.items() if key[0] != old}
        rest = {name: column for name, column in columns.items() if name not in mine}
        return {**rest, LAYOUT: [describe_layout(stored[k]) for k in members.tolist()]}

    def take(self, id: str, member: int, *, context: str, reports: Sequence[str] = ()) -> dict[str, Array]:
        """Return this site's withheld reports of an Ask, by name, for one sum; `reports`: only these.

        Each is released to one sum only: two sums could differ by one site.
        """
        stored = self.look(id, member)
        mine = {n: v for n, v in stored.items() if not reports or n.split(".")[0] in reports}
        for report in {name.split(".")[0] for name in mine}:
            if self._taken.setdefault((id, member, report), context) != context:
                raise BadInput("another secure sum has already used this answer", code="repeated-release")
        return mine

    def answers(self, id: str, member: int, task: str, question: bytes) -> None:
        """Record that a withheld answer was used for this question: repeated questions would disclose it bit by bit."""
        self.look(id, member)
        digest = hashlib.sha256(question).hexdigest()
        if self._taken.setdefault((id, member, task), digest) != digest:
            raise BadInput(
                f"this site has already answered '{task}' for this answer, to another question", code="repeated-release"
            )

    def look(self, id: str, member: int) -> Mapping[str, Array]:
        """Return this site's withheld reports of an Ask, for its own use."""
        if id not in self._held or member not in self._held[id]:
            raise BadInput("a secure sum is requested of an answer that this site does not store", code="answer-not-held")
        return self._held[id][member]
