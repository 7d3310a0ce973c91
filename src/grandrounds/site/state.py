"""What sites remember between rounds, and how that survives a server that crashes.

A step *stages* a change. It is committed when a later Ask names the round as committed, so a
site whose answer never counted does not move on alone. The last committed state is kept: a server
that resumes from one round earlier makes the site go back with it.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        """Bring each member to the round the server says is committed for it (0: the beginning)."""
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
        """The committed values (m, ...); zeros for a site that has none yet, None where nobody has."""
        array = self._values.get(name)
        if array is None:
            return None
        out: Array = array[1, members].copy()
        out[self._rounds[1, members] == _NEVER] = 0
        return out

    def known(self, members: Array) -> Array:
        """Whether each member has a committed state, (m,)."""
        return np.asarray(self._rounds[1, members] != _NEVER)

    def stage(self, members: Array, round: int, values: Mapping[str, Array]) -> None:
        """Remember what the sites will know once this round counts."""
        for name, value in values.items():
            if name not in self._values:
                self._values[name] = np.zeros((3, self._rounds.shape[1], *value.shape[1:]), value.dtype)
            self._values[name][2, members] = value
        if values:
            self._rounds[2, members] = round

    def arrays(self) -> dict[str, Array]:
        """Everything, for a checkpoint."""
        return {"rounds": self._rounds, **{f"value/{n}": a for n, a in self._values.items()}}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        if np.shape(arrays["rounds"]) != self._rounds.shape:
            raise BadInput(
                "the checkpoint is of other sites than the plan's: it is damaged, or the plan was changed",
                code="damaged-checkpoint",
            )
        self._rounds = np.array(arrays["rounds"])
        self._values = {n.removeprefix("value/"): np.array(a) for n, a in arrays.items() if n.startswith("value/")}


class Personal:
    """Entries of the model that sites do not take from the consortium: each keeps its own."""

    def __init__(self, states: SiteStates) -> None:
        self._states = states
        self._entries = np.empty(0, np.int64)  # of the model, that each site keeps for itself

    def agree(self, model: Model, keeps: str) -> None:
        """Sites keep what of this model `keeps` names."""
        entries = getattr(model, "site_entries", None)
        self._entries = np.empty(0, np.int64) if entries is None else entries(keeps)

    def in_use(self, theta: Any, members: Array) -> Any:
        """Models as these sites use them: as told, but for what each keeps for itself once its training has counted."""
        local = self._states.read("own", members) if len(self._entries) else None
        if local is None:
            return theta
        has_state = self._states.known(members)
        out = np.broadcast_to(theta, (len(members), theta.shape[-1])).copy()
        out[np.ix_(has_state, self._entries)] = local[has_state]
        return out

    def entries_of(self, theta: Any) -> dict[str, Array]:
        """Return the entries of the trained models (m, P) that each site keeps for itself."""
        return {"own": np.asarray(theta)[:, self._entries]} if len(self._entries) else {}
