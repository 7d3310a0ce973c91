"""Layout of models whose arrays differ in size from fit to fit: named arrays in files, one flat vector in memory and messages.

The vector opens with the shape of every array, so it can be read without knowing the fit. Everything is checked as untrusted
input: a vector may come from another hospital.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

_MARK = 0x475241  # "GRA" opens every vector
_MOST_AXES = 4


@dataclass(frozen=True)
class ArrayLayout:
    """The names of a model's arrays and their numbers of axes, in order; values are float64."""

    axes: tuple[tuple[str, int], ...]

    def pack(self, params: Mapping[str, Array], *, dtype: np.typing.DTypeLike = np.float64) -> Array:
        """Pack named arrays into one vector of float64, whatever `dtype` says: float32 would change the model.

        Raises:
            BadInput: A name is missing or unknown, an array has another number of axes, or a value is not finite.
        """
        if set(params) != {name for name, _ in self.axes}:
            extra = sorted(set(params) ^ {name for name, _ in self.axes})
            raise BadInput(
                f"the parameters do not fit the model: {', '.join(extra)} missing or unknown", code="wrong-parameters"
            )
        header: list[float] = [_MARK, len(self.axes)]
        parts = []
        for name, axes in self.axes:
            array = np.asarray(params[name], np.float64)
            if array.ndim != axes:
                raise BadInput(f"parameter '{name}' has {array.ndim} axes, not {axes}", code="wrong-shape")
            if not np.isfinite(array).all():
                raise BadInput(f"parameter '{name}' is not finite everywhere", code="damaged-model")
            header += [axes, *array.shape]
            parts.append(array.ravel())
        return np.concatenate([np.array(header, np.float64), *parts])

    def views(self, vector: Array) -> dict[str, Array]:
        """Return the named arrays of a vector, as copies.

        Raises:
            BadInput: The vector is not one that `pack` wrote for this model.
        """
        values = np.asarray(vector, np.float64)
        place = 2
        _require(values.ndim == 1 and len(values) >= 2 and values[0] == _MARK, "its header is missing")
        _require(values[1] == len(self.axes), "it has another number of arrays")
        shapes = []
        for name, axes in self.axes:
            _require(place + 1 + axes <= len(values) and values[place] == axes <= _MOST_AXES, f"'{name}' has no shape")
            sizes = values[place + 1 : place + 1 + axes]
            _require(
                bool(((sizes >= 0) & (sizes <= len(values)) & (sizes == np.trunc(sizes))).all()), f"the shape of '{name}'"
            )
            shapes.append(tuple(int(n) for n in sizes))
            place += 1 + axes
        _require(place + sum(prod(s) for s in shapes) == len(values), "its length does not match its header")
        _require(bool(np.isfinite(values).all()), "a value is not finite")
        out = {}
        for (name, _), shape in zip(self.axes, shapes, strict=True):
            out[name] = values[place : place + prod(shape)].reshape(shape).copy()
            place += prod(shape)
        return out


def _require(sound: bool, problem: str) -> None:
    if not sound:
        raise BadInput(f"these parameters are not a model of whole columns: {problem}", code="damaged-model")
