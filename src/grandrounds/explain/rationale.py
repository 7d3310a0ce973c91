"""Score a model on shared scoring images: accuracy, and agreement of its explanations with truth masks (XFed).

A site reports four numbers of its model and no heat map (`score_rationale`): accuracy and log loss on the images as they are,
the share of them whose heat lies in the truth mask (XAI accuracy), and the share of grid scenes whose warmest cell is the right
one. `score_images` gives the scores of each image, and further figures of XFed: the hot share of the mask, plain IoU, and
correctness on the inside of the mask alone.

Grid scenes put an image in one cell among distractors of other classes (the grid pointing game, Boehle et al. 2021).
With centred objects, a blob in the middle passes for an explanation. In a scene the object may be in any cell, so only a heat
map that depends on the model can find it. Cells are shrunk, so that a scene has the size of an image.

`baselines` are the scores to compare with: heat that does not depend on the image, and the same net with shuffled weights.
Integrated gradients follow an image's contrast even in an untrained net, so only the difference to these baselines is meaningful.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.core.rng import generator
from grandrounds.data.images import usable_masks
from grandrounds.explain.agreement import (
    TOP,
    Share,
    cell_blobs,
    centre_blob,
    drawn,
    grid_accuracy,
    grid_credit,
    in_mask,
    iou,
    iou_ratio,
    uniform_noise,
    xai_accuracy,
)
from grandrounds.explain.features import Features

REPORT = "rationale"
"""Name of the report, and of the setting of a training Ask that requests it."""


class SmoothingOptions(TypedDict):
    """Options of `heat` for integrated gradients."""

    steps: int
    samples: int
    sigma: float
    seed: int


@dataclass(frozen=True)
class RationaleRule:
    """Settings of scoring explanations: the same for all sites and rounds, so that equal models have equal scores."""

    seed: int
    form: str = "mass"
    top: float = TOP
    grid: int = 2  # cells on a side of a scene; 0: no scenes
    steps: int = 5
    samples: int = 5
    sigma: float = 0.5

    @classmethod
    def from_settings(cls, seed: int, xfed: Any) -> RationaleRule:
        """Read [method.xfed] of a run with this seed."""
        return cls(seed, xfed.form, xfed.top, xfed.grid, xfed.steps, xfed.samples, xfed.sigma)

    @property
    def smoothing(self) -> SmoothingOptions:
        """Options of `heat` for integrated gradients."""
        return {"steps": self.steps, "samples": self.samples, "sigma": self.sigma, "seed": self.seed}

    def scenes(self, x: Array, y: Array) -> Scenes | None:
        """Make one scene for each image, the same for all models; None where the rule makes none."""
        return grid_scenes(x, y, self.grid, generator(self.seed, purpose="scenes")) if self.grid else None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RationaleRule:
        """Read the rule of a message; refuse anything unknown in it."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            raise BadInput(
                "the Ask's rule for scoring explanations cannot be read: server and site run different versions",
                code="unreadable-rule",
            ) from None


def score_rationale(
    rule: RationaleRule, model: Any, models: Any, x: Array, y: Array, masks: Array | None
) -> dict[str, Array]:
    """Score K models (K, P) on scoring images x (n, C, H, W) of classes y (n,): the report `rationale`.

    Without masks that can be scored XAI accuracy is NaN, without scenes the grid's. A model that diverged has NaN for all four
    and is not used.
    """
    from grandrounds.explain.explainers.heat import heat

    models, how, scenes = np.asarray(models), rule.smoothing, rule.scenes(x, y)
    out = {name: np.full(len(models), np.nan) for name in ("accuracy", "loss", "xai", "grid")}
    finite = []
    for k, logits in enumerate(np.asarray(model.stack_logits(models, x), float)):
        if np.isfinite(logits).all():
            result = score_logits(logits, y)
            out["accuracy"][k], out["loss"][k] = result.right.mean(), result.loss.mean()
            finite.append(k)
    stack = models if len(finite) == len(models) else models[finite]
    if masks is not None:
        plain = heat("integrated_gradients", model, stack, x, y, **how)
        out["xai"][finite] = [
            _score_or_nan(h, lambda h: xai_accuracy(h, masks, form=rule.form, q=rule.top)) for h in plain
        ]
    if scenes is not None:
        warm = heat("integrated_gradients", model, stack, scenes.x.astype(x.dtype), scenes.y, **how)
        out["grid"][finite] = [_score_or_nan(h, lambda h: grid_accuracy(h, scenes.cell, rule.grid)) for h in warm]
    return {f"{REPORT}.{name}": values for name, values in out.items()}


