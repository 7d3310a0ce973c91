"""The sites' half of SSE-AGG: training on one half of a site's own patients."""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.protocol.messages import OWN_HALF
from grandrounds.site.plugin import Site, SitePlugin, TrainRequest
from grandrounds.site.stack import Part, Stack


class PatientHalves(SitePlugin):
    """Site half: train on one half of a site's patients if the Ask requests it.

    Not if a privacy guarantee depends on the number of rows (DP-SGD, clipped updates), nor if a half would be empty.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._first: dict[int, Array] = {}  # by site: training rows in the first half of its patients
        self._stack: Stack | None = None  # the rows that `_first_half` refers to

    def choose_rows(self, request: TrainRequest, part: Part) -> Part:
        stack, default = self.site.stack, request.ask.shared.get(OWN_HALF, 0)
        halves = {k: int(request.ask.each.get(stack.names[k], {}).get(OWN_HALF, default)) for k in request.members.tolist()}
        chosen = np.ones(len(part.y), bool)
        for k, half in halves.items():
            if half not in (1, 2) or request.config.rate or request.config.longest:
                continue
            first = self._first_half(stack, k)
            mine = first if half == 1 else ~first
            chosen[part.offsets[k] : part.offsets[k + 1]] = mine if mine.any() else True
        return part if chosen.all() else part.only(chosen)

    def _first_half(self, stack: Stack, k: int) -> Array:
        if self._stack is not stack:
            self._stack, self._first = stack, {}
        if k not in self._first:
            self._first[k] = stack.first_half(k)
        return self._first[k]
