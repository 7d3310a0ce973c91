"""Explanations in a run: sketches of local models and of the model in use, for every method.

A method is not aware of them. Its round is a generator; `RoundExplanations.watched` forwards its Asks, explains local models as
their answers arrive (at the server, or at the sites, which then report sketches), and forwards the answers with a column
`sketch` that a method may use.

There are two separate measures: *training* is the drift between the sites' local models on the shared reference rows;
*deployed* is the divergence of the model in use between the sites' own patients.
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
from grandrounds.methods.effects import intercept
from grandrounds.methods.exchanges import explain_locally
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
"""The model in use is scored by the change of its predictions: patients in care have no label yet, and at a site with one
class a permuted column would seem to improve the model."""

_TOP = 10
_ENTRIES = 200_000
"""Most sketch entries that a round stores; larger consortia store the consensus and each site's distance to it."""

Driven = Generator[Ask, Answers, Any]


@dataclass
class RoundExplanations:
    """State of the explanations of a run."""

    rule: SketchRule
    features: Features
    background: Array | None
    every: int
    rounds: int
    k: int
    hospitals: tuple[str, ...]  # sites on whose patients the model in use is explained
    on: str | None = None  # reference set on which local models are compared
    lent: str | None = None  # reference rows on which sites explain their local models
    reference: ServerRows | None = None  # reference rows on which the server explains them
    before: dict[str, Array] = field(default_factory=dict)  # kind -> the previous consensus
    found: dict[str, dict[str, Array]] = field(default_factory=dict)  # site -> its report of this round
    labelled: bool = False  # the reference rows have labels
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
        """Set up explanations as [explain] states.

        Args:
            plan: The plan.
            setup: The set-up of the run.
            name: The explainer's name.
            reference: The reference rows on which local models are compared; None without any.
            on: The name of the reference set.
            planted: The shortcut in the sites' images; None without one.
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
            every=e.every or int(plan.train.early_stop > 0),  # with early stopping any round may be the last
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
        """Restore the previous consensus from the records of an interrupted run."""
        for record in records:
            for kind, block in record.get("explanation", {}).items():
                if kind in KINDS:
                    self.before[kind] = np.array(block["consensus"])

    def due(self, round: int) -> bool:
        return round == self.rounds or bool(self.every and round % self.every == 0)

    def watched(self, work: Round, round: int, model: Array) -> Round:
        """Return the method's round with explanations of local models, where they are due or the method asks for them.

        `model` is the model at the start of the round: where sites answer with updates, start plus update is explained.
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
        """Return the record of a round's explanations; sites explain the model in use meanwhile."""
        out: dict[str, object] = {}
        if len(self.found) > 1:  # drift needs two models
            out["training"] = self._block("training", self._training()) | self._fidelity()
        deployed = yield from self.deployed(served)
        return {**out, "deployed": deployed} if deployed else out

    def deployed(self, served: ModelAssignment) -> Driven:
        """Explain the model in use on each site's own patients, and on all of them, weighted by the number of patients."""
        rule = replace(self.rule, score=DEPLOYED_SCORE)
        sketches, rows = yield from explain_locally(served, rule, self.features, self.background, sites=self.hospitals)
        if not len(sketches.sites):
            return {}
        block = self._block("deployed", sketches)
        overall = np.average(sketches.values, axis=0, weights=rows)
        return {**block, "rows": dict(zip(sketches.sites, rows.tolist(), strict=True)), "overall": overall.tolist()}

    def described(self, plan: Plan) -> dict[str, object]:
        """Describe the explainer and the entries of sketches: the head of explanations.json."""
        e, r = plan.explain, self.rule
        rule = {"explainer": r.name, **self._scores(), "repeats": r.repeats, "steps": r.steps, "top": r.top}
        where = {"noise": r.noise, "at": e.at, "every": e.every, "k": self.k, "rows": r.rows, "reference": self.on}
        return {"sketch": {**rule, **where}, "features": self.features.names, "grid": self.features.grid}

    def summary(self, explained: Sequence[Mapping[str, Any]], final: Mapping[str, Any]) -> dict[str, object]:
        """Return the last measures of both kinds and the most important features, for summary.json."""
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
        """Return the scores that permuted features are measured by, in training and in use; empty for other explainers."""
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
        """Return the fidelity of each local model's sketch, and the mean; empty where the sketch itself is the measure."""
        fidelity = {
            s: float(report["sketch.fidelity"]) for s, report in self.found.items() if "sketch.fidelity" in report
        }
        return {"fidelity": float(np.mean(list(fidelity.values()))), "fidelities": fidelity} if fidelity else {}

    def _spurious(self, sketches: Sketches) -> dict[str, object]:
        """Return the share of each site's sketch on the tile with its patch, and SAM, their mean (SSE-AGG eq. 25).

        The paper computes it for local models on clean images (`training`). For the model in use on the sites' own images,
        with patches (`deployed`), it is the value that a clinician would see.
        """
        indices = [k for k, site in enumerate(sketches.sites) if site in self.patch_tiles]
        if not indices:
            return {}
        names = [sketches.sites[k] for k in indices]
        mass = spurious_mass(sketches.values[indices], np.array([self.patch_tiles[name] for name in names]))
        return {"spurious_mass": float(mass.mean()), "spurious_masses": dict(zip(names, mass.tolist(), strict=True))}

    def _asked(self, effect: Effect) -> Effect:
        """Return the method's Ask; where sites explain their models, with the rule for it, else without the report `sketch`."""
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
        """Return the reply for the method: answers to training with each site's sketch added."""
        if isinstance(reply, Arrival):
            return self._arrived(reply, explainer, round, start)
        trained = isinstance(effect, Ask) and effect.task in ("train", UPLOAD)
        if not (trained and isinstance(reply, Answers) and len(reply)) or not {"model", _SKETCH} & set(reply.columns):
            return reply
        if _SKETCH not in reply and self.lent is not None:  # sites reported it when they trained
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
        """Measure on the server's rows the effect of sampling on each sketch, and the harm of each model."""
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
    """Return the background (B, d) of SHAP, integrated gradients and the gradient sketch, the same for all sites.

    It is the reference rows where sites may have them, else only their mean; without a reference set the mean patient of the
    consortium.
    """
    if reference is None:
        assert setup.centre is not None
        return setup.centre[None]
    x = reference.part.x
    return x if sent else x.mean(axis=0, keepdims=True)


