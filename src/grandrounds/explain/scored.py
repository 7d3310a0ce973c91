"""One model on scoring pictures, picture by picture: is it right, and for the right reason?

What sites say of themselves is four numbers (`rationale`). Here is all that these rest on, and what XFed reports besides: how
much of the mask is hot, plain IoU, and whether the inside of the mask alone is still called right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.data.images import usable_masks
from grandrounds.explain.agreement import drawn, grid_credit, in_mask, iou, iou_ratio
from grandrounds.explain.rationale import RationaleRule, truth


@dataclass(frozen=True, eq=False)
class Heated:
    """What heat maps (n, H, W) say against truth masks; NaN (n,) where a mask is empty or full."""

    heat: Array
    ratio: Array  # (n,) IoU-ratio r
    reason: Array  # (n,) 1 where r says that heat is drawn to the mask
    in_mask: Array  # (n,) share of the mask that is hot
    iou: Array  # (n,) of the hottest pixels and the mask

    @classmethod
    def of(cls, heat: Array, masks: Array, rule: RationaleRule) -> Heated:
        """Heat that is no number, of a model whose gradients are none, has NaN for everything."""
        if not np.isfinite(heat).all():
            unknown = np.full(len(heat), np.nan)
            return cls(heat, unknown, unknown, unknown, unknown)
        ratio = iou_ratio(heat, masks, form=rule.form, q=rule.top)
        return cls(heat, ratio, drawn(ratio, rule.form), in_mask(heat, masks, rule.top), iou(heat, masks, rule.top))

    def figures(self) -> dict[str, float]:
        """Means over the pictures that can be scored: XAI accuracy, in-mask share, IoU."""
        return {"xai": mean(self.reason), "in_mask": mean(self.in_mask), "iou": mean(self.iou)}


@dataclass(frozen=True, eq=False)
class Scored:
    """n pictures as one model sees them."""

    logits: Array  # (n, C), or (n, 1) for two classes
    right: Array  # (n,) 1 where the picture is called what it is
    loss: Array  # (n,) cross-entropy
    heated: Heated | None  # None without a mask of use
    masked_right: Array | None  # (n,) 1 where the inside of the mask alone is called right; NaN without a mask of use
    grid: Array | None  # (n,) 1 where the warmest cell of the picture's scene is its own; None without scenes
    marked: int = 0  # pictures with a mask of use

    def __len__(self) -> int:
        return len(self.right)

    def figures(self) -> dict[str, float | int]:
        """Means over pictures: accuracy and cross-entropy, and of reasons what can be had.

        `pictures` is how many there are, and `scored` how many have a mask of use.
        """
        found: dict[str, float | int] = {"accuracy": mean(self.right), "cross_entropy": mean(self.loss)}
        if self.heated is not None and self.masked_right is not None:
            found |= {**self.heated.figures(), "masked_accuracy": mean(self.masked_right)}
        if self.grid is not None:
            found["grid"] = mean(self.grid)
        return {**found, "pictures": len(self), "scored": self.marked}


def scored(rule: RationaleRule, model: Any, theta: Array, x: Array, y: Array, masks: Array | None) -> Scored:
    """One model (P,) on pictures x (n, C, H, W) of classes y (n,) with truth masks (n, H, W), where there are any.

    Outside of its mask a masked picture is the encoded mean, 0.
    """
    from grandrounds.explain.heat import heat

    scenes, usable = rule.scenes(x, y), np.zeros(len(x), bool) if masks is None else usable_masks(masks)
    said, right, loss = _answers(model, theta, x, y)
    heated, masked, grid = None, None, None
    if masks is not None and usable.any():
        masked = np.where(usable, _answers(model, theta, x * masks[:, None], y)[1], np.nan)
        heated = Heated.of(heat("integrated_gradients", model, theta, x, y, **rule.smoothing), masks, rule)
    if scenes is not None:
        warm = heat("integrated_gradients", model, theta, scenes.x.astype(x.dtype), scenes.y, **rule.smoothing)
        grid = pointed(warm, scenes.cell, rule.grid)
    return Scored(said, right, loss, heated, masked, grid, int(usable.sum()))


def _answers(model: Any, theta: Array, x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Logits, 1 (n,) where they are right, and cross-entropy (n,); both NaN for a model that diverged."""
    logits = np.asarray(model.logits(theta, x), float)
    if not np.isfinite(logits).all():
        unknown = np.full(len(logits), np.nan)
        return logits, unknown, unknown
    said = truth(logits, y)
    return logits, said.right.astype(float), said.loss


def pointed(warm: Array, cells: Array, grid: int) -> Array:
    """`grid_credit` of scenes' heat maps; NaN for a model whose gradients are no numbers."""
    return grid_credit(warm, cells, grid) if np.isfinite(warm).all() else np.full(len(warm), np.nan)


def mean(values: Array) -> float:
    """Over what is known; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float(np.nan)
