"""FedAvg (McMahan et al. 2017): train locally, average by data size."""

from __future__ import annotations

from grandrounds.arrays import Array
from grandrounds.messages import Answers
from grandrounds.methods.base import Method, Round, Server
from grandrounds.methods.decision import Decision
from grandrounds.methods.weigh import data_size, uniform


class FedAvg(Method):
    name = "fedavg"
    title = "FedAvg: the mean of the sites' models, weighted by training rows"

    def round(self, server: Server) -> Round:
        answers: Answers = yield self.ask_to_train(server)
        weights = self.weigh(answers)
        decision = Decision(
            signals={"data_size": answers.by_site("count")},
            weights=dict(zip(answers.sites, weights.tolist(), strict=True)),
            why=self.why,
        )
        return server.next(server.combine(answers, weights), decision)

    def weigh(self, answers: Answers) -> Array:
        if self.settings.weigh == "uniform":
            return uniform(len(answers))
        return data_size(answers["count"])

    @property
    def why(self) -> str:
        if self.settings.weigh == "uniform":
            return "every site that answered has the same weight"
        return "a site's weight is its share of the training rows of all sites that answered"
