"""Kernels of local training: the NumPy kernel, torch, or scikit-learn. The heavy ones are imported when first needed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.capability import load
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.models import Model
from grandrounds.models.protocol import COLUMN_KERNELS
from grandrounds.site.anchor import ReferenceDraws, StepPlan
from grandrounds.site.batches import BatchPlan
from grandrounds.site.contrast import Contrast
from grandrounds.site.dp_sgd import Noise, SampledSteps
from grandrounds.site.stack import Part
from grandrounds.site.train_job import TrainConfig, TrainJob, TrainResult

Trainer = Callable[[TrainJob], TrainResult]
PrivateTrainer = Callable[[TrainJob, SampledSteps], TrainResult]


def trainer(model: Model) -> Trainer:
    """Return the function that trains this model at sites."""
    if model.kernel in COLUMN_KERNELS:
        train: Trainer = load(COLUMN_KERNELS[model.kernel].train)
        return train
    return {"numpy": _numpy, "torch": _torch, "forest": _forest, "boosted": _boosted}[model.kernel]


def private_trainer(model: Model) -> PrivateTrainer:
    """Return the function that trains this model at sites with DP-SGD."""
    return {"numpy": _private_numpy, "torch": _private_torch}[model.kernel]


def make_room(model: Model) -> None:
    """Release the memory that this model holds on its device."""
    cached = getattr(model, "cache", None)
    if cached is not None:
        import torch

        cached.clear()
        gc.collect()  # a captured graph and its buffers reference each other
        torch.cuda.empty_cache()


def _numpy(job: TrainJob) -> TrainResult:
    from grandrounds.site.numpy_train import train

    _refuse_tasks(job)
    plan = BatchPlan.draw(job.part, job.members, names=job.names, config=job.config)
    if job.objective is not None and job.objective.has_fit:
        from grandrounds.site import own_loop

        return own_loop.train(_loop_job(job), plan)
    job = _with_reference_draws(_with_contrast(job), plan)
    return train(replace(job, noise=_noise(job, plan)), plan)


def _torch(job: TrainJob) -> TrainResult:
    from grandrounds.site.torch_train import train, train_own_loop

    plan = BatchPlan.draw(job.part, job.members, names=job.names, config=job.config)
    if job.objective is not None and job.objective.has_fit:
        return train_own_loop(replace(_augmented(_loop_job(job)), seeds=_seeds(job)), plan)
    job = _with_reference_draws(_with_contrast(_augmented(job)), plan)
    return train(replace(job, seeds=_seeds(job), noise=_noise(job, plan)), plan)


def _private_numpy(job: TrainJob, sampled: SampledSteps) -> TrainResult:
    from grandrounds.site.dp_sgd import train

    _refuse_tasks(job)
    return train(_with_reference_draws(job, sampled), sampled)


def _private_torch(job: TrainJob, sampled: SampledSteps) -> TrainResult:
    from grandrounds.site.torch_dp_sgd import train

    job = _with_reference_draws(_augmented(job), sampled)
    return train(replace(job, seeds=_seeds(job)), sampled)


def _loop_job(job: TrainJob) -> TrainJob:
    """Refuse a job with terms that a custom training loop does not support."""
    config, model = job.config, job.model
    terms = {
        "MOON's contrast": job.previous is not None,
        "reference rows (anchors, alignment)": job.reference is not None,
        "train.keep_optimizer": config.keep_optimizer,
        "train.noise": bool(config.gradient_noise),
        "BatchNorm": bool(getattr(model, "statistics", ())),
    }
    unused = next((name for name, is_set in terms.items() if is_set), None)
    if unused is not None:
        raise BadInput(
            f"train.objective has its own training loop (fit), which does not support {unused}: leave one of them out",
            code="method-does-not-fit",
        )
    return job


def _refuse_tasks(job: TrainJob) -> None:
    if job.penalty is not None:
        raise BadInput(
            "sites with different tasks need the torch kernel: set engine.kernel = 'torch'", code="unsupported-kernel"
        )


def _augmented(job: TrainJob) -> TrainJob:
    if job.config.augment == "none":
        return job
    return replace(job, inputs=augment(job.part, job.members, names=job.names, config=job.config))


def _seeds(job: TrainJob) -> tuple[int, ...]:
    """Draw a seed for each site, for networks that draw random numbers; none for others."""
    model: Any = job.model
    if not model.draws:
        return ()
    seed, number = job.config.seed, job.config.round
    streams = [generator(seed, purpose="net", round=number, site=job.names[k]) for k in job.members]
    return tuple(int(rng.integers(2**63)) for rng in streams)


def _noise(job: TrainJob, plan: BatchPlan) -> Noise | None:
    """Prepare gradient noise for the sites in the plan's order; None if none is requested.

    Each site has its own random stream, independent of other sites and of the kernel.
    """
    if not job.config.gradient_noise:
        return None
    order, seed, number = job.members[plan.order].tolist(), job.config.seed, job.config.round
    streams = [generator(seed, purpose="gradient noise", round=number, site=job.names[k]) for k in order]
    model: Any = job.model
    return Noise(streams, steps=len(plan.rows), size=getattr(model, "learnt", model.layout.size))


def _with_contrast(job: TrainJob) -> TrainJob:
    """Compute the fixed features of MOON's loss on the rows that are trained on."""
    if job.previous is None:
        return job
    contrast = Contrast.build(
        job.model,
        job.part.x if job.inputs is None else job.inputs,
        job.part,
        job.members,
        start=job.start,
        previous=job.previous,
        mu=job.config.contrast,
        temperature=job.config.contrast_temperature,
    )
    return replace(job, contrast=contrast)


