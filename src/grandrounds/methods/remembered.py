"""What earlier rounds found of the sites, which not every round has answers from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.protocol.messages import Answers

if TYPE_CHECKING:
    from grandrounds.methods.base import Server

TRUST, STANDING, HARMS = "trust", "standing", "harm"
"""How far a site was trusted for its reasons, how far it stood out by them, and its harm: kept from round to round."""

HALVES = ("harm_first_half", "harm_second_half")
"""The harm of a site's model when it last trained on either half of its own patients."""


class Remembered:
    """What is known of the sites that answered, from a server's state, where it is held by the consortium's order."""

    def __init__(self, server: Server, answers: Answers, *names: str) -> None:
        """`names`: what is kept from round to round."""
        place = {s: k for k, s in enumerate(server.sites)}
        self._here = [place[s] for s in answers.sites]
        self._sites = len(server.sites)
        self._held = {name: server.state[name] for name in names if name in server.state}

    def has(self, name: str) -> bool:
        return name in self._held

    def of(self, name: str, width: int = 0) -> Array:
        """The value of each site that answered, (K,), or its values (K, width); NaN where none is known."""
        out: Array = self._all(name, (width,) if width else ())[self._here]
        return out

    def after(self, **found: Array) -> dict[str, Array]:
        """What to keep of all sites, where this, (K,) or (K, width) each, was found of those that answered."""
        kept = dict(self._held)
        for name, values in found.items():
            kept[name] = self._all(name, values.shape[1:]).copy()
            kept[name][self._here] = values
        return kept

    def _all(self, name: str, shape: tuple[int, ...]) -> Array:
        """Of all sites, (K, *shape); what is held in another shape says nothing of them."""
        whole, held = (self._sites, *shape), self._held.get(name)
        return np.full(whole, np.nan) if held is None or held.shape != whole else held
