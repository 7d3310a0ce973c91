"""Count the bytes and messages of a run, as serialised, by task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grandrounds.protocol.codec import answer_size, ask_size
from grandrounds.protocol.layout import ParameterLayout
from grandrounds.protocol.messages import Answers, Ask, AskId
from grandrounds.protocol.tasks import EVALUATE, spec_of


@dataclass
class Meter:
    """Count bytes and messages for each task since the last `read`."""

    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    payload: list[int] = field(default_factory=lambda: [0, 0])  # down, up

    def count_payload(self, task: str, down: int, up: int) -> None:
        """Count the arrays of a round's own work, without names, settings and framing, evaluation and preparation."""
        if spec_of(task).is_payload:
            self.payload[0] += down
            self.payload[1] += up

    def count_asks(self, task: str, total: int, sites: int) -> None:
        self.down[task] = self.down.get(task, 0) + total
        self.messages += sites

    def count_answers(self, task: str, total: int, sites: int) -> None:
        self.up[task] = self.up.get(task, 0) + total
        self.messages += sites

    def read(self) -> dict[str, float]:
        """Return the totals since the last call, and reset them."""
        totals = {
            "bytes_down": float(sum(self.down.values())),
            "bytes_up": float(sum(self.up.values())),
            "evaluation_bytes": float(self.down.get(EVALUATE, 0) + self.up.get(EVALUATE, 0)),
            "messages": float(self.messages),
            "payload_down": float(self.payload[0]),
            "payload_up": float(self.payload[1]),
        }
        self.down, self.up, self.messages, self.payload = {}, {}, 0, [0, 0]
        return totals


def size_of_ask(ask: Ask, layout: ParameterLayout | None) -> Mapping[str, int]:
    """Return the bytes to each site; sites without a part of their own get the same message."""
    individual = set(ask.each)
    sites = ask.to or ()
    plain = next((s for s in sites if s not in individual), None)
    common = ask_size(ask, plain, layout) if plain is not None else 0
    return {s: ask_size(ask, s, layout) if s in individual else common for s in sites}


def arrays_of_ask(ask: Ask) -> int:
    """Return the bytes of the arrays that all sites are sent."""
    individual = sum(_arrays(values.values()) for values in ask.each.values())
    return _arrays(ask.shared.values()) * len(ask.to or ()) + individual


def arrays_of_answers(answers: Answers) -> int:
    """Return the bytes of the arrays that sites sent; of reports that were added up on the way, each site's part."""
    summed = sum(_arrays([total]) for total in answers.totals.values()) * len(answers)
    return summed + sum(_arrays([c] if isinstance(c, np.ndarray) else c) for c in answers.columns.values())


def _arrays(values: Iterable[Any]) -> int:
    return sum(v.nbytes for v in values if isinstance(v, np.ndarray))


def size_of_answers(id: AskId, answers: Answers, layout: ParameterLayout | None) -> int:
    """Return the bytes from all sites. Answers of arrays alone are all of one size."""
    if not len(answers):
        return 0
    if all(isinstance(c, np.ndarray) for c in answers.columns.values()):
        first = {name: column[0] for name, column in answers.columns.items()}
        return len(answers) * answer_size(id, first, layout)
    return sum(answer_size(id, values, layout) for _, values in answers)
