"""Set-up of a run: the engine, the sites' summaries, the encoding they agree on, and their prepared rows."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from grandrounds.core import plugins
from grandrounds.core.arrays import Array
from grandrounds.core.capability import load
from grandrounds.core.errors import BadInput
from grandrounds.core.outcome import CLASSIFICATION, SURVIVAL
from grandrounds.core.plan_types import Plan
from grandrounds.core.rng import generator
from grandrounds.data.dataset import Dataset
from grandrounds.data.design import describe_incomplete
from grandrounds.data.encoding import Encoding, EncodingRules
from grandrounds.data.event import Event, only_event, state_event
from grandrounds.data.image_encoding import KIND
from grandrounds.data.kinds import AnyEncoding, encoding_from, task_of
from grandrounds.data.public import make_public_encoding
from grandrounds.data.sets.catalog import CATALOG
from grandrounds.data.summary import Moments, Summary
from grandrounds.engine.checkpoint import Snapshot
from grandrounds.engine.driver import Engine, EngineSettings
from grandrounds.engine.faults import Faults
from grandrounds.engine.local import LocalEngine
from grandrounds.experiment.checks.explain import explained_on
from grandrounds.experiment.checks.participation import there
from grandrounds.experiment.checks.privacy import withheld_splits
from grandrounds.experiment.checks.task import refuse_groups, refuse_task
from grandrounds.explain.percentiles import Population
from grandrounds.explain.rule import BACKGROUND_EXPLAINERS
from grandrounds.methods import is_variant_of, method_class
from grandrounds.methods.baselines import POOLED
from grandrounds.methods.effects import intercept
from grandrounds.methods.exchanges import agree_on_encoding, prepare_sites, read_summaries
from grandrounds.methods.fedxchain.checks import needs_mean_patient
from grandrounds.methods.guard.candidates import HEAD
from grandrounds.methods.guard.server import settings_in_rounds
from grandrounds.methods.site_halves import site_plugins
from grandrounds.metrics.custom import custom_metrics
from grandrounds.models import build_model, model_spec
from grandrounds.models.protocol import TABLE_MODELS, ModelSpec
from grandrounds.protocol.messages import Ask
from grandrounds.runs.evaluation import Metrics
from grandrounds.runs.federation import Consortium

Driven = Generator[Any, Any, Any]

_REPORT = "summary"


class SummaryCollector:
    """Collect the sites' summaries while they agree on the encoding; sites get no further Ask."""

    def __init__(self) -> None:
        self._said: Sequence[Mapping[str, Any]] = ()
        self._moments: Sequence[Mapping[str, Any]] = ()

    def watched(self, work: Driven) -> Driven:
        """Return the same exchange, with its answers collected."""

        def through(effect: Any) -> Driven:
            answers = yield effect
            if isinstance(effect, Ask) and _REPORT in effect.report:
                if "low" in effect.shared:
                    self._moments = read_summaries(answers)
                else:
                    self._said = read_summaries(answers)
            return answers

        return intercept(work, through)

    def population(self, plan: Plan, encoding: AnyEncoding) -> Population | None:
        """Return the merged summaries; None for images, and under a budget, where exact sums are not released."""
        columns = {len(m["count"]) for m in self._moments}
        summaries = [s for s in self._said if s.get("kind") != KIND and len(s["count"]) in columns]
        if plan.privacy.epsilon is not None or not summaries or not isinstance(encoding, Encoding):
            return None
        mean = Moments.merge([Moments.from_payload(m) for m in self._moments]).mean
        return Population.from_summaries(map(Summary.from_payload, summaries), encoding, mean=mean)


OUTSIZED = 1000
"""Multiple of the median number of training rows from which on a site gets a warning."""


@dataclass(frozen=True)
class EarlierModel:
    """The model of an earlier run: specification, parameters, encoding, and the mean training patient as inputs."""

    spec: Mapping[str, Any]
    theta: Array
    encoding: Encoding
    background: Array


@dataclass(frozen=True)
class RunSetup:
    """The state of a run before the first round."""

    engine: Engine
    encoding: AnyEncoding
    spec: dict[str, Any]  # model specification
    rows: dict[str, dict[str, int]]  # by site: train, val, test
    notes: dict[str, list[str]]  # by site: notes on imputed values
    warnings: tuple[str, ...]
    metrics: Metrics  # custom metrics
    centre: Array | None = None  # the encoded mean patient, where explanations need it
    event: Event | None = None  # the class of two whose probability is the risk
    population: Population | None = None  # merged summaries of the sites; a resumed run has them on disk
    start: Array | None = None  # the model that the run begins with, where it is that of an earlier run


