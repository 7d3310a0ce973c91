"""FedAsync (Xie et al. 2019): the server folds in each answer as it arrives, the less the older its start was."""

from __future__ import annotations

import numpy as np

from grandrounds.methods.base import Method, Round, Server
from grandrounds.methods.decision import Decision
from grandrounds.methods.stale import AtWork, send, trust_in_late


class FedAsync(Method):
    """x = (1 - alpha_t) x + alpha_t x_k, alpha_t = method.mixing * s(staleness). One arrival is one round."""

    name = "fedasync"
    title = "FedAsync: every answer is mixed in as it arrives, by its age (method.mixing, method.staleness)"
    family = "async"
    parts = frozenset({"select", "stability"})

    def round(self, server: Server) -> Round:
        work, arrival = AtWork.of(server), None
        while arrival is None:
            yield from send(self.ask_to_train(server, work.fill(server, self.settings.select)))
            arrival = yield from work.next()
        staleness = server.round - arrival.sent_round
        alpha = self.settings.mixing * trust_in_late(staleness, self.settings.staleness)
        site, values = arrival.answer.site, arrival.answer.values
        decision = Decision(
            signals={"staleness": {site: float(staleness)}, "data_size": {site: float(np.asarray(values["count"]))}},
            weights={site: alpha},
            why=f"an answer is mixed in with weight {self.settings.mixing:g}, less if its start is older "
            f"({self.settings.staleness.rule}); the rest of the weight stays with the model",
        )
        return server.next((1 - alpha) * server.model + alpha * np.asarray(values["model"]), decision, busy=work.busy)
