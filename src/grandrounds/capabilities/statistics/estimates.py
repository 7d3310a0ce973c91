"""Estimates with standard errors: the result of a regression, in the units in which it was fitted or in original units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grandrounds.core.arrays import Array

INTERCEPT = "(intercept)"

PATIENTS_APART = (
    "errors by patient: a patient with rows at two hospitals counts as two, because hospitals do not compare their patients"
)
"""Note of a fit with errors by patient."""

_LEVEL = 0.95


@dataclass(frozen=True)
class Coefficient:
    """One coefficient.

    Attributes:
        name: Name of the input.
        estimate: The estimate; None for a column that was left out.
        error: Standard error; None without one.
        statistic: z or t; None without a test.
        p: Two-sided p-value; None without a test (penalised fits have none).
        low: Lower end of the 95% confidence interval.
        high: Upper end.
        reason: Why a column was left out: "constant", "no rows", "is a combination of columns before it"; "" otherwise.
    """

    name: str
    estimate: float | None
    error: float | None = None
    statistic: float | None = None
    p: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Estimates:
    """Coefficients of one fit, with their covariance.

    Attributes:
        model: "logistic", "linear", "poisson" or "cox".
        coefficients: In the order of the inputs; the intercept, if there is one, comes first.
        covariance: (m, m) over the coefficients that were estimated, in their order.
        errors: How standard errors were computed: "model", "rows", "patients", "hospitals" or "penalised".
        degrees: Degrees of freedom of t; None: normal.
        facts: Further numbers and texts, such as n, events, log_likelihood, deviance, aic, exchanges, ridge, intercept, tau2,
            ties, strata, separated. Plain JSON values.
        notes: Sentences for people.
    """

    model: str
    coefficients: tuple[Coefficient, ...]
    covariance: tuple[tuple[float, ...], ...]
    errors: str = "model"
    degrees: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def build(
        cls,
        model: str,
        names: Sequence[str],
        beta: Array,
        covariance: Array,
        *,
        left_out: Mapping[str, str] | None = None,
        errors: str = "model",
        degrees: float | None = None,
        tests: bool = True,
        facts: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> Estimates:
        """Make the table of coefficients from estimates and their covariance.

        Args:
            model: Name of the model.
            names: Names of all columns, in order.
            beta: (m,) estimates of the columns that were not left out, in order.
            covariance: (m, m).
            left_out: Columns that were left out, with the reason.
            errors: How errors were computed.
            degrees: Degrees of freedom of t; None: normal.
            tests: False for penalised fits: no statistic and no p-value.
            facts: Further facts.
            notes: Sentences for people.

        Returns:
            The estimates.
        """
        left_out = left_out or {}
        values = dict(
            zip(
                (n for n in names if n not in left_out),
                zip(beta, np.sqrt(np.diag(covariance)), strict=True),
                strict=True,
            )
        )
        rows = [
            Coefficient(name, None, reason=left_out[name])
            if name in left_out
            else _coefficient(name, float(values[name][0]), float(values[name][1]), degrees, tests=tests)
            for name in names
        ]
        return cls(
            model,
            tuple(rows),
            tuple(map(tuple, np.asarray(covariance, float).tolist())),
            errors,
            degrees,
            dict(facts or {}),
            tuple(notes),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients that were estimated."""
        return tuple(c.name for c in self.coefficients if c.estimate is not None)

    @property
    def beta(self) -> Array:
        """(m,) the estimates."""
        return np.array([c.estimate for c in self.coefficients if c.estimate is not None])

    def transform(self, matrix: Array) -> Estimates:
        """Return the estimates A b with covariance A V A', under the same names: for example in original units.

        Args:
            matrix: A, (m, m).

        Returns:
            The transformed estimates.
        """
        return Estimates.build(
            self.model,
            [c.name for c in self.coefficients],
            matrix @ self.beta,
            matrix @ np.asarray(self.covariance, float).reshape(len(self.names), -1) @ matrix.T,
            left_out={c.name: c.reason for c in self.coefficients if c.estimate is None},
            errors=self.errors,
            degrees=self.degrees,
            tests=any(c.p is not None for c in self.coefficients),
            facts=self.facts,
            notes=self.notes,
        )

    def with_facts(self, **facts: Any) -> Estimates:
        """Return the estimates with further facts."""
        return replace(self, facts={**self.facts, **facts})

    def to_dict(self) -> dict[str, Any]:
        """Return the estimates as JSON values."""
        return {
            "model": self.model,
            "errors": self.errors,
            "degrees": self.degrees,
            "coefficients": [vars(c) | {} for c in self.coefficients],
            "covariance": [list(row) for row in self.covariance],
            "facts": dict(self.facts),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Estimates:
        """Read what `to_dict` wrote."""
        return cls(
            str(values["model"]),
            tuple(Coefficient(**c) for c in values["coefficients"]),
            tuple(tuple(map(float, row)) for row in values["covariance"]),
            str(values["errors"]),
            values["degrees"],
            dict(values["facts"]),
            tuple(values["notes"]),
        )


def _coefficient(name: str, estimate: float, error: float, degrees: float | None, *, tests: bool) -> Coefficient:
    """Compute the test and the interval of one coefficient."""
    from scipy import special

    tail = (1 + _LEVEL) / 2
    wide = float(special.ndtri(tail) if degrees is None else special.stdtrit(degrees, tail)) * error
    if not tests or error == 0:
        return Coefficient(name, estimate, error, None, None, estimate - wide, estimate + wide)
    statistic = estimate / error
    below = special.ndtr(-abs(statistic)) if degrees is None else special.stdtr(degrees, -abs(statistic))
    return Coefficient(name, estimate, error, statistic, float(2 * below), estimate - wide, estimate + wide)
