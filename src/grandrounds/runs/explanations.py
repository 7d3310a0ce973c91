"""Explanations in a run: each round's sketches of local models and of the model in use, whatever the method.

A method does not know that it is watched. Its round is a generator; `RoundExplanations.watched` passes its Asks on, has local
models explained as their answers come in (at the server, or at the sites, which then report sketches themselves), and
hands the answers on with a column `sketch` that a method may use.

Two kinds of numbers come of it and are never mixed: *training* is the drift between the sites' local models on the
shared reference rows; *deployed* is how differently the model in use reasons on each site's own patients.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import Plan
from grandrounds.core.records import RoundRecord
from grandrounds.data.corruption.shortcut import PlantedShortcut, fits_one_tile, patch_tile
from grandrounds.explain.agreement import spurious_mass
from grandrounds.explain.explainer import Explainer
from grandrounds.explain.features import Features, build_features
from grandrounds.explain.rule import BACKGROUND_EXPLAINERS, HIDING_EXPLAINERS, SketchRule
from grandrounds.explain.sketch import Sketches
from grandrounds.explain.stability import stability
from grandrounds.methods.assignment import ModelAssignment
from grandrounds.methods.base import Effect, Outcome, Round
from grandrounds.methods.baselines import POOL
from grandrounds.methods.exchanges import explain_locally, intercept
from grandrounds.protocol.messages import UPLOAD, Answers, Arrival, Ask, Send, Value
from grandrounds.runs.references import ServerRows
from grandrounds.runs.setup import RunSetup

KINDS = ("training", "deployed")
NUMBERS = (
    "drift",
    "sampling",
    "consensus_drift",
    "jaccard",
    "k",
    "density",
    "rank_correlation",
    "fidelity",
    "spurious_mass",
)
DEPLOYED_SCORE = "self"
"""The model in use is judged by how far its predictions move: at a bedside there are no labels, and at a site with one
class a shuffled column would seem to make the model better."""

_TOP = 10
_ENTRIES = 200_000
"""Sketch entries of a round that are written down; of larger consortia the consensus and each site's distance to it."""

Driven = Generator[Ask, Answers, Any]


