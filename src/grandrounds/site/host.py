"""A site's own side of the conversation: holds the data, the state and the Answer cache, and answers Asks.

One host may hold one hospital (deployed, or `wire = true`) or all sites of a simulation. Whatever
is asked, only the reports that the Ask names leave.
"""

from __future__ import annotations

import gc
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from grandrounds.arrays import Array
from grandrounds.errors import BadInput, nearest
from grandrounds.messages import PROTOCOL, Ask, AskId
from grandrounds.models import Model, build_model
from grandrounds.site import evaluate as scoring
from grandrounds.site.kernels import trainer
from grandrounds.site.prepare import prepare, summarise
from grandrounds.site.stack import Stack
from grandrounds.site.state import SiteStates
from grandrounds.site.work import Work

Columns = dict[str, Any]


class SiteHost:
    """Answers Asks for the sites of one stack."""

    def __init__(
        self, stack: Stack, *, kernel: str = "auto", device: str = "auto", precision: str = "float32", cached: int = 0
    ) -> None:
        """`cached`: how many answers to remember; a simulation that never asks twice needs none."""
        self.stack = stack
        self._cached = cached
        self._on = {"kernel": kernel, "device": device, "precision": precision}
        self.states = SiteStates(len(stack.names))
        self.model: Model | None = None
        self._dtype = np.float64 if precision == "float64" else np.float32
        self._groups = 1
        self._own_count = 0  # BatchNorm statistics that each site keeps for itself
        self._cache: OrderedDict[tuple[AskId, tuple[int, ...]], Columns] = OrderedDict()
        self._tasks: dict[str, Callable[[Ask, Array], Columns]] = {
            "summarise": lambda ask, members: summarise(self.stack, members),
            "prepare": self._prepare,
            "train": self._train,
            "evaluate": self._evaluate,
            "calibrate": self._calibrate,
        }

    def answer(self, ask: Ask, members: Array) -> Columns:
        """The members' answers as columns. The same Ask gets the same answer: nothing is done twice."""
        if ask.protocol != PROTOCOL:
            raise BadInput(f"the server speaks protocol {ask.protocol}, this site speaks {PROTOCOL}")
        if ask.task not in self._tasks:
            raise BadInput(f"unknown task '{ask.task}'; {nearest(ask.task, self._tasks)}")
        if ask.id is None:
            raise BadInput("an Ask without an id cannot be answered")
        key = (ask.id, tuple(members.tolist()))
        if key in self._cache:
            return self._cache[key]
        self.states.settle(members, self._committed(ask, members))
        columns = self._tasks[ask.task](ask, members)
        allowed = {name: c for name, c in columns.items() if name.split(".")[0] in ask.report}
        self._cache[key] = allowed
        while len(self._cache) > self._cached:
            self._cache.popitem(last=False)
        return allowed

    def _committed(self, ask: Ask, members: Array) -> Array:
        """The round each member is told counts as done; a site left out of a round is told an earlier one."""
        default = int(ask.shared.get("committed", 0))
        own = [ask.each.get(self.stack.names[k], {}).get("committed", default) for k in members]
        return np.array(own, np.int64)

    def _prepare(self, ask: Ask, members: Array) -> Columns:
        self.stack, answer = prepare(self.stack, ask, self._dtype)
        spec = json.loads(str(ask.shared["spec"]))
        self._groups = int(spec["groups"])
        self.model = build_model(spec, **self._on)
        at_site = spec["statistics"] == "site"
        self._own_count = int(getattr(self.model, "statistics_size", 0)) if at_site else 0
        return {name: [c[k] for k in members] if isinstance(c, list) else c[members] for name, c in answer.items()}

    def _train(self, ask: Ask, members: Array) -> Columns:
        model = self._model()
        work = Work.from_values(ask.shared)
        kept = [self.states.read(f"slot{i}", members) for i in range(3)] if work.keep_optimizer else []
        class_weight = ask.shared.get("class_weight")
        more: dict[str, Any] = {}
        own = self._own_statistics(members, np.asarray(ask.shared["model"]))
        if own is not None:
            more["statistics"] = own
        if self.stack.penalty is not None:
            more["penalty"] = self.stack.penalty[members]
        done = trainer(model)(
            model,
            self.stack.parts["train"],
            members,
            np.asarray(ask.shared["model"]),
            names=self.stack.names,
            work=work,
            class_weight=None if class_weight is None else np.asarray(class_weight),
            slots=tuple(k for k in kept if k is not None),
            clock=self.states.read("clock", members) if work.keep_optimizer else None,
            **more,
        )
        kept_now: dict[str, Array] = {}
        if work.keep_optimizer:
            kept_now |= {f"slot{i}": s for i, s in enumerate(done.slots)} | {"clock": done.clock}
        if own is not None:
            kept_now["statistics"] = np.asarray(done.theta)[:, -own.shape[1] :]
        self.states.stage(members, work.round, kept_now)
        return {
            "model": done.theta,
            "count": self.stack.parts["train"].counts[members],
            "steps": done.steps,
        }

    def _evaluate(self, ask: Ask, members: Array) -> Columns:
        theta = np.asarray(ask.shared["model"])
        return scoring.evaluate(
            self._model(),
            self._with_statistics(),
            members,
            theta,
            parts=[p for p in ask.report if p],
            groups=self._groups,
        )

    def _calibrate(self, ask: Ask, members: Array) -> Columns:
        theta, grid = np.asarray(ask.shared["model"]), np.asarray(ask.shared["grid"])
        losses = scoring.temperature_losses(self._model(), self._with_statistics(), members, theta, grid)
        return {"losses": losses}

    def _own_statistics(self, members: Array, theta: Array) -> Array | None:
        """The members' own statistics (m, S); a site that has none yet starts with the consortium's."""
        count = self._own_count
        if not count:
            return None
        held = self.states.read("statistics", members)
        shared = np.repeat(theta[None, -count:], len(members), axis=0)
        if held is None:
            return shared
        known = self.states.known(members)
        return np.where(known[:, None], held, shared)

    def _with_statistics(self) -> Stack:
        """The stack with what its sites keep of BatchNorm, as it is after the last training."""
        if not self._own_count:
            return self.stack
        every = np.arange(len(self.stack.names))
        latest = self.states.latest("statistics", every)
        return self.stack if latest is None else replace(self.stack, statistics=latest)

    def make_room(self) -> None:
        """Let go of what the model keeps on its device; the next answer builds it again."""
        held = getattr(self.model, "held", None)
        if held is not None:
            import torch

            held.clear()
            gc.collect()  # a recorded graph and its buffers hold on to one another
            torch.cuda.empty_cache()

    def _model(self) -> Model:
        if self.model is None:
            raise BadInput("this site has not prepared its data yet: ask 'prepare' first")
        return self.model
