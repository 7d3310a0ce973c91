"""What the rest of the package asks of a model: a description that is passed parameters, never holds them."""

from __future__ import annotations

from collections.abc import Sequence
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

    def cooled(self, theta: Array, temperature: float) -> Array: ...

    def corrected(self, theta: Array, *, slope: float, intercept: float) -> Array: ...
