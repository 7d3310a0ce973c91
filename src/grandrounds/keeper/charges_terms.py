"""What a site's own people settle about its budget: nothing in here can be changed by a message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from grandrounds.privacy.events import ROWS, Event


@dataclass(frozen=True)
class Terms:
    """How a site counts. The defaults trust nobody but the protocol's own threshold of honest sites.

    `untold`: parts (train, val, test) that the site's host says nothing of; the same as the host was built with.
    `as_they_are`: rows (test) that the policy promises nothing for; what is told of them is listed and not charged.
    `own_split`: whether the site itself deals its rows to training, validation and test, once, for all runs. Where a server
    can have them dealt anew, a patient of one kind is one of another kind in the next run: then all kinds pay for each.
    `honest`: sites of a secure sum whose noise counts, this one among them; None: as few as the protocol lets survive.
    `trust_server`: whether the site takes the server's word for noise that the server adds itself; `declared`: that noise,
    in units of what one site can change (`declared_noise`).
    `classes`: the label's values as the consortium agreed on them; an encoding that leaves one out is refused.
    """

    untold: tuple[str, ...] = ()
    as_they_are: tuple[str, ...] = ()
    own_split: bool = True
    honest: int | None = None
    trust_server: bool = False
    declared: float | None = None
    classes: tuple[str, ...] = ()

    def due(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """What must be paid for: all but rows that the policy leaves out; by rows of every kind where splits change."""
        if not self.own_split:
            return tuple(replace(e, of=of) for e in events for of in (ROWS if e.unit == "patient" else (e.of,)))
        return tuple(e for e in events if e.of not in self.as_they_are or e.unit == "site")


def declared_noise(*, epsilon: float | None, delta: float, rounds: int, noise: float | None = None) -> float:
    """The noise that a trusted server of client-level noise must add by its own plan: as named, or as its budget asks for."""
    from grandrounds.privacy.accounting import noise_for

    if noise is not None or epsilon is None:
        return 0.0 if noise is None else float(noise)
    return noise_for(epsilon, delta, steps=rounds)
