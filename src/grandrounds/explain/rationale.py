"""XFed's scores: how right a model is on shared scoring pictures, and whether for the right reason.

Four numbers, and no heat map: accuracy and log loss on the pictures as they are, the share of them whose heat lies in
the truth mask (XAI accuracy), and the share of grid scenes whose warmest cell is the right one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.explain.agreement import TOP, Share, grid_accuracy, xai_accuracy
from grandrounds.explain.scenes import Scenes, grid_scenes

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

    @classmethod
    def of(cls, seed: int, xfed: Any) -> RationaleRule:
        """What [method.xfed] says, of a run with this seed."""
        return cls(seed, xfed.form, xfed.top, xfed.grid, xfed.steps, xfed.samples, xfed.sigma)

    @property
    def smoothing(self) -> dict[str, Any]:
        """What `heat` is told of integrated gradients."""
        return {"steps": self.steps, "samples": self.samples, "sigma": self.sigma, "seed": self.seed}

    def scenes(self, x: Array, y: Array) -> Scenes | None:
        """One scene for each picture, the same for all models; None where the rule makes none."""
        return grid_scenes(x, y, self.grid, generator(self.seed, purpose="scenes")) if self.grid else None

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

    models, how, scenes = np.asarray(models), rule.smoothing, rule.scenes(x, y)
    out = {name: np.full(len(models), np.nan) for name in ("accuracy", "loss", "xai", "grid")}
    whole = []
    for k, logits in enumerate(np.asarray(model.stack_logits(models, x), float)):
        if np.isfinite(logits).all():
            said = truth(logits, y)
            out["accuracy"][k], out["loss"][k] = said.right.mean(), said.loss.mean()
            whole.append(k)
    stack = models if len(whole) == len(models) else models[whole]
    if masks is not None:
        plain = heat("integrated_gradients", model, stack, x, y, **how)
        out["xai"][whole] = [_known(h, lambda h: xai_accuracy(h, masks, form=rule.form, q=rule.top)) for h in plain]
    if scenes is not None:
        warm = heat("integrated_gradients", model, stack, scenes.x.astype(x.dtype), scenes.y, **how)
        out["grid"][whole] = [_known(h, lambda h: grid_accuracy(h, scenes.cell, rule.grid)) for h in warm]
    return {f"{REPORT}.{name}": values for name, values in out.items()}


def _known(heats: Array, score: Callable[[Array], Share]) -> float:
    """The score of heat maps; NaN where none could be scored, or where a net's gradients are no numbers."""
    if not np.isfinite(heats).all():
        return float(np.nan)
    found = score(heats)
    return float(found) if found.count else float(np.nan)


@dataclass(frozen=True)
class Truth:
    """Whether each picture is called what it is, and the log loss of it."""

    right: Array
    loss: Array


def truth(logits: Array, y: Array) -> Truth:
    """What logits (n, C), or (n, 1) for two classes, say of the true classes y (n,)."""
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    top = logits.max(axis=1, keepdims=True)
    spread = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
    return Truth(logits.argmax(axis=1) == y, spread - logits[np.arange(len(y)), y])
