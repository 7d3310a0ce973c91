"""What weighing answers gives, whatever the rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grandrounds.core.arrays import Array


@dataclass(frozen=True)
class Weighed:
    """A weight for each answer, (K,), with the numbers it comes from and the reason in words.

    `shares`: what each signal contributes, (K,) each; they add up to the weights. `memory`: what to know next round.
    """

    weights: Array
    signals: Mapping[str, Array]
    why: str
    shares: Mapping[str, Array] = field(default_factory=dict)
    memory: Mapping[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reasons: Mapping[str, float] = field(
        default_factory=dict
    )  # the consortium's, by feature, where sites are held to them
    refused: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # signals, by site, of those that were weighed too and did not go along

    def signals_of_all(self, signals: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """Signals by site, with those of the sites that did not go along."""
        return {name: {**values, **self.refused.get(name, {})} for name, values in signals.items()}
