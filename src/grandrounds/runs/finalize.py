"""Finalize a run: calibrate, choose the threshold, evaluate the final models at every site, write the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grandrounds.audit.files import hash_final_files
from grandrounds.core.arrays import Array
from grandrounds.core.capability import collect, load
from grandrounds.core.outcome import CLASSIFICATION
from grandrounds.core.records import RoundRecord
from grandrounds.data.corruption.attacks import BACKDOOR, add_trigger
from grandrounds.data.dataset import Dataset
from grandrounds.data.encoding import Encoding
from grandrounds.data.event import order_by_event
from grandrounds.data.formats import Reading, align_steps
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import Holdings, outcome_of, task_of
from grandrounds.data.schema import Schema
from grandrounds.data.warnings import (
    event_class,
    few_events_warnings,
    few_outcomes_warnings,
    threshold_warnings,
    too_good_warnings,
)
from grandrounds.experiment.checks.explain import lent_rows
from grandrounds.experiment.checks.privacy import counts_patients, not_covered, under_budget
from grandrounds.explain.noised_percentiles import estimate_population
from grandrounds.methods import build_method, method_class
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Server
from grandrounds.methods.exchanges import EvaluationResult, evaluate, fit_temperature
from grandrounds.methods.fedxchain.summary import trust_summary
from grandrounds.methods.guard.candidates import is_shiftable, undo_class_weights
from grandrounds.methods.guard.server import PersonalResult, fits_intercepts, is_personal, personalize
from grandrounds.methods.platt import PlattLine, fit_platt
from grandrounds.methods.sse_agg.summary import demotion_summary
from grandrounds.metrics import metrics_of
from grandrounds.metrics.local_models import local_summary
from grandrounds.metrics.score_counts import summarise_scores
from grandrounds.models import Model
from grandrounds.models.protocol import Calibration
from grandrounds.protocol.messages import Answers, Ask
from grandrounds.runs import evaluation
from grandrounds.runs.context import RunContext
from grandrounds.runs.explanations import written
from grandrounds.runs.fairness import fairness_summary, mitigation_summary
from grandrounds.runs.state import State
from grandrounds.runs.withdrawal import Repetition
from grandrounds.site.evaluate import score
from grandrounds.site.stack import CLEAN, PARTS

MOST_COUNTED_SITES = 1000
"""Sites of which the server keeps score counts one by one; of more it adds them up while they arrive."""


def schema_of(data: Holdings) -> Schema | None:
    """Return the schema of a table; None for images."""
    return None if isinstance(data, ImageSet) else data.schema


def reading_of(data: Holdings) -> Reading | None:
    """Return the assumptions under which a text file was read; None for other data."""
    return data.table.reading if isinstance(data, Dataset) else None


def assumed(data: Holdings) -> tuple[str, ...]:
    """Return one sentence per assumption under which the table was read."""
    reading = reading_of(data)
    return () if reading is None else reading.notes


@dataclass
class Finalizer:
    """The last exchanges of a run, and its summary.

    Attributes:
        context: The run.
        private_line: Fits Platt's line within the privacy budget; None where it is fitted without noise.
    """

    context: RunContext
    private_line: Callable[[ModelAssignment], PlattLine] | None = None

    def close(self, model: Model, state: State, records: Sequence[RoundRecord]) -> dict[str, Any]:
        """Write the models, the rounds, the explanations and the report; then the ledger's closing entry, which names them all.

        The summary is written last, because it marks the run as finished. The closing entry contains its hash.
        """
        plan, encoding = self.context.plan, self.context.encoding
        if not method_class(plan.method.name).has_model:
            return self._close_statistic(state, records)
        served, calibration = self._calibrated(model, state.served if state.best is None else state.best)
        threshold = self._threshold(served)
        parts = PARTS if self.context.consortium.planted is None else (*PARTS, CLEAN)
        deploys = is_personal(plan) and plan.privacy.epsilon is None  # groups are compared by the models that sites deploy
        grouped = () if deploys else self._grouped_parts()
        scored = self._judged(served, parts, threshold, by_column=grouped, by_site=not self._hides_sites())
        final = evaluation.final_scores(scored, encoding, threshold=threshold, more=self.context.setup.metrics)
        final |= self._count_scores(scored, threshold)
        self._doubt(final, scored.totals["test"].sum(axis=0))
        final["tasks"] = self._tasks(served)
        final["attacks"] = self._attacks(model, served)
        if is_personal(plan):
            final["personal"], deployed = self._personalized(model, served)
            scored = replace(scored, by_column=deployed or scored.by_column)
        own_threshold = final["personal"]["threshold"] if deploys else None  # an outcome without classes has none
        decided = threshold if own_threshold is None else float(own_threshold)
        fairness, mitigation = self._compare_groups(scored, decided, deploys=deploys)
        tuned = self._fine_tuned(served)
        final["finetuned"] = {} if tuned is None else self._personal(tuned, threshold)
        cost = {k: state.cost.get(k, 0.0) + v for k, v in self.context.engine.meter.read().items()}
        written_models = served if tuned is None else tuned
        final["models"] = self._write_models(model, written_models, served, calibration, threshold, mitigation)
        self.context.folder.write_rounds(written(records))
        self._write_percentiles(state)
        explanation = self._explained(served, calibration, state, records)
        final["shortcut"] = self._shortcut(scored, final, explanation)
        used = self.context.gauge.summarise(seconds=state.seconds, rounds=state.round)
        lent = {name: len(self.context.consortium.reference[name]) for name in self._lent()}
        promised = self._promise(state, lent)
        summary = evaluation.summary(
            plan,
            final,
            rows=self.context.setup.rows,
            rounds=state.round,
            stopped=state.stopped,
            temperature=None if calibration is None else calibration.temperature,
            **({"platt": calibration.platt} if calibration is not None and calibration.platt else {}),
            parameters=len(served.model),
            inputs=list(encoding.inputs),
            task=task_of(encoding),
            **self._outcome(),
            classes=list(encoding.classes),
            event=None if self.context.setup.event is None else self.context.setup.event.to_dict(),
            cost={**cost, "virtual_seconds": state.clock, **used},
            warnings=self.context.warnings,
            **self._assumed(),
            **self._cohort(),
            notes=self.context.setup.notes,
            reference={name: r.sha256 for name, r in self.context.consortium.reference.items()},
            training=self.context.consortium.training,
            explanation=explanation,
            cohorts=evaluation.cohorts(records),
            **({"fairness": fairness} if fairness else {}),
            **trust_summary(plan, records, self.context.recorder.rounds_written),
            **demotion_summary(records),
            **self._method_numbers({**state.method, "model": served.model}, records),
            **method_class(plan.method.name).summarize(plan, state.method, encoding),
            **local_summary(records, self.context.setup.rows),
            **({} if self.context.rationale is None else {"reasons": self.context.rationale.final(served.model)}),
            **({} if self.context.heat_maps is None else {"maps": self.context.heat_maps.summary(records)}),
            lent=lent,
            **self._repetition(promised),
            privacy=promised,
        )
        text = self.context.folder.summary_text(summary)
        self.context.folder.write_report(text, self.context.recorder.standing())
        self._end(final["models"], served, calibration, state, text)
        self.context.folder.write_summary(text)
        return summary

    def _method_numbers(self, state: Mapping[str, Array], records: Sequence[RoundRecord]) -> dict[str, object]:
        """Return `method_numbers` of the summary: the numbers of the method's own paper."""
        plan = self.context.plan
        numbers = method_class(plan.method.name).own_numbers(plan, records, state)
        return {"method_numbers": numbers} if numbers else {}

    def _close_statistic(self, state: State, records: Sequence[RoundRecord]) -> dict[str, Any]:
        """Write the files of a run whose result is a table or a curve: there is no model to evaluate or to explain."""
        plan, encoding = self.context.plan, self.context.encoding
        self.context.folder.write_rounds(written(records))
        cost = {k: state.cost.get(k, 0.0) + v for k, v in self.context.engine.meter.read().items()}
        used = self.context.gauge.summarise(seconds=state.seconds, rounds=state.round)
        promised = self._promise(state, {})
        summary = evaluation.summary(
            plan,
            {"final": {}, "per_site": {}, "models": {}},
            rows=self.context.setup.rows,
            rounds=state.round,
            stopped=state.stopped,
            inputs=list(encoding.inputs),
            task=task_of(encoding),
            cost={**cost, "virtual_seconds": state.clock, **used},
            warnings=self.context.warnings,
            **self._assumed(),
            **self._cohort(),
            notes=self.context.setup.notes,
            training=self.context.consortium.training,
            **method_class(plan.method.name).summarize(plan, state.method, encoding),
            lent={},
            **self._repetition(promised),
            privacy=promised,
        )
        text = self.context.folder.summary_text(summary)
        self.context.folder.write_report(text, self.context.recorder.standing())
        self._end({}, state.served, None, state, text)
        self.context.folder.write_summary(text)
        return summary

    def _repetition(self, promised: Mapping[str, Any] | None) -> dict[str, object]:
        """Return `withdrawal` of the summary, for a run that repeats an earlier one without a site."""
        repetition = Repetition.read(self.context.folder.checkpoint)
        if repetition is None:
            return {}
        both = repetition.add_epsilon(promised or {})
        return {"withdrawal": {**repetition.to_dict(), **({} if both is None else {"both": both})}}

    def _promise(self, state: State, lent: Mapping[str, int]) -> Mapping[str, Any] | None:
        """Return the final privacy statement and spending; None where the run gives no guarantee."""
        spending, plan = self.context.spending, self.context.plan
        if spending is None:
            return None
        repetition = Repetition.read(self.context.folder.checkpoint)
        before = () if repetition is None else repetition.earlier_releases
        return spending.promised(rounds=state.round, not_covered=(*not_covered(plan), *before), lent=lent)

    def _doubt(self, final: Mapping[str, Any], test: Any) -> None:
        """Warn of unreliable scores: few events, a threshold that separates no rows, an implausibly high AUROC."""
        if self.context.plan.privacy.epsilon is not None or self.context.plan.tasks.plain():
            return
        if task_of(self.context.encoding) != CLASSIFICATION:
            self.context.warn(*few_outcomes_warnings(final["final"]))
            return
        classes = order_by_event(self.context.encoding.classes, self.context.encoding.event)
        counts = {c: round(float(n)) for c, n in zip(classes, test.confusion.sum(axis=1), strict=True)}
        sentences = few_events_warnings(counts, classes)
        total: int = sum(counts.values())
        if len(classes) == 2 and total:
            share = counts[event_class(classes)] / total
            sentences += threshold_warnings(final["final"], final["threshold"], share)
        if self.context.plan.data.name is None and isinstance(self.context.consortium.data, Dataset):
            sentences += too_good_warnings(final["final"])
        self.context.warn(*sentences)

    def _outcome(self) -> dict[str, object]:
        """Return `outcome` of the summary, for tasks other than classification: label, follow-up time, event, units."""
        outcome, data = outcome_of(self.context.encoding), self.context.consortium.data
        if outcome is None or not isinstance(data, Dataset):
            return {}
        event = self.context.encoding.event
        return {
            "outcome": {
                **outcome.to_dict(),
                "event": event,
                "label": data.schema.label,
                "duration": data.schema.duration,
            }
        }

    def _assumed(self) -> dict[str, object]:
        """Return `assumed` of the summary; with an epsilon it is left out, because it depends on counts of cells."""
        sentences = () if self.context.plan.privacy.epsilon is not None else assumed(self.context.consortium.data)
        return {"assumed": list(sentences)} if sentences else {}

    def _cohort(self) -> dict[str, object]:
        """Return `cohort` of the summary: name, digest, and in a simulation the steps of the selection at each hospital.

        With an epsilon the steps are left out, because they are counts of patients. A hospital's own steps stay there.
        """
        plan, data = self.context.plan, self.context.consortium.data
        agreed = plan.data.cohort
        if agreed is None:
            return {}
        reading = reading_of(data)
        shown = reading is not None and reading.selection and plan.privacy.epsilon is None
        steps = {} if not shown or reading is None else {"steps": [[s, n] for s, n in align_steps(reading.selection).items()]}
        definition = agreed.plain()
        return {"cohort": {"name": definition["definition"]["name"], "digest": definition["digest"], **steps}}

    def _write_percentiles(self, state: State) -> None:
        """Write noised percentiles, where the method has them."""
        encoding = self.context.encoding
        if counts_patients(self.context.plan) and isinstance(encoding, Encoding):
            share = float(self.context.plan.method.veil.percentiles)
            self.context.folder.write_percentiles(estimate_population(encoding, state.method, share=share))

    def _explained(
        self,
        served: ModelAssignment,
        calibration: Calibration | None,
        state: State,
        records: Sequence[RoundRecord],
    ) -> dict[str, object]:
        """Write explanations.json, and return its part of the summary."""
        if self.context.explanations is None:
            return {}
        explained = [{"round": r["round"], **r["explanation"]} for r in records if "explanation" in r]
        same = state.best is None and calibration is None and explained and explained[-1]["round"] == state.round
        final = explained[-1].get("deployed", {}) if same else self._drive(self.context.explanations.deployed(served))
        self.context.folder.write_explanations(
            {**self.context.explanations.described(self.context.plan), "rounds": explained, "final": final}
        )
        return self.context.explanations.summary(explained, final)

    def _end(
        self,
        models: Mapping[str, str],
        served: ModelAssignment,
        calibration: Calibration | None,
        state: State,
        summary: bytes,
    ) -> None:
        """Write the ledger's closing entry: hashes of all files and models, and the round of the models."""
        folder = self.context.folder
        names = [n for n in (folder.model.name, *sorted(set(models.values()))) if (folder.path / n).exists()]
        ended = hash_final_files(self.context.folder.path, models=names, summary=summary)
        final_round = state.round if state.best is None else state.best_round
        spending = self.context.spending
        released = () if spending is None else spending.released()
        self.context.recorder.end(
            served.model, round=final_round, calibration=calibration, ended=ended, released=released
        )

    def _lent(self) -> list[str]:
        """List the reference sets whose rows were sent to sites, for training or as background of explanations."""
        names = list(lent_rows(self.context.plan))
        e = self.context.explanations
        if (
            e is not None
            and e.on is not None
            and e.background is not None
            and self.context.plan.reference.plain()[e.on]["sent"]
        ):
            names.append(e.on)
        return list(dict.fromkeys(names))

    def _drive(self, work: Any) -> Any:
        return self.context.engine.drive(work, round=self.context.plan.method.rounds + 1)

    def _grouped_parts(self) -> tuple[str, ...]:
        """Return the parts that are tallied by the groups of evaluation.subgroups; validation rows for a mitigation only."""
        if not self.context.encoding.subgroups:
            return ()
        return ("test",) if self.context.plan.evaluation.mitigation == "none" else ("val", "test")

    def _compare_groups(
        self, scored: EvaluationResult, threshold: float, *, deploys: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return `fairness` of the summary, and the rules of a mitigation; empty where evaluation.subgroups names no column."""
        encoding, e = self.context.encoding, self.context.plan.evaluation
        if not encoding.subgroups:
            return {}, {}
        decided = threshold if task_of(encoding) == CLASSIFICATION else None
        test = scored.by_column["test"]
        fairness = fairness_summary(test, encoding, threshold=decided, least=e.least)
        if deploys:
            fairness["model"] = "deployed"
        if e.mitigation == "none":
            return fairness, {}
        val = scored.by_column["val"][0]
        record, rules = mitigation_summary(e.mitigation, val, test[0], encoding, threshold=threshold, least=e.least)
        return {**fairness, "mitigation": record}, {**rules, **({"deployed": True} if deploys else {})}

    def _judged(
        self,
        served: ModelAssignment,
        parts: tuple[str, ...],
        threshold: float,
        *,
        personal: bool = False,
        by_column: tuple[str, ...] = (),
        by_site: bool = False,
    ) -> EvaluationResult:
        encoding = self.context.encoding
        figures = tuple(m.name for m in metrics_of(task_of(encoding)))
        work = evaluate(
            served,
            parts,
            figures=figures,
            threshold=threshold,
            outcome=outcome_of(encoding),
            personal=personal,
            by_column=by_column,
            by_site=by_site,
        )
        scored: EvaluationResult = self._drive(work)
        return scored

    def _hides_sites(self) -> str:
        """Return why score counts of single sites are not kept: "secure", "budget", "many" or "classes"; "" where they are.

        Under secure aggregation the server has sums only. Under a budget counts have no noise, so only their sum is stored.
        """
        plan, encoding = self.context.plan, self.context.encoding
        if task_of(encoding) != CLASSIFICATION or len(encoding.classes) != 2:
            return "classes"
        if plan.privacy.secure:
            return "secure"
        if under_budget(plan):
            return "budget"
        return "many" if len(self.context.sites) > MOST_COUNTED_SITES else ""

    def _count_scores(self, scored: EvaluationResult, threshold: float) -> dict[str, Any]:
        """Return `score_counts` of the summary: test patients by predicted risk and outcome.

        A site whose metrics stay there has no counts either.
        """
        hidden = self._hides_sites()
        if hidden == "classes":
            return {}
        rows = scored.figures.get("count", np.full(len(scored.sites), np.nan))
        each = scored.by_site
        by_site = {} if each is None else {s: each[k] for k, s in enumerate(scored.sites) if rows[k] > 0}
        least = self.context.plan.evaluation.least
        total = scored.totals["test"].sum(axis=0)
        record = summarise_scores(total, by_site, threshold=threshold, least=least, hidden=hidden)
        return {"score_counts": record} if record else {}

    def _calibrated(self, model: Model, served: ModelAssignment) -> tuple[ModelAssignment, Calibration | None]:
        how = self.context.plan.evaluation.calibrate
        if how == "platt":
            return self._corrected(model, served)
        if how == "none":
            return served, None
        t = self._drive(fit_temperature(served))
        if t is None:
            sentence = "the validation rows are separable and set no temperature: the model is left uncalibrated"
            self.context.warnings += (sentence,)
            return served, None
        return served.map(lambda theta: model.with_temperature(theta, t)), Calibration.from_temperature(t)

    def _corrected(self, model: Model, served: ModelAssignment) -> tuple[ModelAssignment, Calibration | None]:
        """Apply Platt's line to every model; where the validation rows allow none, warn and leave the models unchanged."""
        line: PlattLine = self._drive(fit_platt(served)) if self.private_line is None else self.private_line(served)
        if line.refused:
            self.context.warnings += (line.refused,)
            return served, None
        changed = served.map(lambda theta: model.with_platt(theta, slope=line.slope, intercept=line.intercept))
        return changed, Calibration(line.slope, line.intercept)

    def _threshold(self, served: ModelAssignment, *, personal: bool = False) -> float:
        """Return the decision threshold of the common or of the deployed models: one half, or chosen on the validation rows of
        all sites."""
        if self.context.plan.evaluation.threshold == "half":
            return 0.5
        val = self._drive(evaluate(served, ("val",), personal=personal)).totals["val"].sum(axis=0)
        return evaluation.choose(val, self.context.encoding, self.context.plan.evaluation)

    def _tasks(self, served: ModelAssignment) -> dict[str, Any]:
        """Return the test scores of each task over its sites; empty where there is one task."""
        stack = self.context.consortium.stack
        names = sorted(set(stack.tasks))
        out = {}
        for task in names if len(names) > 1 else ():
            holders = tuple(s for s, t in zip(stack.names, stack.tasks, strict=True) if t == task)
            tally = self._drive(evaluate(served, ("test",), sites=holders)).totals["test"].sum(axis=0)
            scored = evaluation.task_scores(tally, self.context.encoding, task, tasks=names, sites=len(holders))
            out[task or "main"] = scored
        return out

    def _attacks(self, model: Model, served: ModelAssignment) -> dict[str, object]:
        """Return the attacks by site; for a backdoor also the share of triggered test images predicted as its target."""
        attackers = self.context.consortium.stack.attacks
        out: dict[str, Any] = {"sites": {site: a.kind for site, a in attackers.items()}} if attackers else {}
        data = self.context.consortium.data
        for target in sorted({a.target for a in attackers.values() if a.kind == BACKDOOR and a.target is not None}):
            assert isinstance(data, ImageSet)
            tested = np.concatenate([r.test for r in self.context.consortium.stack.rows])
            stamped, _ = add_trigger(data, tested, target=target)
            encoding: Any = self.context.encoding
            logits = score(model, served.model, encoding.encode(stamped, served.model.dtype))
            called = (logits[:, 0] > 0).astype(int) if logits.shape[1] == 1 else logits.argmax(axis=1)
            hit = float(np.mean(called == encoding.classes.index(target))) if len(called) else None
            out.setdefault("backdoor_success", {})[target] = hit
        return out

    def _shortcut(
        self, scored: EvaluationResult, final: Mapping[str, Any], explanation: Mapping[str, Any]
    ) -> dict[str, object]:
        """Return the effect of the shortcut in the sites' images; empty without one."""
        planted = self.context.consortium.planted
        if planted is None:
            return {}
        total, more = scored.totals[CLEAN].sum(axis=0), self.context.setup.metrics
        ood = evaluation.figures(total, threshold=final["threshold"], more=more)
        ood |= {"majority": final["final"]["majority"]}  # the same patients: without a model a patch changes nothing
        tiles = 1 if self.context.explanations is None else len(self.context.explanations.features)
        return evaluation.shortcut_scores(planted, final["final"], ood, explanation, tiles=tiles)

    def _personalized(
        self, model: Model, served: ModelAssignment
    ) -> tuple[dict[str, object], dict[str, list[Any]]]:
        """Have sites choose their personal models and evaluate them; also return their tallies by group of patients.

        The threshold of deployed models is chosen by their own scores, as that of the common model is by its scores. Under a
        privacy budget choices and figures stay at the sites.
        """
        plan = self.context.plan
        private = plan.privacy.epsilon is not None
        rows = self.context.setup.rows
        sites = tuple(s for s in self.context.sites if rows[s]["train"])
        weight = evaluation.class_weight(plan.train.class_weights, self.context.encoding, counted=not under_budget(plan))
        server = Server(plan.method.rounds + 1, served.model, sites, plan.seed, class_weight=weight)
        config = build_method(plan.method, plan.train).train_config(server, lr=plan.train.lr)
        testing = tuple(s for s in sites if rows[s]["test"])
        work = personalize(plan, model, served, sites, config, private=private, testing=testing)
        result: PersonalResult = self._drive(work)
        facts: dict[str, object] = {
            "part": result.part,
            "guard": result.guard,
            "rows": result.rows,
            "spread": result.spread,
            "estimated": not private and plan.personal.spread is None and fits_intercepts(plan),
            "stays": private,
            **({"missing": dict(result.missing)} if result.missing else {}),
        }
        for site, why in result.missing.items():
            self.context.warn(f"{site} uses the common model: it fitted no personal one ({why})")
        more: dict[str, object] = {}
        for stage in collect("stages").values():
            more |= self._drive(load(stage.ask)(plan, self.context.encoding, served, sites, result))
        if private:
            return facts, {}
        grouped, unweighted = self._grouped_parts(), served.map(lambda theta: undo_class_weights(model, theta, weight))
        threshold = self._threshold(unweighted, personal=True)
        if plan.evaluation.threshold == "half" and weight is not None and is_shiftable(model):
            threshold = evaluation.weighted_half(weight, self.context.encoding)
        scored = self._judged(
            unweighted, grouped or ("test",), threshold, personal=True, by_column=grouped, by_site=not self._hides_sites()
        )
        evaluated = {
            **facts,
            "choices": dict(result.choices),
            "harmed": None if result.harmed is None else list(result.harmed),
            "tested": list(result.tested),
            **more,
            **evaluation.test_scores(
                scored, self.context.encoding, threshold=threshold, more=self.context.setup.metrics
            ),
            **self._count_scores(scored, threshold),
        }
        return evaluated, scored.by_column

    def _fine_tuned(self, served: ModelAssignment) -> ModelAssignment | None:
        """Fine-tune the final model at each site for train.finetune epochs; None where it is off."""
        plan = self.context.plan
        if not plan.train.finetune:
            return None
        method = build_method(plan.method, plan.train)
        r = plan.method.rounds + 1
        weight = evaluation.class_weight(plan.train.class_weights, self.context.encoding)
        sites = tuple(s for s in self.context.consortium.training if s in self.context.setup.rows)
        server = Server(r, served.model, sites, plan.seed, class_weight=weight)
        work = method.train_config(server, model=served.model, epochs=plan.train.finetune, steps=0, lr=plan.train.lr)
        ask = Ask("finetune", shared=work, each=served.payloads(), to=server.sites, report=("model",))

        def once() -> Any:
            answers: Answers = yield ask
            return answers

        answers = self._drive(once())
        self.context.engine.commit()  # sites keep their fine-tuned state
        return ModelAssignment(served.model, answers["model"], {s: k for k, s in enumerate(answers.sites)})

    def _personal(self, tuned: ModelAssignment, threshold: float) -> dict[str, object]:
        scored = self._judged(tuned, ("test",), threshold)
        total = scored.totals["test"].sum(axis=0)
        final = evaluation.figures(total, threshold=threshold, more=self.context.setup.metrics)
        return {"epochs": self.context.plan.train.finetune, "final": final, "per_site": evaluation.site_figures(scored)}

    def _write_models(
        self,
        model: Model,
        served: ModelAssignment,
        common: ModelAssignment,
        calibration: Calibration | None,
        threshold: float,
        mitigation: Mapping[str, Any],
    ) -> dict[str, str]:
        """Write model.safetensors, and one file per model where sites have different ones; return the file of each site."""
        facts = (
            self.context.setup.spec,
            self.context.encoding,
            schema_of(self.context.consortium.data),
            calibration,
            threshold,
            mitigation,
        )
        self.context.folder.write_model(self.context.folder.model, model, common.model, *facts)
        if served.models is None:
            return {}
        for m, theta in enumerate(served.models):
            self.context.folder.write_model(self.context.folder.own_model(m), model, np.asarray(theta), *facts)
        return {
            site: str(self.context.folder.own_model(m).relative_to(self.context.folder.path))
            for site, m in served.index_by_site.items()
        }
