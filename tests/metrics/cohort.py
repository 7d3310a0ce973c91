"""Made-up cohorts with the shape of real ones, split over uneven sites."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from grandrounds.metrics import Tally, tally


@dataclass(frozen=True)
class Cohort:
    """Logits (n, 1) or (n, C), labels (n,) and the site of each row (n,)."""

    logits: np.ndarray
    y: np.ndarray
    site: np.ndarray
    sites: int
    classes: int

    def federated(self) -> Tally:
        """The consortium's tally as a deployed federation makes it: a tally per site, sent and added."""
        sent = []
        for k in range(self.sites):
            own = self.site == k
            sent.append(tally(self.logits[own], self.y[own], classes=self.classes).arrays())
        return reduce(add, [Tally.from_arrays(arrays) for arrays in sent])


def uneven_sites(rng: np.random.Generator, *, rows: int, sites: int) -> np.ndarray:
    """A site for each row, the largest many times the smallest."""
    return rng.choice(sites, size=rows, p=rng.dirichlet(np.full(sites, 0.7)))


def binary_cohort(
    seed: int, *, rows: int = 20_000, prevalence: float = 0.089, sharpness: float = 1.0, sites: int = 12
) -> Cohort:
    """A risk model with an AUROC near 0.85; sharpness 1 is about calibrated, 8 is saturated."""
    rng = np.random.default_rng(seed)
    y = (rng.random(rows) < prevalence).astype(int)
    marker = 1.3 * rng.normal(size=rows) + 1.9 * y
    z = sharpness * (marker - 0.95) + np.log(prevalence / (1 - prevalence))
    return Cohort(z[:, None], y, uneven_sites(rng, rows=rows, sites=sites), sites, 2)


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-z))


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def log_odds(p: list[float]) -> np.ndarray:
    """Logits (n, 1) of given probabilities, for cases worked out by hand."""
    q = np.array(p)
    return np.log(q / (1 - q))[:, None]
