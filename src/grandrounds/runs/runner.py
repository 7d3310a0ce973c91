"""Execute one run from its plan to its folder: agree on the data, train, evaluate, write the files.

It needs NumPy only, so a plan can be run on a machine without the other packages. All random numbers follow from the
plan's seed. Every finished round is on disk before the next one starts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from grandrounds.audit.digest import arrays_digest
from grandrounds.core import plugins, sources
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, RunFailed, reading_rows
from grandrounds.core.plan import PlanValues
from grandrounds.core.plan_types import Plan
from grandrounds.core.references import reference_name
from grandrounds.data.encoding import Encoding
from grandrounds.data.images import ImageSet
from grandrounds.data.kinds import outcome_line, task_of
from grandrounds.data.table import Table
from grandrounds.data.warnings import own_table_warnings
from grandrounds.engine.checkpoint import Checkpoint, Snapshot
from grandrounds.engine.resources import Gauge
from grandrounds.experiment.checks import guard
from grandrounds.experiment.checks.explain import explained_on, explainer_name, lent_rows, no_rows, no_tile
from grandrounds.experiment.checks.heat_maps import maps_asked, refuse_unmappable
from grandrounds.experiment.checks.methods import left_alone, refuse_what_it_cannot
from grandrounds.experiment.checks.participation import refuse_absences, refuse_one_site
from grandrounds.experiment.checks.privacy import (
    counts_patients,
    enough_rows,
    refuse_what_is_not_private,
    under_budget,
)
from grandrounds.experiment.checks.rationale import refuse_unscorable, scored_sets
from grandrounds.experiment.checks.secure_aggregation import refuse_what_is_seen
from grandrounds.explain.features import build_features
from grandrounds.explain.noised_percentiles import ColumnCells, column_cells
from grandrounds.methods import is_exact, method_class
from grandrounds.methods.anchors import anchor_reference
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Server
from grandrounds.methods.baselines import POOL
from grandrounds.methods.exchanges import share_reference
from grandrounds.methods.platt import PlattLine
from grandrounds.methods.secure import SecureRule, exchange_identities
from grandrounds.models import Model, build_model
from grandrounds.models.heads import average_heads
from grandrounds.models.protocol import COLUMN_KERNELS, GRADIENT_FREE
from grandrounds.protocol.layout import Layout
from grandrounds.protocol.messages import Answers
from grandrounds.runs import evaluation
from grandrounds.runs.context import Progress, RunContext
from grandrounds.runs.ending import clear_ending, describe_error, finished_rounds, record_ending
from grandrounds.runs.explanations import ReferenceExplanations, RoundExplanations
from grandrounds.runs.facts import add_facts, settle_task
from grandrounds.runs.federation import Consortium
from grandrounds.runs.finalize import Finalizer, assumed, schema_of
from grandrounds.runs.folder import RunFolder
from grandrounds.runs.heat_maps import HeatMaps
from grandrounds.runs.ledger import Recording, open_ledger
from grandrounds.runs.local_models import LocalScores
from grandrounds.runs.privacy_budget import Spending, refuse_another_calibration
from grandrounds.runs.privacy_recompute import refuse_altered_budget
from grandrounds.runs.rationale import RationaleEvaluator
from grandrounds.runs.references import References, told_from
from grandrounds.runs.rounds import Rounds
from grandrounds.runs.setup import set_up_run
from grandrounds.runs.state import State
from grandrounds.runs.venue import Simulation, Venue
from grandrounds.runs.withdrawal import Repetition
from grandrounds.site.tasks import open_classes


def execute_plan(
    plan_values: PlanValues,
    folder: RunFolder,
    *,
    progress: Progress = lambda event: None,
    table: Table | ImageSet | None = None,
    resume: bool = False,
    venue: Venue | None = None,
) -> None:
    """Run a plan into a folder, or continue the run in that folder; on this machine, unless a venue is given."""
    place = venue or Simulation(table, folder.at_sites)
    checkpoint = Checkpoint(folder.checkpoint)
    try:
        checkpoint.lock()
    except OSError as e:
        raise _cannot_write(folder, e) from None
    try:
        _Runner(Plan(plan_values), folder, checkpoint, progress, place).run(resume=resume)
    except BaseException as e:
        error = _cannot_write(folder, e) if isinstance(e, OSError) else e
        if isinstance(e, BadInput) and not resume:
            with suppress(OSError):  # the error that is raised says more
                folder.discard()
        ending = describe_error(error, rounds=finished_rounds(checkpoint), at_hospitals=not place.simulated)
        record_ending(folder.path, ending)
        if error is not e:
            raise error from None
        raise
    finally:
        checkpoint.unlock()
        folder.release()


def _cannot_write(folder: RunFolder, error: OSError) -> RunFailed:
    return RunFailed(
        f"cannot write to {folder.path}: {error.strerror or error}; finished rounds are intact there: "
        f"free disk space or repair the folder, then `rounds resume {folder.path}`",
        code="cannot-write-folder",
    )


class _Runner:
    """The steps of one run, from its plan to its summary; they share a RunContext."""

    context: RunContext

    def __init__(self, plan: Plan, folder: RunFolder, checkpoint: Checkpoint, progress: Progress, venue: Venue) -> None:
        self.plan, self.folder, self.checkpoint, self.progress, self.venue = plan, folder, checkpoint, progress, venue
        self.gauge = Gauge()
        self.unstored = ""  # a warning on the stamp of a run that names code, files or addresses

    def run(self, *, resume: bool) -> None:
        """Set the run up, train all rounds, and finalize it."""
        if not resume and self.plan.split.keep_setup:
            raise BadInput(
                "split.keep_setup = true goes on from a checkpoint of an earlier run: use `rounds withdraw RUN --site NAME "
                "--keep-setup`, or leave it out",
                code="needs-earlier-run",
            )
        snapshot = self.checkpoint.read() if resume else None
        charges = self._check_charges(snapshot) if resume else {}
        self.progress({"event": "reading", "data": self.plan.data.name or self.plan.data.table})
        with reading_rows():
            consortium = self.venue.assemble(self.plan)
            self.plan = settle_task(self.plan, consortium)
            refuse_absences(self.plan, consortium.training)
            if not resume:
                self._start(consortium)
            else:
                self._go_on(consortium, snapshot)
            setup = set_up_run(self.plan, consortium, snapshot, self.venue.engine(self.plan, consortium))
            self.folder.write_percentiles(setup.population)
            self.context = RunContext(self.plan, self.folder, self.checkpoint, self.progress, self.gauge, consortium, setup)
            model, state = self._prepare(snapshot, charges)
        try:
            overspent = self._train(model, state)
            self.progress({"event": "judging"})
            finalizer = Finalizer(self.context, self._private_line(state))
            with reading_rows():
                summary = finalizer.close(model, state, self.checkpoint.records())
            self.venue.close()
        finally:
            self.context.recorder.close()
        self.progress({"event": "done", "summary": summary, "folder": str(self.folder.path)})
        if overspent is not None:
            where = f"the model of round {state.round} is in {self.folder.path}"
            raise RunFailed(f"{overspent}; {where}", code="budget-spent")

    def _prepare(self, snapshot: Snapshot | None, charges: dict[str, Any]) -> tuple[Model, State]:
        """Complete the context, and refuse a plan that cannot be run, before any round."""
        context, plan = self.context, self.plan
        context.sites, few = enough_rows(plan, {s: context.setup.rows[s]["train"] for s in context.training_sites})
        if plan.privacy.secure:
            self._hide()
        context.recorder = self._recorder()
        data, stack = context.consortium.data, context.consortium.stack
        sites = [name for name in stack.names if name != POOL]
        refuse_one_site(plan, data, sites)
        doubts = own_table_warnings(data, sites, stack.rows, plan=plan) if method_class(plan.method.name).has_model else ()
        context.warn(*context.setup.warnings, *doubts, *few, *self._remains())
        context.warn(*left_alone(plan), *guard.warnings(plan))
        context.warn(*context.recorder.warnings, *([self.unstored] if self.unstored else []))
        self._announce(snapshot)
        model = self._own_model()
        state = self._state(model, snapshot)
        images = len(context.encoding.inputs) > 1
        refuse_what_it_cannot(model, plan, sites=len(context.sites), pictures=images)
        refuse_what_is_not_private(model, plan)
        context.spending = Spending.of(
            plan,
            None if snapshot is None else snapshot.facts.get("privacy"),
            model_size=state.served.model.size,
            sites=len(context.sites),
            secret=self.venue.secret(plan),
            charges=charges,
        )
        context.references = References(plan, context.consortium, context.setup)
        context.rationale = self._watching()
        self._lend(resumed=snapshot is not None)
        context.explanations = self._explaining(model)
        context.heat_maps = self._maps(model)
        context.local_scores = LocalScores.of(plan, context.setup.rows)
        return model, state

    def _remains(self) -> tuple[str, ...]:
        """State the influence of a site that withdrew, where the set-up with it is kept, and the risk of differencing."""
        repetition = Repetition.read(self.folder.checkpoint)
        if repetition is None:
            return ()
        return (*repetition.remains, *([repetition.differencing] if is_exact(self.plan.method.name) else []))

    def _hide(self) -> None:
        """Start secure aggregation: from here on the server receives sums only, and sites know their peers."""
        rows = {s: self.context.setup.rows[s]["train"] for s in self.context.sites}
        refuse_what_is_seen(self.plan, rows)
        sites = tuple(s for s in self.context.engine.sites if s != POOL)
        peers = self.context.engine.drive(exchange_identities(sites), round=0)
        self.context.engine.secure = SecureRule(peers, bound=self.plan.privacy.secure_range)

    def _check_charges(self, snapshot: Snapshot | None) -> dict[str, Any]:
        """Return the releases outside the rounds, checked against the record and the remaining budget."""
        charges = self.checkpoint.charges()
        stored = None if snapshot is None else snapshot.facts.get("privacy")
        refuse_altered_budget(self.folder.path, self.plan, stored, self.checkpoint.records(), charges)
        refuse_another_calibration(
            self.plan, charges, rounds_done=0 if snapshot is None else int(snapshot.facts["round"])
        )
        return charges

    def _private_line(self, state: State) -> Callable[[ModelAssignment], PlattLine] | None:
        """Return a function that fits Platt's line within the budget; a model that has a line keeps it without a new charge.

        The charge is on disk before sites are asked. The Asks are numbered by the last round, so repeating them after a crash
        draws the same noise.
        """
        spending = self.context.spending
        private = None if spending is None else spending.calibration(self.plan.evaluation.calibrate)
        if spending is None or private is None:
            return None

        def line(served: ModelAssignment) -> PlattLine:
            model = arrays_digest(served.arrays(self.context.engine.sites))
            calibrated = spending.calibrations.get(model)
            if calibrated is not None and calibrated.line is not None:
                return calibrated.line
            spending.charge_calibration(private, model=model, round=state.round)
            self.checkpoint.write_charges(spending.charges())
            work = private.fit(served, self.context.engine.secure)
            found: PlattLine = self.context.engine.drive(work, round=state.round + 1)
            spending.calibrations[model] = replace(spending.calibrations[model], line=found)
            self.checkpoint.write_charges(spending.charges())
            return found

        return line

    def _announce(self, snapshot: Snapshot | None) -> None:
        """Report the start of the run to the progress callback."""
        consortium = self.context.consortium
        self.progress(
            {
                "event": "start",
                "sites": len([s for s in consortium.stack.names if s != POOL]),
                "pooled": POOL in consortium.stack.names,
                "training": len(self.context.sites),
                "rounds": self.plan.method.rounds,
                "exchanges": not method_class(self.plan.method.name).scores_rounds,
                "inputs": self.context.encoding.inputs,
                "classes": self.context.encoding.classes,
                "task": task_of(self.context.encoding),
                "outcome": outcome_line(self.context.encoding, self.context.setup.event, schema_of(consortium.data)),
                "warnings": self.context.warnings,
                "done": 0 if snapshot is None else snapshot.facts["round"],
                "folder": str(self.folder.path),
                "schema": schema_of(consortium.data),
                "assumed": assumed(consortium.data),
            }
        )

    def _start(self, consortium: Consortium) -> None:
        """Write the experiment before the run starts: complete, so that it can be repeated exactly."""
        values = add_facts(self.plan, consortium)
        values.pop("code", None)
        own_code = plugins.names_in(values)
        if own_code:
            values["code"] = plugins.hashes(own_code)
        if own_code or sources.named_in(values):
            self.unstored = plugins.stamp(self.folder.path, values)
        self.folder.write_experiment(values, schema_of(consortium.data), self._assumed(consortium))
        self.checkpoint.start(values)

    def _assumed(self, consortium: Consortium) -> tuple[str, ...]:
        """Return the assumptions for schema.json; none with an epsilon, because they depend on counts of cells and patients."""
        return () if self.plan.privacy.epsilon is not None else assumed(consortium.data)

    def _go_on(self, consortium: Consortium, snapshot: Snapshot | None) -> None:
        """Continue an interrupted run; changed settings are written first."""
        self.folder.summary.unlink(missing_ok=True)  # first: from here on the files differ from those of a closing entry
        clear_ending(self.folder.path)
        self.folder.sweep()
        self.checkpoint.trim(snapshot)
        if self.checkpoint.plan() != self.plan.plain():
            self.folder.write_experiment(self.plan.plain(), schema_of(consortium.data), self._assumed(consortium))
            if plugins.is_stamped(self.folder.path, self.checkpoint.plan()):
                self.unstored = plugins.stamp(self.folder.path, self.plan.plain())
            self.checkpoint.rewrite(self.plan.plain())
        self.gauge.resume({} if snapshot is None else snapshot.facts.get("machine", {}))

    def _own_model(self) -> Model:
        """Build the server's copy of the model, which is not trained."""
        e = self.plan.engine
        return build_model(
            self.context.setup.spec, kernel=e.kernel, device=e.device, precision=e.precision, own_code=True
        )

    def _state(self, model: Model, snapshot: Snapshot | None) -> State:
        names = self.context.consortium.stack.names
        if snapshot is not None:
            state = State.of(snapshot, names)
            stored, layout = (
                state.served.model,
                model.layout,
            )  # a forest has no fixed size and is checked when it is read
            if stored.dtype.kind != "f" or (isinstance(layout, Layout) and stored.shape != (layout.size,)):
                raise BadInput(
                    f"{self.checkpoint.state_file} is damaged: its model does not fit the plan", code="damaged-file"
                )
            return state
        double = self.plan.engine.precision == "float64" or model.kernel in GRADIENT_FREE
        first = self.context.setup.start
        if first is None:
            first = model.init(self.plan.seed, np.float64 if double else np.float32)
        state = State(ModelAssignment(first), names)
        self.context.warnings += tuple(getattr(model, "notes", ()))
        state.cost = self.context.engine.meter.read()
        return state

    def _train(self, model: Model, state: State) -> Exception | None:
        """Run all rounds; return the error where the budget ended them early."""
        plan = self.plan
        weight = evaluation.class_weight(
            plan.train.class_weights, self.context.encoding, counted=not under_budget(plan)
        )
        self._check_validation(model)
        base = Server(
            round=0,
            model=state.served.model,
            sites=self.context.sites,
            seed=plan.seed,
            class_weight=weight,
            rows={site: rows["train"] for site, rows in self.context.setup.rows.items()},
            reference=self.context.references.get(reference_name(plan)),
            anchors=self.context.references.get(anchor_reference(plan)),
            can_average=model.kernel not in {"boosted", *COLUMN_KERNELS},
            statistics=int(getattr(model, "statistics_size", 0)),
            secure=self.context.engine.secure,
            private=None if self.context.spending is None else self.context.spending.private,
            columns=self._cells(),
            encoding=self.context.encoding,
            without=tuple(plan.split.without),
            **told_from(plan, self.context.setup, self.context.references),
        )
        self.context.recorder.begin(self.checkpoint.records())
        self.context.warn(*self.context.recorder.warnings)
        rounds = Rounds(self.context)
        rounds.run(base, state, join=lambda: self._join(model, state))
        return rounds.overspent

    def _cells(self) -> tuple[ColumnCells, ...]:
        """Return the cells of percentile counts, where the encoding is public."""
        encoding = self.context.encoding
        return column_cells(encoding) if counts_patients(self.plan) and isinstance(encoding, Encoding) else ()

    def _recorder(self) -> Recording:
        """Open the run's ledger. Every site countersigns it, also a site that only tests."""
        return open_ledger(
            Plan(self.checkpoint.plan()),
            self.context.engine,
            self.folder.path,
            sites=tuple(s for s in self.context.engine.sites if s != POOL),
            reference={name: r.sha256 for name, r in self.context.consortium.reference.items()},
            signers=partial(self.venue.signers, self.plan),
        )

    def _lend(self, *, resumed: bool) -> None:
        """Send the shared reference rows to sites; a resumed run sends them again."""
        plan, encoding = self.plan, self.context.encoding
        for name in lent_rows(plan):
            rows = self.context.references.get(name)
            assert rows is not None
            target = rows.part.target if plan.reference.plain()[name]["labelled"] else None
            features = build_features(encoding, grid=plan.explain.tiles)
            sites = self.context.training_sites
            self.context.engine.drive(share_reference(name, rows.part.x, features, target, sites, rows.masks), round=0)
        if resumed:
            self.context.engine.meter.read()  # the first transfer was counted already

    def _watching(self) -> RationaleEvaluator | None:
        """Set up the scores of heat maps, and check that the reference images fit; None where they are off."""
        for name in scored_sets(self.plan):
            rows = self.context.references.get(name)
            assert rows is not None
            refuse_unscorable(self.plan, name, rows.part, rows.masks)
        return RationaleEvaluator.of(self.plan, self.context.references)

    def _explaining(self, model: Model) -> RoundExplanations | None:
        """Set up explanations; None where they are off."""
        plan = self.plan
        name = explainer_name(plan, model, self.context.encoding)
        if name is None:
            return None
        rows = explained_on(plan)
        planted = self.context.references.consortium.planted
        kind = ReferenceExplanations if under_budget(plan) else RoundExplanations
        explanations = kind.of(
            plan, self.context.setup, name, self.context.references.get(rows), on=rows, planted=planted
        )
        sentences = [no_rows(plan)] if rows is None and plan.reference.plain() else []
        sentences += [no_tile(plan)] if planted is not None and not explanations.patch_tiles else []
        self.context.warn(*sentences)  # a resumed run has these warnings already
        explanations.recall(self.checkpoint.records())
        return explanations

    def _maps(self, model: Model) -> HeatMaps | None:
        """Set up heat maps, which simulated sites store in the run folder; None where they are off."""
        plan = self.plan
        if not maps_asked(plan):
            return None
        refuse_unmappable(plan, model, tuple(self.context.encoding.inputs))
        rows = explained_on(plan)
        labelled = rows is not None and plan.reference.plain()[rows]["labelled"]
        maps = HeatMaps.of(plan, self.context.setup, model, self.context.references.get(rows) if labelled else None)
        maps.recall(self.checkpoint.records())
        return maps

    def _join(self, model: Model, state: State) -> Callable[[Answers, Array], Array]:
        """Return the function that aggregates answers: the model's own, or head by head where sites have different tasks."""
        stack = self.context.consortium.stack
        own_classes = open_classes(self.context.encoding.classes, stack.tasks, self.context.setup.spec["tasks"])
        if own_classes is None:
            return lambda answers, weights: model.combine(answers["model"], weights)
        layout = cast("Layout", model.layout)
        last = layout.shapes[-1][0].rsplit(".", 1)[0] if model.kernel == "numpy" else getattr(model, "last_layer", "")

        def join(answers: Answers, weights: Array) -> Array:
            trained = own_classes[stack.number(answers.sites)]
            models = np.asarray(answers["model"])
            return average_heads(models, weights, before=state.served.model, layout=layout, last=last, trained=trained)

        return join

    def _check_validation(self, model: Model) -> None:
        """Refuse settings that need validation rows where there are none, before training."""
        e = self.plan.evaluation
        needs = {
            "train.early_stop": bool(self.plan.train.early_stop),
            "evaluation.calibrate": e.calibrate != "none",
            "evaluation.threshold": e.threshold != "half",
            "evaluation.mitigation": e.mitigation != "none",
        }
        if not any(r["val"] for r in self.context.setup.rows.values()):
            for key, wanted in needs.items():
                if wanted:
                    raise BadInput(f"{key} needs validation rows: set split.val above 0", code="no-validation-rows")
        guard.refuse_without_validation(model, self.plan, rows=sum(r["val"] for r in self.context.setup.rows.values()))


def new_folder(base: Path, name: str) -> Path:
    """Return base/name, or base/name-2, -3 ... where that exists."""
    path, n = base / name, 2
    while path.exists():
        path, n = base / f"{name}-{n}", n + 1
    return path
