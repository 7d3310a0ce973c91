"""Newton's method for Cox regression, one exchange at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

_CONVERGED = 1e-16
_FLOOR = 1e-8
_LONGEST_STEP = 2.0
_HALVINGS = 10
_ALIASED = 1e-9


class NewtonPath:
    """Coefficients on their way to the maximum of a penalised log-likelihood.

    The caller asks for gradient, information and value at `beta` and hands them to `read`, until it returns True.

    Attributes:
        beta: (p,) coefficients at which the next answer is needed; after the end the estimate. Zero for columns left out.
        left_out: Columns that were left out, with the reason.
        information: (m, m) information without penalty of the columns that stay, at the last answer.
        value: Log-likelihood without penalty at the last answer.
        null: Log-likelihood at zero coefficients, where it is known.
        decrement: Newton decrement U'H^-1 U at the last answer.
        names: Names of the columns.
        ridge: The penalty.
    """

    def __init__(self, names: Sequence[str], ridge: float, start: Sequence[float] = ()) -> None:
        self.names = tuple(names)
        self.ridge = ridge
        self.beta: Array = np.array(start, float) if len(start) else np.zeros(len(self.names))
        self.left_out: dict[str, str] = {}
        self.information: Array = np.zeros((0, 0))
        self.value = 0.0
        self.null: float | None = None
        self.decrement = np.inf
        self.forget()

    def forget(self) -> None:
        """Forget earlier answers: they are sums over other sites."""
        self._best: tuple[Array, float, Array] | None = None  # coefficients, penalised value, step from there
        self._halvings = 0
        self._ratios: list[float] = []
        self._errors: list[Array] = []
        self.decrement = np.inf
        self.null = None

    @property
    def kept(self) -> Array:
        """Positions of the columns that stay."""
        return np.array([j for j, name in enumerate(self.names) if name not in self.left_out], int)

    def read(self, u: Array, h: Array, value: float, scale: float, *, is_new_roster: bool = False) -> bool:
        """Read the answer at `beta`, and move `beta` on.

        Args:
            u: (p,) gradient.
            h: (p, p) information.
            value: Log-likelihood.
            scale: Number of events; a column whose information is below 1e-9 of it is constant.
            is_new_roster: True if the answer is a sum over other sites than the one before.

        Returns:
            True at the end: `beta` is the estimate.

        Raises:
            BadInput: The likelihood has no maximum (separation), or no step raises it.
        """
        if is_new_roster:
            self.forget()
        if self._best is None and not self.ridge:
            self._leave_out(h, scale)
        if not self.beta.any():
            self.null = value
        kept = self.kept
        penalised = value - 0.5 * self.ridge * float(self.beta @ self.beta)
        if self._best is not None and not penalised >= self._best[1] - 1e-9 * (1 + abs(self._best[1])):
            return self._halve()
        self._halvings = 0
        self.value, self.information = value, h[np.ix_(kept, kept)]
        full = self.information + self.ridge * np.eye(len(kept))
        gradient = (u - self.ridge * self.beta)[kept]
        step = np.zeros(len(self.names))
        try:
            inverse = np.linalg.inv(full)
        except np.linalg.LinAlgError:
            raise BadInput(
                "the information matrix of the Cox model cannot be inverted; set a ridge penalty", code="singular"
            ) from None
        step[kept] = inverse @ gradient
        before, self.decrement = self.decrement, float(gradient @ step[kept])
        self._check_separation(step, np.sqrt(np.abs(np.diag(inverse))), before)
        step *= min(1.0, _LONGEST_STEP / max(np.abs(step).max(), 1e-300))
        self._best = (self.beta, penalised, step)
        self.beta = self.beta + step
        return abs(self.decrement) < _CONVERGED or (
            abs(self.decrement) < _FLOOR and not abs(self.decrement) < abs(before) / 100 and np.isfinite(before)
        )

    def _halve(self) -> bool:
        """Go back to half of the last step."""
        assert self._best is not None
        self._halvings += 1
        start, value, step = self._best
        if self.decrement < _FLOOR:  # the step is below rounding: the place before was the maximum
            self.beta = start + step
            return True
        if self._halvings > _HALVINGS:
            raise BadInput(
                "the Cox model diverged: no step raises the likelihood after 10 halvings; set a ridge penalty",
                code="diverged",
            )
        self._best = (start, value, step / 2)
        self.beta = start + step / 2
        return False

    def _leave_out(self, h: Array, scale: float) -> None:
        """Leave out columns that are constant or combinations of columns before them (pivoted Cholesky, in order)."""
        self.left_out = {}
        diagonal = np.diag(h).copy()
        chosen: list[int] = []
        factor = np.zeros((len(h), len(h)))
        for j, name in enumerate(self.names):
            if not diagonal[j] > _ALIASED * max(scale, 1.0):
                self.left_out[name] = "constant"
                continue
            unit = np.sqrt(diagonal[j])
            k = len(chosen)
            column = np.zeros(k)
            for i, other in enumerate(chosen):  # forward substitution with the rows so far
                value = h[j, other] / (unit * np.sqrt(diagonal[other])) - factor[i, :i] @ column[:i]
                column[i] = value / factor[i, i]
            remainder = 1.0 - float(column @ column)
            if remainder < _ALIASED:
                self.left_out[name] = "is a combination of columns before it"
                continue
            factor[k, :k], factor[k, k] = column, np.sqrt(remainder)
            chosen.append(j)
        if not chosen:
            raise BadInput(
                "every input of the Cox model is constant within the hospitals; there is nothing to estimate",
                code="constant",
            )
        for name in self.left_out:
            self.beta[self.names.index(name)] = 0.0

    def _check_separation(self, step: Array, errors: Array, before: float) -> None:
        """Stop where a coefficient grows without end: each exchange then divides its information and the decrement by e."""
        self._ratios.append(self.decrement / before if before > 0 else 0.0)
        self._errors.append(errors)
        if self.ridge or len(self._ratios) < 4 or not all(0.25 <= r <= 0.5 for r in self._ratios[-3:]):
            return
        growth = self._errors[-1] / self._errors[-2]
        runaway = [self.names[j] for j, g in zip(self.kept, growth, strict=True) if g > 1.3]
        if runaway:
            raise BadInput(
                f"the hazard ratio of {', '.join(runaway)} is infinite (separation: all events, or none, on one side); "
                "set a ridge penalty, merge the category or leave the column out",
                code="separated",
            )
