"""What the three strategies share: Flower's FedAvg, with the package's own method between replies and model.

A method's round is a generator that yields Asks. Here replies of Flower nodes are its Answers, so weights, signals and the
record of a round are the method's own, and nothing is worked out twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore import log

from grandrounds.core.arrays import Array, plain
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import MethodSettings, TrainSettings
from grandrounds.core.records import Decision
from grandrounds.experiment.experiment import Experiment
from grandrounds.integrations.flower.parameters import Parameters
from grandrounds.integrations.flower.reading import Explain, Heard, Mail, Reader, Wanted, without_ours
from grandrounds.integrations.flower.reports import REPORTS, SITE
from grandrounds.methods import build_method
from grandrounds.methods.base import Outcome, Round, Server
from grandrounds.protocol.messages import Answers, Ask

_ANY_DATA = {"data": {"name": "breast-cancer"}}
"""An experiment names its data, so that its settings can be filled in. None is read here: an app's nodes have their own."""

_OF_ALL = ("pooled",)
"""What methods remember of the consortium, and not of its sites one by one."""


@dataclass(frozen=True)
class Begun:
    """A round that nodes were asked to train in: the model they were sent, and who was asked."""

    round: int
    reader: Reader
    model: Array
    asked: tuple[str, ...]


class ByMethod(FedAvg):
    """FedAvg's sampling, messages and evaluation; the mean is a method's of this package.

    `settings`: the method's own section of an experiment, with the same names and defaults. `explain`: where the server holds
    reference rows it can explain nodes' models itself; it is given a node's ArrayRecord and returns what a helper of
    `grandrounds.flower.client` makes, and clients need no change. All else is Flower's FedAvg's.

    `decisions` is the record: one dict of plain JSON values a round, as `round_logs.json` of a run has them, with nodes by
    their ids. `names` says what nodes call themselves, where they do: by a ConfigRecord with 'grandrounds.site'.
    """

    method_name: ClassVar[str] = ""
    section: ClassVar[str] = ""  # the method's own section of [method]

    def __init__(self, settings: Mapping[str, Any] | None, *, explain: Explain | None, **fedavg: Any) -> None:
        super().__init__(**fedavg)
        who = type(self).__name__
        said = {"name": self.method_name, "stability": "none", self.section: dict(settings or {})}
        plan = Experiment.parse({**_ANY_DATA, "method": said}, where=who).plan()
        self.method = build_method(MethodSettings(plan["method"]), TrainSettings(plan["train"]))
        self.explain = explain
        self.decisions: list[dict[str, Any]] = []
        self.names: dict[str, str] = {}
        self._nodes: tuple[str, ...] = ()
        self._state: dict[str, Array] = {}
        self._begun: Begun | None = None

    def summary(self) -> None:
        """Log the strategy's settings."""
        super().summary()
        said = getattr(self.method.settings, self.section).plain()
        log(INFO, "\t└──> %s: %s", self.method.title, ", ".join(f"{k} {v}" for k, v in said.items()))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg; what nodes are sent is remembered."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        parameters = Parameters.of(arrays)
        reader = Reader(parameters, self.weighted_by_key, self.arrayrecord_key, self.explain)
        asked = tuple(str(m.metadata.dst_node_id) for m in messages)
        self._begun = Begun(server_round, reader, parameters.pack(arrays), tuple(sorted(asked, key=int)))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next model by the method, and the app's own metrics with every node's weight and signals beside them."""
        begun = self.begun(server_round)
        heard = self.heard(begun, replies)
        if not len(heard.answers):
            return self.lost(begun, heard)
        outcome = self._drive(begun, heard.answers)
        return self.ended(begun, heard, outcome)

    # What a strategy of its own may say otherwise

    def wanted(self, ask: Ask) -> Wanted:
        """What is read of replies to the method's training Ask."""
        return Wanted(tuple(r for r in ask.report if r in REPORTS), model="model" in ask.report)

    def completed(self, answers: Answers) -> Answers:
        """The answers with what the server adds to them, since nodes of a Flower app do not say it."""
        return answers

    def reply(self, ask: Ask, answers: Answers) -> Answers:
        """The Answers to a further Ask of the round, after training."""
        raise TypeError(f"{type(self).__name__} does not know the task '{ask.task}'")

    def notes(self) -> Sequence[str]:
        """What stands in every round's record besides."""
        return ()

    # The round

    def begun(self, server_round: int) -> Begun:
        """The round that nodes were asked in."""
        if self._begun is None or self._begun.round != server_round:
            raise BadInput(
                f"aggregate_train of round {server_round} has no model to begin with: call configure_train for it first",
                code="round-not-configured",
            )
        return self._begun

    def server(self, begun: Begun, answers: Answers | None = None) -> Server:
        """What the method may know; `answers`: those of its nodes and how many features they tell of."""
        new = sorted(set(begun.asked) - set(self._nodes), key=int)
        self._state = {n: a if n in _OF_ALL else _longer(a, len(new)) for n, a in self._state.items()}
        self._nodes = (*self._nodes, *new)
        features = 0 if answers is None or "shap.shares" not in answers else answers["shap.shares"].shape[1]
        return Server(
            round=begun.round,
            model=begun.model,
            sites=self._nodes,
            seed=0,
            state=self._state,
            present=begun.asked,
            background=np.zeros((1, 1)),  # clients have agreed on theirs
            features=tuple(f"feature {f + 1}" for f in range(features)),
        )

    def heard(self, begun: Begun, replies: Iterable[Message]) -> Heard:
        """What nodes that trained say, as far as it can be used; the rest is logged."""
        heard = begun.reader.read(Mail.of(replies), begun.asked, self.wanted(self._first_ask(begun)))
        log(INFO, "aggregate_train: %s answers can be used", len(heard.answers))
        for node, why in heard.answers.missing.items():
            log(WARNING, "\t> left out: node %s %s", node, why)
        said = [(node, r[SITE]) for node, c in heard.contents.items() for r in c.config_records.values() if SITE in r]
        self.names |= {node: str(name) for node, name in said if isinstance(name, str)}
        return heard

    def _first_ask(self, begun: Begun) -> Ask:
        """What the method asks of nodes that train in this round."""
        work = self.method.round(self.server(begun))
        ask = next(work)
        work.close()
        if not isinstance(ask, Ask):
            raise TypeError(f"{self.method.title} does not wait for its sites")
        return ask

    def _drive(self, begun: Begun, answers: Answers) -> Outcome:
        """Run the method's round to its end."""
        answers = self.completed(answers)
        work = self.method.round(self.server(begun, answers))
        next(work)
        return self.finish(work, answers, answers)

    def finish(self, work: Round, answers: Answers, heard: Answers) -> Outcome:
        """Go on with a round that waits for these answers; `heard`: those to training."""
        while True:
            try:
                effect = work.send(answers)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome
            if not isinstance(effect, Ask):
                raise TypeError(f"{self.method.title} does not wait for its sites")
            answers = self.reply(effect, heard)

    def ended(self, begun: Begun, heard: Heard, outcome: Outcome) -> tuple[ArrayRecord, MetricRecord]:
        self._state = dict(outcome.state)
        decision = self._record(begun, heard.answers.missing, outcome.decision)
        metrics = self._metrics(heard, decision)
        return begun.reader.parameters.unpack(outcome.model), metrics

    def lost(self, begun: Begun, heard: Heard) -> tuple[None, None]:
        """A round of which no answer can be used: the model stays, and the record says why."""
        if begun.asked:
            why = "no answer could be used, so the model stays as it was"
            log(WARNING, "aggregate_train: %s", why)
            self._record(begun, heard.answers.missing, Decision(why=why))
        return None, None

    def _record(self, begun: Begun, missing: Mapping[str, str], decision: Decision) -> Decision:
        notes = (*decision.notes, *self.notes())
        full = replace(decision, notes=notes).recorded(round=begun.round, asked=begun.asked, missing=missing)
        self.decisions.append(plain(full.to_dict()))
        return full

    def _metrics(self, heard: Heard, decision: Decision) -> MetricRecord:
        """The mean of the app's own metrics by rows, as in FedAvg, then weight and signals of every node."""
        contents = [without_ours(content) for content in heard.contents.values()]
        out = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        for name, by_node in {"weight": decision.weights, **decision.signals}.items():
            for node, value in by_node.items():
                out[f"{name}.{node}"] = float(value)
        return out


def _longer(values: Array, more: int) -> Array:
    """What is remembered of nodes, with so many more of which nothing is."""
    if not more:
        return values
    out: Array = np.concatenate([values, np.full((more, *values.shape[1:]), np.nan)])
    return out
