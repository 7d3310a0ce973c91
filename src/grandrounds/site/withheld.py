"""What a site holds back of its answers: a secure sum takes it from here, masked; nothing else does.

The server is told names and shapes, which are the same at every site, and no value.
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
"""Answers of so many Asks are held at a time: what was not summed by then is forgotten."""


class WithheldReports:
    """Held reports, by Ask and site."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, dict[int, dict[str, Array]]] = OrderedDict()
        self._taken: dict[tuple[str, int, str], str] = {}

    def keep(self, id: AskId, members: Array, columns: Columns, names: Sequence[str]) -> Columns:
        """The columns without those named (`test` means test.count, test.confusion ...), which stay here."""
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
        """What this site holds of an Ask, by name, for one sum; `reports`: no more than these.

        No other sum may have it: two could differ by one site.
        """
        stored = self.look(id, member)
        mine = {n: v for n, v in stored.items() if not reports or n.split(".")[0] in reports}
        for report in {name.split(".")[0] for name in mine}:
            if self._taken.setdefault((id, member, report), context) != context:
                raise BadInput("another secure sum has taken this answer already", code="repeated-release")
        return mine

    def answers(self, id: str, member: int, task: str, question: bytes) -> None:
        """Note that what is held of an Ask answers this question: other questions of the kind would tell it bit by bit."""
        self.look(id, member)
        digest = hashlib.sha256(question).hexdigest()
        if self._taken.setdefault((id, member, task), digest) != digest:
            raise BadInput(
                f"this site has answered '{task}' for this answer already, to another question", code="repeated-release"
            )

    def look(self, id: str, member: int) -> Mapping[str, Array]:
        """What this site holds of an Ask, for its own use."""
        if id not in self._held or member not in self._held[id]:
            raise BadInput("a secure sum is asked of an answer that this site does not hold", code="answer-not-held")
        return self._held[id][member]
