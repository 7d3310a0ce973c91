"""Newton's path of a Cox regression: named columns, those left out, and coefficients that grow without end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grandrounds.capabilities.statistics.newton import ALIASED, CONSTANT, Path, find_aliased, invert, name_columns
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

_LONGEST_STEP = 2.0  # standard deviations
_ALIKE = (0.30, 0.45)  # ratio of decrements of a coefficient that runs away: 1 / e
_GROWTH = 1.3  # of its standard error in an exchange: the square root of e
_LONG_STEPS = 6  # longest steps in a row: a log hazard ratio of 12 for one standard deviation


class CoxPath:
    """Coefficients on their way to the maximum of a penalised partial likelihood.

    The caller asks for gradient, information and value at `beta` and hands them to `read`, until it returns True.

    Attributes:
        beta: (p,) coefficients at which the next answer is needed; after the end the estimate. Zero for columns left out.
        left_out: Columns that were left out, with the reason.
        information: (m, m) information without penalty of the columns that stay, at the last answer.
        value: Log-likelihood without penalty at the last answer.
        null: Log-likelihood at zero coefficients, if it was asked for of the same sites.
        names: Names of the columns.
        ridge: The penalty.
    """

    def __init__(self, names: Sequence[str], ridge: float, start: Sequence[float] | Array = ()) -> None:
        self.names = tuple(names)
        self.ridge = ridge
        self.beta: Array = np.array(start, float) if len(start) else np.zeros(len(self.names))
        self.left_out: dict[str, str] = {}
        self.information: Array = np.zeros((0, 0))
        self.value = 0.0
        self.forget()

    def forget(self) -> None:
        """Forget earlier answers: they are sums over other sites."""
        self._path: Path | None = None
        self._decrements: list[float] = []
        self._errors: list[Array] = []
        self._long_steps = 0
        self.null: float | None = None

    @property
    def kept(self) -> Array:
        """Positions of the columns that stay."""
        return np.array([j for j, name in enumerate(self.names) if name not in self.left_out], int)

    def read(self, u: Array, h: Array, value: float, events: float, *, is_new_roster: bool = False) -> bool:
        """Read the answer at `beta`, and move `beta` on.

        Args:
            u: (p,) gradient.
            h: (p, p) information.
            value: Log-likelihood.
            events: Number of events; a column whose information is below 1e-9 of it is constant.
            is_new_roster: True if the answer is a sum over other sites than the one before.

        Returns:
            True at the end: `beta` is the estimate.

        Raises:
            BadInput: The likelihood has no maximum (separation), or all columns are constant.
            RunFailed: No step raises the likelihood.
        """
        if is_new_roster:
            self.forget()
        if not self.beta.any():
            self.null = value
        if self._path is None:
            self._leave_out(h, events)
            penalty = np.full(len(self.kept), self.ridge)
            self._path = Path(self.beta[self.kept], penalty, longest=_LONGEST_STEP)
        path, kept = self._path, self.kept
        path.advance(u[kept], h[np.ix_(kept, kept)], value)
        self.value, self.information = path.value, path.information
        self.beta = np.zeros(len(self.names))
        self.beta[kept] = path.beta
        if not path.has_converged and not self.ridge:
            self._check_separation(path)
        return path.has_converged

    def _leave_out(self, h: Array, events: float) -> None:
        """Leave out columns that are constant or combinations of columns before them; a penalty makes that unnecessary."""
        self.left_out = {}
        if self.ridge:
            return
        least = np.maximum(np.diag(h), max(events, 1.0))
        for j, reason in find_aliased(h, least, has_intercept=False).items():
            self.left_out[self.names[j]] = CONSTANT if h[j, j] <= ALIASED * least[j] else reason
            self.beta[j] = 0.0
        if len(self.left_out) == len(self.names):
            raise BadInput(
                "every input of the Cox model is constant within the risk sets, so there is nothing to estimate: choose others",
                code="constant-inputs",
            )

    def _check_separation(self, path: Path) -> None:
        """Stop if a coefficient grows without end.

        Each exchange then divides its information and the decrement by e. If inputs put all events in order, steps are as long as
        they may be from the first to the last.
        """
        is_long = np.abs(path.step) >= 0.99 * _LONGEST_STEP
        self._long_steps = self._long_steps + 1 if is_long.any() else 0
        if self._long_steps >= _LONG_STEPS:
            self._refuse(is_long)
        self._decrements.append(path.decrement)
        self._errors.append(np.sqrt(np.diag(invert(path.information))))
        last = np.array(self._decrements[-4:])
        if len(last) < 4 or not ((last[1:] > _ALIKE[0] * last[:-1]) & (last[1:] < _ALIKE[1] * last[:-1])).all():
            return
        grows = self._errors[-1] > _GROWTH * self._errors[-2]
        if grows.any():
            self._refuse(grows)

    def _refuse(self, columns: Array) -> None:
        """Raise the error about columns (m,) of bool that separate events."""
        names = [self.names[j] for j in self.kept[columns]]
        raise BadInput(
            f"events are separated by {name_columns(names)}: hazard ratios grow without end. Set a ridge penalty, merge "
            "the category with another, or leave the column out",
            code="outcome-separated",
        )
