"""Who trains which model: the NumPy kernel, torch, or scikit-learn. The heavy ones are imported when first needed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.models import Model
from grandrounds.site.anchor import Steps, Taken
from grandrounds.site.batches import Plan
from grandrounds.site.contrast import Contrast
from grandrounds.site.private import Noise
from grandrounds.site.stack import Part
from grandrounds.site.work import Trained, Work

Trainer = Callable[..., Trained]


def trainer(model: Model) -> Trainer:
    """The function that trains this model at sites."""
    return {"numpy": _numpy, "torch": _torch, "forest": _forest, "boosted": _boosted}[model.kernel]


def private_trainer(model: Model) -> Trainer:
    """The function that trains this model at sites with DP-SGD; its `draws` say who is in which step."""
    return {"numpy": _private_numpy, "torch": _private_torch}[model.kernel]


def make_room(model: Model) -> None:
    """Let go of what this model keeps on its device."""
    held = getattr(model, "held", None)
    if held is not None:
        import torch

        held.clear()
        gc.collect()  # a recorded graph and its buffers hold on to one another
        torch.cuda.empty_cache()


def _numpy(
    model: Any, part: Part, members: Array, start: Array, *, names: Sequence[str], work: Work, **kept: Any
) -> Trained:
    from grandrounds.site.train import train

    plan = Plan.of(part, members, names=tuple(names), work=work)
    kept = _with_contrast(model, part.x, part, members, start, work, kept)
    kept = _with_lent(plan, members, tuple(names), work, kept)
    noise = _noise(model, plan, members, names, work)
    return train(model, part, members, start, plan=plan, work=work, noise=noise, **kept)


def _torch(
    model: Any, part: Part, members: Array, start: Array, *, names: Sequence[str], work: Work, **kept: Any
) -> Trained:
    from grandrounds.site.torch_train import train

    plan = Plan.of(part, members, names=tuple(names), work=work)
    if work.augment != "none":
        kept["x"] = augmented(part, members, names=tuple(names), work=work)
    kept = _with_contrast(model, kept.get("x", part.x), part, members, start, work, kept)
    kept = _with_lent(plan, members, tuple(names), work, kept)
    seeds, noise = _seeds(model, members, names, work), _noise(model, plan, members, names, work)
    return train(model, part, members, start, plan=plan, work=work, seeds=seeds, noise=noise, **kept)


def _private_numpy(
    model: Any, part: Part, members: Array, start: Array, *, names: Sequence[str], work: Work, **kept: Any
) -> Trained:
    from grandrounds.site.private import train

    kept = _with_lent(kept["draws"], members, tuple(names), work, kept)
    return train(model, part, members, start, work=work, **kept)


def _private_torch(
    model: Any, part: Part, members: Array, start: Array, *, names: Sequence[str], work: Work, **kept: Any
) -> Trained:
    from grandrounds.site.private_torch import train

    kept.pop("workers", None)
    if work.augment != "none":
        kept["x"] = augmented(part, members, names=tuple(names), work=work)
    kept = _with_lent(kept["draws"], members, tuple(names), work, kept)
    return train(model, part, members, start, work=work, seeds=_seeds(model, members, names, work), **kept)


def _seeds(model: Any, members: Array, names: Sequence[str], work: Work) -> list[int]:
    """A seed for each site, for networks that draw random numbers; of others none."""
    if not model.draws:
        return []
    streams = [generator(work.seed, purpose="net", round=work.round, site=names[k]) for k in members]
    return [int(rng.integers(2**63)) for rng in streams]


def _noise(model: Any, plan: Plan, members: Array, names: Sequence[str], work: Work) -> Noise | None:
    """Draws for the gradients of the sites in the plan's order, each from a stream of its own in any company and on
    either kernel; None where none are asked for."""
    if not work.gradient_noise:
        return None
    order = members[plan.order].tolist()
    streams = [generator(work.seed, purpose="gradient noise", round=work.round, site=names[k]) for k in order]
    return Noise(streams, steps=len(plan.rows), size=getattr(model, "learnt", model.layout.size))


def _with_contrast(
    model: Any, x: Array, part: Part, members: Array, start: Array, work: Work, kept: dict[str, Any]
) -> dict[str, Any]:
    """What MOON's loss needs of the sites' previous models, worked out on the rows that are trained on."""
    previous = kept.pop("previous", None)
    if previous is not None:
        kept["contrast"] = Contrast.of(
            model,
            x,
            part,
            members,
            start=start,
            previous=previous,
            mu=work.contrast,
            temperature=work.contrast_temperature,
        )
    return kept


def _with_lent(plan: Steps, members: Array, names: tuple[str, ...], work: Work, kept: dict[str, Any]) -> dict[str, Any]:
    """Which of the lent rows each step takes, where sites are anchored to them; sketches are taken on all."""
    if work.anchor:
        kept["taken"] = Taken.of(kept.pop("lent"), plan, members, names=names, work=work)
    return kept


def _boosted(
    model: Any, part: Part, members: Array, start: Array, *, names: Sequence[str], work: Work, **kept: Any
) -> Trained:
    """Gradient-boosted trees at each site on its own rows: a round adds trees to those of `start`."""
    grown, by_class = [], kept["class_weight"]
    for j, k in enumerate(members):
        rows = slice(part.offsets[k], part.offsets[k + 1])
        seed = int(generator(work.seed, purpose="boosting", round=work.round, site=names[k]).integers(2**31))
        weight = None if by_class is None else by_class[part.y[rows]]
        first = start if np.ndim(start[0]) == 0 else start[j]
        grown.append(model.fit(part.x[rows], part.y[rows], seed=seed, start=first, weight=weight))
    none = np.zeros(len(members), np.int64)
    return Trained(grown, none, (), none[:, None])


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


MOST = 1 / 8
"""The furthest a picture is moved, as a share of its side."""


def augmented(part: Part, members: Array, *, names: tuple[str, ...], work: Work) -> Array:
    """The pictures (N, C, H, W) of a part with the members' own changed: `flip` mirrors half, `shift` also moves them.

    One draw for each picture and round, from (seed, round, site): the same whoever shares a site's stack.
    """
    x = part.x.copy()
    height, width = x.shape[2:]
    for k in members:
        rows = slice(int(part.offsets[k]), int(part.offsets[k + 1]))
        rng = generator(work.seed, purpose="augment", round=work.round, site=names[k])
        mine = x[rows]
        mirrored = rng.random(len(mine)) < 0.5
        mine[mirrored] = mine[mirrored, :, :, ::-1]
        if work.augment == "shift":
            most = max(1, round(MOST * min(height, width)))
            down, across = rng.integers(-most, most + 1, (2, len(mine)))
            x[rows] = moved(mine, down, across)
    return x


def moved(x: Array, down: Array, across: Array) -> Array:
    """Each picture moved by its own (down, across) pixels; what comes in from outside is 0, the mean after scaling."""
    n, _, height, width = x.shape
    r = np.arange(height)[None, :, None] - down[:, None, None]
    c = np.arange(width)[None, None, :] - across[:, None, None]
    inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
    at = np.arange(n)[:, None, None]
    out = x.transpose(0, 2, 3, 1)[at, np.clip(r, 0, height - 1), np.clip(c, 0, width - 1)]
    return np.ascontiguousarray(np.where(inside[..., None], out, 0).transpose(0, 3, 1, 2))
