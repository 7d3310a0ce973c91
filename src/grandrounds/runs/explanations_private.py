"""Explanations under a budget: of private models on reference rows, which costs nothing; on sites' own patients none."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from grandrounds.methods.served import Served
from grandrounds.protocol.messages import Answers, Ask
from grandrounds.runs.explanations import Explaining


class OnReference(Explaining):
    """Sites are not asked how the model in use reasons on their patients: sketches of theirs would leave without noise."""

    def deployed(self, served: Served) -> Generator[Ask, Answers, Any]:
        yield from ()
        return {}
