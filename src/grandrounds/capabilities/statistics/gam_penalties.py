"""Penalties of an additive model, and their weights by the method of Fellner and Schall (Wood and Fasiolo 2017)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from grandrounds.capabilities.statistics.models.column_basis import Basis, contrasts
from grandrounds.capabilities.statistics.newton import invert
from grandrounds.core.arrays import Array

ITERATIONS = 6
"""Updates of the weights between two exchanges."""

LEAST_WEIGHT, MOST_WEIGHT = 1e-3, 1e7
"""Range of a weight."""

START = 100.0
"""Weight of every penalty before the first choice: from the smooth side, so that the first steps are short."""

_ALONE = 100  # updates where another exchange would bring the same sums (linear regression)


@dataclass(frozen=True, eq=False)
class Penalty:
    """One penalty 0.5 weight b' S b on neighbouring coefficients.

    Attributes:
        first: Its first coefficient, counted with the intercept.
        matrix: S, (k, k).
        range: Projection to the range of S, (k, k).
    """

    first: int
    matrix: Array
    range: Array

    @property
    def places(self) -> slice:
        return slice(self.first, self.first + len(self.matrix))


@dataclass(frozen=True, eq=False)
class Penalties:
    """The penalties of a basis and their weights.

    Attributes:
        parts: The penalties: of a curve its second differences and, apart, the line that they leave free; a ridge for each
            group of levels, for missing values and for a step.
        weights: (parts,) their weights.
        size: Number of coefficients, with the intercept.
    """

    parts: tuple[Penalty, ...]
    weights: Array
    size: int

    @classmethod
    def build(cls, basis: Basis) -> Penalties:
        """Build the penalties of a basis, all with the weight from which the first choice begins."""
        parts = []
        for span in basis.spans:
            if span.part == "curve":
                wiggle, line = curve_penalties(basis.splines)
                parts.append(Penalty(span.first + 1, wiggle, np.eye(span.size) - line))
                parts.append(Penalty(span.first + 1, line, line))
            else:
                parts.append(Penalty(span.first + 1, np.eye(span.size), np.eye(span.size)))
        return cls(tuple(parts), np.full(len(parts), START), 1 + basis.size)

    def matrix(self) -> Array:
        """Return P, the weighted sum of all penalties, (q, q)."""
        out = np.zeros((self.size, self.size))
        for weight, part in zip(self.weights, self.parts, strict=True):
            out[part.places, part.places] += weight * part.matrix
        return out

    def choose(
        self, information: Array, right: Array, *, gamma: float, residual: tuple[float, float] | None, beta: Array
    ) -> tuple[Penalties, Array, Array, float]:
        """Choose weights from the sums of one exchange, and solve for the coefficients.

        Args:
            information: H, (q, q).
            right: r = H beta + U, (q,).
            gamma: Strength of smoothing.
            residual: For linear regression, the residual sum of squares at beta and the rows; None for other families.
            beta: (q,) at which the sums are.

        Returns:
            The penalties with new weights, b = V r, V = (H + P)^-1, and the residual variance (1 for other families).
        """
        now, phi = self, 1.0
        for _ in range(ITERATIONS if residual is None else _ALONE):
            inverse = invert(information + now.matrix())
            b = inverse @ right
            if residual is not None:
                phi = _residual_variance(information, right, b, inverse, residual, beta)
            weights, share = now.weights.copy(), inverse @ information
            for k, part in enumerate(
                now.parts
            ):  # rank - lambda tr(V S) = tr(V H R), R the range of S: no digits are lost
                free = max(float(np.sum(share[part.places, part.places] * part.range)), 0.0)
                size = float(b[part.places] @ part.matrix @ b[part.places])
                wanted = gamma * phi * free / size if size > 0 else MOST_WEIGHT
                weights[k] = min(max(wanted, LEAST_WEIGHT), MOST_WEIGHT)
            change = float(np.abs(np.log(weights / now.weights)).max(initial=0.0))
            now = replace(now, weights=weights)
            if change < 1e-6:
                break
        inverse = invert(information + now.matrix())
        return now, inverse @ right, inverse, phi


def curve_penalties(splines: int) -> tuple[Array, Array]:
    """Return the penalties of a curve's contrasts: on second differences of its coefficients, and on the line they leave free.

    Args:
        splines: Number of B-splines.

    Returns:
        Two matrices (splines - 1, splines - 1), of rank splines - 2 and 1.
    """
    turn = contrasts(splines)
    second = np.diff(np.eye(splines), 2, axis=0) @ turn
    line = turn.T @ np.arange(splines, dtype=float)
    line /= np.sqrt(line @ line)
    return second.T @ second, np.outer(line, line)


def _residual_variance(
    information: Array, right: Array, b: Array, inverse: Array, residual: tuple[float, float], beta: Array
) -> float:
    """Return the residual variance of linear regression at b, by rows less effective degrees of freedom."""
    step = b - beta
    squares, rows = residual
    score = right - information @ beta
    squares = squares - 2 * float(step @ score) + float(step @ information @ step)
    degrees = rows - float(np.sum(inverse * information))
    return max(squares, 1e-300) / max(degrees, 1.0)