def _score_or_nan(heats: Array, score: Callable[[Array], Share]) -> float:
    """Score heat maps; NaN where none could be scored, or where a net's gradients are no numbers."""
    if not np.isfinite(heats).all():
        return float(np.nan)
    share = score(heats)
    return float(share) if share.count else float(np.nan)


@dataclass(frozen=True)
class LogitScores:
    """Correctness and log loss of each image."""

    right: Array
    loss: Array


def score_logits(logits: Array, y: Array) -> LogitScores:
    """Score logits (n, C), or (n, 1) for two classes, against the true classes y (n,)."""
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    top = logits.max(axis=1, keepdims=True)
    spread = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
    return LogitScores(logits.argmax(axis=1) == y, spread - logits[np.arange(len(y)), y])


@dataclass(frozen=True, eq=False)
class HeatScores:
    """Scores of heat maps (n, H, W) against truth masks; NaN (n,) where a mask is empty or full."""

    heat: Array
    ratio: Array  # (n,) IoU-ratio r
    reason: Array  # (n,) 1 if there is more heat inside the mask
    in_mask: Array  # (n,) share of the mask that is hot
    iou: Array  # (n,) of the hottest pixels and the mask

    @classmethod
    def from_heat(cls, heat: Array, masks: Array, rule: RationaleRule) -> HeatScores:
        """Score heat maps; a model whose heat is not finite gets NaN for everything."""
        if not np.isfinite(heat).all():
            unknown = np.full(len(heat), np.nan)
            return cls(heat, unknown, unknown, unknown, unknown)
        ratio = iou_ratio(heat, masks, form=rule.form, q=rule.top)
        return cls(heat, ratio, drawn(ratio, rule.form), in_mask(heat, masks, rule.top), iou(heat, masks, rule.top))

    def figures(self) -> dict[str, float]:
        """Average over images; explanations count where they can be scored."""
        return {"xai": mean(self.reason), "in_mask": mean(self.in_mask), "iou": mean(self.iou)}


@dataclass(frozen=True, eq=False)
class ImageScores:
    """Scores of n images by one model."""

    logits: Array  # (n, C), or (n, 1) for two classes
    right: Array  # (n,) 1 if the prediction is correct
    loss: Array  # (n,) cross-entropy
    heated: HeatScores | None  # None without a usable mask
    masked_right: Array | None  # (n,) 1 if the prediction on the inside of the mask alone is correct; NaN without a usable mask
    grid: Array | None  # (n,) 1 where the warmest cell of the image's scene is its own; None without scenes
    marked: int = 0  # images with a usable mask

    def __len__(self) -> int:
        return len(self.right)

    def figures(self) -> dict[str, float | int]:
        """Average over images; explanations count where they can be scored.

        `images` is the number of images, and `score_images` of those with a usable mask.
        """
        numbers: dict[str, float | int] = {"accuracy": mean(self.right), "cross_entropy": mean(self.loss)}
        if self.heated is not None and self.masked_right is not None:
            numbers |= {**self.heated.figures(), "masked_accuracy": mean(self.masked_right)}
        if self.grid is not None:
            numbers["grid"] = mean(self.grid)
        return {**numbers, "pictures": len(self), "scored": self.marked}