def set_up_run(plan: Plan, consortium: Consortium, snapshot: Snapshot | None, engine: Engine | None = None) -> RunSetup:
    """Run round 0: collect summaries, agree on the encoding, prepare rows. A resumed run keeps its encoding.

    `engine`: the engine; None makes a local one.
    """
    if engine is None:
        engine = LocalEngine(consortium.stack, engine_settings(plan, consortium.stack.names))
    encoding: AnyEncoding
    warnings: tuple[str, ...]
    summaries = SummaryCollector()
    first = there(plan, consortium.training, 1)
    task = consortium.data.schema.task if isinstance(consortium.data, Dataset) else CLASSIFICATION
    earlier_model = method_class(plan.method.name).earlier_model
    earlier: EarlierModel | None = load(earlier_model)(plan) if earlier_model else None
    if earlier is not None:
        encoding, warnings = earlier.encoding, ()
    elif snapshot is None and plan.data.encoding == "public":
        complete = not method_class(plan.method.name).evaluates  # no model reads the inputs
        encoding, warnings = make_public_encoding(plan, consortium.data, complete=complete), ()
    elif snapshot is None:
        work = agree_on_encoding(
            numeric=getattr(consortium.data, "numeric_names", ()),
            categorical=getattr(consortium.data, "categorical_names", ()),
            rules=replace(EncodingRules.from_plan(plan), task=task),
            sites=first,
        )
        encoding, warnings = engine.drive(summaries.watched(work), round=0)
    else:
        encoding, warnings = encoding_from(snapshot.facts["encoding"]), tuple(snapshot.facts["warnings"])
        _refuse_other_groups(plan, encoding)
    refuse_task(plan, task_of(encoding))
    refuse_groups(plan, task_of(encoding), len(encoding.classes))
    event = _event(plan, encoding, resumed=snapshot is not None or earlier is not None)
    if snapshot is None and earlier is None and event is not None:
        encoding = replace(encoding, event=event.word)
        has_classes = task_of(encoding) == CLASSIFICATION and method_class(plan.method.name).has_model
        doubt = event.warning if has_classes else None
        warnings = (*warnings, *([doubt] if doubt else []))
    fit_options = TABLE_MODELS[plan.model.name].options if plan.model.name in TABLE_MODELS else ""
    spec = model_spec(
        plan.model,
        inputs=encoding.inputs,
        classes=len(encoding.classes),
        task=task_of(encoding),
        encoding=encoding,
        options=load(fit_options)(plan) if fit_options else None,
    )
    if earlier is not None:
        spec = cast("ModelSpec", dict(earlier.spec))
    spec["tasks"] = list(plan.tasks.plain())
    norm = is_variant_of(plan.method.name, "fedbn")
    spec["keeps"] = "norm" if norm else "statistics" if spec["statistics"] == "site" else "none"
    if (part := method_class(plan.method.name).local_part(plan)) != "none":
        spec["keeps"] = part
    if personal := settings_in_rounds(plan):
        spec["personal"] = personal
        spec["keeps"] = HEAD if personal["part"] == HEAD else spec["keeps"]
    if plugins.is_path(plan.model.name):  # its errors are reported here
        build_model(spec, device="cpu", own_code=True)
    wanted = (plan.explain.sketch in BACKGROUND_EXPLAINERS and explained_on(plan) is None) or needs_mean_patient(plan)
    may_report = (
        plan.privacy.epsilon is None
    )  # under a budget neither is disclosed; settings that need the mean patient are refused later
    has_notes = may_report and method_class(plan.method.name).asks_notes
    prepared = prepare_sites(encoding, spec, centre=first if wanted and may_report else (), notes=has_notes)
    rows, notes, centre = engine.drive(prepared, round=0)
    warnings = (*warnings, *engine.agree_rows(rows), *_outsized(rows), *_incomplete(consortium))
    if snapshot is not None:
        try:
            engine.restore(snapshot.part("sites"), snapshot.facts["engine"])
        except (KeyError, TypeError, ValueError, IndexError):
            raise BadInput(
                "the checkpoint is damaged: the stored state of sites does not fit them; run the experiment again",
                code="damaged-file",
            ) from None
        engine.meter.read()  # the first preparation was counted already
    metrics = custom_metrics(plan.evaluation.metrics)
    population = summaries.population(plan, encoding)
    start = None
    if earlier is not None:
        centre, start = earlier.background, earlier.theta
    return RunSetup(engine, encoding, dict(spec), rows, notes, warnings, metrics, centre, event, population, start)


