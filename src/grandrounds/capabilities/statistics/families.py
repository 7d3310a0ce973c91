"""Families of generalised linear models with their canonical links: logistic, linear and Poisson regression."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput, nearest

_STEEPEST = 300.0  # of the exponent of a rate: a far step must give a finite number, which the log-likelihood rejects


@dataclass(frozen=True)
class Family:
    """A distribution of the outcome with its canonical link. This one is linear regression."""

    name: str = "linear"
    is_scaled: bool = True  # errors contain an estimated residual variance

    def predict(self, eta: Array) -> tuple[Array, Array]:
        """Compute the mean and its derivative by the linear predictor.

        Args:
            eta: Linear predictor, any shape.

        Returns:
            Mean and derivative, in the shape of `eta`.
        """
        return eta, np.ones_like(eta)

    def log_likelihood(self, y: Array, eta: Array) -> Array:
        """Compute each row's log-likelihood; for linear regression, minus half the squared residual."""
        return np.asarray(-0.5 * np.square(y - eta))

    def start(self, y: Array, mean: float) -> tuple[Array, Array]:
        """Choose the mean and the linear predictor at which iteratively reweighted least squares begins.

        Args:
            y: Outcome.
            mean: Mean outcome of all rows.

        Returns:
            Mean and linear predictor of each row.
        """
        return y, y

    def find_bad_rows(self, y: Array) -> Array:
        """Return True for each row with an outcome that the family cannot have."""
        return ~np.isfinite(y)

    def intercept(self, mean: float) -> float:
        """Return the linear predictor at which the mean outcome is `mean`."""
        return mean


@dataclass(frozen=True)
class Logistic(Family):
    """Logistic regression of an outcome that is 0 or 1."""

    name: str = "logistic"
    is_scaled: bool = False

    def predict(self, eta: Array) -> tuple[Array, Array]:
        from scipy import special

        mu = special.expit(eta)
        return mu, mu * (1 - mu)

    def log_likelihood(self, y: Array, eta: Array) -> Array:
        return np.asarray(y * eta - np.logaddexp(0.0, eta))

    def start(self, y: Array, mean: float) -> tuple[Array, Array]:
        from scipy import special

        mu = (y + 0.5) / 2
        return mu, special.logit(mu)

    def find_bad_rows(self, y: Array) -> Array:
        return np.asarray((y != 0) & (y != 1))

    def intercept(self, mean: float) -> float:
        from scipy import special

        return float(special.logit(mean))


@dataclass(frozen=True)
class Poisson(Family):
    """Poisson regression of a count."""

    name: str = "poisson"
    is_scaled: bool = False

    def predict(self, eta: Array) -> tuple[Array, Array]:
        mu = np.exp(np.minimum(eta, _STEEPEST))
        return mu, mu

    def log_likelihood(self, y: Array, eta: Array) -> Array:
        from scipy import special

        return np.asarray(y * eta - self.predict(eta)[0] - special.gammaln(y + 1))

    def start(self, y: Array, mean: float) -> tuple[Array, Array]:
        mu = (y + mean) / 2
        return mu, np.log(mu)

    def find_bad_rows(self, y: Array) -> Array:
        return ~(np.isfinite(y) & (y >= 0))

    def intercept(self, mean: float) -> float:
        return float(np.log(mean))


FAMILIES: dict[str, Family] = {family.name: family for family in (Logistic(), Family(), Poisson())}


def find_family(name: str) -> Family:
    """Return a family by name.

    Args:
        name: "logistic", "linear" or "poisson".

    Returns:
        The family.

    Raises:
        BadInput: There is no such family.
    """
    if name not in FAMILIES:
        raise BadInput(
            f"there is no regression family '{name}'; {nearest(name, FAMILIES)}. Use one of these",
            code="unknown-family",
        )
    return FAMILIES[name]
