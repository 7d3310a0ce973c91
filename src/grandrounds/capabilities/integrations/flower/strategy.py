"""Base class of the three strategies: Flower's FedAvg with a method of this package as aggregation; and SSE-AGG.

A method's round is a generator that yields Asks. Replies of Flower nodes are its Answers, so weights, signals and the
record of a round are the method's own.
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

from grandrounds.capabilities.integrations.flower.client import REPORTS, SITE
from grandrounds.capabilities.integrations.flower.replies import (
    Explain,
    Parameters,
    Reader,
    Replies,
    ReplyContent,
    UsableReplies,
    without_own_metrics,
)
from grandrounds.core.arrays import Array, plain
from grandrounds.core.errors import BadInput
from grandrounds.core.plan_types import MethodSettings, TrainSettings
from grandrounds.core.records import Decision
from grandrounds.experiment.experiment import Experiment
from grandrounds.methods import build_method
from grandrounds.methods.base import Outcome, Round, Server
from grandrounds.protocol.messages import Answers, Ask

_ANY_DATA = {"data": {"name": "breast-cancer"}}
"""Placeholder for the data of an experiment, so that its settings can be filled in. No data are read here."""

_CONSORTIUM_STATE = ("pooled",)
"""State of methods about the consortium as a whole, not about single sites."""


@dataclass(frozen=True)
class TrainingRound:
    """A round in which nodes were asked to train: the model they received, and the nodes."""

    round: int
    reader: Reader
    model: Array
    nodes: tuple[str, ...]


class MethodStrategy(FedAvg):
    """Flower's FedAvg with the aggregation of a method of this package; sampling, messages and evaluation are FedAvg's.

    Args:
        settings: The method's section of an experiment, with the same names and defaults.
        explain: Explains nodes' models at the server if it has reference rows: takes a node's ArrayRecord and returns the
            metrics of a helper of `grandrounds.capabilities.integrations.flower.client`. Clients then need no change.
        fedavg: Arguments of Flower's FedAvg.

    Attributes:
        decisions: The record: one dict of plain JSON values per round, as in `round_logs.json` of a run, with nodes by
            their ids.
        names: Names of the nodes from a ConfigRecord with 'grandrounds.site'.
    """

    method_name: ClassVar[str] = ""
    section: ClassVar[str] = ""  # the method's section of [method]

    def __init__(self, settings: Mapping[str, object] | None, *, explain: Explain | None, **fedavg: Any) -> None:
        super().__init__(**fedavg)
        who = type(self).__name__
        section = {"name": self.method_name, "stability": "none", self.section: dict(settings or {})}
        plan = Experiment.parse({**_ANY_DATA, "method": section}, where=who).plan()
        self.method = build_method(MethodSettings(plan["method"]), TrainSettings(plan["train"]))
        self.explain = explain
        self.decisions: list[dict[str, Any]] = []
        self.names: dict[str, str] = {}
        self._nodes: tuple[str, ...] = ()
        self._state: dict[str, Array] = {}
        self._training: TrainingRound | None = None

    def summary(self) -> None:
        """Log the strategy's settings."""
        super().summary()
        section = getattr(self.method.settings, self.section).plain()
        log(INFO, "\t└──> %s: %s", self.method.title, ", ".join(f"{k} {v}" for k, v in section.items()))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes as FedAvg does, and remember the model they receive."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        parameters = Parameters.from_record(arrays)
        reader = Reader(parameters, self.weighted_by_key, self.arrayrecord_key, self.explain)
        nodes = tuple(str(m.metadata.dst_node_id) for m in messages)
        self._training = TrainingRound(server_round, reader, parameters.pack(arrays), tuple(sorted(nodes, key=int)))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next model by the method, and the app's own metrics with every node's weight and signals."""
        training = self.current_round(server_round)
        usable = self.read_replies(training, replies)
        if not len(usable.answers):
            return self.abandon_round(training, usable)
        outcome = self._drive(training, usable.answers)
        return self.finish_round(training, usable, outcome)

    # Methods that a strategy may override

    def expected_content(self, ask: Ask) -> ReplyContent:
        """Return the content that is read from replies to the method's training Ask."""
        return ReplyContent(tuple(r for r in ask.report if r in REPORTS), model="model" in ask.report)

    def complete(self, answers: Answers) -> Answers:
        """Add signals that the server computes, since nodes of a Flower app do not report them."""
        return answers

    def reply(self, ask: Ask, answers: Answers) -> Answers:
        """Answer a further Ask of the round, after training."""
        raise TypeError(f"{type(self).__name__} does not support the task '{ask.task}'")

    def notes(self) -> Sequence[str]:
        """Return notes for every round's record."""
        return ()

    # The round

    def current_round(self, server_round: int) -> TrainingRound:
        """Return the round in which nodes were asked.

        Raises:
            BadInput: configure_train was not called for this round.
        """
        if self._training is None or self._training.round != server_round:
            raise BadInput(
                f"aggregate_train of round {server_round} has no initial model: call configure_train for it first",
                code="round-not-configured",
            )
        return self._training

    def server(self, training: TrainingRound, answers: Answers | None = None) -> Server:
        """Build the method's server; `answers` determine its number of features."""
        new = sorted(set(training.nodes) - set(self._nodes), key=int)
        self._state = {n: a if n in _CONSORTIUM_STATE else _extend(a, len(new)) for n, a in self._state.items()}
        self._nodes = (*self._nodes, *new)
        features = 0 if answers is None or "shap.shares" not in answers else answers["shap.shares"].shape[1]
        return Server(
            round=training.round,
            model=training.model,
            sites=self._nodes,
            seed=0,
            state=self._state,
            present=training.nodes,
            background=np.zeros((1, 1)),  # clients agreed on theirs
            features=tuple(f"feature {f + 1}" for f in range(features)),
        )

    def read_replies(self, training: TrainingRound, replies: Iterable[Message]) -> UsableReplies:
        """Read the replies of nodes that trained, and log unusable ones."""
        content = self.expected_content(self._first_ask(training))
        usable = training.reader.read(Replies.from_messages(replies), training.nodes, content)
        log(INFO, "aggregate_train: %s answers are usable", len(usable.answers))
        for node, why in usable.answers.missing.items():
            log(WARNING, "\t> left out: node %s %s", node, why)
        names = [(node, r[SITE]) for node, c in usable.contents.items() for r in c.config_records.values() if SITE in r]
        self.names |= {node: str(name) for node, name in names if isinstance(name, str)}
        return usable

    def _first_ask(self, training: TrainingRound) -> Ask:
        """Return the method's training Ask of this round."""
        work = self.method.round(self.server(training))
        ask = next(work)
        work.close()
        if not isinstance(ask, Ask):
            raise TypeError(f"{self.method.title} is asynchronous, which a Flower strategy does not support")
        return ask

    def _drive(self, training: TrainingRound, answers: Answers) -> Outcome:
        """Run the method's round to its end."""
        answers = self.complete(answers)
        work = self.method.round(self.server(training, answers))
        next(work)
        return self.finish(work, answers, answers)

    def finish(self, work: Round, answers: Answers, trained: Answers) -> Outcome:
        """Continue a round that waits for these answers; `trained` are the answers to training."""
        while True:
            try:
                effect = work.send(answers)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome
            if not isinstance(effect, Ask):
                raise TypeError(f"{self.method.title} is asynchronous, which a Flower strategy does not support")
            answers = self.reply(effect, trained)

    def finish_round(
        self, training: TrainingRound, usable: UsableReplies, outcome: Outcome
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Record the round, and return its model and metrics."""
        self._state = dict(outcome.state)
        decision = self._record(training, usable.answers.missing, outcome.decision)
        metrics = self._metrics(usable, decision)
        return training.reader.parameters.unpack(outcome.model), metrics

    def abandon_round(self, training: TrainingRound, usable: UsableReplies) -> tuple[None, None]:
        """Keep the model in a round without usable answers, and record the cause."""
        if training.nodes:
            why = "no answer was usable, so the model is unchanged"
            log(WARNING, "aggregate_train: %s", why)
            self._record(training, usable.answers.missing, Decision(why=why))
        return None, None

    def _record(self, training: TrainingRound, missing: Mapping[str, str], decision: Decision) -> Decision:
        notes = (*decision.notes, *self.notes())
        full = replace(decision, notes=notes).recorded(round=training.round, asked=training.nodes, missing=missing)
        self.decisions.append(plain(full.to_dict()))
        return full

    def _metrics(self, usable: UsableReplies, decision: Decision) -> MetricRecord:
        """Average the app's own metrics by rows, as in FedAvg, and add weight and signals of every node."""
        contents = [without_own_metrics(content) for content in usable.contents.values()]
        out = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        for name, by_node in {"weight": decision.weights, **decision.signals}.items():
            for node, value in by_node.items():
                out[f"{name}.{node}"] = float(value)
        return out


def _extend(values: Array, more: int) -> Array:
    """Add NaN rows for `more` nodes to the state of nodes."""
    if not more:
        return values
    out: Array = np.concatenate([values, np.full((more, *values.shape[1:]), np.nan)])
    return out


class SSEAgg(MethodStrategy):
    """Flower's FedAvg, weighted by the agreement of nodes' explanations (SSE-AGG eq. 4-8, 20-21).

    Clients add `grandrounds.capabilities.integrations.flower.client.sse_report` to their metrics; or the server computes it
    (`explain`), and clients need no change. Local regularization (SCAFFOLD, anchors) is part of the app's own training: only
    weights are set here.

    Args:
        weigh: Section [method.weigh] of an experiment: form, explanation_weight or lambdas, sharpness, floor and so on.
        explain: Explains nodes' models at the server.
        fedavg: Arguments of Flower's FedAvg.
    """

    method_name, section = "sse-agg", "weigh"

    def __init__(
        self, weigh: Mapping[str, object] | None = None, *, explain: Explain | None = None, **fedavg: Any
    ) -> None:
        super().__init__(weigh, explain=explain, **fedavg)
