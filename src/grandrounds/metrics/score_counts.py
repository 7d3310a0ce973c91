"""Patients counted by predicted risk and outcome, in cells that hide small counts: the data of the threshold explorer.

The counts come from the histograms of test rows that sites report in every evaluation; nothing else is asked for. Cells of a
hospital are merged until each count is 0 or at least the least count that a run shows. Cells of all hospitals together have at
least so many patients: the decision curve of the same run states their counts by outcome at each percent. The run's threshold is
always an edge, since the scores of a run state the counts on either side of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from grandrounds.metrics.classification import BINS, Array, edge_probability, grid_position
from grandrounds.metrics.confusion import Decisions
from grandrounds.metrics.tally import Tally

_RISKS = np.concatenate([[0.002, 0.005], np.arange(0.01, 0.2, 0.005), np.arange(0.2, 1.0, 0.01)])
"""Risks at which cells may begin, before they are moved to the nearest edge of the grid of scores."""
_CLOSE = 1e-9


@dataclass(frozen=True)
class ScoreCounts:
    """Patients of one hospital, or of all, counted by predicted risk.

    Attributes:
        edges: (C + 1,) risks between the cells, from 0 to 1; a cell includes its lower edge.
        events: (C,) patients with the event.
        others: (C,) patients without it.
        expected: Sum of the predicted risks; None where it is not known.
    """

    edges: tuple[float, ...]
    events: tuple[int, ...]
    others: tuple[int, ...]
    expected: float | None = None

    def __post_init__(self) -> None:
        cells = len(self.edges) - 1
        if cells < 1 or len(self.events) != cells or len(self.others) != cells:
            raise ValueError(f"{len(self.edges)} edges need {cells} counts of events and of others")
        if list(self.edges) != sorted(self.edges) or min(*self.events, *self.others) < 0:
            raise ValueError("edges must rise, and counts must not be negative")

    @property
    def rows(self) -> int:
        return sum(self.events) + sum(self.others)

    def decide(self, edge: int) -> Decisions:
        """Count decisions at an edge.

        Args:
            edge: Its index, 0 to C.
        """
        caught, alarms = sum(self.events[edge:]), sum(self.others[edge:])
        return Decisions(self.edges[edge], caught, sum(self.events) - caught, alarms, sum(self.others) - alarms)

    def find_edges(self, threshold: float) -> tuple[int, int]:
        """Return the edges next to a threshold, below and above it; twice the same one where the threshold is an edge."""
        exact = [k for k, edge in enumerate(self.edges) if abs(edge - threshold) < _CLOSE]
        if exact:
            return exact[0], exact[0]
        above = int(np.searchsorted(self.edges, threshold))
        return max(0, above - 1), min(above, len(self.edges) - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        return {
            "edges": list(self.edges),
            "events": list(self.events),
            "others": list(self.others),
            **({} if self.expected is None else {"expected": self.expected}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ScoreCounts:
        """Read what `to_dict` wrote.

        Raises:
            ValueError, KeyError, TypeError: The record is damaged.
        """
        expected = values.get("expected")
        return cls(
            tuple(float(e) for e in values["edges"]),
            tuple(int(n) for n in values["events"]),
            tuple(int(n) for n in values["others"]),
            None if expected is None else float(expected),
        )


def count_scores(tally: Tally, threshold: float, least: int, *, by_outcome: bool = True) -> ScoreCounts | None:
    """Count the patients of a two-class tally by predicted risk.

    Args:
        tally: The tally of all rows, without leading axes.
        threshold: The run's threshold, always an edge.
        least: The smallest count that is shown; smaller ones are merged with a neighbour on their side of the threshold.
        by_outcome: Patients with and without the event are counted by themselves against `least`.

    Returns:
        The counts; None without rows, or with three classes or more.
    """
    if not tally.binary or tally.shape or not float(tally.count) or not 0 <= threshold <= 1:
        return None
    cut = round(grid_position(threshold))
    edges = np.unique([round(grid_position(float(p))) for p in _RISKS])
    edges = np.unique(np.concatenate([[0], edges, [cut, BINS]]))
    others, events = np.add.reduceat(np.asarray(tally.histogram[0], np.int64), edges[:-1], axis=1)
    below = int(np.searchsorted(edges, cut))
    left = _merge(events[:below][::-1], others[:below][::-1], least, by_outcome)[::-1]  # from the threshold downwards
    right = _merge(events[below:], others[below:], least, by_outcome)
    sizes = [*(len(group) for group in left), *(len(group) for group in right)]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int).tolist()
    cells = list(pairwise(starts))
    return ScoreCounts(
        tuple(edge_probability(int(edges[s])) for s in starts),
        tuple(int(events[a:b].sum()) for a, b in cells),
        tuple(int(others[a:b].sum()) for a, b in cells),
        float(tally.reliability[..., 1].sum()),
    )


def _merge(events: Array, others: Array, least: int, by_outcome: bool) -> list[list[int]]:
    """Group neighbouring cells until each group has `least` patients and, `by_outcome`, counts that are 0 or at least `least`.

    Cells that are left at the end join the group before them. All cells together may have smaller counts.
    """

    def is_large(group: list[int]) -> bool:
        counts = (int(events[group].sum()), int(others[group].sum()))
        return sum(counts) >= least and (not by_outcome or all(n == 0 or n >= least for n in counts))

    groups: list[list[int]] = [[]]
    for k in range(len(events)):
        groups[-1].append(k)
        if is_large(groups[-1]):
            groups.append([])
    while len(groups) > 1 and not is_large(groups[-1]):
        rest = groups.pop()
        groups[-1] += rest
    return [group for group in groups if group]


def summarise_scores(
    total: Tally,
    by_site: Mapping[str, Tally],
    *,
    threshold: float,
    least: int,
    hidden: str = "",
) -> dict[str, Any]:
    """Build `score_counts` of summary.json.

    Args:
        total: The tally of the test rows of all sites.
        by_site: The tally of each site whose scores the run states; empty where sites sent sums only.
        threshold: The run's threshold.
        least: The smallest count that is shown.
        hidden: Why there are no counts of single sites: "secure", "budget" or "many"; "" where there are.

    Returns:
        The record; empty without test rows, or with three classes or more.
    """
    found = count_scores(total, threshold, least, by_outcome=False)
    if found is None:
        return {}
    sites = {site: count_scores(tally, threshold, least) for site, tally in by_site.items()}
    return {
        "threshold": threshold,
        "least": least,
        "all": found.to_dict(),
        "sites": {site: counts.to_dict() for site, counts in sites.items() if counts is not None},
        **({"hidden": hidden} if hidden else {}),
    }
