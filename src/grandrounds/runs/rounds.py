"""Rounds of a run, one after the other: train, evaluate, and write to disk before the next begins.

Where secure aggregation halts, the error suggests a fix. A simulation repeats to the bit: faults that it injects, and refusals
that follow from its settings, are the same after a resume; a site that was away may be back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from grandrounds.core import plugins
from grandrounds.core.arrays import Array, plain
from grandrounds.core.errors import GrandRoundsError, RunFailed, mark_cells
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import Decision, RoundRecord
from grandrounds.data.kinds import outcome_of, task_of
from grandrounds.engine.checkpoint import LATE
from grandrounds.engine.faults import DROPPED
from grandrounds.engine.faults import LATE as PAST_DEADLINE
from grandrounds.experiment.checks.participation import there
from grandrounds.methods import build_method
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Method, Outcome, Server
from grandrounds.methods.exchanges import EvaluationResult, evaluate
from grandrounds.methods.secure import is_halt
from grandrounds.metrics import LOSS
from grandrounds.protocol.messages import Answers, Ask
from grandrounds.runs import evaluation
from grandrounds.runs.context import RunContext
from grandrounds.runs.explanations import written
from grandrounds.runs.state import State

_SHOWN = 10


def suggest_fix(plan: Plan, run: Path, missing: Mapping[str, str]) -> str:
    """Return the suggested fix of the error; `missing`: every site that failed the round, with the reason."""
    ways = _fixes(plan, f"rounds resume {run}")
    groups = {sign: sorted(s for s, why in missing.items() if sign in why) for sign in ways}
    explained_sites = {s for sites in groups.values() for s in sites}
    sentences = [f"{_named(sites)} {ways[sign]}" for sign, sites in groups.items() if sites]
    if not sentences or missing.keys() - explained_sites:
        sentences.append(f"`rounds resume {run}` tries the round again")
        return "; ".join(sentences)
    return f"a resume with nothing changed would halt again: {'; '.join(sentences)}"


def _fixes(plan: Plan, resume: str) -> dict[str, str]:
    """Return the cause and the fix by a marker in a site's reason."""
    p, faults = plan.privacy, plan.engine.faults
    retry = "" if p.on_halt == "retry" else ", or start a new run with privacy.on_halt = 'retry'"
    return {
        DROPPED: (
            f"dropped out because engine.faults.drop = {faults.drop:g} makes sites drop out: "
            f"`{resume} --set engine.faults.drop=0` continues without it{retry}"
        ),
        PAST_DEADLINE: (
            f"came after engine.deadline = {plan.engine.deadline}: `{resume} --set engine.deadline=SECONDS` allows more"
        ),
        "(beyond-bound)": (
            f"trained to a model beyond privacy.secure_range = {p.secure_range:g}: "
            "start a new run with a larger range (4096 at most) or a lower train.lr"
        ),
        "(not-finite)": "trained to a model with values that are not finite: start a new run with a lower train.lr",
        "(weight)": (
            f"refused a sum in which too few count, or one for more than privacy.largest_weight = {p.largest_weight:g}: "
            "start a new run with a larger one or with method.weigh = 'uniform'"
        ),
    }


def _named(sites: Iterable[str]) -> str:
    names = list(sites)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


_ATTEMPTS = 3
"""Number of attempts of a round with privacy.on_halt = "retry"."""

Join = Callable[[Answers, Array], Array]


