"""A method is the server's side of one federated algorithm, written without any input or output.

Its round is a generator: it yields an Ask, is sent the Answers, and returns the next model with
its Decision. An engine drives it, here in one process or across hospitals; the method cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from grandrounds.arrays import Array
from grandrounds.messages import Answers, Arrival, Ask, Receive, Send, Value
from grandrounds.methods.decision import Decision
from grandrounds.methods.select import select
from grandrounds.models.combine import average
from grandrounds.models.optimizers import learning_rate
from grandrounds.rng import generator

Effect = Ask | Send | Receive
Reply = Answers | Arrival | None


@dataclass(frozen=True)
class Outcome:
    """What a round gives: the next model, the record, and what the method remembers."""

    model: Array
    decision: Decision
    state: Mapping[str, Array] = field(default_factory=dict)


Round = Generator[Ask | Send | Receive, Any, Outcome]


@dataclass(frozen=True)
class Server:
    """What a method may know at the start of a round."""

    round: int
    model: Array
    sites: tuple[str, ...]
    seed: int
    state: Mapping[str, Array] = field(default_factory=dict)
    class_weight: Array | None = None
    join: Callable[[Answers, Array], Array] | None = None  # how the model at hand joins answers, where not by a mean

    def combine(self, answers: Answers, weights: Array) -> Array:
        """The models of these answers, weighted, as one: a mean, a union of trees, or head by head."""
        return average(answers["model"], weights) if self.join is None else self.join(answers, weights)

    def rng(self, purpose: str) -> np.random.Generator:
        return generator(self.seed, purpose=purpose, round=self.round)

    def next(self, model: Array, decision: Decision, **state: Array) -> Outcome:
        """The end of a round."""
        return Outcome(model.astype(self.model.dtype, copy=False), decision, state)


class Method:
    """Base of all methods: knows the experiment's [method] and [train] sections and how to word a training Ask."""

    name: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, settings: Any, train: Any) -> None:
        self.settings = settings
        self.train = train

    def round(self, server: Server) -> Round:
        raise TypeError(f"{type(self).__name__} does not say what a round is")

    def chosen(self, server: Server) -> tuple[str, ...]:
        """Who takes part in this round."""
        return select(server.sites, rule=self.settings.select.rule, fraction=self.settings.select.fraction,
                      rng=server.rng("select"))  # fmt: skip

    def ask_to_train(self, server: Server, **more: Value) -> Ask:
        """The Ask for one round of local training; `more` adds to or replaces what the site is told."""
        t = self.train
        shared: dict[str, Value] = {
            "model": server.model,
            "seed": server.seed,
            "round": server.round,
            "lr": learning_rate(
                t.schedule, base=t.lr, round=server.round, rounds=self.settings.rounds, warmup=t.warmup, decay=t.decay
            ),
            "epochs": t.epochs,
            "steps": t.steps,
            "batch": t.batch,
            "optimizer": t.optimizer,
            "momentum": t.momentum,
            "weight_decay": t.weight_decay,
            "l2": t.l2,
            "proximal": 0.0,
            "keep_optimizer": t.keep_optimizer,
            "augment": t.augment,
        }
        if server.class_weight is not None:
            shared["class_weight"] = server.class_weight
        return Ask("train", shared={**shared, **more}, to=self.chosen(server), report=("model", "count", "steps"))
