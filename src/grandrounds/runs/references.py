"""Reference rows at the server: FLTrust trains on them, and models are compared on them. No site is asked.

A host of one site holds them, so the server trains and scores with the same code as sites.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import Plan
from grandrounds.core.references import reference_name
from grandrounds.data.kinds import AnyEncoding
from grandrounds.data.split import Rows
from grandrounds.explain.explainer import Explainer, measure
from grandrounds.explain.explainers.shapley import direction
from grandrounds.explain.features import build_features
from grandrounds.explain.rationale import ImageScores, RationaleRule, baselines, score_images, score_rationale
from grandrounds.explain.rule import SketchRule
from grandrounds.explain.trust import distribution
from grandrounds.methods.exchanges import count_groups
from grandrounds.methods.fedxchain.checks import keeps_trust, trust_references
from grandrounds.methods.site_halves import site_plugins
from grandrounds.methods.sse_agg.harm import MATERIAL_HARM
from grandrounds.methods.xfed.checks import scoring_references
from grandrounds.models.dense import probabilities
from grandrounds.protocol.messages import Ask, AskId, Payload
from grandrounds.runs.federation import Consortium
from grandrounds.runs.setup import RunSetup
from grandrounds.site.evaluate import part_losses, score, training_scores
from grandrounds.site.explain import sketched
from grandrounds.site.host import SiteHost
from grandrounds.site.stack import Part, Stack

_HERE = "the server"


@dataclass
class References:
    """The reference sets of a run, each prepared when it is first needed."""

    plan: Plan
    consortium: Consortium
    setup: RunSetup
    held: dict[str, ServerRows] = field(default_factory=dict)

    def get(self, name: str | None) -> ServerRows | None:
        """Return the reference set of this name; None for no name."""
        if name is not None and name not in self.held:
            self.held[name] = ServerRows.of(name, self.plan, self.consortium, self.setup)
        return None if name is None else self.held[name]


class ServerRows:
    """One reference set, prepared as the consortium agreed."""

    def __init__(self, host: SiteHost, encoding: AnyEncoding, masks: Array | None = None) -> None:
        self._host, self._encoding, self.masks = host, encoding, masks

    @classmethod
    def of(cls, name: str, plan: Plan, consortium: Consortium, setup: RunSetup) -> ServerRows:
        """Prepare the rows of [reference.NAME]."""
        none = np.empty(0, np.int64)
        data = consortium.reference[name].select_from(consortium.data)
        stack = Stack((_HERE,), data, (Rows(np.arange(len(data)), none, none),), tasks=("",))
        e = plan.engine
        settings: dict[str, Any] = {"kernel": e.kernel, "device": e.device, "precision": e.precision}
        host = SiteHost(stack, plugins=site_plugins(plan), own_code=True, **settings)
        spec = json.dumps({**setup.spec, "groups": count_groups(setup.encoding)})
        shared = {"encoding": json.dumps(setup.encoding.to_dict()), "spec": spec}
        cls._ask(host, Ask("prepare", shared=shared, report=("train_rows",)))
        return cls(host, setup.encoding, getattr(data, "masks", None))

    def train(self, model: Array, work: Payload) -> Array:
        """Train a model for one round on these rows."""
        answer = self._ask(self._host, Ask("train", shared={"model": model, **work}, report=("model",)))
        return np.asarray(answer["model"][0])

    def accuracy(self, models: Any) -> Array:
        """Compute the accuracy of each of K models on these rows, (K,)."""
        return np.asarray(self._scores(models)["accuracies"][0])

    def losses(self, models: Any) -> Array:
        """Compute the mean log loss of each of K models on these rows, (K,)."""
        return np.asarray(self._scores(models)["losses"][0])

    def rationale(self, models: Any, rule: RationaleRule) -> dict[str, Array]:
        """Score the predictions and heat maps of K models on these images."""
        part = self.part
        return score_rationale(rule, self._host.model, models, part.x, part.y, self.masks)

    def scored(self, model: Array, rule: RationaleRule) -> ImageScores:
        """Score one model on each of these images."""
        return score_images(rule, self._host.model, model, self.part.x, self.part.y, self.masks)

    def baselines(self, model: Array, rule: RationaleRule) -> dict[str, dict[str, float]]:
        """Compute baselines for the scores of a model on these images."""
        return baselines(self._host.model, model, self.part.x, self.part.y, self.masks, rule)

    def attributed(self, models: Any, rule: SketchRule, background: Array, *, signed: bool) -> dict[str, Array]:
        """Compute feature attributions of K models on these rows as shares (K, F), and their signs if `signed`."""
        part, model = self.part, self._host.model
        explainer = rule.explainer(build_features(self._encoding, grid=rule.tiles), background)
        out = {"shares": distribution(measure(explainer, model, models, part.x, part.target).values)}
        if signed:
            points = [direction(model, theta, part.x, background, steps=rule.steps) for theta in models]
            out["direction"] = np.stack(points)
        return out

    def _scores(self, models: Any) -> dict[str, Array]:
        assert self._host.model is not None
        return training_scores(self._host.model, self._host.stack, np.zeros(1, np.int64), models)

    def doubt(self, model: Array) -> float:
        """Compute the uncertainty of a model on these rows: mean entropy of its predictions, as a share of the maximum."""
        assert self._host.model is not None
        p = probabilities(score(self._host.model, model, self.part.x).astype(float))
        if p.shape[1] == 1:
            p = np.concatenate([p, 1 - p], axis=1)
        entropy = -(p * np.log(np.maximum(p, 1e-12))).sum(axis=1)
        return float(entropy.mean() / np.log(p.shape[1]))

    @property
    def part(self) -> Part:
        """The prepared rows."""
        return self._host.stack.parts["train"]

    def sketches(
        self, rule: SketchRule, explainer: Explainer, models: Any, *, sites: Sequence[str], round: int
    ) -> dict[str, Array]:
        """Compute the report `sketch` of sites from their models (K, P) on these rows."""
        part = self.part
        return sketched(rule, explainer, self._host.model, models, part.x, part.target, names=sites, round=round)

    def sampling(self, explainer: Explainer, models: Any) -> Array:
        """Measure the sampling error of each model's importances on these rows, (K,).

        It is half the L1 distance between the importances on both halves of the rows, relative to those of the median model.
        """
        part, model = self.part, self._host.model
        apart, all_rows = [], []
        for half in (slice(0, None, 2), slice(1, None, 2)):
            half_scores = np.maximum(measure(explainer, model, models, part.x[half], part.target[half]).values, 0)
            middle = np.median(half_scores, axis=0)
            apart.append(half_scores - middle)
            all_rows.append(middle.sum())
        total = float(np.mean(all_rows))
        out: Array = np.abs(apart[0] - apart[1]).sum(axis=1) / 2 / (total if total > 0 else 1.0)
        return out

    def harm(self, models: Array, rows: Array) -> Array:
        """Measure the harm of each of K models (K, P) to their mean, weighted by `rows`, in standard errors: (K,).

        Only an increase of the log loss beyond the share MATERIAL counts: with many rows any small difference is significant.
        """
        part, model = self.part, self._host.model
        assert model is not None
        shares, exact = rows / rows.sum(), np.asarray(models, float)
        all_scores = shares @ exact

        def losses(theta: Array) -> Array:
            every = slice(0, len(part.y))
            return part_losses(model, score(model, theta.astype(models.dtype), part.x).astype(float), part, every)

        base, out = losses(all_scores), np.full(len(exact), np.nan)
        for k, share in enumerate(shares.tolist()):
            if share >= 1:
                continue
            rest = losses((all_scores - share * exact[k]) / (1 - share))
            worse = base - (1 + MATERIAL_HARM) * rest
            error = worse.std(ddof=1) / np.sqrt(len(worse)) if len(worse) > 1 else 0.0
            out[k] = worse.mean() / error if error > 0 else 0.0
        return out

    @staticmethod
    def _ask(host: SiteHost, ask: Ask) -> dict[str, Any]:
        return host.answer(ask.numbered(AskId(_HERE, 0, 0), (_HERE,)), np.zeros(1, np.int64))


def told_from(plan: Plan, setup: RunSetup, references: References) -> dict[str, Any]:
    """Return the inputs of a method with trust: the agreed background, feature names, shared reference rows.

    The background is the mean of the reference rows, or else the mean patient of the consortium. It is the same for all sites,
    so that their SHAP values can be compared.
    """
    if setup.start is not None:
        return {"background": setup.centre}
    if not keeps_trust(plan):
        return {"shared_reference": next(iter(scoring_references(plan)), "")}
    features = build_features(setup.encoding, grid=plan.explain.tiles)
    pictures, name = features.grid is not None, reference_name(plan)
    held = references.get(name)
    rows = setup.centre[None] if setup.centre is not None else None
    if held is not None and not pictures:
        rows = held.part.x.mean(axis=0, keepdims=True)
    return {
        "background": np.empty(0) if rows is None else rows,
        "features": features.names,
        "explainer": "integrated_gradients" if pictures else "shap",
        "shared_reference": name if name is not None and name in trust_references(plan) else "",
        "reference_labelled": name is not None and plan.reference.plain()[name]["labelled"],
    }
