"""State of sites between rounds, which survives a crash of the server.

A step *stages* a change. It is committed when a later Ask names the round as committed, so a site whose answer was not used
keeps its earlier state. The last committed state is stored: a server that resumes one round earlier makes the site go back with
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.models import Model

_NEVER = -1


class SiteStates:
    """Named arrays (K, ...) for K sites in three ages: previous, committed, staged."""

    def __init__(self, sites: int) -> None:
        self._rounds = np.full((3, sites), _NEVER, np.int64)  # previous, committed, staged
        self._values: dict[str, Array] = {}  # name -> (3, K, ...)

    def settle(self, members: Array, committed: Array) -> None:
        """Bring each member to the round that the server names as committed for it (0: the start)."""
        for k, c in zip(members.tolist(), committed.tolist(), strict=True):
            before, now, staged = self._rounds[:, k]
            if staged not in (_NEVER, now) and staged == c:
                self._move(k, (1, 2, 2))
            elif now not in (_NEVER, c) and (before == c or (before == _NEVER and c < now)):
                self._move(k, (0, 0, 0))

    def _move(self, k: int, ages: tuple[int, int, int]) -> None:
        self._rounds[:, k] = self._rounds[list(ages), k]
        for array in self._values.values():
            array[:, k] = array[list(ages), k]

    def read(self, name: str, members: Array) -> Array | None:
        """Return the committed values (m, ...); zeros for a site without any, None if no site has any."""
        array = self._values.get(name)
        if array is None:
            return None
        out: Array = array[1, members].copy()
        out[self._rounds[1, members] == _NEVER] = 0
        return out

    def known(self, members: Array) -> Array:
        """Return a flag for each member with a committed state, (m,)."""
        return np.asarray(self._rounds[1, members] != _NEVER)

    def stage(self, members: Array, round: int, values: Mapping[str, Array]) -> None:
        """Stage values that are committed once the round is."""
        for name, value in values.items():
            if name not in self._values:
                self._values[name] = np.zeros((3, self._rounds.shape[1], *value.shape[1:]), value.dtype)
            self._values[name][2, members] = value
        if values:
            self._rounds[2, members] = round

    def arrays(self) -> dict[str, Array]:
        """Return all arrays, for a checkpoint."""
        return {"rounds": self._rounds, **{f"value/{n}": a for n, a in self._values.items()}}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        if np.shape(arrays["rounds"]) != self._rounds.shape:
            raise BadInput(
                "the checkpoint has other sites than the plan: it is damaged, or the plan was changed",
                code="damaged-checkpoint",
            )
        self._rounds = np.array(arrays["rounds"])
        self._values = {n.removeprefix("value/"): np.array(a) for n, a in arrays.items() if n.startswith("value/")}


SHAPES = "shapes"
"""Part of an additive model of which a site keeps its own: what it adds to the common shapes."""


HEAD = "head"
"""The last layer of a net, of which a site keeps its own and answers with the one that it received (FedRep)."""

OWN = "own"
"""Name of the local entries in the sites' state."""


class Personal:
    """Local parts of the model: each site keeps its own values, or adds its own shapes to the common ones."""

    def __init__(self, states: SiteStates) -> None:
        self._states = states
        self._entries = np.empty(0, np.int64)  # local entries of the model
        self._add: Callable[[Array, Array], Array] | None = None  # adds a site's own shapes to a model
        self.is_hidden = False  # the local entries are in no answer

    def agree(self, model: Model, keeps: str) -> None:
        """Set the local parts of this model, as `keeps` names them."""
        self._add = getattr(model, "add_shapes", None) if keeps == SHAPES else None
        entries = getattr(model, "site_entries", None)
        self._entries = np.empty(0, np.int64) if entries is None else entries(keeps)
        self.is_hidden = keeps == HEAD

    def in_use(self, theta: Any, members: Array) -> Any:
        """Return models as these sites use them, with the local parts of each site once its training is committed."""
        local = self._states.read(OWN, members) if len(self._entries) or self._add is not None else None
        if local is None:
            return theta
        has_state = self._states.known(members)
        out = np.broadcast_to(theta, (len(members), theta.shape[-1])).copy()
        if self._add is not None:
            for k in np.flatnonzero(has_state):
                out[k] = self._add(out[k], local[k])
            return out
        out[np.ix_(has_state, self._entries)] = local[has_state]
        return out

    def entries_of(self, theta: Any) -> dict[str, Array]:
        """Return the local entries of the trained models (m, P); hidden ones are trained and stored apart."""
        has_own = len(self._entries) and not self.is_hidden
        return {OWN: np.asarray(theta)[:, self._entries]} if has_own else {}
