"""Who takes part in a round."""

from __future__ import annotations

import math

import numpy as np

RULES = {"all": "every site, every round", "random": "a random share of the sites, drawn anew each round"}


def select(sites: tuple[str, ...], *, rule: str, fraction: float, rng: np.random.Generator) -> tuple[str, ...]:
    """The sites to ask, in their own order; a random share is rounded up and never empty."""
    if rule == "all":
        return sites
    keep = max(1, math.ceil(fraction * len(sites)))
    return tuple(sites[k] for k in np.sort(rng.choice(len(sites), keep, replace=False)))
