"""Answers of another shape than most sites sent: one site's mistake, or its malice, is not to stop a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from grandrounds.engine.letters import SHAPE
from grandrounds.protocol.tasks import named_like

Shapes = dict[str, tuple[int, ...]]


def odd_ones(shapes: Mapping[str, Shapes]) -> dict[str, str]:
    """Sites that sent an array of another shape than most did, where most agree and there are more than two."""
    odd: dict[str, str] = {}
    for name in {n for told in shapes.values() for n in told if not any(r.is_ragged for r in named_like(n))}:
        usual, times = Counter(told.get(name) for told in shapes.values()).most_common(1)[0]
        if len(shapes) > 2 and times > len(shapes) / 2:
            odd |= {site: SHAPE for site, told in shapes.items() if told.get(name) != usual}
    return odd
