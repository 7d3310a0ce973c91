"""A site's own side of the conversation: holds the data, the state and the Answer cache, and answers Asks.

One host may hold one hospital (deployed, or `wire = true`) or all sites of a simulation. Whatever
is asked, only the reports that the Ask names leave.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.kinds import encoding_from
from grandrounds.models import Model, build_model
from grandrounds.privacy.clipped import shortened
from grandrounds.protocol.messages import OWN_HALF, PROTOCOL, Ask, AskId
from grandrounds.protocol.task_spec import REFUSED
from grandrounds.protocol.tasks import ERROR, report_of
from grandrounds.site import evaluate as scoring
from grandrounds.site import platt
from grandrounds.site.anchor import Lent, anchored_to
from grandrounds.site.attacks import liars, tampered, told
from grandrounds.site.candidates import Candidates
from grandrounds.site.concepts import Concepts
from grandrounds.site.explain import Explaining
from grandrounds.site.kernels import make_room, private_trainer, trainer
from grandrounds.site.mapping import SiteMaps
from grandrounds.site.personal import Personal
from grandrounds.site.prepare import prepare, summarise
from grandrounds.site.private import Draws, refusals
from grandrounds.site.secure import SecureSums, nothing
from grandrounds.site.stack import Part, Stack
from grandrounds.site.state import SiteStates
from grandrounds.site.trusting import Trusting
from grandrounds.site.variates import correction, renewed, steady_rate
from grandrounds.site.vault import Vault
from grandrounds.site.witness import Witness, nobody
from grandrounds.site.work import Work

if TYPE_CHECKING:
    from grandrounds.privacy.secagg import Secret
    from grandrounds.protocol.identity import Identity

Columns = dict[str, Any]


class SiteHost:
    """Answers Asks for the sites of one stack."""

    def __init__(
        self,
        stack: Stack,
        *,
        kernel: str = "auto",
        device: str = "auto",
        precision: str = "float32",
        workers: int = 1,
        cached: int = 0,
        own_code: bool = False,
        identify: Callable[[str], Identity] = nobody,
        secret: Callable[[str], Secret] = nothing,
        largest_weight: float = 1.0,
        untold: tuple[str, ...] = (),
        listed: Mapping[str, bytes] | None = None,
        fewest: int = 0,
        smallest: int = 0,
        reserved: bool = False,
    ) -> None:
        """`cached`: how many answers to remember; a simulation that never asks twice needs none.

        `workers`: processes that share the sites of a CPU where convolutions are trained; 0: as many as cores are free.
        `own_code`: whether an Ask may name a model by import path. Only who runs the site can say so, never a message.
        `identify`: the key that a site signs with; `secret`: what its masks come from; `largest_weight`: the largest share
        of a secure sum that it takes part with; `untold`: parts (train, val, test) of which it says no more than that they
        are empty when a model is evaluated; `listed`: the keys of those whom it adds up with, None where the server's word
        is taken; `fewest`: how many of them, at least; `smallest`: values that must lie within a range for its mean to be
        told; `reserved`: whether a site that gives nothing to a sum keeps the reason to itself.
        """
        self.stack = stack
        self._cached = cached
        self._workers = workers
        self._on: dict[str, Any] = {"kernel": kernel, "device": device, "precision": precision, "own_code": own_code}
        self.states = SiteStates(len(stack.names))
        self._personal = Personal(self.states)
        self.witness = Witness(stack.names, identify)
        self.model: Model | None = None
        self._dtype = np.float64 if precision == "float64" else np.float32
        self._groups = 1
        self._encoding: Any = None
        self._lent: dict[str, Lent] = {}  # reference rows, by name
        self._halves: dict[int, Array] = {}  # which training rows are in the first half of a site's patients
        self._vault = Vault()
        self._secret = secret
        self._untold = untold
        self._trusting = Trusting(
            stack.names,
            self._vault,
            stack=lambda: self.stack,
            model=self._model,
            encoding=lambda: self._encoding,
            lent=self._lent,
            largest_weight=largest_weight,
        )
        self._explaining = Explaining(
            stack=lambda: self.stack,
            model=self._model,
            encoding=lambda: self._encoding,
            lent=self._lent,
            in_use=self._in_use,
        )
        self._candidates = Candidates(stack=lambda: self.stack, model=self._model, lent=self._lent)
        self.maps = SiteMaps(stack=lambda: self.stack, model=self._model, in_use=self._in_use)
        self._cache: OrderedDict[tuple[AskId, tuple[int, ...]], Columns] = OrderedDict()
        self._tasks: dict[str, Callable[[Ask, Array], Columns]] = {
            "summarise": lambda ask, members: summarise(self.stack, ask, members, smallest=smallest),
            "prepare": self._prepare,
            "lend": self._lend,
            "train": self._train,
            "finetune": self._train,
            "evaluate": self._evaluate,
            "score": self._score,
            "calibrate": self._calibrate,
            "platt": self._platt,
            "witness": self.witness.answer,
            **self._explaining.tasks,
            **self._candidates.tasks,
            **self.maps.tasks,
            **self._trusting.tasks,
            **Concepts(stack.names, lambda: self.stack, secret).tasks,
            **SecureSums(
                stack.names,
                self._vault,
                identify=identify,
                secret=secret,
                largest_weight=largest_weight,
                agreed=self._trusting.agreed,
                listed=listed,
                fewest=fewest,
                reserved=reserved,
            ).tasks,
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
        self._refuse_unaccounted(ask.task, allowed)
        if ask.held:
            allowed = self._vault.keep(ask.id, members, allowed, ask.held)
        self._cache[key] = allowed
        while len(self._cache) > self._cached:
            self._cache.popitem(last=False)
        return allowed

    def _refuse_unaccounted(self, task: str, columns: Columns) -> None:
        """Let nothing leave that has no place in the table of releases, nor, under a budget, what that refuses."""
        for name in columns:
            report = report_of(task, name)
            if report is None:
                raise BadInput(f"report '{name}' of task '{task}' has no place in grandrounds.protocol.tasks: add it there")
            if report.release.kind == REFUSED and self._untold:
                raise BadInput(f"report '{name}' of task '{task}' tells of patients as it is: refused under privacy.epsilon")

    def _committed(self, ask: Ask, members: Array) -> Array:
        """The round each member is told counts as done; a site left out of a round is told an earlier one."""
        default = int(ask.shared.get("committed", 0))
        own = [ask.each.get(self.stack.names[k], {}).get("committed", default) for k in members]
        return np.array(own, np.int64)

    def _prepare(self, ask: Ask, members: Array) -> Columns:
        self.stack, answer = prepare(self.stack, ask, self._dtype)
        self._halves.clear()
        self._encoding = encoding_from(json.loads(str(ask.shared["encoding"])))
        spec = json.loads(str(ask.shared["spec"]))
        self._groups = int(spec["groups"])
        self.model = build_model(spec, **self._on)
        self._personal.agree(self.model, spec["keeps"])
        return {name: [c[k] for k in members] if isinstance(c, list) else c[members] for name, c in answer.items()}

    def _lend(self, ask: Ask, members: Array) -> Columns:
        """Hold reference rows for anchors and explanations, until others come by the same name."""
        own = self.stack.parts.get("train")
        held = Lent.of(ask.shared, self._dtype, like=None if own is None else own.x)
        self._lent[str(ask.shared["name"])] = held
        return {"held": np.full(len(members), len(held.x))}

    def _train(self, ask: Ask, members: Array) -> Columns:
        model, part = self._model(), self.stack.parts["train"]
        work = Work.from_values(ask.shared)
        class_weight = ask.shared.get("class_weight")
        start = self._in_use(ask, members)
        kept = [self.states.read(f"slot{i}", members) for i in range(3)] if work.keep_optimizer else []
        more: dict[str, Any] = {}
        if self.stack.penalty is not None:
            more["penalty"] = self.stack.penalty[members]
        if model.kernel == "torch":
            more["workers"] = self._workers
        if work.rate:
            secrets = [self._secret(name) for name in self._names(members)]
            purpose = f"dp-sgd {ask.id}"  # no two questions share their draws
            more["draws"] = Draws.of(part, members, secrets, work=work, purpose=purpose, size=start.shape[-1])
        if work.contrast:
            more["previous"] = self._personal.previous(start, members)
        if work.anchor or work.alignment:
            more["lent"] = anchored_to(self._lent, work)
        if work.alignment and "consensus" in ask.shared:
            more["consensus"] = np.asarray(ask.shared["consensus"])
        variate = ask.shared.get("variate")
        if variate is not None:
            held = self.states.read("variate", members)
            own = np.zeros((len(members), start.shape[-1]), start.dtype) if held is None else held
            more["correction"] = correction(np.asarray(variate), own)
        done = (private_trainer(model) if work.rate else trainer(model))(
            model,
            self._trained_on(ask, members, private=bool(work.rate or work.longest)),
            members,
            start,
            names=self.stack.names,
            work=work,
            class_weight=None if class_weight is None else np.asarray(class_weight),
            slots=tuple(k for k in kept if k is not None),
            clock=self.states.read("clock", members) if work.keep_optimizer else None,
            **more,
        )
        if work.longest:
            done = replace(done, theta=start + shortened(np.asarray(done.theta) - start, work.longest))
        columns: Columns = {"model": done.theta, "count": part.counts[members], "steps": done.steps}
        if work.rate:
            columns[ERROR] = refusals(part.protected[members], work)
        if done.reasons is not None:
            columns["reasons"] = done.reasons
        if {"val_loss", "ece"} & set(ask.report):
            columns |= scoring.local_figures(model, self.stack, members, done.theta)
        kept_now = self._personal.remembers(done.theta, whole=bool(work.contrast))
        if work.keep_optimizer:
            kept_now |= {f"slot{i}": s for i, s in enumerate(done.slots)} | {"clock": done.clock}
        if variate is not None:
            theta = np.asarray(done.theta)
            rate = steady_rate(part.counts[members], work.batch) if ask.shared.get("steady") else None
            fresh = renewed(own, np.asarray(variate), start=start, theta=theta, steps=done.steps, lr=work.lr, rate=rate)
            kept_now["variate"], columns["variate"] = fresh, fresh - own
        self.states.stage(members, work.round, kept_now)
        if ask.task == "train":
            columns = self._as_told(columns, start, members, work)
        if "local" in ask.report:
            said = scoring.own_figures(model, self.stack.without(self._untold), members, columns["model"])
            columns |= told(said, attacks=self.stack.attacks_of(members), round=work.round)
        columns |= self._explaining.says(ask, columns["model"], members)
        found, remembered = self._trusting.says(ask, columns, members, self.states.read("shares", members))
        self.states.stage(members, work.round, remembered)
        columns |= found | self._candidates.says(ask, columns["model"], members)
        self.maps.keep(ask, columns["model"], members)
        if "update" in ask.report:
            columns["update"] = columns["model"] - start
            if work.longest:  # once more, because the difference is rounded
                columns["update"] = shortened(columns["update"], work.longest)
        return columns

    def _trained_on(self, ask: Ask, members: Array, *, private: bool) -> Part:
        """The training rows; of a member that is asked to train on one half of its patients, that half.

        Not where a promise rests on how many rows there are (`private`), nor where a half would be empty.
        """
        part, default = self.stack.parts["train"], ask.shared.get(OWN_HALF, 0)
        asked = {k: int(ask.each.get(self.stack.names[k], {}).get(OWN_HALF, default)) for k in members.tolist()}
        chosen = np.ones(len(part.y), bool)
        for k, half in asked.items():
            if half not in (1, 2) or private:
                continue
            if k not in self._halves:
                self._halves[k] = self.stack.first_half(k)
            mine = self._halves[k] if half == 1 else ~self._halves[k]
            chosen[part.offsets[k] : part.offsets[k + 1]] = mine if mine.any() else True
        return part if chosen.all() else part.only(chosen)

    def _as_told(self, columns: Columns, start: Array, members: Array, work: Work) -> Columns:
        """What the sites say they did: the truth, but for those that an experiment makes attackers."""
        attacks = self.stack.attacks_of(members)
        if not any(attacks):
            return columns
        model = tampered(
            columns["model"],
            start,
            attacks=attacks,
            names=self._names(members),
            seed=work.seed,
            round=work.round,
            statistics=getattr(self._model(), "statistics_size", 0),
        )
        return told({**columns, "model": model}, attacks=attacks, round=work.round)

    def _evaluate(self, ask: Ask, members: Array) -> Columns:
        return scoring.evaluate(
            self._model(),
            self.stack.without(self._untold),
            members,
            self._in_use(ask, members),
            parts=[p for p in ask.report if p in self.stack.parts],
            groups=self._groups,
            figures=[f for f in str(ask.shared.get("figures", "")).split(",") if f],
            threshold=float(ask.shared.get("threshold", 0.5)),
            boasting=liars([self.stack.attacks.get(s) for s in self.stack.names], round=ask.round),
            apart=bool(ask.held),
        )

    def _score(self, ask: Ask, members: Array) -> Columns:
        """Losses of one model, or of several, on the sites' training rows; or, of named parts, how right each of them is."""
        many = "models" in ask.shared
        models = np.asarray(ask.shared["models"]) if many else np.asarray(ask.shared["model"])[None]
        used = [self._personal.in_use(theta, members) for theta in models]
        if "parts" in ask.shared:
            held, parts = self.stack.without(self._untold), str(ask.shared["parts"]).split(",")
            found = scoring.lent_scores(self._model(), held, members, used, parts=parts)
        else:
            found = scoring.training_scores(self._model(), self.stack, members, used)
        if not many and "losses" in found:
            found = {"loss": found["losses"][:, 0], "accuracy": found["accuracies"][:, 0]}
        return told(found, attacks=self.stack.attacks_of(members), round=ask.round)

    def _calibrate(self, ask: Ask, members: Array) -> Columns:
        theta, grid = self._in_use(ask, members), np.asarray(ask.shared["grid"])
        return {"losses": scoring.temperature_losses(self._model(), self.stack, members, theta, grid)}

    def _platt(self, ask: Ask, members: Array) -> Columns:
        found = platt.scores(self._model(), self.stack, members, self._in_use(ask, members))
        if "lines" not in ask.shared:
            found = platt.one_each(found, self.stack.parts["val"], members)
        return platt.answer(ask, found, names=self._names(members), secret=self._secret)

    def _names(self, members: Array) -> list[str]:
        return [self.stack.names[k] for k in members]

    def _in_use(self, ask: Ask, members: Array) -> Any:
        """The models these sites are told, as they use them."""
        return self._personal.in_use(_models(ask, self._names(members)), members)

    def arrays(self) -> dict[str, Array]:
        """What the sites remember, for a checkpoint."""
        return {**self.states.arrays(), **{f"witness/{name}": a for name, a in self.witness.arrays().items()}}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take up where a checkpoint left off; one of an earlier version knows of no ledger."""
        self.states.restore(arrays)
        signed = {n.removeprefix("witness/"): a for n, a in arrays.items() if n.startswith("witness/")}
        if signed:
            self.witness.restore(signed)

    def make_room(self) -> None:
        """Let go of what the model keeps on its device; the next answer builds it again."""
        if self.model is not None:
            make_room(self.model)

    def _model(self) -> Model:
        if self.model is None:
            raise BadInput("this site has not prepared its data yet: ask 'prepare' first")
        return self.model


def _models(ask: Ask, names: list[str]) -> Any:
    """The model these sites are told: one for all (P,), a model for each (m, P), or a list where they differ in size."""
    own = [ask.each.get(name, {}).get("model") for name in names]
    if all(m is None for m in own):
        return np.asarray(ask.shared["model"])
    models = [np.asarray(ask.shared["model"] if m is None else m) for m in own]
    return np.stack(models) if len({m.shape for m in models}) == 1 else models
