"""Base classes of federated methods. A method is the server side of an algorithm, without any input or output.

Its round is a generator: it yields an Ask, is sent the Answers, and returns the next model with
its Decision. An engine drives it, in one process or across hospitals, with the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.averaging import average
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plugins import is_path
from grandrounds.core.records import Decision, RoundRecord, RunSummary
from grandrounds.core.rng import generator
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.dp import PrivacyTerms, round_events
from grandrounds.methods.training import learning_rate, objective_payload
from grandrounds.protocol.messages import Answers, Arrival, Ask, Payload, Receive, Send, Value

if TYPE_CHECKING:
    from grandrounds.core.method_facts import MethodFact
    from grandrounds.core.plan_types import MethodSettings, Plan, TrainSettings
    from grandrounds.data.kinds import AnyEncoding
    from grandrounds.explain.noised_percentiles import ColumnCells
    from grandrounds.explain.rationale import RationaleRule
    from grandrounds.explain.rule import SketchRule
    from grandrounds.methods.secure import SecureRule
    from grandrounds.privacy.events import Event
    from grandrounds.site.plugin import SitePlugin

Effect = Ask | Send | Receive
Reply = Answers | Arrival | None

PARTS = frozenset({"select", "weigh", "robust", "stability", "cohorts"})
"""Parts of [method] that a method may use."""


@dataclass(frozen=True)
class Outcome:
    """The result of a round: the models that sites use next, the Decision, and the state of the method.

    `ended`: the reason, if the method ends the run with this round; "" otherwise.
    """

    assignment: ModelAssignment
    decision: Decision
    state: Mapping[str, Array] = field(default_factory=dict)
    ended: str = ""

    @property
    def model(self) -> Array:
        return self.assignment.model


Round = Generator[Ask | Send | Receive, Any, Outcome]


class ReferenceSet(Protocol):
    """Labelled reference rows at the server, with the computations a method may do on them without asking a site."""

    def train(self, model: Array, work: Payload) -> Array: ...

    def accuracy(self, models: Any) -> Array: ...

    def losses(self, models: Any) -> Array: ...

    def rationale(self, models: Any, rule: RationaleRule) -> dict[str, Array]: ...

    def attributed(self, models: Any, rule: SketchRule, background: Array, *, signed: bool) -> dict[str, Array]: ...

    def doubt(self, model: Array) -> float: ...


@dataclass(frozen=True)
class Server:
    """The state that a method receives at the start of a round."""

    round: int
    model: Array
    sites: tuple[str, ...]  # all training sites, in a fixed order
    seed: int
    state: Mapping[str, Array] = field(default_factory=dict)
    class_weight: Array | None = None
    combiner: Callable[[Answers, Array], Array] | None = None  # combines answers where the model is not averaged
    rows: Mapping[str, int] = field(default_factory=dict)  # training rows that each site reported
    assignment: ModelAssignment | None = None  # the model of each site, where models are separate
    reference: ReferenceSet | None = None
    anchors: ReferenceSet | None = None  # the rows of reference anchors
    can_average: bool = True  # models of several sites can be combined
    secure: SecureRule | None = None  # rule of secure aggregation, where it is on
    statistics: int = 0  # number of trailing entries that are BatchNorm statistics
    private: PrivacyTerms | None = None  # the run's privacy guarantee, if any
    background: Array | None = None  # (B, d): background rows of SHAP values, the same for all sites
    features: tuple[str, ...] = ()  # names of the features in explanations
    explainer: str = "shap"  # default explainer: SHAP for tables, integrated gradients for images
    present: tuple[str, ...] = ()  # sites present in this round; empty: all
    shared_reference: str = ""  # name of the reference rows that sites evaluate themselves on
    reference_labelled: bool = True  # the reference rows have labels
    columns: tuple[ColumnCells, ...] = ()  # agreed cells in which patients may be counted for percentiles
    encoding: AnyEncoding | None = None  # the agreed encoding of rows
    without: tuple[str, ...] = ()  # sites that take no part, because they withdrew from an earlier run

    @property
    def available_sites(self) -> tuple[str, ...]:
        """Return the sites that can be asked in this round."""
        return self.present or self.sites

    def combine(self, answers: Answers, weights: Array) -> Array:
        """Combine the models of answers by weights: as a mean, a union of trees, or head by head.

        Args:
            answers: Answers with `model`, (K, P) or a list.
            weights: The weight of each answer, (K,).

        Returns:
            The combined model.
        """
        return average(answers["model"], weights) if self.combiner is None else self.combiner(answers, weights)

    def rng(self, purpose: str) -> np.random.Generator:
        return generator(self.seed, purpose=purpose, round=self.round)

    def next(self, model: Array | ModelAssignment, decision: Decision, **state: Array) -> Outcome:
        """End the round with this model, Decision and state.

        Args:
            model: The next model, or the model of each site.
            decision: The record of the round.
            state: Arrays to find in `server.state` in the next round.

        Returns:
            The result that a round returns.
        """
        served = model if isinstance(model, ModelAssignment) else ModelAssignment(model)
        return Outcome(served.astype(self.model.dtype), decision, state)


class LocalRegularizer:
    """Base class for local regularizers, which keep local models close to each other; this one does nothing."""

    name: ClassVar[str] = "none"
    title: ClassVar[str] = "no local regularisation"
    report: ClassVar[tuple[str, ...]] = ()  # further reports that it asks sites for
    needs: ClassVar[frozenset[str]] = (
        frozenset()
    )  # "sgd": plain gradient steps; "features": a hidden layer; "reference"

    site: ClassVar[tuple[type[SitePlugin], ...]] = ()  # its plug-ins at the sites

    def __init__(self, settings: MethodSettings) -> None:
        self.settings = settings

    def site_config(self, server: Server, lr: float) -> dict[str, Value]:
        """Return further settings of local training, which are sent to sites with the Ask.

        Args:
            server: The state of the round.
            lr: The learning rate of the round's steps.
        """
        return {}

    def secure_weights(self, server: Server) -> dict[str, dict[str, float]]:
        """Return the weights, by report and site, of reports that the server needs only as a sum (secure aggregation)."""
        return {}

    def update(self, server: Server, answers: Answers) -> dict[str, Array]:
        """Return the server's state for the next round.

        Args:
            server: The state of the round.
            answers: Answers to the training Ask.
        """
        return {}


class Method:
    """Base class of methods: holds the [method] and [train] sections and builds training Asks."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    family: ClassVar[str] = ""  # name under which models refuse it, if not its own
    regularizer_name: ClassVar[str] = ""  # the local regularizer that defines this method
    parts: ClassVar[frozenset[str]] = PARTS  # parts of [method] that it uses
    site: ClassVar[tuple[type[SitePlugin], ...]] = ()  # its plug-ins at the sites
    defaults: ClassVar[Mapping[str, bool | int | float | str]] = {}  # defaults of [method.options]
    is_exact: ClassVar[bool] = False  # its result is that of pooled rows, from sums over hospitals
    has_model: ClassVar[bool] = True  # False: the result is a table or a curve, and no model is written or evaluated
    scores_rounds: ClassVar[bool] = True  # models of single rounds are evaluated and explained, not only the last one
    noise_is_optional: ClassVar[bool] = False  # its own privacy mechanism is used under a budget only
    earlier_model: ClassVar[str] = ""  # import path of the function that reads the model and encoding of an earlier run
    new_patients: ClassVar[str] = ""  # import path of the function that adds the new patients of a plan to a simulation's sites
    needs_public: ClassVar[str] = ""  # why data.encoding cannot be 'fitted', a clause; its plan has 'public' without being told
    evaluates: ClassVar[bool] = True  # False: no model is evaluated or explained, and sites refuse to
    asks_notes: ClassVar[bool] = True  # False: sites are not asked for sentences on their rows, which may name a category

    def __init__(
        self, settings: MethodSettings, train: TrainSettings, regularizer: LocalRegularizer | None = None
    ) -> None:
        self.settings = settings
        self.train = train
        self.regularizer = LocalRegularizer(settings) if regularizer is None else regularizer
        self.options = {**self.defaults, **settings.options.plain()}
        unknown = next((name for name in self.options if name not in self.defaults), None)
        if unknown is not None and is_path(settings.name):  # built-in methods ignore options they do not use
            hint = nearest(unknown, self.defaults) if self.defaults else "it has none"
            raise BadInput(
                f"method '{settings.name}' has no option '{unknown}' (method.options); {hint}",
                code="unknown-option",
            )

    def round(self, server: Server) -> Round:
        """Run one round: yield Asks, receive Answers, and return the outcome. Every method implements it.

        Args:
            server: The state of the round: the model, the sites, the method's own state.

        Returns:
            A generator that ends with `server.next(model, decision)`.
        """
        raise TypeError(f"{type(self).__name__} does not implement round()")

    def spends(self, server: Server) -> Sequence[Event]:
        """Return the privacy events of a round, which are charged before it begins. Default: those of the run's mechanism.

        A method with its own mechanisms returns its own events. The run stops before a round that would exceed the budget.

        Args:
            server: The state of the round.
        """
        return round_events(server)

    @classmethod
    def asks(cls, plan: Plan) -> Mapping[str, Mapping[str, Value]]:
        """Name the tasks that a round asks sites for in place of training, with the settings that a hospital's rules look at.

        A setting of `secagg.masked` replaces that of a sum of models.

        Args:
            plan: The plan.

        Returns:
            Settings by task; empty for a method that trains.
        """
        return {}

    @classmethod
    def local_part(cls, plan: Plan) -> str:
        """Name the part of the model of which each site stores its own values after the fit, which never leave it.

        Args:
            plan: The experiment's plan.

        Returns:
            "intercept" for a generalized linear model with an intercept for each hospital, "shapes" for an additive model with
            shapes of its own for each hospital; else "none".
        """
        return "none"

    @classmethod
    def default_rounds(cls, settings: Any) -> int:
        """Return the number of rounds of a plan that does not set method.rounds. Default: that of the section.

        Args:
            settings: The section [method].
        """
        return int(settings.rounds)

    @classmethod
    def group_column(cls, settings: Any, subgroup: str | None) -> str | None:
        """Return the column of the groups of patients that the run compares. Default: evaluation.subgroup.

        Args:
            settings: The section [method].
            subgroup: The setting evaluation.subgroup.
        """
        return subgroup

    @classmethod
    def sums_without(
        cls, plan: Plan, state: Mapping[str, Array], encoding: AnyEncoding, site: str
    ) -> Mapping[str, Array] | None:
        """Return the stored sums of a finished run without those of a site that withdraws, as entries of the method's state.

        Default: None, as for all runs from whose sums the result over the other sites does not follow exactly.

        Args:
            plan: The experiment's plan.
            state: The method's state after the last round.
            encoding: The agreed encoding of rows.
            site: The site.
        """
        return None

    @classmethod
    def summarize(cls, plan: Plan, state: Mapping[str, Array], encoding: AnyEncoding) -> dict[str, object]:
        """Return further parts of summary.json, by key.

        Args:
            plan: The experiment's plan.
            state: The method's state after the last round.
            encoding: The agreed encoding of rows.
        """
        return {}

    @classmethod
    def own_numbers(cls, plan: Plan, records: Sequence[RoundRecord], state: Mapping[str, Array]) -> dict[str, object]:
        """Return the numbers of the method's paper, for `method_numbers` of summary.json.

        Args:
            plan: The experiment's plan.
            records: The records of the rounds.
            state: The method's state after the last round, and the final model as `model`.
        """
        return {}

    @classmethod
    def describe(cls, summary: RunSummary) -> tuple[MethodFact, ...]:
        """Describe the numbers of the method's paper, for the terminal, the report, the console and Python.

        Args:
            summary: The summary of a run of this method.

        Returns:
            The facts, in the order in which they are shown.
        """
        return ()

    @classmethod
    def exposes(cls, plan: Plan) -> tuple[str, ...]:
        """Return sentences for the privacy statement on data that this method releases and no epsilon covers.

        Args:
            plan: The experiment's plan.
        """
        return ()

    @classmethod
    def refusals(cls, model: Any, plan: Plan, *, sites: int, pictures: bool) -> Iterator[str]:
        """Yield reasons why a plan cannot be run with this method: missing or incompatible settings.

        Args:
            model: The model built from the plan.
            plan: The experiment's plan.
            sites: Number of training sites.
            pictures: True if the rows are images.

        Yields:
            One sentence each, with the setting to change; the first is raised before a round is run.
        """
        yield from ()

    @classmethod
    def secure_refusals(cls, plan: Plan) -> Iterator[str]:
        """Yield reasons why this method cannot be run with privacy.secure.

        Args:
            plan: The experiment's plan.

        Yields:
            Clauses that follow "hides single models"; the first is raised before a round is run.
        """
        name = plan.method.name
        yield f"but method '{name}' needs single models: use fedavg, fedopt, scaffold or another averaging method"

    def train_config(self, server: Server, **more: Value) -> dict[str, Value]:
        """Build the settings of one round of local training.

        Args:
            server: The state of the round.
            more: Settings that are added or replaced.

        Returns:
            The settings, as an Ask carries them.
        """
        t = self.train
        config: dict[str, Value] = {
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
            "keep_optimizer": t.keep_optimizer,
            "augment": t.augment,
        }
        if t.continue_epoch:
            config["continue_epoch"] = True
        if t.noise:
            config["gradient_noise"] = t.noise
        if server.class_weight is not None:
            config["class_weight"] = server.class_weight
        if server.private is not None:
            config |= server.private.site_config()
        return {**config, **more}

    def ask_to_train(
        self, server: Server, sites: tuple[str, ...], *, each: Mapping[str, Payload] | None = None, **more: Value
    ) -> Ask:
        """Build the Ask for one round of local training.

        Args:
            server: The state of the round.
            sites: The sites that train.
            each: Further settings of single sites.
            more: Settings that are added or replaced, such as `epochs=1`.

        Returns:
            An Ask for `model`, `count` and `steps`, with the objective of [train].
        """
        work = self.train_config(server)
        refused = () if server.private is None else server.private.report
        shared = {"model": server.model, **work, **self.regularizer.site_config(server, float(work["lr"]))}
        shared |= {**objective_payload(self.train), **more}
        return Ask(
            "train",
            shared=shared,
            each=each or {},
            to=sites,
            report=("model", "count", "steps", *self.regularizer.report, *refused),
        )
