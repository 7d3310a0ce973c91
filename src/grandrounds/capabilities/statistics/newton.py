"""Newton's method on sums: one step an exchange, with step halving, convergence, separation and aliased columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import RunFailed

CONVERGED = 1e-16
"""Newton decrement below which a fit ends: a step of 1e-8 standard errors."""

ALIASED = 1e-9
"""Share of a column's sum of squares that must be its own; a column with less is a combination of columns before it."""

CONSTANT = "constant"
NO_ROWS = "no rows"
COMBINATION = "is a combination of columns before it"

_FLOOR = 1e-8  # below this decrement, slow progress means that rounding ends it
_FALL = 1e-2  # least fall of the decrement in an exchange near the end
_HALVINGS = 10
_ALIKE = (0.30, 0.45)  # ratio of decrements of a coefficient that runs away: 1 / e
_RATIOS = 3
_RUNAWAY = 0.5  # change of the log-odds in one step


def pack_upper(matrix: Array) -> Array:
    """Return the upper triangle of (..., q, q) by rows: (..., q (q + 1) / 2)."""
    rows, columns = _upper(matrix.shape[-1])
    return matrix[..., rows, columns]


def unpack_upper(packed: Array, size: int) -> Array:
    """Return the symmetric matrix (..., q, q) of an upper triangle by rows."""
    rows, columns = _upper(size)
    matrix = np.zeros((*packed.shape[:-1], size, size))
    matrix[..., rows, columns] = packed
    matrix[..., columns, rows] = packed
    return matrix


@cache
def _upper(size: int) -> tuple[Array, Array]:
    """Return rows and columns of the upper triangle."""
    rows, columns = np.triu_indices(size)
    return rows, columns


def count_upper(size: int) -> int:
    """Return the number of entries of the upper triangle of a (q, q) matrix."""
    return size * (size + 1) // 2


def solve(matrix: Array, right: Array) -> Array:
    """Solve a symmetric positive definite system after scaling it to a unit diagonal.

    Args:
        matrix: (q, q).
        right: (q,) or (q, m).

    Returns:
        The solution, in the shape of `right`.

    Raises:
        RunFailed: The matrix is not positive definite: the log-likelihood has no single maximum.
    """
    from scipy import linalg

    size = np.sqrt(np.diag(matrix)) if len(matrix) else np.ones(0)
    try:
        if not (np.isfinite(matrix).all() and (size > 0).all()):
            raise linalg.LinAlgError
        factor = linalg.cho_factor(matrix / np.outer(size, size))
    except linalg.LinAlgError:
        raise RunFailed(
            "the fit diverged: the information matrix is singular at the coefficients reached. "
            "Set a ridge penalty, or leave out columns that nearly repeat each other",
            code="fit-diverged",
        ) from None
    scale = size.reshape(-1, *(1,) * (right.ndim - 1))
    return np.asarray(linalg.cho_solve(factor, right / scale) / scale)


def invert(matrix: Array) -> Array:
    """Return the inverse of a symmetric positive definite matrix, exactly symmetric."""
    inverse = solve(matrix, np.eye(len(matrix)))
    return np.asarray((inverse + inverse.T) / 2)


def find_aliased(information: Array, squares: Array | None = None, *, has_intercept: bool = True) -> dict[int, str]:
    """Find columns that are constant, empty or combinations of columns before them.

    Runs Cholesky's factorisation in the order of the columns, the intercept first, and skips each column of which less than
    `ALIASED` remains.

    Args:
        information: (q, q) sums of (weighted) products of columns.
        squares: (q,) sums of squares of the columns, if `information` holds products about a mean; None: its diagonal.
        has_intercept: True if the first column is the intercept.

    Returns:
        The reason by index of the column.
    """
    squares = np.diag(information) if squares is None else squares
    scale = np.sqrt(np.where(squares > 0, squares, 1.0))
    rest = information / np.outer(scale, scale)
    found: dict[int, str] = {}
    for j in range(len(rest)):
        own = rest[j, j]
        if own > ALIASED:
            rest = rest - np.outer(rest[:, j], rest[j]) / own
        else:
            found[j] = COMBINATION if squares[j] > ALIASED else NO_ROWS
    if has_intercept and found:
        first = information[0]
        alone = np.diag(information) - first**2 / first[0]
        for j in found:
            if found[j] == COMBINATION and alone[j] <= ALIASED * squares[j]:
                found[j] = CONSTANT
    return found


