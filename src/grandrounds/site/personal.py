"""What sites do not take from the consortium: entries of the model that each keeps for itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.models import Model
from grandrounds.site.state import SiteStates


class Personal:
    """The sites' own part of the model in use."""

    def __init__(self, states: SiteStates) -> None:
        self._states = states
        self._entries = np.empty(0, np.int64)  # of the model, that each site keeps for itself

    def agree(self, model: Model, keeps: str) -> None:
        """Sites keep what of this model `keeps` names."""
        entries = getattr(model, "kept_by_sites", None)
        self._entries = np.empty(0, np.int64) if entries is None else entries(keeps)

    def in_use(self, theta: Any, members: Array) -> Any:
        """Models as these sites use them: as told, but for what each keeps for itself once its training has counted."""
        held = self._states.read("own", members) if len(self._entries) else None
        if held is None:
            return theta
        known = self._states.known(members)
        out = np.broadcast_to(theta, (len(members), theta.shape[-1])).copy()
        out[np.ix_(known, self._entries)] = held[known]
        return out

    def remembers(self, theta: Any) -> dict[str, Array]:
        """What each site keeps of the model it has trained, (m, P): its own entries."""
        return {"own": np.asarray(theta)[:, self._entries]} if len(self._entries) else {}
