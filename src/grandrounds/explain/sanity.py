"""Does an explanation show the model? Parameters are drawn anew; an explanation that stays as it was never looked at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.explain.quality import rank_correlation
from grandrounds.metrics.classification import mean_defined


@dataclass(frozen=True)
class Randomisation:
    """Rank correlation (L, n) of each row's explanation before and after layers, from the top down, were drawn anew."""

    layers: tuple[str, ...]
    correlation: Array

    @property
    def mean(self) -> Array:
        """Mean over rows, (L,): low at the last is a pass; high means that the explanation does not show the model."""
        return mean_defined(self.correlation)


def randomisation(explain: Callable[[Array], Array], model: Any, theta: Array, *, seed: int) -> Randomisation:
    """The sanity check of Adebayo et al. (2018): layers are drawn anew from the top, one more each time, to the last.

    `explain(theta)` gives attributions (n, ...) of the same rows by that model; their absolute values are compared.
    """
    layers = layers_of(model)[::-1]
    before = explain(theta)
    after = (explain(randomised(model, theta, seed, layers=layers[: i + 1])) for i in range(len(layers)))
    size = np.abs(before).reshape(len(before), -1)
    return Randomisation(layers, np.stack([rank_correlation(size, np.abs(a).reshape(size.shape)) for a in after]))


def randomised(model: Any, theta: Array, seed: int, *, layers: Sequence[str] | None = None) -> Array:
    """The model with its parameters, or those of some layers, drawn anew as at its start.

    A linear model starts at zero, which explains nothing: weights that start alike are drawn from a normal
    distribution as wide as the trained ones.
    """
    known = layers_of(model)
    for layer in layers or ():
        if layer not in known:
            raise BadInput(f"the model has no layer '{layer}'; it has {', '.join(known)}")
    out, start = theta.copy(), model.init(seed, theta.dtype)
    rng = generator(seed, purpose="randomised")
    for name, at, shape in model.layout.slices:
        if layers is None or _layer(name) in layers:
            fresh = start[at]
            if len(shape) > 1 and (fresh == fresh[0]).all():
                fresh = rng.normal(scale=theta[at].std() or 1.0, size=prod(shape))
            out[at] = fresh
    return out


def layers_of(model: Any) -> tuple[str, ...]:
    """The names of a model's layers, from the input up; a forest has none and is refused."""
    if not hasattr(model.layout, "slices"):
        raise BadInput("a forest has no parameters that could be drawn anew; use a logistic model, an mlp or a net")
    return tuple(dict.fromkeys(_layer(name) for name, _, _ in model.layout.slices))


def _layer(name: str) -> str:
    return name.rpartition(".")[0] or name