def _refuse_other_groups(plan: Plan, encoding: AnyEncoding) -> None:
    """Refuse a resumed run whose groups of patients are not those that were agreed before its first round."""
    agreed, named = tuple(g.column for g in encoding.subgroups), tuple(plan.evaluation.subgroups)
    if agreed != named:
        raise BadInput(
            f"evaluation.subgroups is {list(named)}, but the run agreed on the groups of {list(agreed)} before round 1: leave it "
            "as it was, or start a new run",
            code="conflicting-settings",
        )


def _outsized(rows: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Warn of sites that report far more training rows than the others: weights follow row counts."""
    training_rows = {site: counts["train"] for site, counts in rows.items()}
    usual = sorted(training_rows.values())[(len(training_rows) - 1) // 2] if training_rows else 0
    return [
        f"{site} reports {n:,} training rows, {n / usual:,.0f} times the median. Check it: weights follow row counts"
        for site, n in training_rows.items()
        if usual and n > OUTSIZED * usual
    ]


def _incomplete(consortium: Consortium) -> list[str]:
    """Name the sites without a complete row; count the rows that were left out before they were dealt to simulated sites."""
    sites = getattr(consortium.data, "incomplete", None)
    if sites is None:
        return []
    if consortium.data.site is None:
        return describe_incomplete(len(sites))
    gone = sorted({*sites.tolist()} - {*consortium.stack.names})
    shown = ", ".join(gone[:10]) + (f" and {len(gone) - 10} more" if len(gone) > 10 else "")
    return [f"no row has a value in every feature at {shown}: left out of the run (data.complete)"] if gone else []


def _event(plan: Plan, encoding: AnyEncoding, *, resumed: bool) -> Event | None:
    """Return the event that the plan states. A resumed run keeps its event."""
    catalog_entry = CATALOG.get(plan.data.name or "")
    data = plan.data.plain()
    if plan.tasks.plain():
        data["event"] = None  # each task has its own classes
    elif resumed:
        data["event"] = encoding.event
    counts = None if getattr(encoding, "public", False) else encoding.class_counts
    task = task_of(encoding)
    if task not in (CLASSIFICATION, SURVIVAL):
        return None
    if task == SURVIVAL and len(encoding.classes) == 1:
        return only_event(encoding.classes[0], data)
    event = state_event(encoding.classes, counts, data, catalog=catalog_entry.event if catalog_entry else None)
    guessed = event is not None and event.source == "data.event" and plan.data.event is None
    return replace(event, source="rule") if event is not None and guessed else event


def engine_settings(plan: Plan, sites: tuple[str, ...], *, run: str = "") -> EngineSettings:
    """Return the settings of the engine; faults at unknown sites are refused. `run`: the prefix of Ask numbers."""
    e = plan.engine
    unknown = sorted((set(e.faults.nan) | set(e.faults.slow.plain())) - set(sites))
    if unknown:
        raise BadInput(
            f"engine.faults names '{unknown[0]}', which is no site; sites are: {', '.join(sites)}", code="unknown-site"
        )
    pooled = is_variant_of(plan.method.name, POOLED)  # nothing is sent, so there are no faults
    return EngineSettings(
        run=run or f"{plan.name}-{plan.seed}",
        seed=plan.seed,
        wire=e.wire,
        kernel=e.kernel,
        device=e.device,
        precision=e.precision,
        workers=e.workers,
        chunk=e.chunk,
        min_sites=1 if pooled else e.min_sites,
        deadline=None if pooled else e.deadline,
        largest_weight=plan.privacy.largest_weight if plan.privacy.secure else 1.0,
        withheld_splits=withheld_splits(plan),
        plugins=site_plugins(plan),
        faults=Faults() if pooled else Faults(e.faults.drop, tuple(e.faults.nan), _seconds(plan, sites)),
    )


def _seconds(plan: Plan, sites: tuple[str, ...]) -> dict[str, float]:
    """Return the virtual training seconds of sites: as set, else log-normal around 1 with deviation engine.speed_spread."""
    spread = plan.engine.speed_spread
    drawn = {s: float(np.exp(spread * generator(plan.seed, purpose="speed", site=s).standard_normal())) for s in sites}
    return (drawn if spread else {}) | dict(plan.engine.faults.slow.plain())