def score_images(rule: RationaleRule, model: Any, theta: Array, x: Array, y: Array, masks: Array | None) -> ImageScores:
    """Score one model (P,) on images x (n, C, H, W) of classes y (n,) with truth masks (n, H, W), where there are any.

    Outside of its mask a masked image is the encoded mean, 0.
    """
    from grandrounds.explain.explainers.heat import heat

    scenes, usable = rule.scenes(x, y), np.zeros(len(x), bool) if masks is None else usable_masks(masks)
    logits, right, loss = _score_answers(model, theta, x, y)
    heated, masked, grid = None, None, None
    if masks is not None and usable.any():
        masked = np.where(usable, _score_answers(model, theta, x * masks[:, None], y)[1], np.nan)
        heated = HeatScores.from_heat(heat("integrated_gradients", model, theta, x, y, **rule.smoothing), masks, rule)
    if scenes is not None:
        warm = heat("integrated_gradients", model, theta, scenes.x.astype(x.dtype), scenes.y, **rule.smoothing)
        grid = score_scenes(warm, scenes.cell, rule.grid)
    return ImageScores(logits, right, loss, heated, masked, grid, int(usable.sum()))


def _score_answers(model: Any, theta: Array, x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return logits, 1 (n,) where they are right, and cross-entropy (n,); both NaN for a model that diverged."""
    logits = np.asarray(model.logits(theta, x), float)
    if not np.isfinite(logits).all():
        unknown = np.full(len(logits), np.nan)
        return logits, unknown, unknown
    result = score_logits(logits, y)
    return logits, result.right.astype(float), result.loss


def score_scenes(warm: Array, cells: Array, grid: int) -> Array:
    """Return `grid_credit` of scenes' heat maps; NaN for a model whose gradients are no numbers."""
    return grid_credit(warm, cells, grid) if np.isfinite(warm).all() else np.full(len(warm), np.nan)


def mean(values: Array) -> float:
    """Average over numbers, NaN left out; NaN where nothing is left."""
    finite = values[~np.isnan(values)]
    return float(finite.mean()) if len(finite) else float(np.nan)


@dataclass(frozen=True)
class Scenes:
    """n scenes: pixels x (n, C, H, W), class y (n,), in which cell (n,) the image is, and the mask (n, H, W) of it."""

    x: Array
    y: Array
    cell: Array
    mask: Array
    grid: int

    def __len__(self) -> int:
        return len(self.x)


def grid_scenes(x: Array, y: Array, grid: int, rng: np.random.Generator) -> Scenes:
    """Make one scene for each image of x (n, C, H, W) with class y (n,), on a grid of cells counted row by row from 0.

    Every cell is right equally often (to one), so a fixed position scores 1 / grid^2. Distractors
    are drawn from the images of other classes, without repeating one in a scene where there are enough of them.
    """
    _check_scenes(x, y, grid)
    n, _, height, width = x.shape
    cells = grid * grid
    cell = rng.permutation(np.arange(n) % cells)
    shown = np.empty((n, cells), np.int64)
    for label in np.unique(y):
        members, distractors = np.flatnonzero(y == label), np.flatnonzero(y != label)
        few = len(distractors) < cells - 1
        for i in members:
            drawn = rng.choice(distractors, cells - 1, replace=few)
            shown[i] = np.insert(drawn, cell[i], i)
    tiles = Features.from_tiles(height, width, (grid, grid))
    scenes = np.empty(x.shape, np.result_type(x, np.float32))
    for c, pixels in enumerate(tiles.groups):
        (top, left), (bottom, right) = (divmod(int(corner), width) for corner in pixels[[0, -1]])
        small = shrink(x, bottom + 1 - top, right + 1 - left)
        scenes[:, :, top : bottom + 1, left : right + 1] = small[shown[:, c]]
    mask = tiles.feature_index.reshape(height, width) == cell[:, None, None]
    return Scenes(scenes, y.copy(), cell, mask, grid)


def shrink(x: Array, height: int, width: int) -> Array:
    """Shrink images (..., H, W): each new pixel is the mean of the area it covers.

    By a whole factor this is average pooling; otherwise a pixel that straddles an edge counts on each side by its part.
    """
    down, across = _areas(x.shape[-2], height), _areas(x.shape[-1], width)
    out: Array = down @ x @ across.T
    return out.astype(np.result_type(x, np.float32), copy=False)


def _areas(before: int, after: int) -> Array:
    """The weight of each old pixel in each new one along a side, (after, before); rows add up to 1."""
    edges = np.arange(after + 1) * before / after
    left, right = edges[:-1, None], edges[1:, None]
    place = np.arange(before)
    covered = np.clip(np.minimum(right, place + 1) - np.maximum(left, place), 0, None)
    out: Array = covered / covered.sum(axis=1, keepdims=True)
    return out


def _check_scenes(x: Array, y: Array, grid: int) -> None:
    if x.ndim != 4 or y.shape != x.shape[:1]:
        raise BadInput(
            f"images {x.shape} and classes {y.shape} do not match: give (n, C, H, W) and (n,)",
            code="mismatched-shapes",
        )
    if not 2 <= grid <= min(x.shape[2:]):
        raise BadInput(
            f"grid = {grid}: a scene of {x.shape[2]} x {x.shape[3]} pixels needs at least 2 cells a side",
            code="grid-out-of-range",
        )
    if len(np.unique(y)) < 2:
        raise BadInput(
            "scenes need images of at least two classes: each image is placed among images of other classes",
            code="too-few-classes",
        )


NOISE, CENTRE, CELLS, SHUFFLED = "noise", "centre blob", "blob per cell", "shuffled weights"
SHUFFLES = 3
"""Number of nets with shuffled weights that are averaged."""

_MAPS = 10_000  # of noise, so that few images have no luck with it
_PIXELS = 2**22  # that they may have together
_CELLS = 2  # blobs on a side where the rule makes no scenes


def baselines(
    model: Any, theta: Array, x: Array, y: Array, masks: Array | None, rule: RationaleRule
) -> dict[str, dict[str, float]]:
    """Baseline -> its scores on images x (n, C, H, W) of classes y (n,): `xai`, `in_mask` and `iou` with masks, `grid` with
    scenes, and of shuffled weights all that the net itself is scored by. Means over many maps of noise and several shuffles.
    """
    scenes = rule.scenes(x, y)
    cells = None if scenes is None else scenes.cell
    shape = (len(x), *x.shape[2:])
    marked = masks if masks is not None and usable_masks(masks).any() else None
    blind = {
        CENTRE: centre_blob(shape),
        CELLS: cell_blobs(shape, rule.grid or _CELLS),
    }
    return {
        NOISE: _score_noise(shape, marked, cells, rule),
        **{name: _score_blind(heat, marked, cells, rule) for name, heat in blind.items()},
        SHUFFLED: _score_shuffled(model, theta, x, y, masks, rule),
    }


def shuffle_weights(model: Any, theta: Array, rng: np.random.Generator) -> Array:
    """Shuffle the entries within each parameter block of a net.

    Shuffling within blocks keeps the scale of each layer's weights, so that signals pass through and only the learnt structure
    is lost. Shuffled over all blocks, a net would saturate and be too weak a baseline.
    """
    out = theta.copy()
    for _, span, _ in model.layout.slices:
        out[span] = rng.permutation(theta[span])
    return out


def _score_noise(
    shape: tuple[int, ...], masks: Array | None, cells: Array | None, rule: RationaleRule
) -> dict[str, float]:
    """Score noise: the mean over many draws."""
    times = max(1, min(_MAPS // shape[0], _PIXELS // int(np.prod(shape))))
    heat = uniform_noise((times * shape[0], *shape[1:]), generator(rule.seed, purpose="noise to compare with"))
    many = None if masks is None else np.tile(masks, (times, 1, 1))
    return _score_blind(heat, many, None if cells is None else np.tile(cells, times), rule)


def _score_blind(heat: Array, masks: Array | None, cells: Array | None, rule: RationaleRule) -> dict[str, float]:
    numbers = {} if masks is None else HeatScores.from_heat(heat, masks, rule).figures()
    return numbers if cells is None else {**numbers, "grid": mean(score_scenes(heat, cells, rule.grid))}


def _score_shuffled(
    model: Any, theta: Array, x: Array, y: Array, masks: Array | None, rule: RationaleRule
) -> dict[str, float]:
    rng = generator(rule.seed, purpose="shuffled weights")
    runs = [
        score_images(rule, model, shuffle_weights(model, theta, rng), x, y, masks).figures() for _ in range(SHUFFLES)
    ]
    return {
        name: mean(np.array([t[name] for t in runs], float)) for name in runs[0] if name not in ("pictures", "scored")
    }
