"""Which explainer, with which settings: as an experiment names it and as it travels to sites."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.explainer import Explainer
from grandrounds.explain.features import Features

TABLES = {
    "permutation": "how much worse the model gets when a column is shuffled (explain.score, explain.repeats)",
    "gradient": "mean |input x gradient of the loss|: one backward pass, for every round",
    "shap": "mean |SHAP|: exact for linear models, path gradients for MLPs, TreeExplainer for trees; one background for all",
    "integrated_gradients": "mean |integrated gradients| from the consortium's mean patient",
    "coefficients": "the weights of a linear model on standardised inputs",
}
PICTURES = {
    "occlusion": "how much worse the net gets when a tile is hidden (explain.score, explain.tiles)",
    "gradient": "mean |pixel x gradient of the loss| in each tile",
    "saliency": "|gradient of the class score| in each tile",
    "gradient_norm": "norm of the input gradient, scaled from 0 to 1: the thesis's 'NormGrad' (3.6)",
    "grad_cam": "Grad-CAM at the last convolution",
    "normgrad": "NormGrad as published: norms of activations times norms of gradients at a layer",
    "integrated_gradients": "integrated gradients with SmoothGrad",
}
HIDING = ("permutation", "occlusion")
"""Explainers that score the model with a feature hidden (explain.score)."""

FROM_BACKGROUND = ("shap", "integrated_gradients", "gradient")
"""Explainers of tables that compare a patient with others; one background serves all sites."""

EXPLAINERS = {name: TABLES.get(name, PICTURES.get(name, "")) for name in (*TABLES, *PICTURES)}
"""Name and one line for each explainer in the loop, as `rounds list explainers` prints them."""


@dataclass(frozen=True)
class SketchRule:
    """How a sketch is taken: the same for all sites and rounds, so that equal models have equal sketches."""

    name: str
    seed: int
    score: str = "log_loss"
    repeats: int = 3
    steps: int = 10
    tiles: int = 4
    top: int = 0
    noise: float = 0.0
    rows: int = 200

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SketchRule:
        """What a message says; anything unknown in it is refused."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            raise BadInput(
                "the Ask's rule for explanations cannot be read: server and site are of different versions"
            ) from None

    @classmethod
    def of(cls, name: str, explain: Any, seed: int) -> SketchRule:
        """From an experiment's [explain] section."""
        keys = ("score", "repeats", "steps", "tiles", "top", "noise", "rows")
        return cls(name, seed, **{key: getattr(explain, key) for key in keys})

    def explainer(self, features: Features, background: Array | None) -> Explainer:
        """The explainer itself; `background` (B, d) is what it starts from, where it needs one (`FROM_BACKGROUND`)."""
        if features.grid is not None:
            return _pictures(self, features)
        if self.name in FROM_BACKGROUND and background is None:
            raise BadInput(f"'{self.name}' starts from a background and was given none: send one with the Ask")
        return _tables(self, features, np.empty(0) if background is None else background)

    def judge(self, model: Any, features: Features) -> Explainer | None:
        """What a sketch is held against for its fidelity: a linear model's coefficients, else importances by hiding features.

        None where the sketch is that itself (FedXChain sec. IV-F; its fidelity is a rank correlation).
        """
        from grandrounds.explain.explainers.linear import dense_of

        hiding = "occlusion" if features.grid is not None else "permutation"
        dense = None if features.grid is not None else dense_of(model)
        name = "coefficients" if dense is not None and len(dense.widths) == 2 else hiding
        if name == self.name:
            return None
        return replace(self, name=name).explainer(features, None)


def _tables(rule: SketchRule, features: Features, background: Array) -> Explainer:
    if rule.name == "permutation":
        from grandrounds.explain.explainers.permutation import Permutation

        return Permutation(features, seed=rule.seed, repeats=rule.repeats, score=rule.score)
    if rule.name == "gradient":
        from grandrounds.explain.explainers.gradients import Gradient

        return Gradient(features, baseline=background.mean(axis=0))
    if rule.name == "shap":
        from grandrounds.explain.explainers.shapley import Shap

        return Shap(features, background=background, steps=rule.steps)
    if rule.name == "integrated_gradients":
        from grandrounds.explain.explainers.gradients import IntegratedGradients

        return IntegratedGradients(features, baseline=background.mean(axis=0), steps=rule.steps)
    if rule.name == "coefficients":
        from grandrounds.explain.explainers.linear import Coefficients

        return Coefficients(features)
    raise BadInput(_wrong(rule.name, "a table", TABLES))


def _pictures(rule: SketchRule, features: Features) -> Explainer:
    if rule.name not in PICTURES:
        raise BadInput(_wrong(rule.name, "pictures", PICTURES))
    from grandrounds.explain.explainers.occlusion import Occlusion, Tiles

    if rule.name == "occlusion":
        return Occlusion(features, score=rule.score)
    return Tiles(features, rule.name, steps=rule.steps, seed=rule.seed)


def _wrong(name: str, what: str, known: Mapping[str, str]) -> str:
    return f"explain.sketch is '{name}', which does not explain {what}: use {', '.join(known)}"
