"""FedAvg (McMahan et al. 2017): choose sites, train locally, average by data size."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import Plan
from grandrounds.methods import METHODS
from grandrounds.methods.aggregate import Aggregation, aggregate, with_batchnorm_statistics
from grandrounds.methods.base import Method, Round, Server
from grandrounds.methods.dp import CLIENT, aggregate_dp
from grandrounds.methods.secure import aggregate_secure
from grandrounds.methods.select import Selection, choose
from grandrounds.methods.weigh import WeightingResult, weighting_rule
from grandrounds.protocol.messages import Answers, Ask


class FedAvg(Method):
    """FedAvg with pluggable selection, weighting, cohorts, robust aggregation and local regularisation."""

    name = "fedavg"
    title = "FedAvg: the mean of the sites' models, weighted by training rows"

    def round(self, server: Server) -> Round:
        """Select sites, let them train, aggregate their models, and take the server's step.

        Args:
            server: The state of the round.

        Returns:
            A generator that ends with the next model and its Decision.
        """
        selection = yield from self.select_sites(server)
        each = dict({} if server.assignment is None else server.assignment.payloads())
        rule = weighting_rule(self.settings.weigh)
        for site, payload in rule.site_payloads(server).items():
            each[site] = {**each.get(site, {}), **payload}
        ask = self.ask_to_train(server, selection.sites, each={s: payload for s, payload in each.items() if s in selection.sites})
        ask = ask.with_reports(*rule.reports(server.round))
        aggregation, answers = yield from self.train_and_aggregate(server, ask)
        decision = aggregation.decision(selection, "" if self.regularizer.name == "none" else self.regularizer.title)
        state = {**aggregation.memory, **self.regularizer.update(server, answers)}
        if aggregation.assignment.models is not None:
            return server.next(aggregation.assignment, decision, **state)
        model, memory = self.step(server, aggregation.model)
        model = with_batchnorm_statistics(server, model, answers, aggregation.weights)
        return server.next(model, decision, **state, **memory)

    def select_sites(self, server: Server) -> Generator[Ask, Answers, Selection]:
        """Select the sites of a round by method.select; override it for a selection rule of your own.

        Args:
            server: The state of the round.

        Returns:
            The sites, with the signals and the reason of the selection.
        """
        return (yield from choose(server, self.settings.select))

    def weigh_answers(self, server: Server, answers: Answers) -> WeightingResult | None:
        """Return weights of your own for the answers; None weighs them by method.weigh.

        A class that overrides it is refused with secure aggregation and client-level privacy.

        Args:
            server: The state of the round.
            answers: Answers to the training Ask, with `model` and `count`.

        Returns:
            The weights with their signals and an explanation, or None.
        """
        return None

    def train_and_aggregate(self, server: Server, ask: Ask) -> Generator[Ask, Answers, tuple[Aggregation, Answers]]:
        """Train as asked and aggregate the answers: with client-level privacy, by secure aggregation, or as they are.

        Args:
            server: The state of the round.
            ask: The training Ask.

        Returns:
            The aggregate with weights and signals, and the answers it was made from.
        """
        if server.private is not None and server.private.mechanism == CLIENT:
            return (yield from aggregate_dp(server, ask, self))
        if server.secure is not None:
            return (yield from aggregate_secure(server, server.secure, ask, self))
        answers = yield ask
        return aggregate(server, answers, self, self.weigh_answers(server, answers)), answers

    def step(self, server: Server, model: Array) -> tuple[Array, dict[str, Array]]:
        """Return the next model and further state; subclasses take a server step.

        Args:
            server: The state of the round.
            model: The aggregate of the sites' models.
        """
        return model, {}

    @classmethod
    def own_exchange(cls) -> str:
        """Return the hook by which a method that is not built in may look at single models; "" for none."""
        for hook in ("train_and_aggregate", "weigh_answers"):
            owner = next(c for c in cls.__mro__ if hook in vars(c))
            if not METHODS.lists(owner):
                return hook
        return ""

    @classmethod
    def secure_refusals(cls, plan: Plan) -> Iterator[str]:
        """Yield the reason why a subclass that may look at single models cannot be run with privacy.secure.

        Args:
            plan: The experiment's plan.

        Yields:
            One clause, or nothing.
        """
        if cls.round is not FedAvg.round or cls.own_exchange():
            yield from super().secure_refusals(plan)
