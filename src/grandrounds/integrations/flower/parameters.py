"""A Flower ArrayRecord as one vector, which is what the package's methods average, and back."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord

from grandrounds.core.arrays import Array


@dataclass(frozen=True)
class Parameters:
    """The names, types and shapes of a model's arrays, in their order."""

    shapes: tuple[tuple[str, np.dtype[np.generic], tuple[int, ...]], ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Parameters:
        """Read off the record's own headers: no array is decoded for it."""
        return cls(tuple((name, np.dtype(a.dtype), tuple(a.shape)) for name, a in arrays.items()))

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """One type that holds all of them: float32 where all are that or smaller, else float64."""
        small = all(kind in (np.float16, np.float32) for _, kind, _ in self.shapes)
        return np.dtype(np.float32 if small else np.float64)

    def fits(self, arrays: ArrayRecord) -> bool:
        """Whether a record has these arrays in these shapes, in any order."""
        theirs = {name: tuple(a.shape) for name, a in arrays.items()}
        return theirs == {name: shape for name, _, shape in self.shapes}

    def pack(self, arrays: ArrayRecord) -> Array:
        """All entries as one vector (P,)."""
        parts = [arrays[name].numpy().astype(self.dtype, copy=False).ravel() for name, _, _ in self.shapes]
        return np.concatenate(parts) if parts else np.zeros(0, self.dtype)

    def unpack(self, vector: Array) -> ArrayRecord:
        """A record from a vector (P,); whole numbers (BatchNorm's counter of batches) are rounded back to their type."""
        out, at = ArrayRecord(), 0
        for name, kind, shape in self.shapes:
            size = prod(shape)
            piece = vector[at : at + size].reshape(shape)
            whole = np.rint(piece) if kind.kind in "iub" else piece
            out[name] = FlowerArray(np.asarray(whole).astype(kind))
            at += size
        return out
