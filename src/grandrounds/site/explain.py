"""Explanations at the sites: sketches of local models on shared reference rows, and of the model in use on the site's
patients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.explain.explainer import Explainer, measure
from grandrounds.explain.features import build_features
from grandrounds.explain.rule import SketchRule
from grandrounds.explain.sketch import Sketches, add_noise, keep_top, simplex
from grandrounds.explain.stability import fidelity
from grandrounds.protocol.messages import Ask
from grandrounds.site.plugin import Columns, SitePlugin, Task, TrainRequest
from grandrounds.site.stack import PARTS, Stack


class SiteExplanations(SitePlugin):
    """Sketches of the models that the sites of one host train and use."""

    @property
    def tasks(self) -> Mapping[str, Task]:
        return {"explain": self._explain}

    def after_training(self, request: TrainRequest, columns: Columns) -> Columns:
        """Explain the members' local models on shared reference rows, if the Ask requests it."""
        ask, members = request.ask, request.members
        if "explain" not in ask.shared:
            return {}
        reference = self.site.references.get(str(ask.shared["explain_on"]))
        if reference is None:
            raise BadInput(
                "this site has no reference rows to explain its model on: send them first (task `lend`)",
                code="missing-reference-rows",
            )
        rule, explainer = self._explainer(ask)
        model, names = self.site.prepared_model(), self.site.names_of(members)
        target = reference.explained_outputs(model.outputs)
        return sketched(rule, explainer, model, columns["model"], reference.x, target, names=names, round=ask.round)

    def _explain(self, ask: Ask, members: Array) -> Columns:
        """Explain the model in use on each member's own patients."""
        rule, explainer = self._explainer(ask)
        model, theta = self.site.prepared_model(), self.site.in_use(ask, members)
        x, target, offsets = own_rows(self.site.stack, members, rule)
        names = self.site.names_of(members)
        columns = sketched(rule, explainer, model, theta, x, target, names=names, round=ask.round, offsets=offsets)
        return {**columns, "sketch.rows": np.diff(offsets)}

    def _explainer(self, ask: Ask) -> tuple[SketchRule, Explainer]:
        """Build the explainer that the Ask requests; the features follow from the agreed encoding."""
        rule = SketchRule.from_json(str(ask.shared["explain"]))
        features = build_features(self.site.encoding, grid=rule.tiles)
        background = ask.shared.get("background")
        return rule, rule.explainer(features, None if background is None else np.asarray(background))


def sketched(
    rule: SketchRule,
    explainer: Explainer,
    model: Any,
    theta: Any,
    x: Array,
    target: Array,
    *,
    names: Sequence[str],
    round: int,
    offsets: Array | None = None,
) -> dict[str, Array]:
    """Compute the report `sketch` of K sites: shares (K, F), their standard error, and a flag for models that use no feature.

    Without `offsets` the sites' models (K, P) are explained on the same rows, with the fidelity of each sketch to the model;
    with them each site has its own rows. `sketch.total` is the total importance in the score's unit. Noise, if requested, is
    drawn from the seed for each site, as a simulation; the total, which has no noise, is then replaced by 1.
    """
    importances = measure(explainer, model, theta, x, target, offsets)
    sketches = Sketches.from_importances(names, explainer.features.names, importances, q=rule.top)
    values = sketches.values
    if rule.noise:
        purpose = (
            "noise on the sketch of a local model" if offsets is None else "noise on the sketch of the model in use"
        )
        streams = [generator(rule.seed, purpose=purpose, round=round, site=name) for name in names]
        every = simplex(importances.values)[0]  # noise before truncation: afterwards it would refill removed features
        values = keep_top(np.stack([add_noise(v, rule.noise, rng) for v, rng in zip(every, streams, strict=True)]), rule.top)
    total = np.where(sketches.flat, 0.0, 1.0 if rule.noise else np.maximum(importances.values, 0).sum(axis=-1))
    out = {"sketch": values, "sketch.error": sketches.error, "sketch.flat": sketches.flat, "sketch.total": total}
    if sketches.blur is not None:
        out["sketch.blur"] = sketches.blur
    judge = rule.fidelity_reference(model, explainer.features) if offsets is None else None
    if judge is not None:
        importances_of_judge = measure(judge, model, theta, x, target)
        out["sketch.fidelity"] = fidelity(importances.values, np.maximum(importances_of_judge.values, 0))
    return out


def own_rows(
    stack: Stack, members: Array, rule: SketchRule, parts: Sequence[str] = PARTS
) -> tuple[Array, Array, Array]:
    """Select the members' own patients to explain, at most rule.rows each: x, target, offsets (m + 1,).

    Training, validation and test patients are used: explanations do not measure accuracy, and test rows alone are too few. The
    patients are the same in every round. If weights depend on the result, `parts` excludes the test rows.
    """
    sources = [stack.parts[name] for name in parts]
    first = np.cumsum([0, *(len(p.y) for p in sources)])
    chosen = []
    for k in members:
        numbers = [
            np.arange(p.offsets[k], p.offsets[k + 1]) + offset for p, offset in zip(sources, first[:-1], strict=True)
        ]
        rows = np.concatenate(numbers)
        if len(rows) > rule.rows:
            rng = generator(rule.seed, purpose="explained rows", site=stack.names[k])
            rows = np.sort(rng.choice(rows, rule.rows, replace=False))
        chosen.append(rows)
    rows = np.concatenate(chosen)
    x, target = (_gathered([getattr(p, name) for p in sources], first, rows) for name in ("x", "target"))
    return x, target, np.cumsum([0, *map(len, chosen)])


def _gathered(arrays: Sequence[Array], first: Array, rows: Array) -> Array:
    """Gather the rows (n,), numbered through all parts; only they are copied."""
    out = np.empty((len(rows), *arrays[0].shape[1:]), arrays[0].dtype)
    for array, a, b in zip(arrays, first[:-1], first[1:], strict=True):
        inside = (rows >= a) & (rows < b)
        out[inside] = array[rows[inside] - a]
    return out
