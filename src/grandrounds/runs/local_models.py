"""Scores of local models, for every method: on the rows of their own site, and on the rows of the other sites.

A method is not aware of them. Its training Asks pass through `LocalScores.watched`, which has sites report the accuracy of
their local model on their own training and test rows (`own`; FL-XAI sec. 4.3). After the round every site may receive all local
models and report the accuracy of each on its rows (`crossed`; sec. 4.9, the external test set against other sites' training
data). Sites share scores, never rows.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import Plan
from grandrounds.experiment.checks.local_models import CROSSED, NONE
from grandrounds.methods.base import Effect, Outcome, Round
from grandrounds.methods.effects import intercept
from grandrounds.protocol.messages import UPLOAD, Answers, Arrival, Ask, Send, Value

_REPORT, _LENT = "local", "lent"
_OWN = ("train_accuracy", "train_loss", "test_accuracy")


@dataclass
class LocalScores:
    """Scores of the local models of one round."""

    crossed: bool
    every: int
    rounds: int
    rows: Mapping[str, Mapping[str, int]]  # site -> part -> number of rows
    told: dict[str, dict[str, float]] = field(default_factory=dict)  # site -> scores of its own model
    models: dict[str, Array] = field(default_factory=dict)  # site -> its model, where other sites score it

    @classmethod
    def of(cls, plan: Plan, rows: Mapping[str, Mapping[str, int]]) -> LocalScores | None:
        """Set up the scores that evaluation.local_models asks for; None for none."""
        e = plan.evaluation
        return None if e.local_models == NONE else cls(e.local_models == CROSSED, e.every, plan.method.rounds, rows)

    def due(self, round: int) -> bool:
        """Tell whether a round is evaluated."""
        return round == self.rounds or round % self.every == 0

    def watched(self, work: Round, round: int) -> Round:
        """Return the method's round; the scores of local models are stored here and not forwarded."""
        self.told, self.models = {}, {}
        due = self.due(round)

        def through(effect: Effect) -> Generator[Effect, Any, Any]:
            reply = yield _asked(effect, due=due)
            return self._heard(effect, reply, due=due)

        outcome: Outcome = yield from intercept(work, through)
        return outcome

    def after(self) -> Generator[Ask, Answers, dict[str, object]]:
        """Return `local` of the round's record: score, then site; empty where no site trained."""
        values: dict[str, object] = {name: {s: local[name] for s, local in self.told.items()} for name in _OWN}
        if self.crossed and self.models:
            values |= yield from self._crossed()
        return {_REPORT: values} if self.told else {}

    def _crossed(self) -> Generator[Ask, Answers, dict[str, dict[str, float]]]:
        """Score each local model on the training rows of all other sites, and on the test rows of all."""
        scorers = tuple(site for site, counts in self.rows.items() if counts["train"] or counts["test"])
        out: dict[str, dict[str, float]] = {"others_train": {}, "external": {}}
        for sites, shared in _bundles(self.models):
            ask = Ask("score", shared={**shared, "parts": "train,test"}, to=scorers, report=(_LENT,))
            answers: Answers = yield ask
            foreign = np.array([[scorer != site for site in sites] for scorer in answers.sites])
            for name, part, counted in (("others_train", "train", foreign), ("external", "test", True)):
                means = self._mean(answers, part, counted)
                out[name] |= dict(zip(sites, means.tolist(), strict=True))
        return out

    def _mean(self, answers: Answers, part: str, counted: Array | bool) -> Array:
        """Average the accuracies (m, M) that sites report, weighted by their rows: (M,). Values outside 0 to 1 are left out."""
        lent = np.asarray(answers[f"{_LENT}.{part}"], float)
        rows = np.array([self.rows[site][part] for site in answers.sites], float)[:, None]
        weights = rows * (counted & (lent >= 0) & (lent <= 1))
        total = weights.sum(axis=0)
        mean: Array = np.where(total > 0, (weights * np.nan_to_num(lent)).sum(axis=0) / np.maximum(total, 1), np.nan)
        return mean

    def _heard(self, effect: Effect, reply: Any, *, due: bool) -> Any:
        """Return the reply for the method, without the additional reports."""
        if isinstance(reply, Arrival):
            reported, rest = _split(reply.answer.values)
            if reported and due:
                self.told[reply.answer.site] = {name: float(v) for name, v in reported.items()}
            return replace(reply, answer=replace(reply.answer, values=rest)) if reported else reply
        if not due or not isinstance(reply, Answers) or not isinstance(effect, Ask):
            return reply
        reported, reply.columns = _split(reply.columns)
        for k, site in enumerate(reply.sites if reported else ()):
            self.told[site] = {name: float(column[k]) for name, column in reported.items()}
        if self.crossed and effect.task in ("train", UPLOAD) and "model" in reply:
            self.models |= dict(zip(reply.sites, reply["model"], strict=True))
        return reply


def _asked(effect: Effect, *, due: bool) -> Effect:
    """Return the method's Ask with the additional reports; asynchronous Asks always have them."""
    if isinstance(effect, Send) and effect.ask.task == "train":
        return Send(effect.ask.with_reports(_REPORT))
    return effect.with_reports(_REPORT) if due and isinstance(effect, Ask) and effect.task == "train" else effect


def _split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a site's values into the scores of its local model and the others."""
    prefix = f"{_REPORT}."
    reported = {name.removeprefix(prefix): v for name, v in values.items() if name.startswith(prefix)}
    return reported, {name: v for name, v in values.items() if not name.startswith(prefix)}


def _bundles(models: Mapping[str, Array]) -> list[tuple[tuple[str, ...], dict[str, Value]]]:
    """Group models to score in one Ask, with their sites: all together, or one by one where sizes differ (trees)."""
    if len({np.shape(m) for m in models.values()}) == 1:
        return [(tuple(models), {"models": np.stack([np.asarray(m) for m in models.values()])})]
    return [((site,), {"model": np.asarray(m)}) for site, m in models.items()]
