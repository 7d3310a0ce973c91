"""Assignment of models to sites: one model for all, or several of which each site uses one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.protocol.messages import Payload


@dataclass(frozen=True)
class ModelAssignment:
    """The common model `model` (P,), and the index of the model in `models` that each site in `index_by_site` uses instead.

    Models of one size are rows of an array (M, P); forests, which differ in size, are a list.
    """

    model: Array
    models: Array | Sequence[Array] | None = None
    index_by_site: Mapping[str, int] = field(default_factory=dict)

    def for_site(self, site: str) -> Array:
        if self.models is None or site not in self.index_by_site:
            return self.model
        row: Array = self.models[self.index_by_site[site]]
        return row

    def payloads(self) -> dict[str, Payload]:
        """Return the payload of each site that has a model of its own."""
        return {site: {"model": self.for_site(site)} for site in self.index_by_site}

    def map(self, change: Callable[[Array], Array]) -> ModelAssignment:
        """Apply a function to every model."""
        models = None if self.models is None else stack_models([change(m) for m in self.models])
        return replace(self, model=change(self.model), models=models)

    def astype(self, dtype: np.typing.DTypeLike) -> ModelAssignment:
        models = self.models
        if isinstance(models, np.ndarray):
            models = models.astype(dtype, copy=False)
        return replace(self, model=self.model.astype(dtype, copy=False), models=models)

    def arrays(self, sites: Sequence[str]) -> dict[str, Array]:
        """Return arrays for a checkpoint: the index of each site in the order of `sites`, -1 for the common model."""
        if self.models is None:
            return {"model": self.model}
        index = np.array([self.index_by_site.get(s, -1) for s in sites], np.int64)
        return {"model": self.model, "of": index, **{f"models/{m}": a for m, a in enumerate(self.models)}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], sites: Sequence[str]) -> ModelAssignment:
        if "of" not in arrays:
            return cls(np.array(arrays["model"]))
        index = {s: int(k) for s, k in zip(sites, arrays["of"], strict=True) if k >= 0}
        models = [arrays[f"models/{m}"] for m in range(sum(name.startswith("models/") for name in arrays))]
        return cls(np.array(arrays["model"]), stack_models(models), index)


def stack_models(models: Sequence[Array]) -> Array | list[Array]:
    """Stack models of one size as rows of one array; models of several sizes stay a list."""
    return np.stack(models) if len({m.shape for m in models}) == 1 else list(models)
