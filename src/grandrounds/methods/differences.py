"""Updates worked out where they are looked at: models minus what sites began with, without a second array of that size."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from grandrounds.core.arrays import Array

LARGE = 1 << 23
"""Numbers of all models together from which on their differences are not written out."""


def differences(models: Any, rows: Array, start: Array) -> Array:
    """models[rows] - start, (m, P), with one `start` (P,) for all or one for each row (m, P).

    Of many and long models it is no array but looks like one to the robust rules, which read stretches of coordinates
    `[:, a:b]`: each is subtracted when it is read, and the numbers are the same.
    """
    held = np.asarray(models)
    if held.size < LARGE or held.ndim != 2:
        out: Array = held[rows] - start
        return out
    return cast("Array", _Differences(held, rows, start))


class _Differences:
    """The part of an array's manners that the robust rules need."""

    ndim = 2

    def __init__(self, models: Array, rows: Array, start: Array) -> None:
        self._models, self._rows, self._start = models, rows, start
        self._all = np.array_equal(rows, np.arange(len(models)))
        self.dtype = np.result_type(models, start)
        self.shape = (len(rows), models.shape[1])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, where: Any) -> Any:
        if isinstance(where, tuple):
            _, here = where
            mine = self._models[:, here] if self._all else self._models[self._rows, here]
            return mine - self._start[..., here]
        if isinstance(where, int):
            return self._models[self._rows[where]] - (self._start if self._start.ndim == 1 else self._start[where])
        start = self._start if self._start.ndim == 1 else self._start[where]
        return _Differences(self._models, self._rows[where], start)
