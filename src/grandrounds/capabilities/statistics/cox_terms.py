"""Terms of a Cox regression that all sites know, and what all its fits say about events, sites that leave, and exchanges."""

from __future__ import annotations

from dataclasses import dataclass

from grandrounds.capabilities.statistics.partial_likelihood import TIES
from grandrounds.capabilities.statistics.question import Total
from grandrounds.core.errors import BadInput, RunFailed

BASELINES = ("strata", "grid", "days")
ERRORS = ("model", "rows", "patients", "hospitals")
PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0)
"""Penalties that cross-validation compares by default."""

FEWEST_EVENTS = 5
"""Events over all sites below which no model is fitted."""


@dataclass(frozen=True)
class CoxTerms:
    """Terms of a Cox regression.

    Attributes:
        names: Names of the inputs, in the order of the columns of x.
        ties: "efron" or "breslow".
        baseline: "strata": each hospital has its own baseline hazard and no time leaves it. "grid": one baseline for all, on
            intervals of time with at least `least` events. "days": one baseline for all, on single days; rows of single
            patients can then be read from the sums, so policies have to allow it.
        ridge: Penalty 0.5 ridge sum b^2 on the total log-likelihood, b in the units of x; "cv": chosen among `penalties` by
            cross-validation.
        penalties: Penalties that "cv" compares.
        folds: Folds of the cross-validation.
        errors: Standard errors from the "model", or robust: by "rows", "patients" or "hospitals".
        intervals: Most intervals of a "grid".
        unit: Length of a day in the units of the follow-up time, for "days"; events move to the start of their day.
        least: Fewest events in an interval of a "grid", and fewest rows without event over all sites.
        exchanges: Most exchanges before a fit that has not converged ends with an error.
        start: Coefficients to start from, one for each name; empty: zeros.
    """

    names: tuple[str, ...]
    ties: str = "efron"
    baseline: str = "strata"
    ridge: float | str = 0.0
    penalties: tuple[float, ...] = PENALTIES
    folds: int = 5
    errors: str = "model"
    intervals: int = 100
    unit: float = 1.0
    least: int = 5
    exchanges: int = 40
    start: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, value, known in (
            ("ties", self.ties, TIES),
            ("baseline", self.baseline, BASELINES),
            ("errors", self.errors, ERRORS),
        ):
            if value not in known:
                raise BadInput(f"Cox: {name} '{value}' is not one of {', '.join(known)}", code="bad-setting")
        if isinstance(self.ridge, str):
            if self.ridge != "cv":
                raise BadInput(f"Cox: ridge '{self.ridge}' is neither a number nor 'cv'", code="bad-setting")
            if not self.penalties or min(self.penalties) <= 0:
                raise BadInput("Cox: the penalties to compare must be positive numbers", code="bad-setting")
            if self.folds < 2:
                raise BadInput(f"Cox: {self.folds} folds; cross-validation needs at least 2", code="bad-setting")
        elif not self.ridge >= 0:
            raise BadInput(f"Cox: ridge is {self.ridge}; it must be 0 or more", code="bad-setting")
        if not self.names:
            raise BadInput("Cox: there are no inputs; name at least one feature", code="bad-setting")
        if self.start and len(self.start) != len(self.names):
            raise BadInput(
                f"Cox: {len(self.start)} starting values for {len(self.names)} inputs; give one for each",
                code="bad-setting",
            )
        if self.intervals < 1 or self.least < 1 or self.exchanges < 1 or not self.unit > 0:
            raise BadInput(
                "Cox: intervals, least and exchanges must be at least 1, and unit above 0", code="bad-setting"
            )


def check_events(total: Total) -> None:
    """Refuse a fit with too few events over all sites."""
    events = round(float(total["events"]))
    if events < FEWEST_EVENTS:
        raise BadInput(
            f"there are {events} events over all sites; Cox regression needs at least {FEWEST_EVENTS}",
            code="few-events",
        )


def note_roster(total: Total) -> list[str]:
    """Return the note about a site that left during the fit."""
    if not total.is_new_roster:
        return []
    return [
        f"A site left during the fit; it continued with the other {len(total.sites)} sites from the coefficients reached so far, "
        "and earlier sums were not used again."
    ]


def not_converged(terms: CoxTerms) -> RunFailed:
    """Return the error of a fit that has used up its exchanges."""
    return RunFailed(
        f"the Cox model did not converge in {terms.exchanges} exchanges; set a ridge penalty or allow more exchanges",
        code="not-converged",
    )
