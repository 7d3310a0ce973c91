"""FedAvg (McMahan et al. 2017): choose sites, train locally, average by data size."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import Plan
from grandrounds.methods.aggregate import Aggregation, aggregate, with_batchnorm_statistics
from grandrounds.methods.base import Method, Round, Server
from grandrounds.methods.dp import CLIENT, aggregate_dp
from grandrounds.methods.secure import aggregate_secure
from grandrounds.methods.select import choose
from grandrounds.methods.sse_agg.weights import choose_halves, requested_reports
from grandrounds.protocol.messages import OWN_HALF, Answers, Ask


class FedAvg(Method):
    """Who takes part, how answers are weighed, what stands outliers and what holds sites together are parts of it."""

    name = "fedavg"
    title = "FedAvg: the mean of the sites' models, weighted by training rows"

    def round(self, server: Server) -> Round:
        chosen = yield from choose(server, self.settings.select)
        each = dict({} if server.assignment is None else server.assignment.payloads())
        for site, half in choose_halves(self.settings.weigh, server).items():
            each[site] = {**each.get(site, {}), OWN_HALF: half}
        ask = self.ask_to_train(server, chosen.sites, each={s: own for s, own in each.items() if s in chosen.sites})
        ask = ask.with_reports(*requested_reports(self.settings.weigh, server.round))
        joined, answers = yield from self.train_and_aggregate(server, ask)
        decision = joined.decision(chosen, "" if self.regularizer.name == "none" else self.regularizer.title)
        remembered = {**joined.memory, **self.regularizer.update(server, answers)}
        if joined.assignment.models is not None:
            return server.next(joined.assignment, decision, **remembered)
        model, memory = self.step(server, joined.model)
        model = with_batchnorm_statistics(server, model, answers, joined.weights)
        return server.next(model, decision, **remembered, **memory)

    def train_and_aggregate(self, server: Server, ask: Ask) -> Generator[Ask, Answers, tuple[Aggregation, Answers]]:
        """Train as asked and join the answers: with noise, under masks, or as they are."""
        if server.private is not None and server.private.mechanism == CLIENT:
            return (yield from aggregate_dp(server, ask, self))
        if server.secure is not None:
            return (yield from aggregate_secure(server, server.secure, ask, self))
        answers = yield ask
        return aggregate(server, answers, self), answers

    def step(self, server: Server, model: Array) -> tuple[Array, dict[str, Array]]:
        """The next model, given what the answers were joined to, and what to remember; here, that model itself."""
        return model, {}

    @classmethod
    def secure_refusals(cls, plan: Plan) -> Iterator[str]:
        if cls.round is not FedAvg.round:  # a round of one's own may look at single models
            yield from super().secure_refusals(plan)