@dataclass
class Path:
    """Newton's path to one maximum: the point at which sites are asked now, and what is known from earlier exchanges.

    Attributes:
        beta: (q,) coefficients at which the next question is asked.
        penalty: (q,) ridge penalty of each coefficient.
        longest: Largest change of a coefficient in one step.
        is_linear: True if convergence may be linear (lagged terms): slow progress is then no sign of the rounding floor.
        has_converged: True once the last total was at the maximum; `beta` is then final.
        information: (q, q) of the last total, without the penalty.
        value: Log-likelihood at the last total, without the penalty.
        decrement: U' H^-1 U of the last total, penalty included.
        step: (q,) the step that led from the last total to `beta`.
    """

    beta: Array
    penalty: Array
    longest: float = np.inf
    is_linear: bool = False
    has_converged: bool = False
    information: Array = field(default_factory=lambda: np.zeros((0, 0)))
    value: float = -np.inf
    decrement: float = np.inf
    step: Array = field(default_factory=lambda: np.zeros(0))
    _decrements: list[float] = field(default_factory=list)
    _base: Array | None = None  # the last point whose log-likelihood was accepted
    _base_value: float = -np.inf
    _halvings: int = 0

    def branch(self) -> Path:
        """Return a new path from the same point, without history."""
        return Path(self.beta, self.penalty, self.longest, self.is_linear, information=self.information)

    def keep(self, columns: Sequence[int]) -> None:
        """Keep these coefficients and leave the others out.

        Args:
            columns: Places of the coefficients that stay.
        """
        self.beta, self.penalty = self.beta[columns], self.penalty[columns]
        self.information = self.information[np.ix_(columns, columns)]

    def forget(self) -> None:
        """Drop all that comes from earlier totals: a site has left, and they were sums over other sites."""
        self._decrements.clear()
        self._base, self._base_value, self._halvings = None, -np.inf, 0

    def advance(self, score: Array, information: Array, value: float, *, scale: float = 1.0) -> None:
        """Take the total at `beta` and move to the next point.

        A step that lowered the penalised log-likelihood is halved, ten times at most.

        Args:
            score: (q,) summed score U.
            information: (q, q) summed information H.
            value: Summed log-likelihood.
            scale: Residual variance, by which the decrement is divided.

        Raises:
            RunFailed: Halved steps do not raise the log-likelihood, or the information is singular.
        """
        penalised = value - 0.5 * float(np.sum(self.penalty * self.beta**2))
        if self._base is not None and penalised < self._base_value - 1e-9 * (1 + abs(self._base_value)):
            self.shorten()
            return
        gradient = score - self.penalty * self.beta
        step = solve(information + np.diag(self.penalty), gradient)
        self.information, self.value = information, value
        self.decrement = float(gradient @ step) / scale
        self._base, self._base_value, self._halvings = self.beta, penalised, 0
        before = self._decrements[-1] if self._decrements else np.inf
        self._decrements.append(self.decrement)
        at_floor = not self.is_linear and self.decrement < _FLOOR and self.decrement > _FALL * before
        self.has_converged = self.decrement < CONVERGED or at_floor
        largest = float(np.abs(step).max(initial=0.0))
        self.step = step * min(1.0, self.longest / largest) if largest else step
        self.beta = self.beta + self.step

    def begin_from(self, base: Array, value: float) -> None:
        """Set the point before the first beta, with its log-likelihood: the first step can then be shortened.

        Args:
            base: (q,) the point.
            value: Log-likelihood there.
        """
        penalised = value - 0.5 * float(np.sum(self.penalty * base**2))
        self._base, self._base_value, self.step = base, penalised, self.beta - base

    def shorten(self) -> None:
        """Go back half of the last step: the log-likelihood fell, or a site's sums were out of range.

        Raises:
            RunFailed: The step was halved ten times, or there is no earlier point.
        """
        self._halvings += 1
        if self._base is None or self._halvings > _HALVINGS:
            raise RunFailed(
                f"the fit diverged: the log-likelihood falls along the step even after {_HALVINGS} halvings. "
                "Set a ridge penalty, or check columns with extreme values",
                code="fit-diverged",
            )
        self._decrements.clear()
        self.step = self.step / 2
        self.beta = self._base + self.step

    def find_runaways(self, spans: Array) -> Array:
        """Return the indices of coefficients that grow without end: outcomes are separated.

        Such a coefficient adds about 1 to its log-odds in each step and the decrement falls by e. The rule: three ratios of
        decrements in a row between 0.30 and 0.45, and a step above 0.5 over the range of a column.

        Args:
            spans: (q,) range of each column.

        Returns:
            (k,) indices; empty without separation.
        """
        last = np.asarray(self._decrements[-1 - _RATIOS :])
        if len(last) <= _RATIOS or self.has_converged:
            return np.zeros(0, int)
        ratios = last[1:] / last[:-1]
        if not ((ratios > _ALIKE[0]) & (ratios < _ALIKE[1])).all():
            return np.zeros(0, int)
        return np.flatnonzero(np.abs(self.step) * spans > _RUNAWAY)


def name_columns(names: Sequence[str]) -> str:
    """Return "'a', 'b' and 'c'" for a sentence; at most eight names."""
    shown = [f"'{n}'" for n in names[:8]]
    if len(names) > len(shown):
        return ", ".join(shown) + f" and {len(names) - len(shown)} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)
