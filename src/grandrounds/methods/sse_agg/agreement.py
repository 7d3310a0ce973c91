"""Agreement of explanations in one round: which sites are compared with which consensus, and what a form of it returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.plan_types import WeighSettings

MIN_COHORT_SITES = 2
"""Fewest sites of a cohort with its own consensus; a single site is compared with all sites instead."""

DEFAULT_SHARPNESS = {"outlier": 4.0, "inverse": 1.0}


@dataclass(frozen=True)
class Agreement:
    """The agreement signal of the sites that answered.

    `trust`: (K,), 1 for a site in full agreement. `shares`: the signal, which sums to 1. `numbers`: (K,) each, and `notes`:
    sentences, both for the Decision.
    """

    trust: Array
    shares: Array
    numbers: Mapping[str, Array]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Sites whose explanations are compared with one consensus.

    `members`: the sites. `compared`: the sites with whom they are compared, themselves among them: their cohort, or all sites for
    one that is alone in its cohort. `speaking`: of the compared, (C,) of bool, those whose model uses a feature. Only they
    form the consensus; if none uses any, all do.
    """

    members: Array
    compared: Array
    speaking: Array

    def of_members(self, values: Array) -> Array:
        """Select the members' values from those of the compared sites, (C,)."""
        return values[np.isin(self.compared, self.members)]


def comparisons(flat: Array, cohorts: Array | None) -> Iterator[Comparison]:
    """Yield one comparison for each cohort; a single one of all sites where there are no cohorts (Algorithm 1)."""
    labels = np.zeros(len(flat), np.int64) if cohorts is None else cohorts
    for cohort in np.unique(labels):
        members = np.flatnonzero(labels == cohort)
        compared = members if len(members) >= MIN_COHORT_SITES else np.arange(len(labels))
        speaking = np.ones(len(compared), bool) if flat[compared].all() else ~flat[compared]
        yield Comparison(members, compared, speaking)


def limit_flat(trust: Array, flat: Array) -> Array:
    """Limit the trust in models that use no feature to that of the site that agrees least.

    Their sketch is uniform and may be near the consensus by accident; as printed they would get the most weight.
    """
    if not flat.any() or flat.all():
        return trust
    out: Array = np.where(flat, np.minimum(trust, trust[~flat].min()), trust)
    return out


def describe_flat(sites: Sequence[str], flat: Array) -> list[str]:
    """Name the sites whose model uses no feature."""
    if flat.all():
        return ["no site's model uses any feature, so weights follow rows alone"]
    end = "its model uses no feature, so its weight by explanations is at most the lowest of the others'"
    return [f"{site}: {end}" for site in np.array(sites)[flat]]


def resolve_sharpness(settings: WeighSettings) -> float:
    """Return the exponent of agreement: as given, or the default of the form."""
    return DEFAULT_SHARPNESS[settings.form] if settings.sharpness is None else float(settings.sharpness)


def is_explained_round(settings: WeighSettings, round: int) -> bool:
    """Check whether this round requests explanations: the first and then every T_s-th (the paper: every T_s-th)."""
    return settings.every == 1 or round % settings.every == 0 or (settings.between_rounds == "last" and round == 1)
