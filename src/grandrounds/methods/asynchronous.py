"""Asynchronous methods (FedAsync, FedBuff): the server uses answers as they arrive, and stale answers have less weight."""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import dataclass, field, replace

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import SelectSettings, StalenessSettings
from grandrounds.core.records import Decision
from grandrounds.methods.aggregate import aggregate, with_batchnorm_statistics
from grandrounds.methods.base import Method, Round, Server
from grandrounds.methods.select import Selection, count_sites
from grandrounds.protocol.messages import Answers, Arrival, Ask, Receive, Send

RULES = {
    "constant": "stale answers have full weight",
    "polynomial": "(staleness + 1) ** -a",
    "hinge": "1 up to b rounds, then 1 / (a * (staleness - b) + 1)",
}


def staleness_weight(staleness: int, settings: StalenessSettings) -> float:
    """Compute s(t - tau) of FedAsync (Xie et al. 2019): 1 for a fresh answer, less for one trained from an old model."""
    if settings.rule == "polynomial":
        return float((staleness + 1) ** -settings.a)
    if settings.rule == "hinge" and staleness > settings.b:
        return float(1 / (settings.a * (staleness - settings.b) + 1))
    return 1.0


@dataclass
class InFlight:
    """The sites with an unanswered Ask, stored between rounds as an array (K,)."""

    sites: tuple[str, ...]
    busy: Array
    failed: set[str] = field(default_factory=set)  # in this round; they are asked again in the next
    draws: int = 0

    @classmethod
    def from_server(cls, server: Server) -> InFlight:
        return cls(server.sites, server.state.get("busy", np.zeros(len(server.sites), np.int8)).copy())

    def fill(self, server: Server, settings: SelectSettings, *, exclude: Collection[str] = ()) -> tuple[str, ...]:
        """Choose idle sites to start: all, or as many as keep [method.select]'s share of sites busy.

        Sites in `exclude`, and those that failed, are not asked again in this round.
        """
        idle = [k for k, s in enumerate(self.sites) if not self.busy[k] and s not in exclude and s not in self.failed]
        room = len(self.sites) if settings.rule == "all" else count_sites(settings.fraction, len(self.sites))
        room = min(len(idle), room - int(self.busy.sum()))
        if room <= 0:
            return ()
        if room < len(idle):
            idle = sorted(server.rng(f"select {self.draws}").choice(idle, room, replace=False).tolist())
            self.draws += 1
        self.busy[idle] = 1
        return tuple(self.sites[k] for k in idle)

    def next(self) -> Generator[Receive, Arrival, Arrival | None]:
        """Wait for the next answer; None if the site failed."""
        arrival = yield Receive()
        site = arrival.answer.site
        self.busy[self.sites.index(site)] = 0
        if arrival.answer.error:
            self.failed.add(site)
            return None
        return arrival

    @property
    def is_busy(self) -> bool:
        return bool(self.busy.any())


def send_ask(ask: Ask) -> Generator[Send, None, None]:
    """Send an Ask without waiting; an Ask without sites is not sent."""
    if ask.to:
        yield Send(ask)


class FedAsync(Method):
    """FedAsync (Xie et al. 2019): the server mixes in each answer as it arrives, with less weight for stale ones.

    x = (1 - alpha_t) x + alpha_t x_k, alpha_t = method.mixing * s(staleness). One arrival is one round.
    """

    name = "fedasync"
    title = "FedAsync: every answer is mixed in as it arrives, weighted by its staleness (method.mixing, method.staleness)"
    family = "async"
    parts = frozenset({"select", "stability"})

    def round(self, server: Server) -> Round:
        work, arrival = InFlight.from_server(server), None
        while arrival is None:
            yield from send_ask(self.ask_to_train(server, work.fill(server, self.settings.select)))
            arrival = yield from work.next()
        staleness = server.round - arrival.sent_round
        alpha = self.settings.mixing * staleness_weight(staleness, self.settings.staleness)
        site, values = arrival.answer.site, arrival.answer.values
        decision = Decision(
            signals={"staleness": {site: float(staleness)}, "data_size": {site: float(np.asarray(values["count"]))}},
            weights={site: alpha},
            why=f"an answer is mixed in with weight {self.settings.mixing:g}, less if it is stale "
            f"({self.settings.staleness.rule}); the current model has the rest",
        )
        return server.next((1 - alpha) * server.model + alpha * np.asarray(values["model"]), decision, busy=work.busy)


class FedBuff(Method):
    """FedBuff (Nguyen et al. 2022): a round ends when method.buffer updates have arrived.

    x += eta * sum_k w_k s(staleness_k) D_k.
    The paper weighs updates equally (`weigh = "uniform"`). When a site answers, the next Ask goes to a site that is not in the
    buffer yet. With few sites, a site that has answered waits for the step, so that it does not train twice from one model. If
    all active sites fail, the step uses the updates in the buffer.
    """

    name = "fedbuff"
    title = "FedBuff: asynchronous; one step per method.buffer answers, weighted by staleness"
    family = "async"

    def round(self, server: Server) -> Round:
        s, work = self.settings, InFlight.from_server(server)
        arrived: dict[str, dict[str, object]] = {}
        late: dict[str, int] = {}
        while len(arrived) < s.buffer:
            ask = self.ask_to_train(server, work.fill(server, s.select, exclude=arrived))
            yield from send_ask(replace(ask, report=("update", "count", "steps")))
            if arrived and not work.is_busy:
                break
            arrival = yield from work.next()
            if arrival is not None:
                site = arrival.answer.site
                late[site], arrived[site] = server.round - arrival.sent_round, dict(arrival.answer.values)
        rows = []
        for site, values in arrived.items():
            worth = staleness_weight(late[site], s.staleness)
            model = server.model + worth * np.asarray(values["update"])
            rows.append((site, {"model": model.astype(server.model.dtype), "count": np.asarray(values["count"])}))
        answers = Answers.from_rows(sorted(rows, key=lambda row: row[0]))
        aggregation = aggregate(server, answers, self)
        lr = 1.0 if s.server.lr is None else s.server.lr
        decision = aggregation.decision(Selection((), {"staleness": {site: float(a) for site, a in late.items()}}))
        why = f"{decision.why}; {len(arrived)} answers arrived, stale ones have less weight ({s.staleness.rule})"
        model = server.model + lr * (aggregation.model - server.model)
        model = with_batchnorm_statistics(server, model, answers, aggregation.weights)
        return server.next(model, replace(decision, why=why), busy=work.busy, **aggregation.memory)