@dataclass
class RoundExplanations:
    """What a run knows about its explanations."""

    rule: SketchRule
    features: Features
    background: Array | None
    every: int
    rounds: int
    k: int
    hospitals: tuple[str, ...]  # the sites whose patients the model in use is explained on
    on: str | None = None  # the reference set that local models are compared on
    lent: str | None = None  # the rows sites explain their local models on themselves
    reference: ServerRows | None = None  # or those the server explains them on
    before: dict[str, Array] = field(default_factory=dict)  # kind -> the consensus of the last time
    found: dict[str, dict[str, Array]] = field(default_factory=dict)  # site -> its report of this round
    labelled: bool = False  # whether models can be judged on the reference rows
    patch_tiles: Mapping[str, int] = field(default_factory=dict)  # site -> the tile that holds its shortcut's patch

    @classmethod
    def of(
        cls,
        plan: Plan,
        setup: RunSetup,
        name: str,
        reference: ServerRows | None,
        *,
        on: str | None,
        planted: PlantedShortcut | None = None,
    ) -> RoundExplanations:
        """As [explain] says; `reference`: the rows local models are compared on, where there are any, named `on`.

        `planted`: the shortcut in the sites' pictures, where one is studied.
        """
        e = plan.explain
        rule = SketchRule.from_settings(name, e, plan.seed)
        features = build_features(setup.encoding, grid=e.tiles)
        sent = on is not None and bool(plan.reference.plain()[on]["sent"])
        needs = name in BACKGROUND_EXPLAINERS and features.grid is None
        return cls(
            rule=rule,
            features=features,
            background=_background(reference, setup, sent=sent) if needs else None,
            every=e.every or int(plan.train.early_stop > 0),  # any round may turn out to be the last
            rounds=plan.method.rounds,
            k=e.k,
            hospitals=tuple(site for site in setup.rows if site != POOL),
            on=on,
            lent=on if e.at == "site" else None,
            reference=reference,
            labelled=on is not None and bool(plan.reference.plain()[on]["labelled"]),
            patch_tiles=_patch_tiles(planted, features),
        )

    def recall(self, records: Iterable[RoundRecord]) -> None:
        """Take up an interrupted run: the consensus of the last time is in its records."""
        for record in records:
            for kind, block in record.get("explanation", {}).items():
                if kind in KINDS:
                    self.before[kind] = np.array(block["consensus"])

    def due(self, round: int) -> bool:
        return round == self.rounds or bool(self.every and round % self.every == 0)

    def watched(self, work: Round, round: int, model: Array) -> Round:
        """The method's round, with its local models explained on the way where it is due, or where the method asks for it.

        `model` is the one it begins with: where sites answer with updates only, that plus the update is explained.
        """
        self.found = {}
        outcome: Outcome
        if self.reference is None:
            outcome = yield from work
            return outcome
        explainer = self.rule.explainer(self.features, self.background)
        due = self.due(round)

        def through(effect: Effect) -> Generator[Effect, Any, Any]:
            wanted = due or (isinstance(effect, Ask) and _SKETCH in effect.report)
            reply = yield self._asked(effect) if wanted else effect
            return self._heard(effect, reply, explainer, round, model) if wanted else reply

        outcome = yield from intercept(work, through)
        return outcome

    def after(self, served: ModelAssignment) -> Driven:
        """The record of a round's explanations; sites explain the model in use meanwhile."""
        out: dict[str, object] = {}
        if len(self.found) > 1:  # one model alone does not drift
            out["training"] = self._block("training", self._training()) | self._fidelity()
        deployed = yield from self.deployed(served)
        return {**out, "deployed": deployed} if deployed else out

    def deployed(self, served: ModelAssignment) -> Driven:
        """How the model in use reasons on each site's own patients, and over all of them: sites weighed by patients."""
        rule = replace(self.rule, score=DEPLOYED_SCORE)
        sketches, rows = yield from explain_locally(served, rule, self.features, self.background, sites=self.hospitals)
        if not len(sketches.sites):
            return {}
        block = self._block("deployed", sketches)
        overall = np.average(sketches.values, axis=0, weights=rows)
        return {**block, "rows": dict(zip(sketches.sites, rows.tolist(), strict=True)), "overall": overall.tolist()}

    def described(self, plan: Plan) -> dict[str, object]:
        """How the sketches were taken and what their entries mean: the head of explanations.json."""
        e, r = plan.explain, self.rule
        rule = {"explainer": r.name, **self._scores(), "repeats": r.repeats, "steps": r.steps, "top": r.top}
        where = {"noise": r.noise, "at": e.at, "every": e.every, "k": self.k, "rows": r.rows, "reference": self.on}
        return {"sketch": {**rule, **where}, "features": self.features.names, "grid": self.features.grid}

    def summary(self, explained: Sequence[Mapping[str, Any]], final: Mapping[str, Any]) -> dict[str, object]:
        """The last numbers of either kind and the features that count most: for summary.json."""
        out: dict[str, object] = {"explainer": self.rule.name, **self._scores()}
        trained = [r for r in explained if "training" in r]
        if trained:
            out["training"] = {"round": trained[-1]["round"], **numbers(trained[-1])["training"]}
        if final:
            out["deployed"] = numbers({"deployed": final})["deployed"]
            order = np.argsort(-np.array(final["overall"]), kind="stable")[:_TOP]
            out["top"] = [{"feature": self.features.names[f], "share": final["overall"][f]} for f in order]
        return out

    def _scores(self) -> dict[str, str | None]:
        """What a hidden feature is scored by, in training and in use; nothing for explainers that hide none."""
        hides = self.rule.name in HIDING_EXPLAINERS
        return {"score": self.rule.score if hides else None, "deployed_score": DEPLOYED_SCORE if hides else None}

    def _block(self, kind: str, sketches: Sketches) -> dict[str, Any]:
        drift = stability(sketches, k=self.k, before=self.before.get(kind))
        self.before[kind] = sketches.consensus
        block: dict[str, Any] = drift.to_dict() | self._spurious(sketches)
        if sketches.values.size > _ENTRIES:
            block |= {"sketches": {}, "error": {}}
        return block

    def _training(self) -> Sketches:
        values, error, flat = (np.stack([report[name] for report in self.found.values()]) for name in _REPORTED[:3])
        return Sketches(tuple(self.found), self.features.names, values, error, flat)

    def _fidelity(self) -> dict[str, object]:
        """How faithful each local model's sketch is to the model, and the mean; nothing where the sketch is the measure."""
        fidelity = {
            s: float(report["sketch.fidelity"]) for s, report in self.found.items() if "sketch.fidelity" in report
        }
        return {"fidelity": float(np.mean(list(fidelity.values()))), "fidelities": fidelity} if fidelity else {}

    def _spurious(self, sketches: Sketches) -> dict[str, object]:
        """The share of each site's sketch on the tile with its patch, and SAM, their mean (SSE-AGG eq. 25).

        The paper takes it from local models on clean pictures (`training`); of the model in use on the sites' own
        pictures, patches and all (`deployed`), it says what a clinician would see.
        """
        indices = [k for k, site in enumerate(sketches.sites) if site in self.patch_tiles]
        if not indices:
            return {}
        names = [sketches.sites[k] for k in indices]
        mass = spurious_mass(sketches.values[indices], np.array([self.patch_tiles[name] for name in names]))
        return {"spurious_mass": float(mass.mean()), "spurious_masses": dict(zip(names, mass.tolist(), strict=True))}

    def _asked(self, effect: Effect) -> Effect:
        """The method's Ask; where sites explain themselves, with what they need for it, else not asked of them."""
        if self.lent is None:
            return _without_sketch(effect) if isinstance(effect, Ask) else effect
        if isinstance(effect, Send):
            return Send(self._with_rule(effect.ask))
        return self._with_rule(effect) if isinstance(effect, Ask) else effect

    def _with_rule(self, ask: Ask) -> Ask:
        if ask.task != "train":
            return ask
        assert self.lent is not None
        rule: dict[str, Value] = {"explain": self.rule.to_json(), "explain_on": self.lent}
        if self.background is not None:
            rule["background"] = self.background
        return replace(_without_sketch(ask), shared={**ask.shared, **rule}).with_reports(_SKETCH)

    def _heard(self, effect: Effect, reply: Any, explainer: Explainer, round: int, start: Array) -> Any:
        """What the method hears: the answers to training with each site's sketch beside its model."""
        if isinstance(reply, Arrival):
            return self._arrived(reply, explainer, round, start)
        trained = isinstance(effect, Ask) and effect.task in ("train", UPLOAD)
        if not (trained and isinstance(reply, Answers) and len(reply)) or not {"model", _SKETCH} & set(reply.columns):
            return reply
        if _SKETCH not in reply and self.lent is not None:  # sites said it when they trained
            return reply
        if _SKETCH not in reply:
            reply.columns |= self._sketches(reply["model"], reply.sites, explainer, round)
        if "model" in reply and "count" in reply and isinstance(effect, Ask) and _SKETCH in effect.report:
            reply.columns |= self._evidence(reply, explainer)
        for k, site in enumerate(reply.sites):
            self.found[site] = {name: np.asarray(reply[name][k]) for name in _REPORTED if name in reply}
        return reply

    def _arrived(self, arrival: Arrival, explainer: Explainer, round: int, start: Array) -> Arrival:
        site, values = arrival.answer.site, dict(arrival.answer.values)
        if arrival.answer.error or ("sketch" not in values and self.lent is not None):  # asked before it was due
            return arrival
        if "sketch" not in values:
            model = values["model"] if "model" in values else start + np.asarray(values["update"])
            mine = self._sketches(np.asarray(model)[None], (site,), explainer, round)
            values |= {name: column[0] for name, column in mine.items()}
        self.found[site] = {name: np.asarray(values[name]) for name in _REPORTED if name in values}
        return replace(arrival, answer=replace(arrival.answer, values=values))

    def _sketches(self, models: Any, sites: tuple[str, ...], explainer: Explainer, round: int) -> dict[str, Array]:
        assert self.reference is not None
        return self.reference.sketches(self.rule, explainer, models, sites=sites, round=round)

    def _evidence(self, reply: Answers, explainer: Explainer) -> dict[str, Array]:
        """Measure on the server's own rows what sampling does to each sketch, and the harm that each model does."""
        models = reply["model"]
        if self.reference is None or not isinstance(models, np.ndarray) or len(reply) < 2:
            return {}
        out = {"sketch.sampling": self.reference.sampling(explainer, models)}
        if self.labelled:
            out["sketch.harm"] = self.reference.harm(models, np.asarray(reply["count"], float))
        return out


