"""Variances of shrunk intercepts, tried side by side in each exchange: the best by Laplace's value is kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grandrounds.capabilities.statistics.newton import Path
from grandrounds.core.arrays import Array

_LOWEST, _HIGHEST = 1e-3, 1e3  # the grid is extended up to here
_NEAR = 0.5  # a decrement at which the best may be looked for beyond the grid


class VarianceGrid:
    """Variances of shrunk intercepts in the current question, with one Newton path each.

    Attributes:
        tau2: The variances asked for; [0] without shrunk intercepts.
        paths: Their paths, in the same order.
    """

    def __init__(self, tau2: Sequence[float]) -> None:
        """Start with all variances of a grid.

        Args:
            tau2: The variances; one alone is fixed.
        """
        self.tau2 = sorted(tau2)
        self.paths: list[Path] = []
        self._tried = list(self.tau2)

    def extend(self, best: int) -> bool:
        """Add two variances beyond the end of the grid if the best is there.

        Args:
            best: Place of the best variance.

        Returns:
            True if variances were added.
        """
        value, path = self.tau2[best], self.paths[best]
        more: list[float] = []
        if len(self._tried) > 1 and path.decrement < _NEAR:
            if value == max(self._tried) and value < _HIGHEST / 2:
                more = [3 * value, 10 * value]
            if value == min(self._tried) and value > _LOWEST * 2:
                more = [value / 10, value / 3]
        self._tried += more
        self._add(more, path)
        return bool(more)

    def drop(self, merits: Array, best: int) -> None:
        """Ask no longer for variances that cannot become the best: their values are lower by more than steps can add.

        Args:
            merits: Laplace's value of each variance.
            best: Place of the best.
        """
        if not np.isfinite(merits[best]):
            return
        slack = np.sqrt([path.decrement for path in self.paths])
        keep = np.flatnonzero(merits[best] - merits <= 2 * (slack + slack[best]))
        self.tau2, self.paths = [self.tau2[i] for i in keep], [self.paths[i] for i in keep]

    def restore(self, best: int) -> None:
        """Compare all variances again: a site has left, and earlier values were sums over other sites.

        Args:
            best: Place of the best variance, from whose point the others start.
        """
        self._add([tau2 for tau2 in self._tried if tau2 not in self.tau2], self.paths[best])

    def describe_edge(self, best: int) -> str:
        """Return a sentence if the best variance is at an end of the grid; "" otherwise."""
        value = self.tau2[best]
        if len(self._tried) < 2 or value not in (min(self._tried), max(self._tried)):
            return ""
        end = "top of the grid: hospitals differ widely"
        if value == min(self._tried):
            end = "bottom of the grid: hospitals hardly differ"
        return f"the variance of the intercepts, {value:g}, is at the {end}"

    def _add(self, more: Sequence[float], path: Path) -> None:
        """Add variances whose paths start at the point of another."""
        self.tau2 += more
        self.paths += [path.branch() for _ in more]
