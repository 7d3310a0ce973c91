"""Local objectives of your own: a regulariser (FedDyn), a loss (Brier score) and a training loop (SAM), in one file.

    python examples/own_objective.py

From an experiment file: train.objective = "own_objective:BrierLoss". FedDyn also steps at the server, so it is used with
method.name = "own_objective:FedDynServer".
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import ClassVar

import numpy as np

import grandrounds as gr
from grandrounds.methods.aggregate import Aggregation
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.protocol.messages import Answers, Ask
from grandrounds.site.objective import LocalFit, LocalObjective


class DynamicRegularizer(LocalObjective):
    """FedDyn's local objective (Acar et al. 2021): L_k(theta) - <h_k, theta> + alpha/2 ||theta - theta_server||^2.

    Each site keeps its dual vector h_k, and updates it by h_k -= alpha (theta_k - theta_server).
    """

    defaults: ClassVar = {"alpha": 0.1}
    state: ClassVar = ("dual",)

    def correction(self, state):
        return -state["dual"]

    def penalty_gradient(self, theta, start, state):
        return self.options["alpha"] * (theta - start)

    def update_state(self, state, theta, start):
        return {"dual": state["dual"] - self.options["alpha"] * (theta - start)}


class FedDynServer(FedAvg):
    """FedDyn's server step: h -= alpha * share * (mean - theta_server), then theta_server = mean - h / alpha."""

    title = "FedDyn with a local objective by import path"

    def train_and_aggregate(
        self, server: Server, ask: Ask
    ) -> Generator[Ask, Answers, tuple[Aggregation, Answers]]:
        aggregation, answers = yield from super().train_and_aggregate(server, ask)
        alpha = float(self.train.objective_options.plain().get("alpha", DynamicRegularizer.defaults["alpha"]))
        change = aggregation.model - server.model.astype(float)
        if server.statistics:
            change[-server.statistics :] = 0  # BatchNorm measures these entries, it does not learn them
        share = sum(server.rows[s] for s in aggregation.sites) / sum(server.rows[s] for s in server.sites)
        dual = server.state.get("dual", np.zeros_like(change)) - alpha * share * change
        served = ModelAssignment(aggregation.model - dual / alpha)
        return replace(aggregation, assignment=served, memory={**aggregation.memory, "dual": dual}), answers


class BrierLoss(LocalObjective):
    """The Brier score (p - y)^2 in place of cross-entropy, for two classes."""

    def loss_gradient(self, logits, target, xp):
        p = 1 / (1 + xp.exp(-logits))
        return 2 * (p - target) * p * (1 - p)


class SharpnessAware(LocalObjective):
    """SAM (Foret et al. 2021): take the gradient where the loss is highest within a distance rho."""

    defaults: ClassVar = {"rho": 0.05}

    def fit(self, work: LocalFit) -> np.ndarray:
        theta = work.start.copy()
        for batch in work.batches:
            g = work.gradient(theta, batch)
            worst = theta + self.options["rho"] * g / (np.linalg.norm(g) + 1e-12)
            theta -= work.lr * work.gradient(worst, batch)
        return theta


def main() -> None:
    for name, method, objective in (
        ("cross-entropy", "fedavg", None),
        ("FedDyn", FedDynServer, DynamicRegularizer),
        ("Brier loss", "fedavg", BrierLoss),
        ("SAM", "fedavg", SharpnessAware),
    ):
        experiment = gr.Experiment(
            name=f"own objective: {name}",
            data={"name": "breast-cancer"},
            method={"name": method, "rounds": 10},
            train={"objective": objective},
        )
        final = gr.run(experiment).summary["final"]
        print(f"{name:14} accuracy {final['accuracy']:.3f}, Brier score {final['brier']:.4f}")


if __name__ == "__main__":
    main()
