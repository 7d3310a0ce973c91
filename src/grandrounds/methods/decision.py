"""The record of one round: who was asked, who answered, every signal, every weight, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True)
class Decision:
    """What a method decided in a round. The engine adds who was asked, who was missing and what it cost."""

    signals: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    why: str = ""
    round: int = 0
    asked: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    privacy: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def recorded(self, **facts: Any) -> Decision:
        """This decision with the engine's facts filled in."""
        return replace(self, **facts)

    def to_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
