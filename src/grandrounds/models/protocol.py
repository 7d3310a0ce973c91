"""What the rest of the package asks of a model: a description that is passed parameters, never holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.protocol.layout import ParameterLayout


class Model(Protocol):
    """A trainable function of parameters (P,) and inputs.

    `kernel` names who trains it: "numpy" (batched dense gradients), "torch" (autograd, any device) or
    "forest" (scikit-learn at each site). `site_bytes` is what training one site holds in memory.
    """

    @property
    def kernel(self) -> str: ...

    @property
    def layout(self) -> ParameterLayout: ...

    @property
    def outputs(self) -> int: ...

    @property
    def site_bytes(self) -> int: ...

    def init(self, seed: int, dtype: np.typing.DTypeLike = ...) -> Array: ...

    def logits(self, theta: Array, x: Array, /) -> Array: ...

    def combine(self, models: Array | Sequence[Array], weights: Array) -> Array: ...

    def with_temperature(self, theta: Array, temperature: float) -> Array: ...

    def with_platt(self, theta: Array, *, slope: float, intercept: float) -> Array: ...


@dataclass(frozen=True)
class Calibration:
    """Log-odds s became slope * s + intercept. It is in the model itself, in its last layer or its leaves.

    A temperature T is the slope 1 / T; it is kept as it was chosen, and Platt's line has none.
    """

    slope: float
    intercept: float = 0.0
    temperature: float | None = None

    @property
    def platt(self) -> dict[str, float] | None:
        """Slope and intercept as a run folder keeps them; nothing of a temperature, which has a place of its own."""
        return None if self.temperature is not None else {"slope": self.slope, "intercept": self.intercept}

    @classmethod
    def from_temperature(cls, temperature: float) -> Calibration:
        return cls(1 / temperature, 0.0, temperature)

    @classmethod
    def from_record(cls, temperature: float | None, platt: Mapping[str, float] | None) -> Calibration | None:
        """From what a run folder keeps; None where nothing was fitted."""
        if platt is not None:
            return cls(float(platt["slope"]), float(platt["intercept"]))
        return None if temperature is None else cls.from_temperature(float(temperature))
