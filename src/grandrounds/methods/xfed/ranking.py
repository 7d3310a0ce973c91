"""Step 4.2 of XFed: fuse accuracy and XAI accuracy into one score, rank the sites by it, and keep the best."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.explain.rationale import REPORT
from grandrounds.methods.weigh import data_size
from grandrounds.protocol.messages import Answers

SIGNALS = {"accuracy": "accuracy", "loss": "cross_entropy", "xai": "xai", "grid": "grid"}
"""Signal of each report; "loss" is that of the model before training, as in other selection rules."""

EXPLANATIONS = {"masks": "XAI accuracy", "grid": "grid accuracy"}
"""Name of the score of explanations, by method.xfed.score."""


@dataclass(frozen=True)
class SiteScores:
    """The scores that sites report of their models on the scoring images, each (K,): step 4.1."""

    accuracy: Array
    cross_entropy: Array
    xai: Array
    grid: Array

    @classmethod
    def from_answers(cls, answers: Answers) -> SiteScores:
        """Read the report `rationale` of the sites that answered."""
        return cls(**{signal: np.asarray(answers[f"{REPORT}.{name}"], float) for name, signal in SIGNALS.items()})

    @property
    def signals(self) -> dict[str, Array]:
        """The scores by name, without those that no site could compute."""
        return {name: values for name, values in vars(self).items() if np.isfinite(values).any()}

    def performance(self, measure: str) -> Array:
        """Return the accuracy, or for measure 'cross-entropy' (eq. 5) exp(-loss), which is in (0, 1] too."""
        out: Array = self.accuracy if measure == "accuracy" else np.exp(-self.cross_entropy)
        return out

    def explanations(self, score: str) -> Array:
        """Return XAI accuracy for score 'masks', grid accuracy for 'grid'."""
        return self.xai if score == "masks" else self.grid


@dataclass(frozen=True)
class Ranking:
    """Sites ranked by their fused score: score (K,), place from 1 (K,), and the selected (K,)."""

    score: Array
    place: Array
    selected: Array

    def best(self, sites: tuple[str, ...]) -> tuple[str, ...]:
        """Name the selected sites."""
        return tuple(s for s, selected in zip(sites, self.selected, strict=True) if selected)


def fuse_scores(accuracy: Array, explanations: Array, xai_share: float) -> Array:
    """xai_share * XAI accuracy + (1 - xai_share) * accuracy; if no image could be scored, XAI accuracy is 0."""
    out: Array = xai_share * np.nan_to_num(explanations) + (1 - xai_share) * accuracy
    return out


def count_selected(count: int, keep: float) -> int:
    """Count the sites that send their models: ceil(keep * K), and at least one of several is left out."""
    return max(1, min(ceil(keep * count - 1e-9), count - 1))


def rank_sites(score: Array, accuracy: Array, sites: tuple[str, ...], *, keep: float) -> Ranking:
    """Rank sites, the best first, and select `count_selected` of them; ties by accuracy, then by name."""
    order = sorted(range(len(sites)), key=lambda k: (-score[k], -accuracy[k], sites[k]))
    place = np.empty(len(sites), np.int64)
    place[order] = np.arange(1, len(sites) + 1)
    return Ranking(score, place, place <= count_selected(len(sites), keep))


def rank_weights(place: Array) -> Array:
    """Compute weights (m,) by rank, from 1 (sec. 5.5): the first of m has m times the weight of the last."""
    return data_size(place.max() + 1.0 - place)