_SKETCH = "sketch"
_REPORTED = (_SKETCH, "sketch.error", "sketch.flat", "sketch.fidelity")


def _without_sketch(ask: Ask) -> Ask:
    return replace(ask, report=tuple(r for r in ask.report if r != _SKETCH))


def _background(reference: ServerRows | None, setup: RunSetup, *, sent: bool) -> Array:
    """What shap, integrated gradients and the gradient sketch start from, agreed for all sites: (B, d).

    Reference rows where sites may have them, else only their mean; without a reference set the consortium's mean patient.
    """
    if reference is None:
        assert setup.centre is not None
        return setup.centre[None]
    x = reference.part.x
    return x if sent else x.mean(axis=0, keepdims=True)


def _patch_tiles(planted: PlantedShortcut | None, features: Features) -> dict[str, int]:
    """The tile that holds each site's patch; nothing without a shortcut, or where a patch is larger than a tile."""
    if planted is None or features.grid is None or not fits_one_tile(planted.clean.shape, max(features.grid)):
        return {}
    return {site: patch_tile(patch.corner, grid=features.grid[0]) for site, patch in planted.patches.items()}


def numbers(explanation: Mapping[str, Any]) -> dict[str, Any]:
    """The single numbers of a round's explanations, for its record; the rest is in explanations.json."""
    return {
        kind: {name: block[name] for name in NUMBERS if name in block}
        for kind, block in explanation.items()
        if kind in KINDS
    }


def written(records: Iterable[RoundRecord]) -> list[RoundRecord]:
    """Return round records as round_logs.json has them: scalars of the explanations, and no hashes for the ledger."""
    return [_without_arrays(record) for record in records]


def _without_arrays(record: RoundRecord) -> RoundRecord:
    values = {name: value for name, value in record.items() if name != "ledger"}
    if "explanation" in values:
        values["explanation"] = numbers(record.explanation)
    return RoundRecord.from_dict(values)


class ReferenceExplanations(RoundExplanations):
    """Sites are not asked how the model in use reasons on their patients: sketches of theirs would leave without noise."""

    def deployed(self, served: ModelAssignment) -> Generator[Ask, Answers, Any]:
        yield from ()
        return {}