@dataclass
class Rounds:
    """The rounds of a run. `overspent` is the reason where they ended early."""

    context: RunContext
    overspent: Exception | None = None
    _scores: dict[int, dict[str, Any]] = field(default_factory=dict)  # scores that are in no record yet, by round
    _counted: set[str] = field(default_factory=set)  # sites whose answer counted in some round

    @cached_property
    def _encoding(self) -> dict[str, Any]:
        """The agreed encoding, which no round changes."""
        return self.context.encoding.to_dict()

    def run(self, base: Server, state: State, *, join: Callable[[], Join]) -> None:
        """Run rounds until all are done, the budget is spent, or the validation loss has stopped improving.

        `base`: the method's inputs in every round; `join` returns the function that aggregates answers.
        """
        plan = self.context.plan
        method = build_method(plan.method, plan.train)
        if method.scores_rounds:
            self._score_again(state)
        for record in self.context.checkpoint.records():
            self._counted |= set(record["decision"]["asked"]) - set(record["decision"]["missing"])
        while state.round < plan.method.rounds and not state.stopped:
            r = state.round + 1
            server = replace(base, round=r, **state.known(), combiner=join(), present=there(plan, base.sites, r))
            if not self._afford(method, server, state):
                break
            self._round(method, server, state)

    def _afford(self, method: Method, server: Server, state: State) -> bool:
        """Charge a round before it starts. Where the budget does not allow it, the run ends with the current model."""
        if self.context.spending is None:
            return True
        from grandrounds.privacy.budget import Overspent

        try:
            if self.context.spending.charge(method, server):
                self.context.checkpoint.write_charges(self.context.spending.charges())
        except Overspent as e:
            if not state.round:
                raise
            state.stopped = f"the budget does not allow round {server.round}: {e}"
            self.overspent = e
            return False
        return True

    def _round(self, method: Method, server: Server, state: State) -> None:
        """Run one round: train, evaluate, and write it to disk."""
        began = time.perf_counter()
        self.context.gauge.begin()
        r = server.round
        try:
            outcome = self._outcome(method, server)
        except GrandRoundsError:
            self.context.folder.write_rounds(written(self.context.checkpoint.records()))
            raise
        except Exception as e:
            plan = self.context.plan
            objective = plan.train.objective or ""
            sentence = plugins.failure(e, (plan.method.name, plan.model.name, objective))
            if not sentence:
                raise
            raise mark_cells(RunFailed(f"round {r}: {sentence}", code="own-code-failed")) from e
        if not isinstance(outcome, Outcome):
            raise RunFailed(
                f"round {r}: method '{self.context.plan.method.name}' ended with {type(outcome).__name__}: "
                "end a round with `return server.next(model, decision)`",
                code="own-code-failed",
            )
        self.context.engine.commit()
        asked_sites, missing = tuple(self.context.engine.asked), dict(self.context.engine.missing)
        judged = self._judge_round(r, outcome.assignment) if method.scores_rounds else {"round": r}
        record = {**judged, **self._late_scores()}
        if self.context.local_scores is not None and self.context.local_scores.due(r):
            record |= self.context.engine.drive(self.context.local_scores.after(), round=r)
        if self.context.explanations is not None and method.scores_rounds and self.context.explanations.due(r):
            record["explanation"] = self.context.engine.drive(
                self.context.explanations.after(outcome.assignment), round=r
            )
        if self.context.heat_maps is not None and self.context.heat_maps.due(r):
            record["maps"] = self.context.engine.drive(self.context.heat_maps.after(outcome.assignment, r), round=r)
        seconds = time.perf_counter() - began
        self.context.gauge.end()
        cost = {
            **self.context.engine.meter.read(),
            "seconds": seconds,
            "virtual_seconds": self.context.engine.clock - state.clock,
        }
        decision = outcome.decision.recorded(
            round=r,
            asked=asked_sites,
            missing=missing,
            cost=cost,
            privacy=self._spent(method, server, asked_sites),
            notes=(*outcome.decision.notes, *self.context.engine.notes),
        )
        state.round, state.served, state.method = r, outcome.assignment, dict(outcome.state)
        state.seconds, state.clock = state.seconds + seconds, self.context.engine.clock
        state.cost = {k: state.cost.get(k, 0.0) + v for k, v in cost.items() if not k.endswith("seconds")}
        record["virtual_seconds"] = self.context.engine.clock
        self._watch(record, state)
        state.stopped = outcome.ended or state.stopped
        facts = {
            **state.facts(),
            "encoding": self._encoding,
            "warnings": list(self.context.warnings),
            "engine": self.context.engine.state(),
            "machine": self.context.gauge.facts(),
        }
        if self.context.spending is not None:
            facts["privacy"] = self.context.spending.facts()
        arrays = {**state.arrays(), **{f"sites/{n}": a for n, a in self.context.engine.arrays().items()}}
        values = plain({**record, "decision": decision.to_dict()})
        values |= self.context.recorder.facts(r, outcome.assignment, values.get("explanation"))
        self._keep_state(r, set(asked_sites) - set(missing))
        self.context.checkpoint.write(values, arrays, facts)
        self.context.recorder.enter(RoundRecord.from_dict(values))
        self.context.progress(
            {
                "event": "round",
                "task": self._task,
                **record,
                "missing": missing,
                "notes": self.context.engine.notes,
                "why": decision.why,
                "seconds": seconds,
            }
        )

    def _keep_state(self, r: int, answered: set[str]) -> None:
        """Keep the state before a round in which a site counts first: the run may be repeated from there without the site."""
        if r > 1 and answered - self._counted:
            limit = self.context.plan.engine.keep_states
            self.context.checkpoint.keep_state(r, limit=limit << 20)
        self._counted |= answered

    def _spent(self, method: Method, server: Server, asked_sites: tuple[str, ...]) -> dict[str, object]:
        """Return the privacy spending of a finished round, for its Decision."""
        if self.context.spending is None:
            return {"mechanism": "none", "secure": self.context.engine.secure is not None}
        self.context.spending.took_part(asked_sites)
        return self.context.spending.told(method.spends(server))

    def _outcome(self, method: Method, server: Server) -> Outcome:
        """Run the method's round. Where secure aggregation halts, privacy.on_halt decides: stop, retry or skip.

        The last round is never skipped: the final model must be of the last round.
        """
        policy = self.context.plan.privacy.on_halt
        last = server.round == self.context.plan.method.rounds
        for _ in range(_ATTEMPTS if policy == "retry" else 1):
            self.context.engine.missing.clear()  # the note of a failed attempt lists its missing sites
            try:
                work = method.round(server)
                if self.context.explanations is not None:
                    work = self.context.explanations.watched(work, server.round, server.model)
                if self.context.local_scores is not None:
                    work = self.context.local_scores.watched(work, server.round)
                if self.context.heat_maps is not None:
                    work = self.context.heat_maps.watched(work, server.round, server.model)
                return self.context.engine.drive(self.context.recorder.watched(work), round=server.round)
            except RunFailed as e:
                if not is_halt(e):
                    raise
                halted = e
                self.context.engine.notes.append(str(e))
        if policy != "skip" or last:
            missing = {**self.context.engine.missing, **halted.missing, **halted.faults}
            advice = suggest_fix(self.context.plan, self.context.folder.path, missing)
            raise RunFailed(f"round {server.round}: {halted}; {advice}", code="secure-sum-halted") from None
        why = "the secure sum was halted, so the model is as it was"
        self.context.warnings = (*self.context.warnings, f"round {server.round}: {why}")
        return Outcome(server.assignment or ModelAssignment(server.model), Decision(why=why), server.state)

    def _judge_round(self, r: int, served: ModelAssignment) -> dict[str, object]:
        """Evaluate a round's model. Where nothing depends on the scores, they arrive with the next round's answers."""
        last = r == self.context.plan.method.rounds
        if r % self.context.plan.evaluation.every and not last:
            return {"round": r}
        work = self._evaluation(served)
        keep = partial(self._keep_scores, r, served)
        if last or self.context.plan.train.early_stop or self.context.spending is not None:
            keep(self.context.engine.drive(work, round=r))
        else:
            self.context.engine.piggyback(work, keep)
        return {"round": r, **self._scores.pop(r, {})}

    @property
    def _task(self) -> str:
        return task_of(self.context.encoding)

    def _evaluation(self, served: ModelAssignment) -> Generator[Ask, Answers, EvaluationResult]:
        """Evaluate a model on validation and test rows, with the scores of each site that a record has."""
        figures = evaluation.site_metrics(self._task)
        return evaluate(served, ("val", "test"), figures=figures, outcome=outcome_of(self.context.encoding))

    def _keep_scores(self, r: int, served: ModelAssignment, scored: EvaluationResult) -> None:
        reasons = {} if self.context.rationale is None else {"reasons": self.context.rationale.scores(served.model)}
        self._scores[r] = {**evaluation.round_scores(scored, self.context.setup.metrics, self._task), **reasons}

    def _late_scores(self) -> dict[str, object]:
        """Return scores of earlier rounds that arrived with this round's answers."""
        came, self._scores = self._scores, {}
        return {LATE: [{"round": r, **scores} for r, scores in sorted(came.items())]} if came else {}

    def _score_again(self, state: State) -> None:
        """Evaluate the last round again where a run stopped before its scores arrived."""
        records = self.context.checkpoint.records()
        if records and "test" not in records[-1] and state.round % self.context.plan.evaluation.every == 0:
            work = self._evaluation(state.served)
            self._keep_scores(state.round, state.served, self.context.engine.drive(work, round=state.round))

    def _watch(self, record: Mapping[str, Any], state: State) -> None:
        """Apply early stopping: store the best model by validation loss of all sites."""
        patience = self.context.plan.train.early_stop
        if not patience or "val" not in record:
            return
        loss = record["val"][LOSS[self._task]]
        if loss < state.best_loss:
            state.best, state.best_round, state.best_loss = state.served, state.round, float(loss)
        elif state.round - state.best_round >= patience:
            state.stopped = f"validation loss did not improve for {patience} rounds; round {state.best_round} is kept"
