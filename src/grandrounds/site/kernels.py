"""Who trains which model: the NumPy kernel, torch, or scikit-learn. The heavy ones are imported when first needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grandrounds.arrays import Array
from grandrounds.models import Model
from grandrounds.rng import generator
from grandrounds.site.batches import Plan
from grandrounds.site.stack import Part
from grandrounds.site.work import Trained, Work

Trainer = Callable[..., Trained]


def trainer(model: Model) -> Trainer:
    """A function like `train_planned` for this model."""
    return {"numpy": _numpy, "torch": _torch, "forest": _forest}[model.kernel]


def _numpy(
    model: Any, part: Part, members: Array, start: Array, *, names: Sequence[str], work: Work, **kept: Any
) -> Trained:
    from grandrounds.site.train import train

    plan = Plan.of(part, members, names=tuple(names), work=work)
    return train(model, part, members, start, plan=plan, work=work, **kept)


def _torch(
    model: Any, part: Part, members: Array, start: Array, *, names: Sequence[str], work: Work, **kept: Any
) -> Trained:
    from grandrounds.site.torch_train import train

    plan = Plan.of(part, members, names=tuple(names), work=work)
    if work.augment != "none":
        from grandrounds.site.augment import augmented

        kept["x"] = augmented(part, members, names=tuple(names), work=work)
    return train(model, part, members, start, plan=plan, work=work, **kept)


def _forest(
    model: Any, part: Part, members: Array, start: Array, *, names: Sequence[str], work: Work, **kept: Any
) -> Trained:
    """A forest grown at each site on its own rows; it does not continue from `start`."""
    grown = []
    for k in members:
        rows = slice(part.offsets[k], part.offsets[k + 1])
        seed = int(generator(work.seed, purpose="forest", round=work.round, site=names[k]).integers(2**31))
        grown.append(model.fit(part.x[rows], part.y[rows], seed=seed))
    none = np.zeros(len(members), np.int64)
    return Trained(grown, none, (), none[:, None])
