"""What a run sent and how long it took: bytes as they are really serialised, by kind of work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from grandrounds.messages import Answers, Ask, AskId
from grandrounds.models.protocol import ParameterLayout
from grandrounds.wire import answer_size, ask_size

UNCOUNTED = frozenset({"witness"})
"""What sites are asked for the ledger's sake is no cost of a method, and a resumed run asks again."""


@dataclass
class Meter:
    """Counts bytes and messages for each task since the last `read`."""

    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    messages: int = 0

    def asked(self, task: str, total: int, sites: int) -> None:
        self.down[task] = self.down.get(task, 0) + total
        self.messages += sites

    def answered(self, task: str, total: int, sites: int) -> None:
        self.up[task] = self.up.get(task, 0) + total
        self.messages += sites

    def read(self) -> dict[str, float]:
        """Totals so far, and a fresh start."""
        out = {
            "bytes_down": float(sum(self.down.values())),
            "bytes_up": float(sum(self.up.values())),
            "evaluation_bytes": float(self.down.get("evaluate", 0) + self.up.get("evaluate", 0)),
            "messages": float(self.messages),
        }
        self.down, self.up, self.messages = {}, {}, 0
        return out


def size_of_ask(ask: Ask, layout: ParameterLayout | None) -> Mapping[str, int]:
    """Bytes to each site; sites without a part of their own are told the same."""
    own = set(ask.each)
    to = ask.to or ()
    plain = next((s for s in to if s not in own), None)
    common = ask_size(ask, plain, layout) if plain is not None else 0
    return {s: ask_size(ask, s, layout) if s in own else common for s in to}


def size_of_answers(id: AskId, answers: Answers, layout: ParameterLayout | None) -> int:
    """Bytes from all sites together. Answers of arrays alone are all of one size."""
    if not len(answers):
        return 0
    if all(isinstance(c, np.ndarray) for c in answers.columns.values()):
        first = {name: column[0] for name, column in answers.columns.items()}
        return len(answers) * answer_size(id, first, layout)
    return sum(answer_size(id, values, layout) for _, values in answers)