def _patch_tiles(planted: PlantedShortcut | None, features: Features) -> dict[str, int]:
    """Return the tile with each site's patch; empty without a shortcut, or where a patch is larger than a tile."""
    if planted is None or features.grid is None or not fits_one_tile(planted.clean.shape, max(features.grid)):
        return {}
    return {site: patch_tile(patch.corner, grid=features.grid[0]) for site, patch in planted.patches.items()}


def numbers(explanation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalars of a round's explanations for its record; explanations.json has the arrays."""
    return {
        kind: {name: block[name] for name in NUMBERS if name in block}
        for kind, block in explanation.items()
        if kind in KINDS
    }


def written(records: Iterable[RoundRecord]) -> list[RoundRecord]:
    """Return round records as round_logs.json has them: scalars of the explanations, and no hashes for the ledger."""
    return [without_arrays(record) for record in records]


def without_arrays(record: RoundRecord) -> RoundRecord:
    """Return the record of a round as round_logs.json has it."""
    values = {name: value for name, value in record.items() if name != "ledger"}
    if "explanation" in values:
        values["explanation"] = numbers(record.explanation)
    return RoundRecord.from_dict(values)


class ReferenceExplanations(RoundExplanations):
    """Explanations on reference rows only: sketches of sites' patients would be disclosed without noise."""

    def deployed(self, served: ModelAssignment) -> Generator[Ask, Answers, Any]:
        yield from ()
        return {}
