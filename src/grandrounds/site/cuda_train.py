"""All sites' local steps on one GPU, captured once as a CUDA graph and replayed.

For a small net, kernel launches dominate, so the whole step of all sites (gather, forward, backward, optimiser) is one graph.
Its inputs are fixed buffers, and the graph increments the step number itself, so a round fills the buffers and replays the
graph. Parameters are stored block by block, (K, ...) each, in one long vector: contiguous for convolutions, and one operation
for the optimiser. When a third of the sites have finished, a graph over the others takes over: sites are sorted by decreasing
step count. A site's result is stored after its last step; later changes by momentum are discarded.

Small nets are vmapped over the stack. Grouped convolutions with many channels are slow, so large nets on small maps are
vmapped as products of matrices, and on large maps they take one site after another inside the graph.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from grandrounds.models.nets.products import as_products
from grandrounds.models.torch_model import TorchModel
from grandrounds.site.batches import BatchPlan
from grandrounds.site.torch_job import TorchJob, single_gradients, stacked_gradients

_Gradients = Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]

_COUNTING = 2
"""Slots of a rule that needs the step number (Adam)."""

LANES = 4
"""CUDA streams among which the sites of large nets are distributed, so that their small kernels overlap."""


def run_graph(
    job: TorchJob, plan: BatchPlan, theta: Tensor, slots: list[Tensor], t: Tensor, closed: Tensor | None = None
) -> None:
    """Run all steps of the plan for all sites; theta (K, P), slots (K, learnt) and t (K, 1) are changed in place.

    `closed` (K, C) is added to the logits if sites have different tasks.
    """
    first_step = 0
    for size, runs in _segments(plan, len(theta)):
        buffers = _held(job, plan, size, closed)
        buffers.load(job, plan, theta, slots, t, first_step)
        if closed is not None and buffers.closed is not None:
            buffers.closed.copy_(closed[:size])
        for r, (active, steps) in enumerate(runs):
            for _ in range(steps):
                buffers.graph.replay()
            first_step += steps
            going_on = runs[r + 1][0] if r + 1 < len(runs) else 0  # in this graph
            buffers.store(theta, slots, t, slice(going_on, active))


def _segments(plan: BatchPlan, sites: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield the size of each graph (the whole stack, then two thirds of it once no more are active, and so on), and its runs of
    active sites and steps."""

    def size(active: int) -> int:
        n = sites
        while active <= (fewer := min(n - 1, (2 * n + 2) // 3)) and fewer:
            n = fewer
        return n

    for n, run in groupby(plan.active, size):
        yield n, [(active, len(list(steps))) for active, steps in groupby(run)]


@dataclass
class _Held:
    """Fixed buffers for K sites and the graph that works on them."""

    model: TorchModel
    theta: Tensor  # (K * learnt,) block by block
    slots: list[Tensor]  # likewise
    start: Tensor  # likewise
    t: Tensor  # (K,)
    rows: Tensor  # (S, K, B)
    weight: Tensor  # (S, K, B)
    steps: Tensor  # (K,)
    step: Tensor  # (1,)
    lr: Tensor
    site: Tensor | None  # (K * learnt,) site of each element, for rules that count steps
    decay: Tensor  # (K * learnt,)
    closed: Tensor | None  # (K, C)
    correction: Tensor | None  # (K * learnt,)
    frozen: Tensor | None  # (K * learnt,)
    lent: dict[str, Tensor]  # (S, K, A, ...) shared reference rows of each step
    own: dict[str, Tensor]  # (K, ...) labels and sketches of each site
    graph: torch.cuda.CUDAGraph

    def load(
        self, job: TorchJob, plan: BatchPlan, theta: Tensor, slots: list[Tensor], t: Tensor, first_step: int
    ) -> None:
        """Fill the buffers for the steps from `first_step` on."""
        k = len(self.t)
        self.rows.copy_(torch.from_numpy(plan.rows[:, :k]))
        self.weight.copy_(torch.from_numpy(plan.weight[:, :k]))
        self.steps.copy_(torch.from_numpy(plan.steps_in_order[:k]))
        if job.reference is not None:
            for name, place in self.lent.items():
                place.copy_(job.reference.steps[name][:, :k])
            for name, place in self.own.items():
                place.copy_(job.reference.sites[name][:k])
        self.step.fill_(first_step)
        self.lr.copy_(job.lr)
        self.t.copy_(t[:k, 0])
        for mine, source in zip((self.theta, *self.slots), (theta, *slots), strict=True):
            for block, part in zip(self.blocks(mine), _columns(self.model, source[:k]), strict=True):
                block.copy_(part.reshape(block.shape))
        start = job.start.expand(k, -1) if job.start.dim() == 1 else job.start[:k]
        fixed = [(self.start, start)]
        if self.correction is not None and job.correction is not None:
            fixed.append((self.correction, job.correction[:k]))
        for mine, source in fixed:
            for block, part in zip(self.blocks(mine), _columns(self.model, source), strict=True):
                block.copy_(part.reshape(block.shape))

    def store(self, theta: Tensor, slots: list[Tensor], t: Tensor, sites: slice) -> None:
        """Copy these sites' results back."""
        t[sites, 0] = self.t[sites]
        for mine, source in zip((self.theta, *self.slots), (theta, *slots), strict=True):
            for block, part in zip(self.blocks(mine), _columns(self.model, source[sites]), strict=True):
                part.copy_(block[sites].reshape(part.shape))

    def taken(self, job: TorchJob, active: Tensor) -> dict[str, Tensor]:
        """Return the shared reference rows of all sites in this step, (K, ...), with weight 0 for finished sites."""
        if job.reference is None:
            return {}
        steps = {name: place.index_select(0, self.step)[0] for name, place in self.lent.items()}
        return {**steps, **self.own, "pull": active.to(self.theta.dtype) * job.reference.weight}

    def blocks(self, flat: Tensor) -> list[Tensor]:
        """Return the parameters (K, *shape) as views of a long vector."""
        k = len(self.t)
        cuts = torch.split(flat, [k * (piece.stop - piece.start) for _, piece, _ in _learnt(self.model)])
        return [c.view(k, *shape) for c, (_, _, shape) in zip(cuts, _learnt(self.model), strict=True)]


def _learnt(model: TorchModel) -> list[tuple[str, slice, tuple[int, ...]]]:
    return list(model.layout.slices[: len(model.trainable)])


def _columns(model: TorchModel, matrix: Tensor) -> list[Tensor]:
    """Return the columns of (K, learnt or P) that belong to each parameter."""
    return [matrix[:, piece] for _, piece, _ in _learnt(model)]


def _held(job: TorchJob, plan: BatchPlan, size: int, closed: Tensor | None) -> _Held:
    """Return the buffers and the graph for this shape of work, built once and cached with the model."""
    work = (plan.rows.shape, job.key, job.x.data_ptr(), closed is not None)
    cached = job.model.cache.get("graphs")
    if cached is None or cached[0] != work:  # other work than before: the old buffers are freed
        cached = job.model.cache["graphs"] = (work, {}, torch.cuda.graph_pool_handle())
    graphs: dict[int, _Held] = cached[1]
    if size not in graphs:
        graphs[size] = _make(job, plan, size, closed, cached[2])
    return graphs[size]


def _make(job: TorchJob, plan: BatchPlan, k: int, closed: Tensor | None, pool: Any) -> _Held:
    """Build buffers and capture their graph; `pool` is memory that graphs share, since only one of them runs at a time."""
    model = job.model
    device, dtype = model.device, model.dtype
    steps, _, width = plan.rows.shape
    n = k * model.learnt
    counts = [piece.stop - piece.start for _, piece, _ in _learnt(model)]
    lent, per_site = ({}, {}) if job.reference is None else (job.reference.steps, job.reference.sites)

    def zeros(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.zeros(*shape, dtype=kind, device=device)

    buffers = _Held(
        model=model,
        theta=zeros(n),
        slots=[zeros(n) for _ in range(job.slots)],
        start=zeros(n),
        t=zeros(k),
        rows=zeros(steps, k, width, kind=torch.int64),
        weight=zeros(steps, k, width),
        steps=zeros(k, kind=torch.int64),
        step=zeros(1, kind=torch.int64),
        lr=zeros(1)[0],
        site=None if job.slots < _COUNTING else _of_site(k, counts, device),
        decay=_stacked(model, job.decay, k),
        closed=None if closed is None else zeros(k, closed.shape[1]),
        correction=None if job.correction is None else zeros(n),
        frozen=None if job.frozen is None else _stacked(model, job.frozen, k),
        lent={name: torch.zeros_like(t[:, :k]) for name, t in lent.items()},
        own={name: torch.zeros_like(t[:k]) for name, t in per_site.items()},
        graph=torch.cuda.CUDAGraph(),
    )
    work = _work(replace(job, lr=buffers.lr), buffers)
    side = _stream(device, 0)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
            buffers.step.zero_()
    torch.cuda.current_stream(device).wait_stream(side)
    with _nothing_collected(), torch.cuda.graph(buffers.graph, pool=pool):
        work()
    return buffers


def _stacked(model: TorchModel, each: Tensor, sites: int) -> Tensor:
    """Repeat a value of each entry (learnt,) for all sites, block by block: (K * learnt,)."""
    return torch.cat([each[piece].repeat(sites) for _, piece, _ in _learnt(model)])


def _of_site(sites: int, counts: list[int], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(sites, device=device).repeat_interleave(c) for c in counts])


@lru_cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """Return one of a few streams for all graphs: each stream that multiplies matrices keeps its own workspace permanently."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Pause garbage collection: freeing an old graph during capture would spoil the new one."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _work(job: TorchJob, buffers: _Held) -> Callable[[], None]:
    """Build the function that takes one step of all sites in the buffers."""
    job.model.net.train()
    how = job.model.side_by_side(job.x.shape[1:])
    gradients = _one_by_one(job, buffers) if how is None else _by_vmap(job, buffers, products=how == "products")

    def work() -> None:
        rows = buffers.rows.index_select(0, buffers.step)[0]
        weight = buffers.weight.index_select(0, buffers.step)[0]
        if job.class_weight is not None:
            weight = weight * job.class_weight[job.y[rows]]
        active = buffers.steps > buffers.step
        flat = gradients(rows, weight, buffers.taken(job, active))
        with torch.no_grad():
            buffers.t.add_(active)
            buffers.step.add_(1)
            if job.is_plain_sgd:  # a finished site's rows have no weight, so its gradient is zero already
                buffers.theta.add_(flat.mul_(-job.lr))
                return
            change, new = job.change(
                buffers.theta,
                flat,
                buffers.slots,
                buffers.t[:1] if buffers.site is None else buffers.t[buffers.site],
                start=buffers.start,
                decay=buffers.decay,
                correction=buffers.correction,
                frozen=buffers.frozen,
            )
            buffers.theta.add_(change)
            for old, fresh in zip(buffers.slots, new, strict=True):
                old.copy_(fresh)

    return work


def _by_vmap(job: TorchJob, buffers: _Held, *, products: bool) -> _Gradients:
    stacked = stacked_gradients(job)
    params = tuple(buffers.blocks(buffers.theta))

    def gradients(rows: Tensor, weight: Tensor, taken: dict[str, Tensor]) -> Tensor:
        with as_products(products):
            parts = stacked(params, job.batch(rows, weight, buffers.closed, taken))
        return torch.cat([g.reshape(-1) for g in parts])

    return gradients


def _one_by_one(job: TorchJob, buffers: _Held) -> _Gradients:
    params = buffers.blocks(buffers.theta)
    device = job.model.device
    lanes = [_stream(device, k) for k in range(LANES)]

    def gradients(rows: Tensor, weight: Tensor, taken: dict[str, Tensor]) -> Tensor:
        main = torch.cuda.current_stream(device)
        for lane in lanes:
            lane.wait_stream(main)
        per_site: list[tuple[Tensor, ...]] = []
        for k in range(len(rows)):
            with torch.cuda.stream(lanes[k % LANES]):
                site_params = [p[k].detach().requires_grad_() for p in params]
                closed = None if buffers.closed is None else buffers.closed[k]
                mine = {name: t[k] for name, t in taken.items()}
                per_site.append(single_gradients(job, site_params, job.batch(rows[k], weight[k], closed, mine)))
        for lane in lanes:
            main.wait_stream(lane)
        return torch.cat([torch.stack(list(parts)).reshape(-1) for parts in zip(*per_site, strict=True)])

    return gradients
