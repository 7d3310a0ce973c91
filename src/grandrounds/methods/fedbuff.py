"""FedBuff (Nguyen et al. 2022): answers arrive when they will; every so many, the server takes a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from grandrounds.methods.aggregate import join, measured
from grandrounds.methods.base import Method, Round, Server
from grandrounds.methods.select import Chosen
from grandrounds.methods.stale import AtWork, send, trust_in_late
from grandrounds.protocol.messages import Answers


class FedBuff(Method):
    """A round ends when method.buffer updates are in: x += eta * sum_k w_k s(staleness_k) D_k.

    The paper weighs updates alike (`weigh = "uniform"`). A place that an answer leaves free goes to a site that is not
    in the buffer yet; with few sites, one that has answered waits for the step, so that it does not train twice from
    one model. When all who are at work have failed, the server makes do with what it has.
    """

    name = "fedbuff"
    title = "FedBuff: asynchronous, a step for every method.buffer answers, each by its age"
    family = "async"

    def round(self, server: Server) -> Round:
        s, work = self.settings, AtWork.of(server)
        arrived: dict[str, dict[str, object]] = {}
        late: dict[str, int] = {}
        while len(arrived) < s.buffer:
            ask = self.ask_to_train(server, work.fill(server, s.select, but=arrived))
            yield from send(replace(ask, report=("update", "count", "steps")))
            if arrived and not work.any:
                break
            arrival = yield from work.next()
            if arrival is not None:
                site = arrival.answer.site
                late[site], arrived[site] = server.round - arrival.sent_round, dict(arrival.answer.values)
        rows = []
        for site, values in arrived.items():
            worth = trust_in_late(late[site], s.staleness)
            model = server.model + worth * np.asarray(values["update"])
            rows.append((site, {"model": model.astype(server.model.dtype), "count": np.asarray(values["count"])}))
        answers = Answers.from_rows(sorted(rows, key=lambda row: row[0]))
        joined = join(server, answers, self)
        lr = 1.0 if s.server.lr is None else s.server.lr
        decision = joined.decision(Chosen((), {"staleness": {site: float(a) for site, a in late.items()}}))
        why = f"{decision.why}; {len(arrived)} answers were in, older ones count less ({s.staleness.rule})"
        model = server.model + lr * (joined.model - server.model)
        model = measured(server, model, answers, joined.weights)
        return server.next(model, replace(decision, why=why), busy=work.busy, **joined.memory)
