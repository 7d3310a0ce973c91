"""Heat maps in a run: after chosen rounds each site looks at its own pictures with its own model and with the common one.

A method does not know of it: `HeatMaps.watched` passes its Asks on, with a word to keep the model where one is due, and
remembers whose models came in. Numbers are all that sites tell (`site.mapping`). Between sites, models are compared on
reference pictures at the server, which has both.
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
from grandrounds.methods.exchanges import intercept
from grandrounds.protocol.messages import UPLOAD, Answers, Arrival, Ask, Payload, Send
from grandrounds.runs.references import ServerRows
from grandrounds.runs.setup import RunSetup

_COMPARED = 16
"""Reference pictures that sites' models are compared on, at most."""


@dataclass
class HeatMaps:
    """What a run knows of its maps."""

    rule: MapRule
    rounds: tuple[int, ...]  # after which maps are made
    hospitals: tuple[str, ...]
    model: Any
    reference: tuple[Array, Array] | None = None  # pictures and their classes, where the server has some
    before: int = 0  # the last round that had maps
    trained: dict[str, str] = field(default_factory=dict)  # site -> the Ask of this round that it answered with a model
    models: dict[str, Array] = field(default_factory=dict)  # site -> that model, where the server has it

    @classmethod
    def of(cls, plan: Plan, setup: RunSetup, model: Any, rows: ServerRows | None) -> HeatMaps:
        """As [explain] says; `rows`: labelled reference pictures, where there are any."""
        rule = MapRule(maps_asked(plan), plan.explain.maps_rows, plan.seed)
        hospitals = tuple(site for site in setup.rows if site != POOL)
        return cls(rule, mapped_rounds(plan), hospitals, model, None if rows is None else _drawn(rows, plan.seed))

    def recall(self, records: Iterable[RoundRecord]) -> None:
        """Take up an interrupted run."""
        self.before = max((r["round"] for r in records if REPORT in r), default=0)

    def due(self, round: int) -> bool:
        return round in self.rounds

    def watched(self, work: Round, round: int, start: Array) -> Round:
        """The method's round, in which sites keep their models for maps where these are due.

        An answer that is not waited for may come in any later round, so those who are sent off always keep theirs.
        `start` is the model it begins with: where sites answer with updates only, that plus the update is theirs.
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
        """The record of a round's maps: by site, their means, and between sites where there are pictures for it."""
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
        """The last means and which rounds had maps: for summary.json."""
        scored = [r for r in records if REPORT in r]
        out: dict[str, object] = {"pictures": self.rule.rows, "rounds": [r["round"] for r in scored]}
        if scored:
            last = scored[-1][REPORT]
            out |= {"last": last["means"], **({"between": last["between"]} if "between" in last else {})}
        return out

    def _heard(self, effect: Effect, reply: Any, start: Array) -> None:
        """Whose models came in, and which they are."""
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
        """How alike the models of the round's sites look at the reference pictures; nothing for fewer than two."""
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
    rng = generator(seed, purpose="mapped reference pictures")
    chosen = np.sort(rng.choice(len(y), min(len(y), _COMPARED), replace=False))
    return x[chosen], y[chosen]
