"""A site's own side of the conversation: holds the data, the state and the Answer cache, and answers Asks.

One host may hold one hospital (deployed, or `wire = true`) or all sites of a simulation. Whatever
is asked, only the reports that the Ask names leave.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest
from grandrounds.data.kinds import encoding_from
from grandrounds.models import Model, build_model
from grandrounds.privacy.clipped import shortened
from grandrounds.protocol.messages import PROTOCOL, Ask, AskId
from grandrounds.protocol.task_spec import REFUSED
from grandrounds.protocol.tasks import ERROR, report_of
from grandrounds.site import evaluate as scoring
from grandrounds.site import platt
from grandrounds.site.anchor import Lent
from grandrounds.site.attacks import liars, tampered, told
from grandrounds.site.evaluate import LocalScores
from grandrounds.site.explain import SiteExplanations
from grandrounds.site.kernels import make_room, private_trainer, trainer
from grandrounds.site.mapping import SiteMaps
from grandrounds.site.plugin import Columns, Site, SitePlugin, Task, TrainingJob
from grandrounds.site.prepare import prepare, summarise
from grandrounds.site.private import Draws, refusals
from grandrounds.site.secure import SecureSums, nothing
from grandrounds.site.stack import Stack
from grandrounds.site.state import Personal, SiteStates
from grandrounds.site.vault import Vault
from grandrounds.site.witness import Witness, nobody
from grandrounds.site.work import Trained, Work

if TYPE_CHECKING:
    from grandrounds.privacy.secagg import Secret
    from grandrounds.protocol.identity import Identity


class SiteHost:
    """Answers Asks for the sites of one stack."""

    def __init__(
        self,
        stack: Stack,
        *,
        plugins: Sequence[Callable[[Site], SitePlugin]] = (),
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
        """`plugins`: the halves of methods that run at sites (`grandrounds.methods.SITE_PLUGINS`), each made with this host.

        `cached`: how many answers to remember; a simulation that never asks twice needs none.

        `workers`: processes that share the sites of a CPU where convolutions are trained; 0: as many as cores are free.
        `own_code`: whether an Ask may name a model by import path. Only who runs the site can say so, never a message.
        `identify`: the key that a site signs with; `secret`: what its masks come from; `largest_weight`: the largest share
        of a secure sum that it takes part with; `untold`: parts (train, val, test) of which it says no more than that they
        are empty when a model is evaluated; `listed`: the keys of those whom it adds up with, None where the server's word
        is taken; `fewest`: how many of them, at least; `smallest`: values that must lie within a range for its mean to be
        told; `reserved`: whether a site that gives nothing to a sum keeps the reason to itself.
        """
        self.stack = stack
        self.states = SiteStates(len(stack.names))
        self.vault = Vault()
        self.model: Model | None = None
        self.encoding: Any = None
        self.references: dict[str, Lent] = {}
        self.secret = secret
        self.largest_weight = largest_weight
        self.withheld = untold
        self._cached = cached
        self._workers = workers
        self._on: dict[str, Any] = {"kernel": kernel, "device": device, "precision": precision, "own_code": own_code}
        self._personal = Personal(self.states)
        self._dtype = np.float64 if precision == "float64" else np.float32
        self._groups = 1
        self._cache: OrderedDict[tuple[AskId, tuple[int, ...]], Columns] = OrderedDict()
        self.maps = SiteMaps(self)
        self.witness = Witness(stack.names, identify)
        own = (make(self) for make in plugins)
        self.plugins = (LocalScores(self), SiteExplanations(self), *own, self.maps, self.witness)
        sums = SecureSums(
            stack.names,
            self.vault,
            identify=identify,
            secret=secret,
            largest_weight=largest_weight,
            agreed=self._agreed_weights,
            listed=listed,
            fewest=fewest,
            reserved=reserved,
        )
        self._tasks: dict[str, Task] = {
            "summarise": lambda ask, members: summarise(self.stack, ask, members, smallest=smallest),
            "prepare": self._prepare,
            "lend": self._lend,
            "train": self._train,
            "finetune": self._train,
            "evaluate": self._evaluate,
            "score": self._score,
            "calibrate": self._calibrate,
            "platt": self._platt,
            **{task: answer for plugin in self.plugins for task, answer in plugin.tasks.items()},
            **sums.tasks,
        }

    def answer(self, ask: Ask, members: Array) -> Columns:
        """The members' answers as columns. The same Ask gets the same answer: nothing is done twice."""
        if ask.protocol != PROTOCOL:
            raise BadInput(
                f"the server speaks protocol {ask.protocol}, this site speaks {PROTOCOL}", code="protocol-mismatch"
            )
        if ask.task not in self._tasks:
            raise BadInput(f"unknown task '{ask.task}'; {nearest(ask.task, self._tasks)}", code="unknown-task")
        if ask.id is None:
            raise BadInput("an Ask without an id cannot be answered", code="malformed-message")
        key = (ask.id, tuple(members.tolist()))
        if key in self._cache:
            return self._cache[key]
        self.states.settle(members, self._committed(ask, members))
        columns = self._tasks[ask.task](ask, members)
        allowed = {name: c for name, c in columns.items() if name.split(".")[0] in ask.report}
        self._refuse_unaccounted(ask.task, allowed)
        if ask.held:
            allowed = self.vault.keep(ask.id, members, allowed, ask.held)
        self._cache[key] = allowed
        while len(self._cache) > self._cached:
            self._cache.popitem(last=False)
        return allowed

    def _refuse_unaccounted(self, task: str, columns: Columns) -> None:
        """Let nothing leave that has no place in the table of releases, nor, under a budget, what that refuses."""
        for name in columns:
            report = report_of(task, name)
            if report is None:
                raise BadInput(
                    f"report '{name}' of task '{task}' has no place in grandrounds.protocol.tasks: add it there",
                    code="undeclared-report",
                )
            if report.release.kind == REFUSED and self.withheld:
                raise BadInput(
                    f"report '{name}' of task '{task}' tells of patients as it is: refused under privacy.epsilon",
                    code="raw-release",
                )

    def _agreed_weights(self, site: str, round: int) -> Mapping[str, float] | None:
        """Return the weights that a site accepted in a round; None where no plug-in showed it any."""
        shown = (plugin.agreed_weights(site, round) for plugin in self.plugins)
        return next((weights for weights in shown if weights is not None), None)

    def _committed(self, ask: Ask, members: Array) -> Array:
        """The round each member is told counts as done; a site left out of a round is told an earlier one."""
        default = int(ask.shared.get("committed", 0))
        own = [ask.each.get(self.stack.names[k], {}).get("committed", default) for k in members]
        return np.array(own, np.int64)

    def _prepare(self, ask: Ask, members: Array) -> Columns:
        self.stack, answer = prepare(self.stack, ask, self._dtype)
        self.encoding = encoding_from(json.loads(str(ask.shared["encoding"])))
        spec = json.loads(str(ask.shared["spec"]))
        self._groups = int(spec["groups"])
        self.model = build_model(spec, **self._on)
        self._personal.agree(self.model, spec["keeps"])
        return {name: [c[k] for k in members] if isinstance(c, list) else c[members] for name, c in answer.items()}

    def _lend(self, ask: Ask, members: Array) -> Columns:
        """Hold reference rows for anchors and explanations, until others come by the same name."""
        own = self.stack.parts.get("train")
        held = Lent.of(ask.shared, self._dtype, like=None if own is None else own.x)
        self.references[str(ask.shared["name"])] = held
        return {"held": np.full(len(members), len(held.x))}

    def _train(self, ask: Ask, members: Array) -> Columns:
        model, part = self.prepared_model(), self.stack.parts["train"]
        work = Work.from_values(ask.shared)
        job = TrainingJob(ask, members, work, self.in_use(ask, members), part.counts[members])
        result = self._fit(job)
        columns: Columns = {"model": result.theta, "count": job.counts, "steps": result.steps}
        if work.rate:
            columns[ERROR] = refusals(part.protected[members], work)
        if result.reasons is not None:
            columns["reasons"] = result.reasons
        if {"val_loss", "ece"} & set(ask.report):
            columns |= scoring.local_figures(model, self.stack, members, result.theta)
        self._remember(job, result)
        for plugin in self.plugins:
            columns |= plugin.on_trained(job, result)
        if ask.task == "train":
            columns = self._as_told(columns, job.start, members, work)
        for plugin in self.plugins:
            columns |= plugin.after_training(job, columns)
        if "update" in ask.report:
            columns["update"] = columns["model"] - job.start
            if work.longest:  # once more, because the difference is rounded
                columns["update"] = shortened(columns["update"], work.longest)
        return columns

    def _fit(self, job: TrainingJob) -> Trained:
        """Train the members' models on their own rows, as the job and the plug-ins say."""
        model, part, work, members = self.prepared_model(), self.stack.parts["train"], job.work, job.members
        class_weight = job.ask.shared.get("class_weight")
        stored = [self.states.read(f"slot{i}", members) for i in range(3)] if work.keep_optimizer else []
        more: dict[str, Any] = {}
        if self.stack.penalty is not None:
            more["penalty"] = self.stack.penalty[members]
        if model.kernel == "torch":
            more["workers"] = self._workers
        if work.rate:
            secrets = [self.secret(name) for name in self.names_of(members)]
            purpose = f"dp-sgd {job.ask.id}"  # no two questions share their draws
            more["draws"] = Draws.of(part, members, secrets, work=work, purpose=purpose, size=job.start.shape[-1])
        rows = part
        for plugin in self.plugins:
            more |= plugin.before_training(job)
            rows = plugin.choose_rows(job, rows)
        result = (private_trainer(model) if work.rate else trainer(model))(
            model,
            rows,
            members,
            job.start,
            names=self.stack.names,
            work=work,
            class_weight=None if class_weight is None else np.asarray(class_weight),
            slots=tuple(slot for slot in stored if slot is not None),
            clock=self.states.read("clock", members) if work.keep_optimizer else None,
            **more,
        )
        if not work.longest:
            return result
        return replace(result, theta=job.start + shortened(np.asarray(result.theta) - job.start, work.longest))

    def _remember(self, job: TrainingJob, result: Trained) -> None:
        """Stage the entries of the model that sites keep for themselves and, where asked, the optimiser's state."""
        state = self._personal.remembers(result.theta)
        if job.work.keep_optimizer:
            state |= {f"slot{i}": slot for i, slot in enumerate(result.slots)} | {"clock": result.clock}
        self.states.stage(job.members, job.work.round, state)

    def _as_told(self, columns: Columns, start: Array, members: Array, work: Work) -> Columns:
        """What the sites say they did: the truth, but for those that an experiment makes attackers."""
        attacks = self.stack.attacks_of(members)
        if not any(attacks):
            return columns
        model = tampered(
            columns["model"],
            start,
            attacks=attacks,
            names=self.names_of(members),
            seed=work.seed,
            round=work.round,
            statistics=getattr(self.prepared_model(), "statistics_size", 0),
        )
        return told({**columns, "model": model}, attacks=attacks, round=work.round)

    def _evaluate(self, ask: Ask, members: Array) -> Columns:
        return scoring.evaluate(
            self.prepared_model(),
            self.stack.without(self.withheld),
            members,
            self.in_use(ask, members),
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
            held, parts = self.stack.without(self.withheld), str(ask.shared["parts"]).split(",")
            found = scoring.lent_scores(self.prepared_model(), held, members, used, parts=parts)
        else:
            found = scoring.training_scores(self.prepared_model(), self.stack, members, used)
        if not many and "losses" in found:
            found = {"loss": found["losses"][:, 0], "accuracy": found["accuracies"][:, 0]}
        return told(found, attacks=self.stack.attacks_of(members), round=ask.round)

    def _calibrate(self, ask: Ask, members: Array) -> Columns:
        theta, grid = self.in_use(ask, members), np.asarray(ask.shared["grid"])
        return {"losses": scoring.temperature_losses(self.prepared_model(), self.stack, members, theta, grid)}

    def _platt(self, ask: Ask, members: Array) -> Columns:
        found = platt.scores(self.prepared_model(), self.stack, members, self.in_use(ask, members))
        if "lines" not in ask.shared:
            found = platt.one_each(found, self.stack.parts["val"], members)
        return platt.answer(ask, found, names=self.names_of(members), secret=self.secret)

    def names_of(self, members: Array) -> list[str]:
        return [self.stack.names[k] for k in members]

    def in_use(self, ask: Ask, members: Array) -> Any:
        """The models these sites are told, as they use them."""
        return self._personal.in_use(_models(ask, self.names_of(members)), members)

    def arrays(self) -> dict[str, Array]:
        """What the sites remember, for a checkpoint."""
        own = {f"{plugin.name}/{name}": a for plugin in self.plugins for name, a in plugin.arrays().items()}
        return {**self.states.arrays(), **own}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take up where a checkpoint left off; one of an earlier version knows of no ledger."""
        self.states.restore(arrays)
        for plugin in self.plugins:
            folder = f"{plugin.name}/"
            own = {n.removeprefix(folder): a for n, a in arrays.items() if plugin.name and n.startswith(folder)}
            if own:
                plugin.restore(own)

    def make_room(self) -> None:
        """Let go of what the model keeps on its device; the next answer builds it again."""
        if self.model is not None:
            make_room(self.model)

    def prepared_model(self) -> Model:
        if self.model is None:
            raise BadInput("this site has not prepared its data yet: ask 'prepare' first", code="not-prepared")
        return self.model


def _models(ask: Ask, names: list[str]) -> Any:
    """The model these sites are told: one for all (P,), a model for each (m, P), or a list where they differ in size."""
    own = [ask.each.get(name, {}).get("model") for name in names]
    if all(m is None for m in own):
        return np.asarray(ask.shared["model"])
    models = [np.asarray(ask.shared["model"] if m is None else m) for m in own]
    return np.stack(models) if len({m.shape for m in models}) == 1 else models
