"""Custom training loops (`LocalObjective.fit`) on the NumPy kernel: one site after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.rng import generator
from grandrounds.models.dense import Dense
from grandrounds.site.batches import BatchPlan
from grandrounds.site.objective import Batch, BoundObjective, LocalFit
from grandrounds.site.train_job import TrainJob, TrainResult

Gradient = Callable[[Array, Batch], Array]


def train(job: TrainJob, plan: BatchPlan) -> TrainResult:
    """Train the member sites with the objective's own loop, on the NumPy kernel.

    Args:
        job: The model, the rows and the settings.
        plan: The batches of every step.

    Returns:
        The local models in the members' order.
    """
    model, part, config = cast("Dense", job.model), job.part, job.config
    bound = cast("BoundObjective", job.objective)
    l2 = config.l2 * model.layout.mask("weight").astype(job.start.dtype)

    def gradient_at(j: int, start: Array) -> Gradient:
        state = {n: v[j] for n, v in bound.state.items()}

        def gradient(theta: Array, batch: Batch) -> Array:
            rows, weight = batch
            if job.class_weight is not None:
                weight = weight * job.class_weight[part.y[rows]]
            out = np.empty((1, len(theta)), start.dtype)
            slope = bound.loss_gradient if bound.has_loss else None
            x, target = part.x[rows][None], part.target[rows][None]
            model.gradient(theta[None].astype(start.dtype, copy=False), x, target, weight[None], out, slope=slope)
            g = out[0] + l2 * theta
            if config.proximal:
                g += config.proximal * (theta - start)
            if bound.has_penalty:
                g += bound.penalty_gradient(theta, start, state)
            if job.correction is not None:
                g += job.correction[j]
            return cast("Array", g)

        return gradient

    return run_loop(job, plan, gradient_at)


def run_loop(job: TrainJob, plan: BatchPlan, gradient_at: Callable[[int, Array], Gradient]) -> TrainResult:
    """Call the objective's loop for each member.

    Args:
        job: The model, the rows and the settings.
        plan: The batches of every step.
        gradient_at: Make the gradient function of the j-th member, given its start.

    Returns:
        The local models in the members' order.
    """
    bound, config = cast("BoundObjective", job.objective), job.config
    theta = np.broadcast_to(job.start, (len(job.members), job.start.shape[-1])).copy()
    position = np.argsort(plan.order, kind="stable")
    for j, k in enumerate(job.members.tolist()):
        steps, place, start = int(plan.steps[j]), int(position[j]), theta[j].copy()
        work = LocalFit(
            start=start,
            batches=[plan.batch(s, place) for s in range(steps)],
            gradient=gradient_at(j, start),
            lr=config.lr,
            state={n: v[j] for n, v in bound.state.items()},
            rng=generator(config.seed, purpose="objective", round=config.round, site=job.names[k]),
        )
        if steps:
            theta[j] = bound.fit(work)
    return TrainResult(theta, plan.steps, (), plan.steps[:, None].astype(float))
