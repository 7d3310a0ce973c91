"""Measures of heat maps: sharpness, faithfulness, overlap with the mask, and similarity of two models' maps.

The FL-XAI thesis compares heat maps by eye (sec. 4.6, 4.10). Here each map of each image gives numbers; images are not moved. A
map explains the image's label, so that the maps of two models explain the same class. A map may be empty: Grad-CAM has positive
evidence only, and there may be none for the label. Empty ("dark") maps are counted and left out of the other numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput
from grandrounds.explain.agreement import mass_in_mask
from grandrounds.explain.explainers.heat import heat
from grandrounds.explain.explainers.registry import MAPS
from grandrounds.explain.quality import concentration, correlation, deletion_auc, gini, insertion_auc, similarity
from grandrounds.models.dense import class_probabilities

REPORT = "maps"
"""The task that asks for maps, the report of their numbers, and their place in a round's record."""

KEEP = "maps_keep"
"""Setting of a training Ask: the site stores its trained model until maps are requested."""

TITLES = MAPS
"""The maps that a run can make, and their titles."""

LOCAL, COMMON = "local", "common"
MAP_NUMBERS = ("concentration", "gini", "inside", "deletion", "insertion", "dark")
SIMILARITY_NUMBERS = ("ssim", "rank")
NUMBERS: dict[str, tuple[str, ...]] = {
    LOCAL: MAP_NUMBERS,
    COMMON: MAP_NUMBERS,
    "alike": SIMILARITY_NUMBERS,
    "since": tuple(f"{model}_{number}" for model in (LOCAL, COMMON) for number in SIMILARITY_NUMBERS),
}
"""The numbers of one kind of map at one site, in the order in which they are sent."""

SIZE = sum(map(len, NUMBERS.values()))
PARTNERS = 20
"""Number of sites up to which all pairs are compared; of more sites, this many are drawn."""


@dataclass(frozen=True)
class MapRule:
    """Heat maps to make and the number of images; the seed draws the images and the noise of integrated gradients."""

    names: tuple[str, ...]
    rows: int
    seed: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> MapRule:
        """Read the rule of a message; refuse anything unknown in it."""
        try:
            values = json.loads(text)
            return cls(tuple(values.pop("names")), **values)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise BadInput(
                "the Ask's rule for heat maps cannot be read: server and site run different versions",
                code="unreadable-rule",
            ) from None


@dataclass(frozen=True, eq=False)
class ModelMaps:
    """Heat maps of J models on n images."""

    heat: Mapping[str, Array]  # map -> (J, n, H, W), at least 0; heat that is not finite is dark
    numbers: Mapping[str, Array]  # map -> (J, OF_ONE), means over images
    probabilities: Array  # (J, n, C) probabilities


def measure_maps(rule: MapRule, model: Any, theta: Array, x: Array, y: Array, masks: Array | None) -> ModelMaps:
    """Make and measure the maps of models (J, P) on images (n, C, H, W).

    Args:
        rule: The maps to make.
        model: Describes the models.
        theta: The models.
        x: The images.
        y: The class (n,) that each image's map is of: its label.
        masks: Truth masks (n, H, W), if known.

    Returns:
        The maps, their measures and the models' probabilities.
    """
    heats, numbers = {}, {}
    for name in rule.names:
        maps = heat(name, model, theta, x, y, seed=rule.seed)
        fine: Array = np.asarray(np.isfinite(maps).all(axis=(2, 3)))
        heats[name] = np.where(fine[..., None, None], maps, 0)
        rows = [_measure_map(model, vector, x, y, h, masks) for vector, h in zip(theta, heats[name], strict=True)]
        numbers[name] = np.stack([mean(vector) for vector in rows])
    return ModelMaps(heats, numbers, np.stack([_probabilities(model, vector, x) for vector in theta]))


def compare_maps(a: Array, b: Array) -> Array:
    """Average SSIM and Spearman's rank correlation over pixels of maps (n, H, W) with maps (n, H, W) over images: (2,)."""
    return mean(_compare_pairs(a, b, ranks(a), ranks(b)))


def mean_site_similarity(maps: Array) -> Array:
    """Average `compare_maps` (2,) over all pairs of K sites of their maps (K, n, H, W) of the same images."""
    ranked = ranks(maps)
    rows = []
    for i in range(len(maps) - 1):
        first, rest = np.broadcast_to(maps[i], maps[i + 1 :].shape), maps[i + 1 :]
        rows.append(_compare_pairs(first, rest, ranked[i], ranked[i + 1 :]).reshape(-1, len(SIMILARITY_NUMBERS)))
    return mean(np.concatenate(rows))


def ranks(maps: Array) -> Array:
    """Rank each pixel within its map, ties at their mean: (..., H, W) to (..., pixels)."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(maps.reshape(*maps.shape[:-2], -1), axis=-1))


def mean(values: Array) -> Array:
    """Average over the first axis, NaN left out; NaN where nothing is left."""
    defined = ~np.isnan(values)
    count = defined.sum(axis=0)
    out: Array = np.where(count > 0, np.where(defined, values, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)
    return out


def label_numbers(numbers: Array, names: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Label numbers (M, SIZE) as a record has them: map -> local, common, alike, since -> name -> number."""
    ends = np.cumsum([len(names) for names in NUMBERS.values()])[:-1]
    return {
        name: {
            block: dict(zip(keys, part.tolist(), strict=True))
            for (block, keys), part in zip(NUMBERS.items(), np.split(row, ends), strict=True)
        }
        for name, row in zip(names, numbers, strict=True)
    }


def _compare_pairs(a: Array, b: Array, ranked_a: Array, ranked_b: Array) -> Array:
    """SSIM and rank correlation (..., 2) of maps (..., H, W); NaN if both are dark."""
    numbers = np.stack([similarity(a, b), correlation(ranked_a, ranked_b)], axis=-1)
    lit = np.asarray(a.any(axis=(-1, -2)) | b.any(axis=(-1, -2)))
    out: Array = np.where(lit[..., None], numbers, np.nan)
    return out


def _measure_map(model: Any, theta: Array, x: Array, y: Array, heat: Array, masks: Array | None) -> Array:
    """Return the numbers (n, MAP_NUMBERS) of one model's map of each image; of a dark map only the flag. A removed pixel is
    replaced by 0, the encoded mean.
    """

    def score(images: Array) -> Array:
        return np.asarray(_probabilities(model, theta, images)[np.arange(len(y)), y])

    inside = np.full(len(heat), np.nan) if masks is None else mass_in_mask(heat, masks)
    flat = heat.reshape(len(heat), -1)
    dark = ~np.asarray(flat.any(axis=1))
    columns = (concentration(heat), gini(flat), inside, deletion_auc(score, x, heat), insertion_auc(score, x, heat))
    return np.column_stack([np.where(dark[:, None], np.nan, np.stack(columns, axis=1)), dark])


def _probabilities(model: Any, theta: Array, x: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return class_probabilities(np.asarray(model.logits(theta, x), float))
