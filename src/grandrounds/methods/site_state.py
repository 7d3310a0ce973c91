"""State of single sites that a method keeps from round to round, of those that answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.protocol.messages import Answers

if TYPE_CHECKING:
    from grandrounds.methods.base import Server


class PerSiteState:
    """State of the sites that answered, read from the server's state of all sites."""

    def __init__(self, server: Server, answers: Answers, *names: str) -> None:
        """`names`: the values stored from round to round."""
        place = {s: k for k, s in enumerate(server.sites)}
        self._index = [place[s] for s in answers.sites]
        self._sites = len(server.sites)
        self._stored = {name: server.state[name] for name in names if name in server.state}

    def has(self, name: str) -> bool:
        return name in self._stored

    def get(self, name: str, width: int = 0) -> Array:
        """Return the value of each site that answered, (K,), or its values (K, width); NaN where none is known."""
        out: Array = self._all(name, (width,) if width else ())[self._index]
        return out

    def updated(self, **found: Array) -> dict[str, Array]:
        """Return the state of all sites, updated by values (K,) or (K, width) of those that answered."""
        state = dict(self._stored)
        for name, column in found.items():
            state[name] = self._all(name, column.shape[1:]).copy()
            state[name][self._index] = column
        return state

    def _all(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return the state of all sites, (K, *shape); NaN where it is stored in another shape."""
        full_shape, stored = (self._sites, *shape), self._stored.get(name)
        return np.full(full_shape, np.nan) if stored is None or stored.shape != full_shape else stored
