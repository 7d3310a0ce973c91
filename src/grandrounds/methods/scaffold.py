"""SCAFFOLD (Karimireddy et al. 2020, option II): control variates take the sites' own drift out of their steps."""

from __future__ import annotations

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.methods.base import Server
from grandrounds.methods.fedavg import FedAvg
from grandrounds.methods.stability import Stability
from grandrounds.protocol.messages import Answers, Value


class Variates(Stability):
    """The server's variate c is the mean of the sites' c_k, weighted by rows whatever weighs the models.

    The paper weighs c uniformly, which is unstable when models are weighed by rows and sites differ in size. Each
    site answers with the change of its c_k; sites that did not take part keep theirs: c += sum_k (n_k / n) dc_k.
    What a bad site wants is in c as well, and its own model follows the mean: no weight on models keeps it out.
    """

    name = "scaffold"
    title = "SCAFFOLD's control variates: each site's drift is taken out of its steps (optimizer 'sgd')"
    report = ("variate",)
    needs = frozenset({"sgd"})

    def tells(self, server: Server, lr: float) -> dict[str, Value]:
        return {"variate": self._variate(server)}

    def sums(self, server: Server) -> dict[str, dict[str, float]]:
        total = sum(server.rows[s] for s in server.sites)
        return {"variate": {s: server.rows[s] / total for s in server.sites}}

    def learns(self, server: Server, answers: Answers) -> dict[str, Array]:
        if "variate" in answers.totals:
            change = answers.totals["variate"]
        else:
            shares = np.array([self.sums(server)["variate"][s] for s in answers.sites])
            change = np.tensordot(shares, np.asarray(answers["variate"]), 1)
        return {"variate": (self._variate(server) + change).astype(server.model.dtype)}

    def _variate(self, server: Server) -> Array:
        return server.state.get("variate", np.zeros_like(server.model))


class Scaffold(FedAvg):
    name = "scaffold"
    title = "SCAFFOLD: FedAvg with control variates that take out the sites' drift"
    holds = "scaffold"
