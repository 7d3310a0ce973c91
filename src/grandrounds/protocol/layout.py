"""Layout of a model's parameters: named arrays in files and messages, one flat vector in memory.

The parameters of K sites are one (K, P) buffer whose named arrays are views. So an optimizer step, an average or a proximal
term is one operation for every architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Protocol

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput


class ParameterLayout(Protocol):
    """Conversion between a flat vector and named arrays."""

    def views(self, buffer: Array, /) -> dict[str, Array]: ...

    def pack(self, params: Mapping[str, Array], /, *, dtype: np.typing.DTypeLike = ...) -> Array: ...


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's arrays, in their order in the flat vector."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @cached_property
    def size(self) -> int:
        return sum(prod(shape) for _, shape in self.shapes)

    @cached_property
    def slices(self) -> tuple[tuple[str, slice, tuple[int, ...]], ...]:
        start, out = 0, []
        for name, shape in self.shapes:
            out.append((name, slice(start, start + prod(shape)), shape))
            start += prod(shape)
        return tuple(out)

    def views(self, buffer: Array) -> dict[str, Array]:
        """Return named views of a (..., P) buffer, each (..., *shape). Writing to a view writes to the buffer."""
        lead = buffer.shape[:-1]
        return {name: buffer[..., piece].reshape(*lead, *shape) for name, piece, shape in self.slices}

    def pack(self, params: Mapping[str, Array], *, dtype: np.typing.DTypeLike = np.float32) -> Array:
        """Pack named arrays into one flat vector.

        Args:
            params: Arrays by parameter name.
            dtype: Type of the vector.

        Returns:
            The vector, (P,).

        Raises:
            BadInput: A name is missing or unknown, or an array has another shape.
        """
        if set(params) != {name for name, _ in self.shapes}:
            extra = sorted(set(params) ^ {name for name, _ in self.shapes})
            raise BadInput(
                f"the parameters do not fit the model: {', '.join(extra)} missing or unknown", code="wrong-parameters"
            )
        out = np.empty(self.size, dtype)
        for name, piece, shape in self.slices:
            if params[name].shape != shape:
                raise BadInput(
                    f"parameter '{name}' has shape {params[name].shape}, the model needs {shape}", code="wrong-shape"
                )
            out[piece] = params[name].ravel()
        return out

    def mask(self, suffix: str) -> Array:
        """Return a mask (P,): 1 for parameters whose name ends with `suffix` (weights, not biases), else 0."""
        out = np.zeros(self.size, np.float32)
        for name, piece, _ in self.slices:
            out[piece] = name.endswith(suffix)
        return out
