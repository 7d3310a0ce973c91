"""Rules of sketches: an explainer and its settings, as in an experiment and as sent to sites."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.explainer import Explainer
from grandrounds.explain.explainers.registry import Use, explainers_for
from grandrounds.explain.features import Features

_OF_TABLES, _OF_IMAGES = explainers_for(Use.TABLE_SKETCH), explainers_for(Use.IMAGE_SKETCH)
TABLES = {name: spec.words for name, spec in _OF_TABLES.items()}
IMAGES = {name: spec.words for name, spec in _OF_IMAGES.items()}
HIDING_EXPLAINERS = tuple(spec.name for spec in (*_OF_TABLES.values(), *_OF_IMAGES.values()) if spec.hides_features)
"""Explainers that score the model with a feature hidden (explain.score)."""

BACKGROUND_EXPLAINERS = tuple(name for name, spec in _OF_TABLES.items() if spec.needs_background)
"""Explainers of tables that compare a patient with others; one background serves all sites."""

EXPLAINERS = {name: TABLES.get(name, IMAGES.get(name, "")) for name in (*TABLES, *IMAGES)}
"""Name and one line for each explainer in the loop, as `rounds list explainers` prints them."""


@dataclass(frozen=True)
class SketchRule:
    """Settings of a sketch: the same for all sites and rounds, so that equal models have equal sketches."""

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
        """Read the rule of a message; refuse anything unknown in it."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            raise BadInput(
                "the Ask's rule for explanations cannot be read: server and site run different versions",
                code="unreadable-rule",
            ) from None

    @classmethod
    def from_settings(cls, name: str, explain: Any, seed: int) -> SketchRule:
        """Read the rule from an experiment's [explain] section."""
        keys = ("score", "repeats", "steps", "tiles", "top", "noise", "rows")
        return cls(name, seed, **{key: getattr(explain, key) for key in keys})

    def explainer(self, features: Features, background: Array | None) -> Explainer:
        """Build the explainer.

        Args:
            features: Features to explain.
            background: Rows (B, d) that it starts from, where it needs them (`BACKGROUND_EXPLAINERS`).

        Raises:
            BadInput: It does not explain this kind of data, or the background is missing.
        """
        images = features.grid is not None
        specs = _OF_IMAGES if images else _OF_TABLES
        if not images and self.name in BACKGROUND_EXPLAINERS and background is None:
            raise BadInput(
                f"'{self.name}' needs a background: send one with the Ask",
                code="missing-background",
            )
        if self.name not in specs:
            kind = "images" if images else "a table"
            raise BadInput(
                f"explain.sketch is '{self.name}', which does not explain {kind}: use {', '.join(specs)}",
                code="explainer-does-not-fit",
            )
        explainer: Explainer = (
            specs[self.name].load().from_rule(self, features, np.empty(0) if background is None else background)
        )
        return explainer

    def fidelity_reference(self, model: Any, features: Features) -> Explainer | None:
        """Return the reference explainer for a sketch's fidelity: coefficients, else importances by hiding features. None if the
        sketch uses it itself (FedXChain sec. IV-F; its fidelity is a rank correlation).
        """
        from grandrounds.explain.explainers.linear import as_dense

        hiding = "occlusion" if features.grid is not None else "permutation"
        dense = None if features.grid is not None else as_dense(model)
        name = "coefficients" if dense is not None and len(dense.widths) == 2 else hiding
        if name == self.name:
            return None
        return replace(self, name=name).explainer(features, None)
