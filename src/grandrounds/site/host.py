"""The host of sites: it has the data, the state and the Answer cache, and answers Asks.

One host serves one hospital (deployed, or `wire = true`) or all sites of a simulation. Answers contain only the reports that the
Ask names.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.core import plugins as code
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest, reading_rows
from grandrounds.data.kinds import encoding_from
from grandrounds.models import Model, build_model
from grandrounds.privacy.clipping import clip_norm
from grandrounds.protocol.messages import PROTOCOL, USE_PERSONAL, Ask, AskId
from grandrounds.protocol.task_spec import REFUSED
from grandrounds.protocol.tasks import ERROR, report_of
from grandrounds.site import evaluate as scoring
from grandrounds.site import platt
from grandrounds.site.anchor import SharedReference
from grandrounds.site.attacks import falsify, liars, tamper
from grandrounds.site.dp_sgd import SampledSteps, refusals
from grandrounds.site.evaluate import LocalScores
from grandrounds.site.explain import SiteExplanations
from grandrounds.site.kernels import make_room, private_trainer, trainer
from grandrounds.site.mapping import SiteMaps
from grandrounds.site.objective import KEY, ObjectivePlugin
from grandrounds.site.plugin import Columns, Site, SitePlugin, Task, TrainRequest
from grandrounds.site.prepare import prepare, summarise
from grandrounds.site.received import check_received
from grandrounds.site.secure import SecureSums, no_secret
from grandrounds.site.stack import Part, Stack
from grandrounds.site.state import Personal, SiteStates
from grandrounds.site.train_job import TrainConfig, TrainJob, TrainResult
from grandrounds.site.withheld import WithheldReports
from grandrounds.site.witness import Witness, no_identity

if TYPE_CHECKING:
    from grandrounds.privacy.secagg import Secret
    from grandrounds.protocol.identity import Identity


class SiteHost:
    """Answer Asks for the sites of one stack."""

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
        objectives: Mapping[str, str] | None = None,
        identify: Callable[[str], Identity] = no_identity,
        secret: Callable[[str], Secret] = no_secret,
        largest_weight: float = 1.0,
        withheld_splits: tuple[str, ...] = (),
        listed: Mapping[str, bytes] | None = None,
        fewest: int = 0,
        smallest: int = 0,
        reserved: bool = False,
    ) -> None:
        """Build a host. `plugins`: site plug-ins that the plan needs (`grandrounds.methods.site_halves`), built with this host.

        `cached`: number of cached answers; a simulation without repeated Asks needs none.

        `workers`: processes that train convolutional nets of several sites on a CPU; 0: one per free core. `own_code`: an Ask
        may name a model or objective by import path (simulations only). `objectives`: SHA-256 of modules whose local objectives
        may be imported. `identify`: the key that a site signs with; `secret`: the source of its masks and noise;
        `largest_weight`: the largest share of a secure sum that it accepts; `withheld_splits`: parts (train, val, test) that it
        reports as empty in evaluations; `listed`: keys of accepted peers in secure sums, None to trust the server; `fewest`:
        smallest number of sites in a secure sum; `smallest`: fewest values within a range for its mean to be reported;
        `reserved`: a site that gives nothing to a sum does not report the cause.
        """
        self.stack = stack
        self.states = SiteStates(len(stack.names))
        self.withheld_reports = WithheldReports()
        self.model: Model | None = None
        self.encoding: Any = None
        self.references: dict[str, SharedReference] = {}
        self.secret = secret
        self.largest_weight = largest_weight
        self.withheld_splits = withheld_splits
        self._cached = cached
        self._workers = workers
        self._build = partial(build_model, kernel=kernel, device=device, precision=precision, own_code=own_code)
        self._personal = Personal(self.states)
        self.personal_models: dict[int, Array] = {}
        self.without_model: set[int] = set()
        self.personal_settings: Mapping[str, Any] = {}
        self._dtype = np.float64 if precision == "float64" else np.float32
        self._groups = 1
        self._cache: OrderedDict[tuple[AskId, tuple[int, ...]], Columns] = OrderedDict()
        self.maps = SiteMaps(self)
        self.witness = Witness(stack.names, identify)
        method_plugins = (make(self) for make in plugins)
        objective = ObjectivePlugin(self, partial(_allow_objective, own_code=own_code, listed=objectives or {}))
        self.plugins = (LocalScores(self), SiteExplanations(self), *method_plugins, objective, self.maps, self.witness)
        sums = SecureSums(
            stack.names,
            self.withheld_reports,
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

    @reading_rows()
    def answer(self, ask: Ask, members: Array) -> Columns:
        """Answer an Ask for these sites. A repeated Ask gets the cached answer.

        Args:
            ask: The Ask, with its id.
            members: Site numbers, (m,).

        Returns:
            The requested reports, as columns with one entry per member.

        Raises:
            BadInput: The Ask uses another protocol, is unknown or malformed, or requests a report that may not be disclosed.
        """
        if ask.protocol != PROTOCOL:
            raise BadInput(
                f"the server uses protocol {ask.protocol}, this site uses {PROTOCOL}: install the same version of "
                "grandrounds at both", code="protocol-mismatch"
            )
        if ask.task not in self._tasks:
            raise BadInput(f"unknown task '{ask.task}'; {nearest(ask.task, self._tasks)}", code="unknown-task")
        if ask.id is None:
            raise BadInput("an Ask without an id cannot be answered", code="malformed-message")
        key = (ask.id, tuple(members.tolist()))
        if key in self._cache:
            return self._cache[key]
        check_received(ask, self.model, self.names_of(members))
        self.states.settle(members, self._committed(ask, members))
        columns = self._tasks[ask.task](ask, members)
        allowed = {name: c for name, c in columns.items() if name.split(".")[0] in ask.report}
        self._refuse_unaccounted(ask.task, allowed)
        if ask.withheld:
            allowed = self.withheld_reports.keep(ask.id, members, allowed, ask.withheld)
        self._cache[key] = allowed
        while len(self._cache) > self._cached:
            self._cache.popitem(last=False)
        return allowed

    def _refuse_unaccounted(self, task: str, columns: Columns) -> None:
        """Refuse reports that are not declared, and under a privacy budget those that it refuses."""
        for name in columns:
            report = report_of(task, name)
            if report is None:
                raise BadInput(
                    f"report '{name}' of task '{task}' is not declared in grandrounds.protocol.tasks: add it there",
                    code="undeclared-report",
                )
            if report.release.kind == REFUSED and self.withheld_splits:
                raise BadInput(
                    f"report '{name}' of task '{task}' discloses patient data without noise: refused because "
                    "privacy.epsilon is set",
                    code="raw-release",
                )

    def _agreed_weights(self, site: str, round: int) -> Mapping[str, float] | None:
        """Return the weights that a site accepted in a round; None if it received none."""
        shown = (plugin.agreed_weights(site, round) for plugin in self.plugins)
        return next((weights for weights in shown if weights is not None), None)

    def _committed(self, ask: Ask, members: Array) -> Array:
        """Read the committed round of each member; a site left out of a round has an earlier one."""
        default = int(ask.shared.get("committed", 0))
        rounds = [ask.each.get(self.stack.names[k], {}).get("committed", default) for k in members]
        return np.array(rounds, np.int64)

    def _prepare(self, ask: Ask, members: Array) -> Columns:
        self.stack, answer = prepare(self.stack, ask, self._dtype)
        self.encoding = encoding_from(json.loads(str(ask.shared["encoding"])))
        spec = json.loads(str(ask.shared["spec"]))
        self._groups = int(spec["groups"])
        self.model = self._build(spec)
        self._personal.agree(self.model, spec["keeps"])
        self.personal_settings = spec.get("personal", {})
        return {name: [c[k] for k in members] if isinstance(c, list) else c[members] for name, c in answer.items()}

    def _lend(self, ask: Ask, members: Array) -> Columns:
        """Store reference rows for anchors and explanations, replacing those of the same name."""
        part = self.stack.parts.get("train")
        reference = SharedReference.from_payload(ask.shared, self._dtype, like=None if part is None else part.x)
        self.references[str(ask.shared["name"])] = reference
        return {"held": np.full(len(members), len(reference.x))}

    def _train(self, ask: Ask, members: Array) -> Columns:
        model, part = self.prepared_model(), self.stack.parts["train"]
        config = TrainConfig.from_values(ask.shared)
        start = self.received(ask, members) if self._personal.is_hidden else self.in_use(ask, members)
        request = TrainRequest(ask, members, config, start, part.counts[members])
        result = self._fit(request)
        columns: Columns = {"model": result.theta, "count": request.counts, "steps": result.steps}
        if config.rate:
            columns[ERROR] = refusals(part.protected[members], config)
        if result.reasons is not None:
            columns["reasons"] = result.reasons
        if {"val_loss", "ece"} & set(ask.report):
            columns |= scoring.local_figures(model, self.stack, members, result.theta)
        self._remember(request, result)
        for plugin in self.plugins:
            columns |= plugin.on_trained(request, result)
        if ask.task == "train":
            columns = self._with_attacks(columns, request)
        for plugin in self.plugins:
            columns |= plugin.after_training(request, columns)
        if "update" in ask.report:
            columns["update"] = columns["model"] - request.start
            if config.longest:  # again, because the difference is rounded
                columns["update"] = clip_norm(columns["update"], config.longest)
        return columns

    def _fit(self, request: TrainRequest) -> TrainResult:
        """Train the members' models on their own rows by the request and the plug-ins."""
        model, config, members = self.prepared_model(), request.config, request.members
        part, class_weight = self.stack.parts["train"], request.ask.shared.get("class_weight")
        stored = [self.states.read(f"slot{i}", members) for i in range(3)] if config.keep_optimizer else []
        job = replace(
            self._job(members, request.start, config, part),
            class_weight=None if class_weight is None else np.asarray(class_weight),
            slots=tuple(slot for slot in stored if slot is not None),
            clock=self.states.read("clock", members) if config.keep_optimizer else None,
        )
        sampled = self._sample(request, part) if config.rate else None
        for plugin in self.plugins:
            job = plugin.before_training(request, job)
            job = replace(job, part=plugin.choose_rows(request, job.part))
        result = trainer(model)(job) if sampled is None else private_trainer(model)(job, sampled)
        if job.frozen is not None:  # they are answered as they were received: nothing of them leaves the site
            np.asarray(result.theta)[:, job.frozen] = request.start[..., job.frozen]
        if not config.longest:
            return result
        return replace(
            result, theta=request.start + clip_norm(np.asarray(result.theta) - request.start, config.longest)
        )

    def train_apart(
        self,
        members: Array,
        start: Any,
        config: TrainConfig,
        *,
        part: Part | None = None,
        correction: Array | None = None,
        frozen: Array | None = None,
        class_weight: Array | None = None,
    ) -> TrainResult:
        """Train models of these sites beside the run's own training: nothing is staged, and no plug-in takes part.

        Args:
            members: Site numbers, (m,).
            start: Models to start from, (P,) or (m, P).
            config: Settings of the training.
            part: Rows to train on; None: the sites' training rows.
            correction: Added to every gradient, (m, P).
            frozen: Entries that keep their start.
            class_weight: Weight of each class in the loss, (C,).

        Returns:
            The trained models.
        """
        job = self._job(members, start, config, self.stack.parts["train"] if part is None else part)
        job = replace(job, correction=correction, frozen=frozen, class_weight=class_weight)
        return trainer(self.prepared_model())(job)

    def _job(self, members: Array, start: Any, config: TrainConfig, part: Part) -> TrainJob:
        """Build the job of a kernel."""
        return TrainJob(
            self.prepared_model(),
            part,
            members,
            start,
            config,
            names=self.stack.names,
            penalty=None if self.stack.penalty is None else self.stack.penalty[members],
            workers=self._workers,
            validation=self.stack.parts["val"],
            event=self.stack.event,
            outcome=self.stack.outcome,
        )

    def _sample(self, request: TrainRequest, part: Part) -> SampledSteps:
        """Draw the rows and the noise of DP-SGD from the members' secrets; no two Asks share their draws."""
        secrets = [self.secret(name) for name in self.names_of(request.members)]
        purpose, size = f"dp-sgd {request.ask.id}", request.start.shape[-1]
        return SampledSteps.draw(part, request.members, secrets, config=request.config, purpose=purpose, size=size)

    def _remember(self, request: TrainRequest, result: TrainResult) -> None:
        """Stage the local entries of the model and, if requested, the optimizer's state."""
        state = self._personal.entries_of(result.theta)
        if request.config.keep_optimizer:
            state |= {f"slot{i}": slot for i, slot in enumerate(result.slots)} | {"clock": result.clock}
        self.states.stage(request.members, request.config.round, state)

    def _with_attacks(self, columns: Columns, request: TrainRequest) -> Columns:
        """Apply the attacks of an experiment to the answers of its attacking sites."""
        config, attacks = request.config, self.stack.attacks_of(request.members)
        if not any(attacks):
            return columns
        model = tamper(
            columns["model"],
            request.start,
            attacks=attacks,
            names=self.names_of(request.members),
            seed=config.seed,
            round=config.round,
            statistics=getattr(self.prepared_model(), "statistics_size", 0),
        )
        return falsify({**columns, "model": model}, attacks=attacks, round=config.round)

    def _evaluate(self, ask: Ask, members: Array) -> Columns:
        return scoring.evaluate(
            self.prepared_model(),
            self.stack.without(self.withheld_splits),
            members,
            self.in_use(ask, members),
            parts=[p for p in ask.report if p in self.stack.parts],
            groups=self._groups,
            figures=[f for f in str(ask.shared.get("figures", "")).split(",") if f],
            threshold=float(ask.shared.get("threshold", 0.5)),
            boasting=liars([self.stack.attacks.get(s) for s in self.stack.names], round=ask.round),
            apart={*ask.withheld, *(name for name in ask.report if name not in ask.summed)},
            by_column=[p for p in self.stack.parts if f"{p}{scoring.BY_COLUMN}" in ask.report],
            sizes=[len(grouping.names) for grouping in self.encoding.subgroups],
            without_model=self.without_model if ask.shared.get(USE_PERSONAL) else (),
        )

    def _score(self, ask: Ask, members: Array) -> Columns:
        """Compute losses of one or several models on the sites' training rows; or accuracies on named parts."""
        many = "models" in ask.shared
        models = np.asarray(ask.shared["models"]) if many else np.asarray(ask.shared["model"])[None]
        used = [self._personal.in_use(theta, members) for theta in models]
        if "parts" in ask.shared:
            stack, parts = self.stack.without(self.withheld_splits), str(ask.shared["parts"]).split(",")
            scores = scoring.lent_scores(self.prepared_model(), stack, members, used, parts=parts)
        else:
            scores = scoring.training_scores(self.prepared_model(), self.stack, members, used)
        if not many and "losses" in scores:
            scores = {"loss": scores["losses"][:, 0], "accuracy": scores["accuracies"][:, 0]}
        return falsify(scores, attacks=self.stack.attacks_of(members), round=ask.round)

    def _calibrate(self, ask: Ask, members: Array) -> Columns:
        theta, grid = self.in_use(ask, members), np.asarray(ask.shared["grid"])
        return {"losses": scoring.temperature_losses(self.prepared_model(), self.stack, members, theta, grid)}

    def _platt(self, ask: Ask, members: Array) -> Columns:
        scored = platt.scores(self.prepared_model(), self.stack, members, self.in_use(ask, members))
        if "lines" not in ask.shared:
            scored = platt.one_each(scored, self.stack.parts["val"], members)
        return platt.answer(ask, scored, names=self.names_of(members), secret=self.secret)

    def names_of(self, members: Array) -> list[str]:
        return [self.stack.names[k] for k in members]

    def received(self, ask: Ask, members: Array) -> Any:
        """Return the models that an Ask sends to these sites, as they were sent."""
        return _models(ask, self.names_of(members))

    def in_use(self, ask: Ask, members: Array) -> Any:
        """Return the models that an Ask sends to these sites, with the entries that each keeps local.

        An Ask with `personal` uses the models that sites deploy. Under a privacy budget it is refused, because these models
        depend on the sites' rows without noise.
        """
        models = self._personal.in_use(self.received(ask, members), members)
        if not ask.shared.get(USE_PERSONAL):
            return models
        if self.withheld_splits:
            raise BadInput(
                "figures of personal models disclose patient data without noise: refused because privacy.epsilon is set",
                code="raw-release",
            )
        common = np.broadcast_to(models, (len(members), np.shape(models)[-1]))
        return [self.personal_models.get(k, theta) for k, theta in zip(members.tolist(), common, strict=True)]

    def keep_personal(self, folder: Path) -> None:
        """Write files of personal models below this folder, one folder for each site."""
        for plugin in self.plugins:
            if plugin.name == "personal":
                plugin.folder = folder

    def arrays(self) -> dict[str, Array]:
        """Return the sites' state, for a checkpoint."""
        plugin_arrays = {f"{plugin.name}/{name}": a for plugin in self.plugins for name, a in plugin.arrays().items()}
        return {**self.states.arrays(), **plugin_arrays}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Restore the sites' state from a checkpoint; not every plug-in had a state to keep."""
        self.states.restore(arrays)
        for plugin in self.plugins:
            folder = f"{plugin.name}/"
            plugin_arrays = {
                n.removeprefix(folder): a for n, a in arrays.items() if plugin.name and n.startswith(folder)
            }
            if plugin_arrays:
                plugin.restore(plugin_arrays)

    def make_room(self) -> None:
        """Release the memory that the model uses on its device; the next answer rebuilds it."""
        if self.model is not None:
            make_room(self.model)

    def prepared_model(self) -> Model:
        if self.model is None:
            raise BadInput("this site has not prepared its data yet: ask 'prepare' first", code="not-prepared")
        return self.model


def _allow_objective(path: str, *, own_code: bool, listed: Mapping[str, str]) -> None:
    """Allow the import of a local objective: in a simulation as its experiment does, else by the site's list of modules."""
    if own_code:
        code.check(path, KEY)
    else:
        code.allow_listed(path, listed, key=KEY)


def _models(ask: Ask, names: list[str]) -> Any:
    """Read the models of an Ask: one for all (P,), one per site (m, P), or a list if they differ in size."""
    site_models = [ask.each.get(name, {}).get("model") for name in names]
    if all(m is None for m in site_models):
        return np.asarray(ask.shared["model"])
    models = [np.asarray(ask.shared["model"] if m is None else m) for m in site_models]
    return np.stack(models) if len({m.shape for m in models}) == 1 else models
