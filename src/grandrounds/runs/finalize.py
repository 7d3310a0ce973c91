"""How a run ends: calibrate, choose the threshold, judge the final models everywhere, write them down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grandrounds.audit.files import end_with
from grandrounds.core.plan_types import Plan
from grandrounds.data.corruption.attacks import BACKDOOR, add_trigger
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Encoding
from grandrounds.data.event import order_by_event
from grandrounds.data.formats import Reading
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import Holdings
from grandrounds.data.schema import Schema
from grandrounds.data.warnings import event_class, few_events, threshold_warnings, too_good
from grandrounds.engine.resources import Gauge
from grandrounds.experiment.checks.explain import lent_rows
from grandrounds.experiment.checks.privacy import counts_patients
from grandrounds.explain.noised_percentiles import estimate_population
from grandrounds.methods import build_method
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Server
from grandrounds.methods.exchanges import EvaluationResult, evaluate, fit_temperature
from grandrounds.methods.fedxchain.summary import trust_summary
from grandrounds.methods.platt import PlattLine, fit_platt
from grandrounds.metrics import DESCRIPTIONS, Tally
from grandrounds.metrics.local_models import local_summary
from grandrounds.models import Model
from grandrounds.models.protocol import Calibration
from grandrounds.protocol.messages import Answers, Ask
from grandrounds.runs import evaluation
from grandrounds.runs.explanations import RoundExplanations, written
from grandrounds.runs.federation import Consortium
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.heat_maps import HeatMaps
from grandrounds.runs.ledger import Recording
from grandrounds.runs.rationale import RationaleEvaluator
from grandrounds.runs.setup import RunSetup
from grandrounds.runs.state import State
from grandrounds.site.evaluate import score
from grandrounds.site.stack import CLEAN, PARTS


def schema_of(data: Holdings) -> Schema | None:
    """How a table's columns were read; pictures have no columns."""
    return None if isinstance(data, ImageSet) else data.schema


def reading_of(data: Holdings) -> Reading | None:
    """What was assumed to read a table from a text file; None for anything else."""
    return data.table.reading if isinstance(data, Dataset) else None


def assumed(data: Holdings) -> tuple[str, ...]:
    """One sentence for each thing that was assumed to read the table."""
    reading = reading_of(data)
    return () if reading is None else reading.notes