def _with_reference_draws(job: TrainJob, plan: StepPlan) -> TrainJob:
    """Draw the reference rows of each step, if sites are anchored to them; alignment uses all of them."""
    if not job.config.anchor:
        return job
    assert job.reference is not None
    draws = ReferenceDraws.draw(job.reference, plan, job.members, names=job.names, config=job.config)
    return replace(job, reference=None, reference_draws=draws)


def _boosted(job: TrainJob) -> TrainResult:
    """Grow gradient-boosted trees at each site on its own rows: a round adds trees to those of `start`."""
    model: Any = job.model
    part, config, grown = job.part, job.config, []
    for j, k in enumerate(job.members):
        rows = slice(part.offsets[k], part.offsets[k + 1])
        rng = generator(config.seed, purpose="boosting", round=config.round, site=job.names[k])
        weight = None if job.class_weight is None else job.class_weight[part.y[rows]]
        first = job.start if np.ndim(job.start[0]) == 0 else job.start[j]
        seed = int(rng.integers(2**31))
        grown.append(model.fit(part.x[rows], part.y[rows], seed=seed, start=first, weight=weight))
    none = np.zeros(len(job.members), np.int64)
    return TrainResult(grown, none, (), none[:, None])


def _forest(job: TrainJob) -> TrainResult:
    """Grow a forest at each site on its own rows; it does not continue from `start`."""
    return fit_each(job, purpose="forest")


def fit_each(job: TrainJob, *, purpose: str) -> TrainResult:
    """Fit the model at each site on its own rows, with a seed drawn for this purpose."""
    model: Any = job.model
    part, config, fitted = job.part, job.config, []
    for k in job.members:
        rows = slice(part.offsets[k], part.offsets[k + 1])
        rng = generator(config.seed, purpose=purpose, round=config.round, site=job.names[k])
        fitted.append(model.fit(part.x[rows], part.y[rows], seed=int(rng.integers(2**31))))
    none = np.zeros(len(job.members), np.int64)
    return TrainResult(fitted, none, (), none[:, None])


MAX_SHIFT = 1 / 8
"""Largest translation of an image, as a share of its side."""


def augment(part: Part, members: Array, *, names: tuple[str, ...], config: TrainConfig) -> Array:
    """Augment the members' images of a part, (N, C, H, W): `flip` mirrors half, `shift` also moves them.

    One draw for each image and round, from (seed, round, site), independent of other sites.
    """
    x = part.x.copy()
    height, width = x.shape[2:]
    for k in members:
        rows = slice(int(part.offsets[k]), int(part.offsets[k + 1]))
        rng = generator(config.seed, purpose="augment", round=config.round, site=names[k])
        mine = x[rows]
        mirrored = rng.random(len(mine)) < 0.5
        mine[mirrored] = mine[mirrored, :, :, ::-1]
        if config.augment == "shift":
            most = max(1, round(MAX_SHIFT * min(height, width)))
            down, across = rng.integers(-most, most + 1, (2, len(mine)))
            x[rows] = shift_images(mine, down, across)
    return x


def shift_images(x: Array, down: Array, across: Array) -> Array:
    """Move each image by its own (down, across) pixels; the border is filled with 0, the mean after scaling."""
    n, _, height, width = x.shape
    r = np.arange(height)[None, :, None] - down[:, None, None]
    c = np.arange(width)[None, None, :] - across[:, None, None]
    inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
    image = np.arange(n)[:, None, None]
    out = x.transpose(0, 2, 3, 1)[image, np.clip(r, 0, height - 1), np.clip(c, 0, width - 1)]
    return np.ascontiguousarray(np.where(inside[..., None], out, 0).transpose(0, 3, 1, 2))
