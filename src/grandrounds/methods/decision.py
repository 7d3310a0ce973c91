"""The record of one round: who was asked, who answered, every signal, every weight, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True)
class Stage:
    """What one part of the method made of the round: in words, and each site's weight after it, where it has a say in it."""

    part: str  # select, cohorts, weigh, robust, stability
    why: str
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """What a method decided in a round. The engine adds who was asked, who was missing and what it cost.

    `shares` parts each site's weight among the signals that argued for it; they add up to the weight. `stages` tells
    what each part of the method contributed, in the order they came; `cohorts` who was grouped with whom; `reasons` what the
    consortium's features count for together, where sites are held to it.
    """

    signals: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    why: str = ""
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    stages: Sequence[Stage] = ()
    cohorts: Mapping[str, Any] = field(default_factory=dict)
    reasons: Mapping[str, float] = field(default_factory=dict)
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
        told = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**told, "stages": [asdict(stage) for stage in self.stages]}
