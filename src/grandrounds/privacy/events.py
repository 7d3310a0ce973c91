"""Releases as plain values for the accountant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan_types import Plan

PURE = ("laplace", "exponential", "randomised_response")
KINDS = ("gaussian", "skellam", *PURE, "sampled_gaussian", "raw")
UNITS = ("patient", "site")
ROWS = ("training", "validation", "test")
TRUST = ("local", "secure aggregation", "trusted server")


def protects_patients(plan: Plan) -> bool:
    """Tell whether a plan protects patients by its patient column, whose rows then count together.

    Otherwise each row counts as a patient, or sites are protected.
    """
    return plan.privacy.unit == "patient"


@dataclass(frozen=True)
class Event:
    """One release of data about patients (or sites), with the parameters that the accountant needs.

    Attributes:
        kind: Mechanism. A "raw" release has no noise, and no epsilon covers it.
        what: Name of the released data.
        count: Number of releases. k draws of `exponential_top_k(epsilon=e)` are `Event("exponential", ..., count=k,
            epsilon=e / k)`.
        sigma: Standard deviation of the noise over the sensitivity (gaussian, sampled_gaussian).
        rate: Probability that a patient is in the release (sampled_gaussian).
        epsilon: Of one pure release (laplace, exponential, randomised_response).
        rho: Its zCDP if that is a better bound; required for skellam.
        unit: Protected unit, patient or site.
        of: Split of the rows. Training, validation and test rows belong to different patients, so their budgets are
            separate.
        trust: The party that adds the noise.
    """

    kind: str
    what: str
    count: int = 1
    sigma: float = 0.0
    rate: float = 1.0
    epsilon: float = 0.0
    rho: float | None = None
    unit: str = "patient"
    of: str = "training"
    trust: str = "local"

    def __post_init__(self) -> None:
        for name, allowed in (("kind", KINDS), ("unit", UNITS), ("of", ROWS), ("trust", TRUST)):
            if getattr(self, name) not in allowed:
                raise BadInput(
                    f"{name} '{getattr(self, name)}' of a release is unknown: {nearest(str(getattr(self, name)), allowed)}",
                    code="unknown-event-kind",
                )
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise BadInput(
                f"{self._named} has count = {self.count}: it must be an integer of 1 or more",
                code="bad-privacy-parameter",
            )
        if self.rho is not None and not (math.isfinite(self.rho) and self.rho >= 0):
            raise BadInput(
                f"{self._named} has rho = {self.rho}: it must be a finite number of 0 or more",
                code="bad-privacy-parameter",
            )
        if self.kind in PURE and not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise BadInput(
                f"{self._named} has epsilon = {self.epsilon}: it must be a finite number above 0", code="bad-epsilon"
            )
        if self.kind in ("gaussian", "sampled_gaussian") and not (math.isfinite(self.sigma) and self.sigma > 0):
            raise BadInput(
                f"{self._named} has sigma = {self.sigma}: it must be a finite number above 0",
                code="bad-privacy-parameter",
            )
        if self.kind == "skellam" and self.rho is None:
            raise BadInput(
                f"{self._named} has no rho: compute it with grandrounds.privacy.accounting.skellam_rho",
                code="missing-rho",
            )
        if not 0 < self.rate <= 1:
            raise BadInput(
                f"{self._named} has rate = {self.rate}: it must be above 0 and at most 1", code="bad-sampling-rate"
            )
        if self.rate != 1 and self.kind != "sampled_gaussian":
            raise BadInput(
                f"{self._named} has rate = {self.rate}: only sampled_gaussian benefits from sampling; remove the rate",
                code="bad-sampling-rate",
            )

    @property
    def _named(self) -> str:
        return f"release '{self.what}' ({self.kind})"

    def to_dict(self) -> dict[str, object]:
        """Return plain numbers and strings, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: object) -> Event:
        """Restore an event from `to_dict`.

        Raises:
            BadInput: The values have another form.
        """
        names = {f.name for f in fields(cls)}
        if not isinstance(found, Mapping) or not {"kind", "what"} <= set(found) <= names:
            raise BadInput(
                f"a stored release is damaged: it must have kind and what, and may have {', '.join(sorted(names))}",
                code="damaged-event",
            )
        values: dict[str, Any] = dict(found)
        for name in ("kind", "what", "unit", "of", "trust"):
            if not isinstance(values.get(name, ""), str):
                raise BadInput(f"{name} of a release must be a string", code="damaged-event")
        for name in ("sigma", "rate", "epsilon", "rho"):
            value = values.get(name)
            if value is None and name in values and name != "rho":
                raise BadInput(f"{name} of a release must be a number", code="damaged-event")
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise BadInput(f"{name} of a release must be a number", code="damaged-event")
                values[name] = float(value)
        return cls(**values)
