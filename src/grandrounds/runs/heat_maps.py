"""Heat maps in a run: after chosen rounds each site explains its own images with its local model and with the global one.

A method is not aware of it: `HeatMaps.watched` forwards its Asks, with the instruction to keep the local model where maps are
due, and stores the models that arrive. Sites report numbers only (`site.mapping`). Models of different sites are compared on
reference images at the server.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import RoundRecord
from grandrounds.core.rng import generator
from grandrounds.experiment.checks.heat_maps import mapped_rounds, maps_asked
from grandrounds.explain.explainers.heat import heat
from grandrounds.explain.map_metrics import (
    KEEP,
    PARTNERS,
    REPORT,
    SIMILARITY_NUMBERS,
    MapRule,
    label_numbers,
    mean,
    mean_site_similarity,
)
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Effect, Outcome, Round
from grandrounds.methods.baselines import POOL
from grandrounds.methods.effects import intercept
from grandrounds.protocol.messages import UPLOAD, Answers, Arrival, Ask, Payload, Send
from grandrounds.runs.references import ServerRows
from grandrounds.runs.setup import RunSetup

_COMPARED = 16
"""Most reference images on which sites' models are compared."""


@dataclass
class HeatMaps:
    """State of the heat maps of a run."""

    rule: MapRule
    rounds: tuple[int, ...]  # after which maps are made
    hospitals: tuple[str, ...]
    model: Any
    reference: tuple[Array, Array] | None = None  # reference images and their classes, where the server has some
    before: int = 0  # the last round that had maps
    trained: dict[str, str] = field(default_factory=dict)  # site -> the Ask of this round that it answered
    models: dict[str, Array] = field(default_factory=dict)  # site -> its model, where the server has it

    @classmethod
    def of(cls, plan: Plan, setup: RunSetup, model: Any, rows: ServerRows | None) -> HeatMaps:
        """Set up heat maps as [explain] states; `rows`: labelled reference images, or None."""
        rule = MapRule(maps_asked(plan), plan.explain.maps_rows, plan.seed)
        hospitals = tuple(site for site in setup.rows if site != POOL)
        return cls(rule, mapped_rounds(plan), hospitals, model, None if rows is None else _drawn(rows, plan.seed))

    def recall(self, records: Iterable[RoundRecord]) -> None:
        """Restore the state of an interrupted run."""
        self.before = max((r["round"] for r in records if REPORT in r), default=0)

    def due(self, round: int) -> bool:
        return round in self.rounds

    def watched(self, work: Round, round: int, start: Array) -> Round:
        """Return the method's round, in which sites keep their local models where maps are due.

        In asynchronous methods an answer may arrive in a later round, so those sites always keep their models.
        `start` is the model at the start of the round: where sites answer with updates, start plus update is the model.
        """
        self.trained, self.models = {}, {}
        due = self.due(round)

        def through(effect: Effect) -> Generator[Effect, Any, Any]:
            if isinstance(effect, Send) and round <= max(self.rounds):
                effect = Send(_keeping(effect.ask))
            elif isinstance(effect, Ask) and effect.task == "train" and due:
                effect = _keeping(effect)
            reply = yield effect
            if due:
                self._heard(effect, reply, start)
            return reply

        outcome: Outcome = yield from intercept(work, through)
        return outcome

    def after(self, served: ModelAssignment, round: int) -> Generator[Ask, Answers, dict[str, object]]:
        """Return the record of a round's maps: by site, their means, and between sites where there are reference images."""
        models = served.payloads()
        each: dict[str, Payload] = {
            site: {**models.get(site, {}), **({"trained": self.trained[site]} if site in self.trained else {})}
            for site in {**models, **self.trained}
            if site in self.hospitals
        }
        shared: Payload = {"model": served.model, REPORT: self.rule.to_json(), "before": self.before}
        answers = yield Ask(REPORT, shared=shared, each=each, to=self.hospitals, report=(REPORT,))
        numbers, names = np.asarray(answers[REPORT], float), self.rule.names
        self.before = round
        out: dict[str, object] = {
            "sites": {site: label_numbers(models, names) for site, models in zip(answers.sites, numbers, strict=True)},
            "means": label_numbers(mean(numbers), names),
        }
        return {**out, **self._between(round)}

    def summary(self, records: Sequence[RoundRecord]) -> dict[str, object]:
        """Return the last means and the rounds with maps, for summary.json."""
        scored = [r for r in records if REPORT in r]
        out: dict[str, object] = {"pictures": self.rule.rows, "rounds": [r["round"] for r in scored]}
        if scored:
            last = scored[-1][REPORT]
            out |= {"last": last["means"], **({"between": last["between"]} if "between" in last else {})}
        return out

    def _heard(self, effect: Effect, reply: Any, start: Array) -> None:
        """Store the models that arrive."""
        if isinstance(reply, Arrival):
            answer = reply.answer
            if not answer.error:
                self.trained[answer.site] = str(answer.id)
                self._model(answer.site, answer.values, start)
        elif isinstance(reply, Answers) and isinstance(effect, Ask) and effect.task in ("train", UPLOAD):
            if effect.task == "train":
                self.trained |= dict.fromkeys(reply.sites, str(reply.id))
            for site, values in reply:
                self._model(site, values, start)

    def _model(self, site: str, values: Mapping[str, Any], start: Array) -> None:
        if self.reference is None:
            return
        if "model" in values:
            self.models[site] = np.asarray(values["model"])
        elif "update" in values:
            self.models[site] = start + np.asarray(values["update"])

    def _between(self, round: int) -> dict[str, object]:
        """Compare the maps of the round's models on reference images; empty for fewer than two models."""
        if self.reference is None or len(self.models) < 2:
            return {}
        x, y = self.reference
        models = list(self.models.values())
        if len(models) > PARTNERS:
            rng = generator(self.rule.seed, purpose="compared sites", round=round)
            models = [models[k] for k in np.sort(rng.choice(len(models), PARTNERS, replace=False))]
        stack = np.stack(models)
        heat_maps = {name: heat(name, self.model, stack, x, y, seed=self.rule.seed) for name in self.rule.names}
        similarity = {name: mean_site_similarity(maps).tolist() for name, maps in heat_maps.items()}
        return {"between": {name: dict(zip(SIMILARITY_NUMBERS, row, strict=True)) for name, row in similarity.items()}}


def _keeping(ask: Ask) -> Ask:
    return replace(ask, shared={**ask.shared, KEEP: True}) if ask.task == "train" else ask


def _drawn(rows: ServerRows, seed: int) -> tuple[Array, Array]:
    x, y = rows.part.x, rows.part.y
    rng = generator(seed, purpose="mapped reference pictures")  # language: ok (names a random stream)
    chosen = np.sort(rng.choice(len(y), min(len(y), _COMPARED), replace=False))
    return x[chosen], y[chosen]
