"""FedDyn (Acar et al. 2021, Algorithm 1): dynamic regularisation makes the sites' optima agree with the consortium's.

Site k keeps a dual vector h_k, which converges to the gradient of its own loss, and minimises
L_k(theta) - <h_k, theta> + alpha/2 ||theta - theta_server||^2; then h_k -= alpha (theta_k - theta_server). The server keeps
h -= alpha sum_k p_k (theta_k - theta_server) over the sites that took part, and steps to mean_k(theta_k) - h / alpha.

Departure: p_k is a site's share of all training rows, n_k / n, since models are weighed by rows. With method.weigh 'uniform' it
is 1 / K for each of K sites, as in the paper.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import Plan
from grandrounds.methods.aggregate import Aggregation
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import PARTS, Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.models.protocol import GRADIENT_FREE
from grandrounds.protocol.messages import Answers, Ask, Payload, Value
from grandrounds.site.plugin import Columns, SitePlugin, TrainRequest
from grandrounds.site.train_job import TrainJob, TrainResult


class SiteDuals(SitePlugin):
    """Site half: each site keeps its dual vector h_k; alpha arrives as the weight of the proximal term."""

    def before_training(self, request: TrainRequest, job: TrainJob) -> TrainJob:
        return replace(job, correction=-self._duals(request)) if request.ask.shared.get("dynamic") else job

    def on_trained(self, request: TrainRequest, result: TrainResult) -> Columns:
        if request.ask.shared.get("dynamic"):
            theta = np.asarray(result.theta)
            duals = self._duals(request) - request.config.proximal * (theta - request.start)
            self.site.states.stage(request.members, request.config.round, {"dual": duals.astype(theta.dtype, copy=False)})
        return {}

    def _duals(self, request: TrainRequest) -> Array:
        """Read the sites' committed dual vectors, (m, P); zeros where there are none."""
        stored = self.site.states.read("dual", request.members)
        return np.zeros((len(request.members), request.start.shape[-1]), request.start.dtype) if stored is None else stored


class FedDyn(FedAvg):
    """FedAvg with a dual vector at each site, and a server step by the sum of the sites' corrections."""

    name = "feddyn"
    title = "FedDyn: FedAvg with dynamic regularisation, so that sites' optima agree (method.options.alpha)"
    parts = PARTS - {"stability"}
    site = (SiteDuals,)
    defaults: ClassVar[Mapping[str, bool | int | float | str]] = {"alpha": 0.1}

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        alpha = {**cls.defaults, **plan.method.options.plain()}["alpha"]
        if isinstance(alpha, bool | str) or not 0 < alpha < float("inf"):
            yield f"method.options.alpha is {alpha!r}, but FedDyn needs a strength above 0: set it to 0.1"
        if model.kernel in GRADIENT_FREE:
            yield f"model.name is '{plan.model.name}': trees have no gradient for FedDyn to regularise; use fedavg"
        if plan.method.cohorts.models == "separate" and plan.method.cohorts.count != 1:
            yield "method 'feddyn' steps one model at the server: set method.cohorts.models = 'combined'"

    def ask_to_train(
        self, server: Server, sites: tuple[str, ...], *, each: Mapping[str, Payload] | None = None, **more: Value
    ) -> Ask:
        alpha = float(self.options["alpha"])
        return super().ask_to_train(server, sites, each=each, **{"proximal": alpha, "dynamic": True, **more})

    def train_and_aggregate(self, server: Server, ask: Ask) -> Generator[Ask, Answers, tuple[Aggregation, Answers]]:
        aggregation, answers = yield from super().train_and_aggregate(server, ask)
        alpha, change = float(self.options["alpha"]), aggregation.model - server.model.astype(float)
        if server.statistics:
            change[-server.statistics :] = 0  # measured by BatchNorm, not learnt
        dual = server.state.get("dual", np.zeros_like(change)) - alpha * self._share(server, aggregation.sites) * change
        served = ModelAssignment(aggregation.model - dual / alpha)
        return replace(aggregation, assignment=served, memory={**aggregation.memory, "dual": dual}), answers

    def _share(self, server: Server, sites: tuple[str, ...]) -> float:
        """Return the participating share of the consortium: of its sites with uniform weights, else of its rows."""
        if self.settings.weigh.rule == "uniform":
            return len(sites) / len(server.sites)
        return sum(server.rows[s] for s in sites) / sum(server.rows[s] for s in server.sites)