@dataclass
class Finalizer:
    """The last exchanges of a run, and its summary."""

    plan: Plan
    consortium: Consortium
    opening: RunSetup
    folder: RunFolder
    warnings: tuple[str, ...]
    recorder: Recording
    explaining: RoundExplanations | None = None
    private: Callable[[ModelAssignment], PlattLine] | None = None  # the line of a model within the budget of the validation rows
    released: Callable[[], Sequence[Mapping[str, Any]]] = tuple  # what was charged outside the rounds, for the ledger
    promise: Callable[[Mapping[str, int]], Mapping[str, Any]] | None = (
        None  # what was promised, given the rows that were lent
    )
    watching: RationaleEvaluator | None = None
    gauge: Gauge = field(default_factory=Gauge)
    maps: HeatMaps | None = None

    def close(self, model: Model, state: State, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Write the models, the rounds, the explanations and the report; then the ledger's closing entry, which names them all.

        The summary comes last, because it says the run is finished: the entry has its hash already.
        """
        plan, encoding = self.plan, self.opening.encoding
        served, calibration = self._calibrated(model, state.served if state.best is None else state.best)
        threshold = self._threshold(served)
        scored = self._judged(served, PARTS if self.consortium.planted is None else (*PARTS, CLEAN), threshold)
        final = evaluation.final_scores(scored, encoding, threshold=threshold, more=self.opening.metrics)
        self._doubt(final, scored.totals["test"].sum(axis=0))
        final["tasks"] = self._tasks(served)
        final["attacks"] = self._attacks(model, served)
        tuned = self._fine_tuned(served)
        final["finetuned"] = {} if tuned is None else self._personal(tuned, threshold)
        cost = {k: state.cost.get(k, 0.0) + v for k, v in self.opening.engine.meter.read().items()}
        final["models"] = self._write_models(model, served if tuned is None else tuned, served, calibration, threshold)
        self.folder.write_rounds(written(records))
        self._write_percentiles(state)
        explanation = self._explained(served, calibration, state, records)
        final["shortcut"] = self._shortcut(scored, final, explanation)
        used = self.gauge.summarise(seconds=state.seconds, rounds=state.round)
        lent = {name: len(self.consortium.reference[name]) for name in self._lent()}
        summary = evaluation.summary(
            plan,
            final,
            rows=self.opening.rows,
            rounds=state.round,
            stopped=state.stopped,
            temperature=None if calibration is None else calibration.temperature,
            **({"platt": calibration.platt} if calibration is not None and calibration.platt else {}),
            parameters=len(served.model),
            inputs=list(encoding.inputs),
            classes=list(encoding.classes),
            event=None if self.opening.event is None else self.opening.event.to_dict(),
            cost={**cost, "virtual_seconds": state.clock, **used},
            warnings=self.warnings,
            **self._assumed(),
            notes=self.opening.notes,
            reference={name: r.sha256 for name, r in self.consortium.reference.items()},
            training=self.consortium.training,
            explanation=explanation,
            cohorts=evaluation.cohorts(records),
            **trust_summary(plan, records),
            **local_summary(records, self.opening.rows),
            **({} if self.watching is None else {"reasons": self.watching.final(served.model)}),
            **({} if self.maps is None else {"maps": self.maps.summary(records)}),
            lent=lent,
            privacy=None if self.promise is None else self.promise(lent),
        )
        text = self.folder.summary_text(summary)
        self.folder.write_report(text, self.recorder.standing())
        self._end(final["models"], served, calibration, state, text)
        self.folder.write_summary(text)
        return summary

    def _doubt(self, final: Mapping[str, Any], test: Tally) -> None:
        """Warn of figures that mean little: few events, a threshold that parts nobody, an AUROC too good to be true."""
        if self.plan.privacy.epsilon is not None or self.plan.tasks.plain():
            return
        classes = order_by_event(self.opening.encoding.classes, self.opening.encoding.event)
        counts = {c: round(float(n)) for c, n in zip(classes, test.confusion.sum(axis=1), strict=True)}
        sentences = few_events(counts, classes)
        total: int = sum(counts.values())
        if len(classes) == 2 and total:
            share = counts[event_class(classes)] / total
            sentences += threshold_warnings(final["final"], final["threshold"], share)
        if self.plan.data.name is None and isinstance(self.consortium.data, Dataset):
            sentences += too_good(final["final"])
        self.warnings = tuple(dict.fromkeys((*self.warnings, *sentences)))

    def _assumed(self) -> dict[str, Any]:
        """The summary's `assumed`; with an epsilon nothing that counts cells leaves but what was charged."""
        sentences = () if self.plan.privacy.epsilon is not None else assumed(self.consortium.data)
        return {"assumed": list(sentences)} if sentences else {}

    def _write_percentiles(self, state: State) -> None:
        """Noised percentiles, where the method was given some for its budget."""
        encoding = self.opening.encoding
        if counts_patients(self.plan) and isinstance(encoding, Encoding):
            share = float(self.plan.method.veil.percentiles)
            self.folder.write_percentiles(estimate_population(encoding, state.method, share=share))

    def _explained(
        self, served: ModelAssignment, calibration: Calibration | None, state: State, records: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Write explanations.json; gives the summary's few words of it."""
        if self.explaining is None:
            return {}
        explained = [{"round": r["round"], **r["explanation"]} for r in records if "explanation" in r]
        same = state.best is None and calibration is None and explained and explained[-1]["round"] == state.round
        final = explained[-1].get("deployed", {}) if same else self._drive(self.explaining.deployed(served))
        self.folder.write_explanations({**self.explaining.described(self.plan), "rounds": explained, "final": final})
        return self.explaining.summary(explained, final)

    def _end(
        self, models: Mapping[str, str], served: ModelAssignment, calibration: Calibration | None, state: State, summary: bytes
    ) -> None:
        """Enter in the ledger how the run ends: all files that people read, the models, and which round they are of."""
        names = [self.folder.model.name, *sorted(set(models.values()))]
        ended = end_with(self.folder.path, models=names, summary=summary)
        final_round = state.round if state.best is None else state.best_round
        released = self.released()
        self.recorder.end(served.model, round=final_round, calibration=calibration, ended=ended, released=released)

    def _lent(self) -> list[str]:
        """Reference sets whose rows sites were sent: to hold, or as the background of explanations."""
        names = list(lent_rows(self.plan))
        e = self.explaining
        if (
            e is not None
            and e.on is not None
            and e.background is not None
            and self.plan.reference.plain()[e.on]["sent"]
        ):
            names.append(e.on)
        return list(dict.fromkeys(names))

    def _drive(self, work: Any) -> Any:
        return self.opening.engine.drive(work, round=self.plan.method.rounds + 1)

    def _judged(self, served: ModelAssignment, parts: tuple[str, ...], threshold: float) -> EvaluationResult:
        figures = tuple(DESCRIPTIONS)
        scored: EvaluationResult = self._drive(evaluate(served, parts, figures=figures, threshold=threshold))
        return scored

    def _calibrated(self, model: Model, served: ModelAssignment) -> tuple[ModelAssignment, Calibration | None]:
        how = self.plan.evaluation.calibrate
        if how == "platt":
            return self._corrected(model, served)
        if how == "none":
            return served, None
        t = self._drive(fit_temperature(served))
        if t is None:
            sentence = "the validation rows are separable and set no temperature: the model is left uncalibrated"
            self.warnings += (sentence,)
            return served, None
        return served.map(lambda theta: model.with_temperature(theta, t)), Calibration.from_temperature(t)

    def _corrected(self, model: Model, served: ModelAssignment) -> tuple[ModelAssignment, Calibration | None]:
        """Platt's line in every model; left as they are, with a warning, where the validation rows give none to use."""
        line: PlattLine = self._drive(fit_platt(served)) if self.private is None else self.private(served)
        if line.refused:
            self.warnings += (line.refused,)
            return served, None
        changed = served.map(lambda theta: model.with_platt(theta, slope=line.slope, intercept=line.intercept))
        return changed, Calibration(line.slope, line.intercept)

    def _threshold(self, served: ModelAssignment) -> float:
        """The probability that counts as "yes": one half, or from the validation rows of all sites."""
        if self.plan.evaluation.threshold == "half":
            return 0.5
        val = self._drive(evaluate(served, ("val",))).totals["val"].sum(axis=0)
        return evaluation.choose(val, self.opening.encoding, self.plan.evaluation)

    def _tasks(self, served: ModelAssignment) -> dict[str, Any]:
        """Test figures of each task over the sites that hold it; nothing where there is one task."""
        stack = self.consortium.stack
        names = sorted(set(stack.tasks))
        out = {}
        for task in names if len(names) > 1 else ():
            holders = tuple(s for s, t in zip(stack.names, stack.tasks, strict=True) if t == task)
            tally = self._drive(evaluate(served, ("test",), to=holders)).totals["test"].sum(axis=0)
            scored = evaluation.task_scores(tally, self.opening.encoding, task, tasks=names, sites=len(holders))
            out[task or "main"] = scored
        return out

    def _attacks(self, model: Model, served: ModelAssignment) -> dict[str, Any]:
        """Who attacked how, and for a backdoor the share of stamped test pictures that the model takes for its target."""
        attackers = self.consortium.stack.attacks
        out: dict[str, Any] = {"sites": {site: a.kind for site, a in attackers.items()}} if attackers else {}
        data = self.consortium.data
        for target in sorted({a.target for a in attackers.values() if a.kind == BACKDOOR and a.target is not None}):
            assert isinstance(data, ImageSet)
            tested = np.concatenate([r.test for r in self.consortium.stack.rows])
            stamped, _ = add_trigger(data, tested, target=target)
            encoding: Any = self.opening.encoding
            logits = score(model, served.model, encoding.encode(stamped, served.model.dtype))
            called = (logits[:, 0] > 0).astype(int) if logits.shape[1] == 1 else logits.argmax(axis=1)
            hit = float(np.mean(called == encoding.classes.index(target))) if len(called) else None
            out.setdefault("backdoor_success", {})[target] = hit
        return out

    def _shortcut(self, scored: EvaluationResult, final: Mapping[str, Any], explanation: Mapping[str, Any]) -> dict[str, Any]:
        """What the shortcut in the sites' pictures was worth to the model; nothing where there is none."""
        planted = self.consortium.planted
        if planted is None:
            return {}
        total, more = scored.totals[CLEAN].sum(axis=0), self.opening.metrics
        ood = evaluation.figures(total, threshold=final["threshold"], more=more)
        tiles = 1 if self.explaining is None else len(self.explaining.features)
        return evaluation.shortcut_scores(planted, final["final"], ood, explanation, tiles=tiles)

    def _fine_tuned(self, served: ModelAssignment) -> ModelAssignment | None:
        """Each site's own model after train.finetune more epochs on its own rows, from the finished one."""
        plan = self.plan
        if not plan.train.finetune:
            return None
        method = build_method(plan.method, plan.train)
        r = plan.method.rounds + 1
        weight = evaluation.class_weight(plan.train.class_weights, self.opening.encoding)
        sites = tuple(s for s in self.consortium.training if s in self.opening.rows)
        server = Server(r, served.model, sites, plan.seed, class_weight=weight)
        work = method.train_config(server, model=served.model, epochs=plan.train.finetune, steps=0, lr=plan.train.lr)
        ask = Ask("finetune", shared=work, each=served.payloads(), to=server.sites, report=("model",))

        def once() -> Any:
            answers: Answers = yield ask
            return answers

        answers = self._drive(once())
        self.opening.engine.commit()  # what sites keep for themselves is from now on as fine-tuned
        return ModelAssignment(served.model, answers["model"], {s: k for k, s in enumerate(answers.sites)})

    def _personal(self, tuned: ModelAssignment, threshold: float) -> dict[str, Any]:
        scored = self._judged(tuned, ("test",), threshold)
        total = scored.totals["test"].sum(axis=0)
        final = evaluation.figures(total, threshold=threshold, more=self.opening.metrics)
        return {"epochs": self.plan.train.finetune, "final": final, "per_site": evaluation.site_figures(scored)}

    def _write_models(
        self, model: Model, served: ModelAssignment, common: ModelAssignment, calibration: Calibration | None, threshold: float
    ) -> dict[str, str]:
        """model.safetensors, and where models are separate one file each; says which site uses which."""
        facts = (self.opening.spec, self.opening.encoding, schema_of(self.consortium.data), calibration, threshold)
        self.folder.write_model(self.folder.model, model, common.model, *facts)
        if served.models is None:
            return {}
        for m, theta in enumerate(served.models):
            self.folder.write_model(self.folder.own_model(m), model, np.asarray(theta), *facts)
        return {site: str(self.folder.own_model(m).relative_to(self.folder.path)) for site, m in served.index_by_site.items()}
