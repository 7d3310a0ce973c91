"""XFed's scores: how right a model is on shared scoring pictures, and whether for the right reason.

Four numbers, and no heat map: accuracy and log loss on the pictures as they are, the share of them whose heat lies in
the truth mask (XAI accuracy), and the share of grid scenes whose warmest cell is the right one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from grandrounds.arrays import Array
from grandrounds.errors import BadInput
from grandrounds.explain.agreement import TOP, Share, grid_accuracy, xai_accuracy
from grandrounds.explain.scenes import grid_scenes
from grandrounds.rng import generator

REPORT = "rationale"
"""The report, and what a training Ask says that asks for it: the rule."""


@dataclass(frozen=True)
class RationaleRule:
    """How reasons are scored: the same for all sites and rounds, so that equal models have equal scores."""

    seed: int
    form: str = "mass"
    top: float = TOP
    grid: int = 2  # cells on a side of a scene; 0: no scenes
    steps: int = 5
    samples: int = 5
    sigma: float = 0.5

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RationaleRule:
        """What a message says; anything unknown in it is refused."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            raise BadInput(
                "the Ask's rule for scoring reasons cannot be read: server and site are of different versions"
            ) from None


def rationale(
    rule: RationaleRule, model: Any, models: Any, x: Array, y: Array, masks: Array | None
) -> dict[str, Array]:
    """The report of K models (K, P) on scoring pictures x (n, C, H, W) of classes y (n,).

    Without masks that can be scored XAI accuracy is NaN, without scenes the grid's. A model whose scores are no numbers, since
    its training diverged, has NaN for all four: it is no answer.
    """
    from grandrounds.explain.heat import heat

    how: Mapping[str, Any] = {"steps": rule.steps, "samples": rule.samples, "sigma": rule.sigma, "seed": rule.seed}
    scenes = grid_scenes(x, y, rule.grid, generator(rule.seed, purpose="scenes")) if rule.grid else None
    out: dict[str, list[float]] = {name: [] for name in ("accuracy", "loss", "xai", "grid")}
    for own in models:
        logits = np.asarray(model.logits(own, x), float)
        found = dict.fromkeys(out, np.nan)
        if np.isfinite(logits).all():
            said = _truth(logits, y)
            found |= {"accuracy": float(said.right.mean()), "loss": float(said.loss.mean())}
            if masks is not None:
                plain = heat("integrated_gradients", model, own, x, y, **how)
                found["xai"] = _known(plain, lambda h: xai_accuracy(h, masks, form=rule.form, q=rule.top))
            if scenes is not None:
                warm = heat("integrated_gradients", model, own, scenes.x.astype(x.dtype), scenes.y, **how)
                found["grid"] = _known(warm, lambda h: grid_accuracy(h, scenes.cell, rule.grid))
        for name, value in found.items():
            out[name].append(value)
    return {f"{REPORT}.{name}": np.array(values) for name, values in out.items()}


def _known(heats: Array, score: Callable[[Array], Share]) -> float:
    """The score of heat maps; NaN where none could be scored, or where a net's gradients are no numbers."""
    if not np.isfinite(heats).all():
        return float(np.nan)
    found = score(heats)
    return float(found) if found.count else float(np.nan)


@dataclass(frozen=True)
class _Truth:
    """Whether each picture is called what it is, and the log loss of it."""

    right: Array
    loss: Array


def _truth(logits: Array, y: Array) -> _Truth:
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    top = logits.max(axis=1, keepdims=True)
    spread = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
    return _Truth(logits.argmax(axis=1) == y, spread - logits[np.arange(len(y)), y])
