"""FedAvg (McMahan et al. 2017): choose sites, train locally, average by data size."""

from __future__ import annotations

from grandrounds.arrays import Array
from grandrounds.messages import Answers
from grandrounds.methods.aggregate import join, measured
from grandrounds.methods.base import Method, Round, Server
from grandrounds.methods.private import CLIENT, join_privately
from grandrounds.methods.reasons import reports
from grandrounds.methods.secretly import join_secretly
from grandrounds.methods.select import choose


class FedAvg(Method):
    """Who takes part, how answers are weighed, what stands outliers and what holds sites together are parts of it."""

    name = "fedavg"
    title = "FedAvg: the mean of the sites' models, weighted by training rows"

    def round(self, server: Server) -> Round:
        answers: Answers
        chosen = yield from choose(server, self.settings.select)
        each = {} if server.served is None else server.served.each()
        ask = self.ask_to_train(server, chosen.sites, each={s: own for s, own in each.items() if s in chosen.sites})
        ask = ask.reporting(*reports(self.settings.weigh, server.round))
        if server.private is not None and server.private.mechanism == CLIENT:
            joined, answers = yield from join_privately(server, ask, self)
        elif server.secure is None:
            answers = yield ask
            joined = join(server, answers, self)
        else:
            joined, answers = yield from join_secretly(server, server.secure, ask, self)
        decision = joined.decision(chosen, "" if self.stability.name == "none" else self.stability.title)
        remembered = {**joined.memory, **self.stability.learns(server, answers)}
        if joined.served.models is not None:
            return server.next(joined.served, decision, **remembered)
        model, memory = self.step(server, joined.model)
        model = measured(server, model, answers, joined.weights)
        return server.next(model, decision, **remembered, **memory)

    def step(self, server: Server, model: Array) -> tuple[Array, dict[str, Array]]:
        """The next model, given what the answers were joined to, and what to remember; here, that model itself."""
        return model, {}
