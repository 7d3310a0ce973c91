"""Interface of a model, the JSON that describes one, and the calibration of its log-odds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, Protocol, TypedDict

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.capability import TableModel, collect
from grandrounds.protocol.layout import ParameterLayout

TABLE_MODELS: Mapping[str, TableModel] = collect("models")
"""Models of capabilities by name; all read whole columns."""

COLUMN_KERNELS = {kernel: model for model in TABLE_MODELS.values() for kernel in model.kernels}
"""Kernels of models that read whole columns, with the model."""

GRADIENT_FREE = frozenset({*COLUMN_KERNELS, "forest", "boosted"})
"""Kernels of models without a gradient."""


class ModelSpec(TypedDict):
    """The JSON that a site needs to build the same model as the server; `inputs` is the shape of one row or image."""

    name: str
    inputs: list[int]
    classes: int
    hidden: list[int]
    trees: int
    depth: int
    norm: str
    stem: str
    weights: str | None
    statistics: str
    options: dict[str, object]
    tasks: NotRequired[list[str]]  # heads of the last layer
    task: NotRequired[str]  # type of the outcome; not there for classification
    columns: NotRequired[str]  # clinical columns of the inputs, for models that read whole columns
    keeps: NotRequired[str]  # entries that stay at a site: "norm", "statistics", "head" or "none"
    personal: NotRequired[dict[str, object]]  # settings of a personal part that is trained in the rounds


class Model(Protocol):
    """A trainable function of parameters (P,) and inputs.

    `kernel` names the training code: "numpy" (batched dense gradients), "torch" (autograd, any device),
    "forest" (scikit-learn at each site) or one of `COLUMN_KERNELS`. `site_bytes` is the memory for training one site.
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
    """Correction of log-odds s to slope * s + intercept, built into the model's last layer or its leaves.

    A temperature T is the slope 1 / T; it is stored as chosen, and Platt's line has none.
    """

    slope: float
    intercept: float = 0.0
    temperature: float | None = None

    @property
    def platt(self) -> dict[str, float] | None:
        """Return slope and intercept as a run folder stores them; None for a temperature, which is stored separately."""
        return None if self.temperature is not None else {"slope": self.slope, "intercept": self.intercept}

    @classmethod
    def from_temperature(cls, temperature: float) -> Calibration:
        return cls(1 / temperature, 0.0, temperature)

    @classmethod
    def from_record(cls, temperature: float | None, platt: Mapping[str, float] | None) -> Calibration | None:
        """Read the calibration from a run folder; None if there is none."""
        if platt is not None:
            return cls(float(platt["slope"]), float(platt["intercept"]))
        return None if temperature is None else cls.from_temperature(float(temperature))
