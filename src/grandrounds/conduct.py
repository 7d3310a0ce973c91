"""One run from its plan to its folder: agree on the data, train round by round, judge, write down.

Needs NumPy alone, so that a plan can be carried to a bare machine. Everything random follows from
the plan's seed; everything finished is on disk before the next round begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds import judge
from grandrounds.arrays import Array
from grandrounds.consortium import Consortium, assemble
from grandrounds.data.encoding import Encoding, EncodingRules
from grandrounds.data.table import Table
from grandrounds.engine.checkpoint import Checkpoint, Snapshot
from grandrounds.engine.faults import Faults
from grandrounds.engine.local import EngineSettings, LocalEngine
from grandrounds.errors import BadInput, GrandRoundsError, RunFailed
from grandrounds.folder import RunFolder
from grandrounds.methods import build_method
from grandrounds.methods.base import Server
from grandrounds.methods.exchanges import agree, evaluate, fit_temperature, prepare
from grandrounds.models import Dense, build_model
from grandrounds.settings import Settings

Progress = Callable[[Mapping[str, Any]], None]


@dataclass
class State:
    """All that changes from round to round."""

    model: Array
    method: dict[str, Array] = field(default_factory=dict)
    round: int = 0
    best: Array | None = None
    best_round: int = 0
    best_loss: float = float("inf")
    seconds: float = 0.0
    cost: dict[str, float] = field(default_factory=dict)
    stopped: str = ""

    def arrays(self) -> dict[str, Array]:
        best = {} if self.best is None else {"best": self.best}
        return {"model": self.model, **best, **{f"method/{n}": a for n, a in self.method.items()}}

    def facts(self) -> dict[str, Any]:
        loss = None if np.isinf(self.best_loss) else self.best_loss
        names = ("round", "best_round", "seconds", "cost", "stopped")
        return {"best_loss": loss, **{n: getattr(self, n) for n in names}}

    @classmethod
    def of(cls, snapshot: Snapshot) -> State:
        f = snapshot.facts
        return cls(
            model=np.array(snapshot.arrays["model"]),
            method={n: np.array(a) for n, a in snapshot.part("method").items()},
            round=int(f["round"]),
            best=np.array(snapshot.arrays["best"]) if "best" in snapshot.arrays else None,
            best_round=int(f["best_round"]),
            best_loss=float("inf") if f["best_loss"] is None else float(f["best_loss"]),
            seconds=float(f["seconds"]),
            cost=dict(f["cost"]),
            stopped=str(f["stopped"]),
        )


def conduct(
    plan_values: Mapping[str, Any],
    folder: RunFolder,
    *,
    progress: Progress = lambda event: None,
    table: Table | None = None,
    resume: bool = False,
) -> None:
    """Run a plan into a folder, or go on with the run that the folder holds."""
    checkpoint = Checkpoint(folder.checkpoint)
    try:
        checkpoint.lock()
        try:
            _Run(Settings(plan_values), folder, checkpoint, progress).run(table, resume=resume)
        finally:
            checkpoint.unlock()
    except OSError as e:
        raise RunFailed(
            f"cannot write to {folder.path}: {e.strerror or e}; finished rounds are intact there: "
            f"make room or mend the folder, then `rounds resume {folder.path}`"
        ) from None


class _Run:
    """The parts of one run, so that its steps can be short."""

    def __init__(self, plan: Settings, folder: RunFolder, checkpoint: Checkpoint, progress: Progress) -> None:
        self.plan, self.folder, self.checkpoint, self.progress = plan, folder, checkpoint, progress

    def run(self, table: Table | None, *, resume: bool) -> None:
        snapshot = self.checkpoint.read() if resume else None
        self.progress({"event": "reading", "data": self.plan.data.name or self.plan.data.table})
        consortium = assemble(self.plan, table)
        if not resume:
            self._start(consortium)
        else:
            self._go_on(consortium, snapshot)
        encoding = self._agree(consortium, snapshot)
        model = self._model(encoding)
        state = self._state(model, snapshot)
        self._train(consortium, encoding, state)
        self._finish(consortium, encoding, model, state)

    def _start(self, consortium: Consortium) -> None:
        """Write what the run will be before it begins: complete enough to repeat it to the bit."""
        values = self.plan.plain()
        schema = consortium.data.schema
        roles = {schema.label, schema.site, schema.patient, schema.time, *values["data"]["drop"]}
        kinds = {c.name: (list(c.order) if c.order else c.kind) for c in schema.columns}
        kinds = {n: k for n, k in kinds.items() if k != "constant" and n not in roles}
        values["data"] = {**values["data"], "kinds": kinds, "sha256": consortium.sha256}
        self.folder.write_experiment(values, schema)
        self.checkpoint.start(values)

    def _go_on(self, consortium: Consortium, snapshot: Snapshot | None) -> None:
        """Take up an interrupted run; what was changed for the rest of it is written down first."""
        self.checkpoint.trim(snapshot)
        if self.checkpoint.plan() != self.plan.plain():
            self.folder.write_experiment(self.plan.plain(), consortium.data.schema)
            self.checkpoint.rewrite(self.plan.plain())
        self.folder.summary.unlink(missing_ok=True)

    def _agree(self, consortium: Consortium, snapshot: Snapshot | None) -> Encoding:
        """Round 0: summaries to the server, the encoding back, rows prepared."""
        plan = self.plan
        faults = plan.engine.faults
        self.engine = LocalEngine(
            consortium.stack,
            EngineSettings(
                run=f"{plan.name}-{plan.seed}",
                seed=plan.seed,
                wire=plan.engine.wire,
                precision=plan.engine.precision,
                chunk=plan.engine.chunk,
                min_sites=plan.engine.min_sites,
                deadline=plan.engine.deadline,
                faults=Faults(faults.drop, tuple(faults.nan), faults.slow.plain()),
            ),
        )
        unknown = sorted((set(faults.nan) | set(faults.slow.plain())) - set(consortium.stack.names))
        if unknown:
            raise BadInput(
                f"engine.faults names '{unknown[0]}', which is no site; sites are: {', '.join(consortium.stack.names)}"
            )
        self.warnings: tuple[str, ...] = ()
        if snapshot is None:
            d = plan.data
            rules = EncodingRules(d.scale, d.impute, d.clip, d.max_categories, d.positive)
            encoding, self.warnings = self.engine.drive(
                agree(
                    numeric=consortium.data.numeric_names,
                    categorical=consortium.data.categorical_names,
                    rules=rules,
                    to=consortium.training,
                ),
                round=0,
            )
        else:
            encoding = Encoding.from_dict(snapshot.facts["encoding"])
            self.warnings = tuple(snapshot.facts["warnings"])
        self.rows, self.notes = self.engine.drive(
            prepare(encoding, model=plan.model.name, hidden=plan.model.hidden), round=0
        )
        if snapshot is not None:
            self.engine.restore(snapshot.part("sites"), snapshot.facts["engine"])
            self.engine.meter.read()  # preparing again was counted the first time
        self.progress(
            {
                "event": "start",
                "sites": len(consortium.stack.names),
                "training": len(consortium.training),
                "rounds": plan.method.rounds,
                "features": len(encoding.features),
                "classes": encoding.classes,
                "warnings": self.warnings,
                "done": 0 if snapshot is None else snapshot.facts["round"],
                "folder": str(self.folder.path),
                "schema": consortium.data.schema,
            }
        )
        return encoding

    def _model(self, encoding: Encoding) -> Dense:
        m = self.plan.model
        return build_model(m.name, features=len(encoding.features), classes=len(encoding.classes), hidden=m.hidden)

    def _state(self, model: Dense, snapshot: Snapshot | None) -> State:
        if snapshot is not None:
            return State.of(snapshot)
        state = State(model.init(self.plan.seed, np.dtype(self.plan.engine.precision)))
        state.cost = self.engine.meter.read()
        return state

    def _train(self, consortium: Consortium, encoding: Encoding, state: State) -> None:
        """Rounds, until they are done or validation loss has stopped falling."""
        plan = self.plan
        method = build_method(plan.method, plan.train)
        weight = judge.class_weight(plan.train.class_weights, encoding)
        if plan.train.early_stop and not any(r["val"] for r in self.rows.values()):
            raise BadInput("train.early_stop needs validation rows: set split.val above 0")
        while state.round < plan.method.rounds and not state.stopped:
            began = time.perf_counter()
            r = state.round + 1
            server = Server(r, state.model, consortium.training, plan.seed, state.method, weight)
            try:
                outcome = self.engine.drive(method.round(server), round=r)
            except GrandRoundsError:
                self.folder.write_rounds(self.checkpoint.records())
                raise
            self.engine.commit(r)
            asked, missing = tuple(self.engine.asked), dict(self.engine.missing)
            record = self._judge_round(r, outcome.model)
            seconds = time.perf_counter() - began
            cost = {**self.engine.meter.read(), "seconds": seconds}
            decision = outcome.decision.recorded(
                round=r, asked=asked, missing=missing, cost=cost, privacy={"mechanism": "none"}
            )
            state.round, state.model, state.method = r, outcome.model, dict(outcome.state)
            state.seconds += seconds
            state.cost = {k: state.cost.get(k, 0.0) + v for k, v in cost.items() if k != "seconds"}
            self._watch(record, state)
            facts = {
                **state.facts(),
                "encoding": encoding.to_dict(),
                "warnings": list(self.warnings),
                "engine": self.engine.state(),
            }
            arrays = {**state.arrays(), **{f"sites/{n}": a for n, a in self.engine.arrays().items()}}
            self.checkpoint.write(judge.plain({**record, "decision": decision.to_dict()}), arrays, facts)
            self.progress({"event": "round", **record, "missing": missing, "seconds": seconds})

    def _judge_round(self, r: int, model: Array) -> dict[str, Any]:
        every = self.plan.evaluation.every
        if r % every and r != self.plan.method.rounds:
            return {"round": r}
        scored = self.engine.drive(evaluate(model, ("val", "test")), round=r)
        return {"round": r, **judge.round_scores(scored)}

    def _watch(self, record: Mapping[str, Any], state: State) -> None:
        """Early stop: remember the best model by the consortium's validation loss."""
        patience = self.plan.train.early_stop
        if not patience or "val" not in record:
            return
        loss = record["val"]["log_loss"]
        if loss < state.best_loss:
            state.best, state.best_round, state.best_loss = state.model, state.round, float(loss)
        elif state.round - state.best_round >= patience:
            state.stopped = f"validation loss did not improve for {patience} rounds; round {state.best_round} is kept"

    def _finish(self, consortium: Consortium, encoding: Encoding, model: Dense, state: State) -> None:
        """Calibrate, choose the threshold, judge the final model everywhere, and write the summary."""
        plan = self.plan
        last = plan.method.rounds + 1
        theta = state.model if state.best is None else state.best
        temperature = None
        has_val = any(r["val"] for r in self.rows.values())
        if plan.evaluation.calibrate == "temperature":
            if not has_val:
                raise BadInput("evaluation.calibrate needs validation rows: set split.val above 0")
            temperature = self.engine.drive(fit_temperature(theta), round=last)
            theta = judge.with_temperature(model, theta, temperature)
        scored = self.engine.drive(evaluate(theta, ("train", "val", "test")), round=last)
        final = judge.final_scores(scored, encoding, plan.evaluation)
        state.cost = {k: state.cost.get(k, 0.0) + v for k, v in self.engine.meter.read().items()}
        self.folder.write_model(model, theta, encoding, consortium.data.schema, temperature, final["threshold"])
        self.folder.write_rounds(self.checkpoint.records())
        summary = judge.summary(
            plan,
            final,
            rows=self.rows,
            rounds=state.round,
            stopped=state.stopped,
            temperature=temperature,
            parameters=model.layout.size,
            features=len(encoding.features),
            cost={**state.cost, "seconds": state.seconds, "virtual_seconds": self.engine.clock},
            warnings=self.warnings,
            notes=self.notes,
            reference={name: r.sha256 for name, r in consortium.reference.items()},
            training=consortium.training,
        )
        self.folder.write_summary(summary)
        self.progress({"event": "done", "summary": summary, "folder": str(self.folder.path)})


def new_folder(base: Path, name: str) -> Path:
    """base/name, or base/name-2, -3 ... where that is taken."""
    path, n = base / name, 2
    while path.exists():
        path, n = base / f"{name}-{n}", n + 1
    return path
