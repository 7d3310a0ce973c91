"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II): control variates remove client drift from the sites' steps.

Every local gradient gets c - c_k added. After the round c_k becomes c_k - c + (x - y_k) / (S * lr): the mean gradient at the
site, so option II is valid for plain SGD only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.methods.base import LocalRegularizer, Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.protocol.messages import Answers, Value
from grandrounds.site.plugin import Columns, SitePlugin, TrainRequest
from grandrounds.site.train_job import TrainJob, TrainResult


class SiteVariates(SitePlugin):
    """Site half: each site keeps its c_k, corrects its gradients by it and reports its change."""

    def before_training(self, request: TrainRequest, job: TrainJob) -> TrainJob:
        shared = request.ask.shared.get("variate")
        return job if shared is None else replace(job, correction=correction(np.asarray(shared), self._own(request)))

    def on_trained(self, request: TrainRequest, result: TrainResult) -> Columns:
        if "variate" not in request.ask.shared:
            return {}
        work, local, shared = request.config, self._own(request), np.asarray(request.ask.shared["variate"])
        rate = steady_rate(request.counts, work.batch) if request.ask.shared.get("steady") else None
        theta = np.asarray(result.theta)
        fresh = update_variates(local, shared, start=request.start, theta=theta, steps=result.steps, lr=work.lr, rate=rate)
        self.site.states.stage(request.members, work.round, {"variate": fresh})
        return {"variate": fresh - local}

    def _own(self, request: TrainRequest) -> Array:
        """Read the sites' committed variates, (m, P); zeros where there are none."""
        stored = self.site.states.read("variate", request.members)
        return np.zeros((len(request.members), request.start.shape[-1]), request.start.dtype) if stored is None else stored


def correction(shared: Array, local: Array) -> Array:
    """Compute c - c_k for each site: (m, P)."""
    out: Array = shared - local
    return out


def update_variates(
    local: Array, shared: Array, *, start: Array, theta: Array, steps: Array, lr: float, rate: Array | None = None
) -> Array:
    """Compute the sites' new variates (m, P); a site without steps keeps its own. `rate` (m,): step size towards the new one."""
    taken = np.maximum(steps, 1)[:, None] * lr
    fresh = local - shared + (start - theta) / taken
    if rate is not None:
        fresh = local + rate[:, None] * (fresh - local)
    return np.where(steps[:, None] > 0, fresh, local).astype(theta.dtype, copy=False)


def steady_rate(counts: Array, batch: int) -> Array:
    """Compute min(1, n_k / batch): a site with fewer rows than a batch reuses the same rows, so its gradient follows its own
    correction, and full steps would diverge."""
    out: Array = np.minimum(1.0, counts / batch) if batch else np.ones(len(counts))
    return out


class ControlVariates(LocalRegularizer):
    """Correct local gradients by control variates; the server's c is the mean of the sites' c_k, weighted by rows.

    The paper weighs c uniformly, which is unstable when models are weighed by rows and sites differ in size. Each
    site answers with the change of its c_k; sites that did not take part keep theirs: c += sum_k (n_k / n) dc_k.
    A bad site influences c too, and its own model follows the mean: weights on models do not exclude it.
    """

    name = "scaffold"
    title = "SCAFFOLD's control variates, which remove client drift from local steps (optimizer 'sgd')"
    report = ("variate",)
    needs = frozenset({"sgd"})
    site: ClassVar[tuple[type[SitePlugin], ...]] = (SiteVariates,)

    def site_config(self, server: Server, lr: float) -> dict[str, Value]:
        return {"variate": self._variate(server)}

    def secure_weights(self, server: Server) -> dict[str, dict[str, float]]:
        total = sum(server.rows[s] for s in server.sites)
        return {"variate": {s: server.rows[s] / total for s in server.sites}}

    def update(self, server: Server, answers: Answers) -> dict[str, Array]:
        if "variate" in answers.totals:
            change = answers.totals["variate"]
        else:
            shares = np.array([self.secure_weights(server)["variate"][s] for s in answers.sites])
            change = np.tensordot(shares, np.asarray(answers["variate"]), 1)
        return {"variate": (self._variate(server) + change).astype(server.model.dtype)}

    def _variate(self, server: Server) -> Array:
        return server.state.get("variate", np.zeros_like(server.model))


class Scaffold(FedAvg):
    name = "scaffold"
    title = "SCAFFOLD: FedAvg with control variates that remove client drift"
    regularizer_name = "scaffold"
