"""Outcomes of the patients of one hospital that are most like a given one.

Rows are compared as the model sees them: numbers scaled, categories as columns of zeros and ones, missing values filled in. Only
the hospital's own rows are read, on its own machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.metrics.statistics import share_interval

NEAREST = 30
"""Patients that are counted, at most."""
SHARE = 1 / 3
"""Share of the hospital's patients that are counted, at most: "most like" must mean a minority."""
LEAST = 10
"""With fewer patients nothing is shown: their share would say nothing, and might point at one of them."""


@dataclass(frozen=True)
class SimilarPatients:
    """The outcomes of the nearest patients.

    Attributes:
        site: The hospital.
        n: The number of patients.
        events: Those with the event.
        event: The event as text.
        low: Lower end of Wilson's 95% interval of the share.
        high: Its upper end.
    """

    site: str
    n: int
    events: int
    event: str
    low: float
    high: float

    @property
    def sentence(self) -> str:
        """The outcomes as a sentence."""
        return (
            f"Of the {self.n} patients of {self.site} most like this one, {self.events} had {self.event}: "
            f"{self.events / self.n:.0%} (95% CI {self.low:.0%} to {self.high:.0%})."
        )


def nearest_rows(inputs: Array, patient: Array, allowed: Array, *, count: int = NEAREST) -> Array:
    """Find the rows nearest to a patient by Euclidean distance; of equally near rows the first.

    Args:
        inputs: Rows (n, d) as the model sees them.
        patient: The patient (d,).
        allowed: (n,) rows that may be counted.
        count: Rows to find, but no more than `SHARE` of those allowed.

    Returns:
        Their places in `inputs`, the nearest first.
    """
    places = np.flatnonzero(allowed)
    count = min(count, int(SHARE * len(places)))
    difference = inputs[places].astype(np.float64) - np.asarray(patient, np.float64)
    order = np.argsort(np.einsum("ij,ij->i", difference, difference), kind="stable")
    found: Array = places[order[:count]]
    return found


def count_outcomes(
    outcomes: Sequence[str | None], rows: Array, *, target_class: str, event: str, site: str
) -> SimilarPatients | None:
    """Count the outcomes of some rows.

    Args:
        outcomes: The outcome of each row.
        rows: The rows that count.
        target_class: The class that is the event.
        event: The event as text.
        site: The hospital that the rows are of.

    Returns:
        The counts; None for fewer than `LEAST` rows.
    """
    if len(rows) < LEAST:
        return None
    events = sum(outcomes[int(row)] == target_class for row in rows)
    low, high = share_interval(events / len(rows), len(rows))
    return SimilarPatients(site, len(rows), events, event, low, high)
